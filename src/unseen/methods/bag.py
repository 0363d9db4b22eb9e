"""Bags: every site fits its own model once, and the predictions are averaged."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from unseen.core import (
    Client,
    Exchange,
    Inbox,
    Memories,
    Memory,
    Method,
    Model,
    Reply,
    RuleState,
    Slot,
    Turn,
    WithState,
)
from unseen.core.exchange import Blueprint
from unseen.core.metrics.evaluation import plain
from unseen.core.replies import finished
from unseen.core.round import Backend, play, start
from unseen.core.rows import DenseRows
from unseen.core.types import Table
from unseen.data.networks.mixture import Mixture
from unseen.methods.base import TRAIN, cited
from unseen.methods.combine import Collect, Weights
from unseen.methods.recipe import Training
from unseen.methods.together import check_member


def bag_of(compose: Callable[[str, Training], Method]) -> Callable[..., Method]:
    """Return the method `bag`, whose members are read by `compose`."""

    def bag(
        training: Training,
        *,
        of: str = "boost(trees=60)",
        weights: Weights = "examples",
    ) -> Method:
        """Let every site fit its own model once, and predict by the mean of probabilities.

            p(x) = Σ_k w_k p_k(x),   w_k = n_k / Σ_j n_j  or  1/K

        One message, no rounds: a site plays the method `of` with itself as the only client, for as
        many rounds as the study has or the method takes, and sends the model. Everybody receives
        every site's model in the clear, so masks and encryption refuse it: the splits of a tree are
        values of the site's rows, and its leaves are means of a few of them.

        Args:
            training: The recipe.
            of: The expression of the method that each site plays; scikit-learn's estimators are
                `trees` and `trees(kind='forest')`.
            weights: w.

        Departs from:
            Breiman, who fits to bootstrap samples of one learning set and weighs all fits alike:
            here each is of a site's own rows, and w follows their number by default.
        """
        member = replace(compose(of, training), gather=None)  # a site has nothing to pool
        check_member(member, f"bag(of={of!r})")
        return bagged(member, weights)

    return bag


def bagged(member: Method, weights: Weights) -> Method:
    """Return the bag of the models that sites fit by a method."""

    def network(blueprint: Blueprint) -> nn.Module:
        own = replace(blueprint, clients=1, network=blueprint.another(0))
        first = member.adapt(own) if member.adapt is not None else own.network
        copies = [deepcopy(first) for _ in range(blueprint.clients - 1)]
        return Mixture([first, *copies], blueprint.classes is None)

    def exchange(local: Alone, slots: Mapping[str, Slot]) -> Exchange:
        return Exchange(TRAIN, local, slots, rounds=(0, 0), who="all")

    def sized(method: Method, model: Model, blueprint: Blueprint) -> Method:
        own = replace(blueprint, clients=1)
        first = model.part("members.0")
        alone = member.completed(first, own)
        local = Alone(alone, alone.rounds or blueprint.rounds)
        slots = {"model": site_models(model.layout.span("members"), first.layout.size)}
        if size := first.buffer_layout.size:
            slots["buffers"] = site_models(model.buffer_layout.span("members"), size)
        if weights == "examples":
            part = model.layout.span("weights")
            slots["weights"] = Slot(
                SiteRows(1), apply=Shares(), sends="value", to="model", part=part
            )
        return replace(method, exchanges=(exchange(local, slots),))

    def unfit(blueprint: Blueprint) -> str:
        reason = member.unfit(replace(blueprint, clients=1))
        return f"cannot have sites play {member.name}, which {reason}" if reason else ""

    return Method(
        "bag", (exchange(Alone(member, 1), {"model": site_models(None, 0)}),),
        (cited("breiman1996bagging"), *member.references), plain,
        adapt=network, sized=sized, rounds=1,
        shares=("every site's own model, with all other sites",),  # the site's rounds stay there
        asks=member.asks, fits=f"{member.fits} of each site" if member.fits else "", unfit=unfit,
    )  # fmt: skip


def site_models(part: tuple[int, int] | None, size: int) -> Slot:
    """Return the slot whose rows [size] are put next to one another in a part of an entry."""
    return Slot(SiteRows(size), apply=Place(size), sends="value", part=part)


@dataclass(frozen=True)
class SiteRows(Collect):
    """Hands on the rows [size] of all sites.

    Attributes:
        size: The numbers of a row.
    """

    size: int

    def row_shape(self, entry: Tensor) -> torch.Size:
        return torch.Size((self.size,))


@dataclass(frozen=True)
class Place:
    """Puts the row of the client at place i of the roster at i · size of the entry.

    Attributes:
        size: The numbers of a row.
    """

    size: int

    def __call__(self, old: Tensor, new: Tensor, state: RuleState, table: Table) -> WithState:
        entry = old.clone().view(-1, self.size)
        entry[table["client"].long()] = new.to(entry)
        return entry.flatten(), state


@dataclass(frozen=True)
class Shares:
    """Sets the weights [K] to the shares of examples; sites that are away have none."""

    def __call__(self, old: Tensor, new: Tensor, state: RuleState, table: Table) -> WithState:
        weights = torch.zeros_like(old)
        weights[table["client"].long()] = (new[:, 0] / new.sum()).to(old)
        return weights, state


@dataclass(frozen=True)
class Alone:
    """A site's own fit: the method, played with this site as its only client.

    Attributes:
        method: What it plays.
        rounds: For how many rounds.
    """

    method: Method
    rounds: int

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        """Return the fitted model, and the number of examples that its weight is made of."""
        own, names = model.part("members.0"), [client.name]
        state = start(self.method, own, names, turn.seed)
        engine = Here(own, {client.name: client})
        state, outcomes = play(self.method, state, engine, names, self.rounds)
        n = len(client.split("train"))
        tables = [outcome.table for outcome in outcomes if "loss" in outcome.table]
        rows = {
            "model": state.inbox["model"],
            "buffers": state.inbox["buffers"],
            "weights": own.vector.new_tensor([float(n)]),
        }
        steps = sum(float(table["steps"].sum()) for table in tables if "steps" in table)
        loss = float(tables[-1]["loss"].mean()) if tables else 0.0
        return Reply(rows, {"examples": n, "steps": steps, "loss": loss}), memory


class Here(Backend):
    """One client where it is, whose rows nobody else sees."""

    def __init__(self, model: Model, clients: Mapping[str, Client]) -> None:
        self.model, self.clients, self.memories = model, clients, Memories()

    def map(
        self, exchange: Exchange, inbox: Inbox, clients: Sequence[str], turn: Turn
    ) -> list[Reply]:
        (name,) = clients
        vector, buffers = inbox["model"].clone(), inbox["buffers"].clone()
        self.model.bind(vector, buffers)
        label, own = (turn.round, turn.order), replace(turn, client=name)
        memory: Memory = self.memories.before(name, label)
        reply, memory = exchange.local(self.model, inbox, self.clients[name], memory, own)
        self.memories.write(name, label, memory)
        return [finished(reply, exchange, inbox, {"model": vector, "buffers": buffers})]

    def rows(self, slot: str, replies: Sequence[Reply], reference: Tensor | None) -> DenseRows:
        return DenseRows(torch.stack([reply.rows[slot] for reply in replies]), reference)
