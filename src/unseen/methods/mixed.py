"""Several federations and their mixture, weighed by how they predict sites left out."""

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from unseen.combine import Sum
from unseen.core import Exchange, Method, Model, Slot
from unseen.core.exchange import Blueprint
from unseen.core.metrics import plain
from unseen.errors import UnseenError
from unseen.exact.stacking import Judge, Judged, LeftOut, Weigh
from unseen.methods.base import cited
from unseen.methods.together import Federation, together
from unseen.models.mixture import Mixture


def stacked(name: str, methods: Sequence[Method], groups: int, shrink: float) -> Method:
    """Return the stack of these methods; of no groups, their mixture with equal weights."""

    def federations(G: int) -> tuple[list[Federation], list[Federation]]:
        whole = [Federation(m, f"members.{i}") for i, m in enumerate(methods)]
        folds = [
            Federation(m, f"others.{i * G + g}", fold=(g, G))
            for i, m in enumerate(methods)
            for g in range(G)
        ]
        return whole, folds

    def network(blueprint: Blueprint) -> nn.Module:
        whole, folds = federations(min(groups, blueprint.clients))
        nets = [[own(f, blueprint) for f in part] for part in (whole, folds)]
        return Mixture(nets[0], blueprint.classes is None, nets[1])

    def sized(method: Method, model: Model, blueprint: Blueprint) -> Method:
        G = min(groups, blueprint.clients)
        if groups and G < 2:
            raise UnseenError(
                f"{name} leaves source sites out in turn, and there is one only.",
                remedy="Train one of its members alone, or an ensemble of it.",
            )
        every = [f.sized(model, blueprint) for part in federations(G) for f in part]
        last = max(f.rounds or 1 for f in every)
        M, part = len(methods), model.layout.span("weights")
        weigh = Slot(Sum(M * M + M + 2), apply=Weigh(shrink), sends="value", to="model", part=part)
        judge = Slot(Sum(3), apply=Judge(), sends="value", to="model", part=part)
        end = (
            Exchange("stack", LeftOut(M, max(1, G)), {"weights": weigh}, (last - 1, 0), "all"),
            Exchange("judge", Judged(M, max(1, G)), {"judged": judge}, (last - 1, 0), "all"),
        )
        exchanges = (*together(every, model), *(end if groups else ()))
        return replace(method, exchanges=exchanges, rounds=last, cycle=last)

    references = dict.fromkeys(
        [cited("wolpert1992stacked"), cited("breiman1996stacked")]
        + [r for m in methods for r in m.references]
    )
    return Method(
        name, together(federations(2)[0]), tuple(references), plain,
        adapt=network, sized=sized, rounds=1,
        shares=tuple(
            dict.fromkeys(
                ["products of its left-out predictions with one another and with its labels"]
                + [s for m in methods for s in m.shares]
            )
        ),
        asks=tuple(dict.fromkeys(a for m in methods for a in m.asks)),
    )  # fmt: skip


def own(federation: Federation, blueprint: Blueprint) -> nn.Module:
    """Return a network that no other federation of the same seed has."""
    return federation.network(replace(blueprint, network=blueprint.another(0)))
