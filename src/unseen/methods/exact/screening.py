"""Which learning rate each member trains at, from Brier scores at groups of sites left out.

A member is tried at R rates without each group of sites. Site k scores the R models that were
trained without it on its own rows, by the numbers on the diagonals of the sums that stack weights,

    B_kr = A_k[r, r] − 2 b_k[r] + c_k,

and sends B_k [R]. The rate of the least Σ_k B_kr is the member's.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from unseen.core import Client, Inbox, Local, Memory, Model, Reply, RuleState, Turn, WithState
from unseen.core.joint import OneOf
from unseen.core.parts import Part
from unseen.core.types import Table
from unseen.data.networks.mixture import Mixture
from unseen.methods.exact.stacking import left_out_products


@dataclass(frozen=True)
class Scores(Part):
    """What a site sends: the Brier score of every model that was trained without it.

    Attributes:
        places: Slot -> the places [R, G] of its models among those that train with the mixture.
    """

    sends_sums = True

    places: Mapping[str, tuple[tuple[int, ...], ...]]

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        """Return the row [B, 1] of each slot."""
        split, module = client.split("train"), model.module
        assert isinstance(module, Mixture)
        rows = {}
        for slot, places in self.places.items():
            nets = [module.others[own[turn.index % len(own)]] for own in places]
            R, sums = len(nets), left_out_products(module, nets, split)
            scores = sums[: R * R].view(R, R).diagonal() - 2 * sums[R * R : -1] + sums[-1]
            rows[slot] = torch.cat([scores, scores.new_ones(1)])
        return Reply(rows, {"examples": len(split)}), memory


@dataclass(frozen=True)
class Least:
    """The server's step that marks the rate with the least score by 1, and all others by 0."""

    at_sites = True

    def __call__(self, old: Tensor, new: Tensor, state: RuleState, table: Table) -> WithState:
        marks = torch.zeros_like(old)
        marks[int(new[:-1].argmin())] = 1.0
        return marks, state


@dataclass(frozen=True)
class AtRate(OneOf):
    """One local of several, at the rate that is marked.

    Attributes:
        entry: The inbox entry with the mark.
        rated: The local at each rate.
    """

    entry: str
    rated: tuple[Local, ...]

    def choice(self, inbox: Inbox) -> Local:
        return self.rated[int(inbox[self.entry].argmax())]

    @property
    def locals(self) -> tuple[Local, ...]:
        return self.rated

    def changed(self, change: Callable[[Local], Local]) -> Self:
        return replace(self, rated=tuple(map(change, self.rated)))
