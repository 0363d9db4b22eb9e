"""Stacking: federations of different methods, weighed by how they predict sites left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from torch import nn

from unseen.combine import Sum
from unseen.core import Exchange, Method, Model, Slot
from unseen.core.exchange import Blueprint
from unseen.core.metrics import plain
from unseen.errors import UnseenError, choice, number
from unseen.exact.stacking import Judge, Judged, LeftOut, Weigh
from unseen.methods.base import cited
from unseen.methods.together import Federation, check_member, together
from unseen.models.trees import Mixture
from unseen.recipe import Training


def stack_of(compose: Callable[[str, Training], Method]) -> Callable[..., Method]:
    """Return the method `stack`, whose members are read by `compose`."""

    def stack(
        training: Training,
        *,
        members: Sequence[str] = ("glm", "boost", "fedavg+ensemble(members=3)"),
        groups: int = 5,
        shrink: float = 0.05,
        mixing: Literal["sources", "equal"] = "sources",
    ) -> Method:
        """Mix methods of different kinds, by weights that the source sites choose.

            p(x) = Σ_m w_m p_m(x),   w = argmin over the simplex of wᵀA w − 2 bᵀw + λ ‖w − 1/M‖²

        Every member is trained on all sites, and once more without each of G groups of sites. At
        the end each site predicts its own rows with the members that were trained without it, and
        sends A_k = P_kᵀP_k / n_k and b_k = P_kᵀy_k / n_k; their means give the weights with the
        least Brier score at a site left out. If that is not better than equal weights by one
        standard error over sites, the weights are equal. The server sees sums only, so the method
        goes under masks and encryption if its members do. It takes G + 1 times their work.

        Args:
            training: The recipe.
            members: expressions of methods; their predictions are probabilities or numbers.
            groups: G, groups of sites that are left out in turn, at most one for each site.
            shrink: λ.
            mixing: the weights are chosen by the sources, or equal, for which no site is left out.
        """
        if isinstance(members, str) or len(members) < 2:
            raise UnseenError(
                f"stack(members) needs two or more methods; found {members!r}.",
                remedy="Write, for example, stack(members=['glm', 'fedavg']).",
            )
        number("stack(groups)", groups, 2, whole=True)
        number("stack(shrink)", shrink, 0)
        choice("stack(mixing)", mixing, ("sources", "equal"))
        methods = [compose(member, training) for member in members]
        for member in methods:
            check_member(member, "stack")
        return stacked(methods, groups if mixing == "sources" else 0, shrink)

    return stack


def stacked(methods: Sequence[Method], groups: int, shrink: float) -> Method:
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
                "stack leaves source sites out in turn, and there is one only.",
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
        "stack", together(federations(2)[0]), tuple(references), plain,
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
