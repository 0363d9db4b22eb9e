"""MLDG: a step that also serves clients that it does not see, one exchange ahead."""

from dataclasses import replace
from typing import Any

from unseen.core import Exchange, Method, Replace, Slot
from unseen.methods.base import gradient_method, trained, zeros
from unseen.methods.gradient.mldg import STEP, Looks, MetaMean, Split, Tested
from unseen.methods.options import options_from, picked
from unseen.methods.recipe import Training
from unseen.ranges import Positive


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
