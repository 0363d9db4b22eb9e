"""FedCSA: every class's row of the classifier, averaged by who has seen that class."""

from dataclasses import dataclass

import torch
from torch import Tensor

from unseen.core import Combine, Draws, Layout, Rows, RuleState, Table, Weighted
from unseen.core.rule import Combined, Sees
from unseen.errors import UnseenError
from unseen.methods.combine.mean import Mean


@dataclass(frozen=True)
class ClassShares(Combine):
    """A mean of each class's row of the head by who has seen the class, of all else by the prior.

        row c of the head: Σ_i w_ic u_i with w_ic = n_ic / Σ_j n_jc;   all else: Σ_i p_i u_i

    n_ic (`counts` [K, C]): examples of class c in client i's training split. A class that nobody
    present has seen is averaged by p.

    Attributes:
        head: the layer's name; by default the last matrix of the model with a name in .weight, and
            its bias.
        prior: p. A prior other than a mean, such as GA's a_i, also enters the head:
            w_ic = a_i n_ic / Σ_j a_j n_jc.

    Note:
        It reads scalars only and asks for one sum per block of columns, as `Weighted` rules do for
        the whole vector; since its weights are not [K], it cannot be a prior and is not `Weighted`.

    Source:
        Ma, Zhao, Cai, Jia 2021, "Federated learning with class-weighted aggregation", in the words
        of Zhang et al. 2023 (GA).
    """

    head: str | None = None
    prior: Weighted = Mean("examples")
    needs = ("counts",)

    @property
    def sees(self) -> Sees:
        return "scalars"

    def own_state(self, K: int, P: int, layout: Layout | None) -> RuleState:
        """Return the runs of columns that belong to one class, and to which (C: the body)."""
        if layout is None:
            raise UnseenError(
                "ClassShares needs the layout of the vector to find the rows of the head.",
                remedy="Call init(K, P, layout).",
            )
        C, owner = class_of_columns(layout, self.head)
        of, lengths = owner.unique_consecutive(return_counts=True)  # type: ignore[no-untyped-call]
        ends = lengths.cumsum(0).tolist()
        return {"runs": list(zip([0, *ends[:-1]], ends, strict=True)), "of": of, "classes": C}

    def combine(self, rows: Rows, table: Table, state: RuleState, generator: Draws) -> Combined:
        table, state = self.with_prior(table, state, generator)
        weights = self.mix(table, state["classes"])[state["of"]]
        return rows.linear(weights, [slice(a, b) for a, b in state["runs"]]), state, weights

    def mix(self, table: Table, classes: int) -> Tensor:
        p, n = table["prior"], table["counts"].T
        check_classes(classes, len(n))
        if not isinstance(self.prior, Mean):
            n = p * n
        total = n.sum(1, keepdim=True)
        return torch.cat([torch.where(total > 0, n / total.clamp_min(1e-300), p), p[None]])


def class_of_columns(layout: Layout, head: str | None = None) -> tuple[int, Tensor]:
    """Return how many rows C the head has, and each column's class [P], C for those outside of it.

    Note:
        By views of the layout, so that it is right for any order of the head's numbers in memory.
    """
    shapes = dict(zip(layout.names, layout.shapes, strict=True))
    matrices = [n for n, shape in shapes.items() if n.endswith("weight") and len(shape) == 2]
    weight = f"{head}.weight" if head is not None else next(reversed(matrices), "")
    if weight not in matrices:
        names = ", ".join(n.removesuffix(".weight") for n in matrices) or "none"
        raise UnseenError(
            f"the head must be a linear layer of the model; found {head or 'none'!r}. Its linear "
            f"layers: {names}."
        )
    C = shapes[weight][0]
    owner = torch.full((layout.size,), C)
    views = layout.views(owner)
    for name in (weight, weight.removesuffix("weight") + "bias"):
        if name in views:
            view = views[name]
            view.copy_(torch.arange(C).view(-1, *[1] * (view.ndim - 1)).expand_as(view))
    return C, owner


def check_classes(rows: int, classes: int) -> None:
    """Refuse a head whose rows are not the classes."""
    if rows != classes:
        raise UnseenError(
            f"FedCSA weighs the head's rows by classes; the head has {rows} for {classes} classes.",
            remedy="Take a model with one output per class, or name its head.",
        )
