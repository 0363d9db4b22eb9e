"""MLDG: a step that also serves clients that it does not see, one exchange ahead."""

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch

from unseen.core import (
    Client,
    Draws,
    Exchange,
    Inbox,
    Layout,
    Local,
    Memory,
    Method,
    Model,
    Replace,
    Reply,
    RuleState,
    Slot,
    Table,
    Turn,
    Weighted,
    WithState,
)
from unseen.core.parts import Wrapper
from unseen.methods.base import gradient_method, trained, zeros
from unseen.methods.combine import Mean
from unseen.methods.options import options_from, picked
from unseen.methods.recipe import Training
from unseen.ranges import Checked, Count, NotNegative, Positive, log

#: The slot of the first exchange, and the inbox entry: minus the training clients' mean gradient.
STEP = "meta step"


@dataclass(frozen=True)
class Split(Checked, named="mldg"):
    """Which clients test in a round: `test` of the roster of N, in turn.

    Attributes:
        test: m; in round r those at places r m, ..., r m + m − 1 of the roster, from the start
            again after the last. DomainBed draws 2.
    """

    test: Count = 1

    def tests(self, place: int, round: int, N: int) -> bool:
        """Return whether the client at a place of the roster tests; never all of them do."""
        m = min(self.test, N - 1)
        return m > 0 and place >= 0 and (place - round * m) % N < m


@dataclass(frozen=True)
class MetaMean(Weighted, named="mldg"):
    """The mean of u_i over those who train, plus β times the mean over those who test.

    Attributes:
        split: who tests.
        beta: β; 0 leaves the second mean out.
        prior: what both means weigh by; the paper's are uniform.
    """

    averages: ClassVar[bool] = False

    split: Split = Split()
    beta: Annotated[NotNegative, log(0.1, 10)] = 1.0
    prior: Weighted = Mean("uniform")

    def own_state(self, K: int, P: int, layout: Layout | None) -> RuleState:
        return {"roster": torch.tensor(K)}

    def share(self, table: Table, state: RuleState, generator: Draws = None) -> WithState:
        places, N = table["client"].long().tolist(), int(state["roster"])
        r = round(float(table["progress"][0] * table["rounds"][0])) if "rounds" in table else 0
        test = torch.tensor([self.split.tests(p, r, N) for p in places], dtype=torch.float64)
        p = table["prior"]
        train, test = p * (1 - test), p * test
        weights = torch.zeros_like(p)
        for part, factor in ((train, 1.0), (test, self.beta)):
            weights += factor * part / part.sum() if bool(part.any()) else 0
        return weights, state


@dataclass(frozen=True)
class Looks(Wrapper):
    """The training clients' gradient in the first exchange, as minus its value; others send zeros.

    Attributes:
        inner: a local that sends one gradient as its row `model`.
        split: who tests.
    """

    inner: Local
    split: Split

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        row = torch.zeros_like(model.vector)
        if not self.split.tests(turn.index, turn.round, len(turn.roster)):
            reply, memory = self.inner(model, inbox, client, memory, turn)
            row = reply.rows["model"]
        return Reply({STEP: row}, {"examples": len(client.split("train"))}), memory


@dataclass(frozen=True)
class Tested(Wrapper):
    """Another local; where the client tests, it works at x + α s, s being the others' mean step.

    Attributes:
        inner: a local that sends one gradient.
        split: who tests.
        step: α.
    """

    inner: Local
    split: Split
    step: Positive

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        if self.split.tests(turn.index, turn.round, len(turn.roster)):
            model.vector.add_(inbox[STEP], alpha=self.step)
            inbox = {**inbox, "model": model.vector.clone()}
        return self.inner(model, inbox, client, memory, turn)


@options_from(Split, MetaMean, without=("split",))
def mldg(training: Training, *, step: Positive | None = None, **options: Any) -> Method:
    """Run FedSGD whose step lowers the loss of some clients also after a step for the others.

        g_S = mean over S of ∇F_i(x),   x' = x − α g_S,   g_V = mean over V of ∇F_i(x')
        x ← optimiser(x, g_S + β g_V)

    V: `test` clients of the roster, in turn, a round each; S: the others. The clients are the
    domains, of which the paper holds some out in each step.

    Args:
        training: The recipe; its optimiser is the server's.
        step: α; none for the optimiser's rate.
        **options: The other options of the page.

    Note:
        A round is two exchanges: in the first those in S send their gradient at x, in the second
        those in V theirs at x', where S send the same once more. Nothing but gradients leaves.
        Whatever the weights, x' is by the uniform mean.

    Departs from:
        the paper in that derivatives of second order are left out, as in DomainBed, and in that V
        is not drawn, but taken in turn; DomainBed has pairs of one training and one test domain.
    """
    split = Split(**picked(Split, options))
    rule = MetaMean(split, **picked(MetaMean, options))
    method = gradient_method("mldg", training, rule, "li2018mldg")
    exchange = trained(method)
    slot = Slot(MetaMean(split, beta=0), apply=Replace(), sends="value", start=zeros)
    look = Exchange("look", Looks(exchange.local, split), {STEP: slot})
    tested = Tested(exchange.local, split, step or training.optimiser.lr)
    changed = replace(exchange, local=tested)
    return replace(method, exchanges=(look, changed))
