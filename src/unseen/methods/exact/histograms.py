"""What a site sends for a level of a tree: sums of derivatives by node, column and bin."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from unseen.core import Client, Inbox, Memory, Model, Reply, Turn
from unseen.core.joint import JointLocal
from unseen.methods.exact.boosted_views import ASKED, Array, BoostedForest, Grown, in_steps
from unseen.methods.exact.loops import loops
from unseen.methods.exact.node_rows import with_siblings
from unseen.methods.exact.spared_histograms import joined_cells, spread

#: What is remembered of every row: its bins [N, d], its nodes in the trees under way [N, G], its
#: scores before them with their derivatives [N, G, 3].
ROWS = ("cells", "nodes", "scores")


@dataclass(frozen=True)
class Histograms(JointLocal):
    """What a site sends for one level: Σ g, Σ h and the count by score, node, column and bin.

    It remembers where its rows are in the trees under way, so that a round reads one level only.

    Attributes:
        forest: The sizes of the trees.
        least: Rows of a sum that leaves, see `unseen.methods.exact.spared_histograms`.
    """

    sends_sums = True
    adds_exactly = True

    forest: BoostedForest
    least: int = 1

    def answers(
        self,
        model: Model,
        inbox: Inbox,
        clients: Sequence[Client],
        memories: Sequence[Memory],
        turn: Turn,
    ) -> list[tuple[Reply, Memory]]:
        trees = Grown.of(model.vector, self.forest)
        if self.least > 1:
            pairs = zip(clients, memories, strict=True)
            return [self._spared(trees, *pair, turn.round) for pair in pairs]
        before = [
            memory
            if remembers(memory, turn.round)
            else {**memory, **self._replayed(trees, client, turn.round)}
            for client, memory in zip(clients, memories, strict=True)
        ]
        sizes = [site["boost.nodes"].shape[0] for site in before]
        table = {n: joined([site[f"boost.{n}"] for site in before], sizes) for n in ROWS}
        changed = self._changed(trees, table, clients, turn.round)
        sums = self._sums(trees, table | changed, turn.round)
        ends = list(accumulate(sizes, initial=0))
        round, answers = torch.tensor(turn.round), list[tuple[Reply, Memory]]()
        for i, own in enumerate(divided(changed, sizes)):
            memory = {**before[i], **own, "boost.round": round}
            loss = float(memory["boost.loss"])
            row = Late("model", partial(sums, slice(ends[i], ends[i + 1])))
            reply = Reply(row, {"examples": sizes[i], "steps": 1, "loss": loss})
            answers.append((reply, memory))
        return answers

    def _spared(
        self, trees: Grown, client: Client, memory: Memory, round: int
    ) -> tuple[Reply, Memory]:
        """Return sums of which none is of few rows; the scores before this tree are remembered."""
        (x, y), forest, level = rows(client), self.forest, self.forest.level(round)
        cells = joined_cells(cells_of(x, trees), forest.bins, self.least)
        f = np.repeat(trees.baseline[None].astype(np.float64), len(y), 0)
        iteration, begin = round // forest.depth, 0
        if "boost.before" in memory and int(memory["boost.iteration"]) <= iteration:
            f, begin = memory["boost.before"].numpy().copy(), int(memory["boost.iteration"])
        for earlier in range(begin, iteration):
            nodes = np.zeros((len(y), forest.scores), np.int32)
            for _ in range(forest.depth):
                descend(trees, earlier, cells, nodes)
            f += trees.values(earlier, nodes)
        table, nodes = derivatives(f, y, forest), np.zeros((len(y), forest.scores), np.int32)
        sums: Array = np.empty(0)
        for depth in range(level + 1):
            if depth:
                descend(trees, iteration, cells, nodes)
                nodes = with_siblings(nodes, self.least)
            every = self._every(cells, nodes, table["scores"], depth)
            sums = every if depth == 0 else spread(every, sums, self.least)
        if level:
            first = 2**level - 1
            second = trees.feature[trees.under_way(iteration), first + 1 : 2 * first + 1 : 2]
            pairs = sums.reshape(forest.scores, -1, 2, *sums.shape[2:])
            sums = np.where(
                (second == ASKED)[..., None, None, None], pairs[:, :, 1], pairs[:, :, 0]
            )
        row = {"model": torch.from_numpy(sums.ravel().copy())}
        loss = float(table["losses"].mean()) if len(y) else 0.0
        after = {"boost.before": torch.from_numpy(f), "boost.iteration": torch.tensor(iteration)}
        return Reply(row, {"examples": len(y), "steps": 1, "loss": loss}), {**memory, **after}

    def _every(self, cells: Array, nodes: Array, scores: Array, level: int) -> Array:
        """Return the histograms of all nodes of a level [G, nodes, d, B, 3]."""
        forest, count, d = self.forest, 2**level, cells.shape[1]
        sums = np.zeros((forest.scores, count, d, forest.bins, 3))
        for k in range(forest.scores):
            here = np.flatnonzero(nodes[:, k] >= count - 1)
            at = (nodes[here, k, None] - (count - 1)) * d + np.arange(d)
            at = (at * forest.bins + cells[here]).ravel()
            flat = sums[k].reshape(-1, 3)
            for c in range(2):
                flat[:, c] = np.bincount(at, np.repeat(scores[here, k, c + 1], d), len(flat))
            flat[:, 2] = np.bincount(at, minlength=len(flat))
        return sums

    def _changed(
        self, trees: Grown, table: Mapping[str, Array], clients: Sequence[Client], round: int
    ) -> dict[str, Array]:
        """Return what changes of the rows: they go one level down, or to the root of a new tree."""
        nodes, iteration = table["nodes"].copy(), (round - 1) // self.forest.depth
        if round:
            descend(trees, iteration, table["cells"], nodes)
        if self.forest.level(round):
            return {"nodes": nodes}
        f = table["scores"][:, :, 0].copy()
        if round:
            f += trees.values(iteration, nodes)
        y = np.concatenate([rows(client)[1] for client in clients])
        new = derivatives(f, y, self.forest)
        return new | {"cells": table["cells"], "nodes": np.zeros_like(nodes)}

    def _replayed(self, trees: Grown, client: Client, round: int) -> dict[str, Tensor]:
        """Return what a site remembers after the round before, from the trees alone."""
        forest, before = self.forest, max(0, round - 1)
        x, y = rows(client)
        cells = cells_of(x, trees)
        f = np.repeat(trees.baseline[None].astype(np.float64), len(y), 0)
        iterations = before // forest.depth
        for iteration in range(iterations + 1):
            nodes = np.zeros((len(y), forest.scores), np.int32)
            for _ in range(forest.depth if iteration < iterations else forest.level(before)):
                descend(trees, iteration, cells, nodes)
            if iteration < iterations:
                f = f + trees.values(iteration, nodes)
        table = derivatives(f, y, forest) | {"cells": cells, "nodes": nodes}
        return divided(table, [len(y)])[0]

    def _sums(
        self, trees: Grown, table: Mapping[str, Array], round: int
    ) -> Callable[[slice], Tensor]:
        """Return a function from a site's rows to its histograms [G · nodes sent · d · B · 3].

        Args:
            trees: The trees.
            table: The rows of all sites, one site after the other.
            round: The round.
        """
        forest, level = self.forest, self.forest.level(round)
        feature, first = trees.feature[trees.under_way(round // forest.depth)], 2**level - 1
        asked, own = np.zeros(feature.shape, bool), slice(first, 2 * first + 1)
        asked[:, own] = feature[:, own] == ASKED if level else True
        shape = (1, forest.scores, forest.pairs(level), forest.inputs, forest.bins, 3)
        add_up = loops(table["cells"].size).add_up

        def of(rows: slice) -> Tensor:
            cells, nodes, scores = (table[name][rows] for name in ROWS)
            # numpy asks the system for huge pages each time, which costs more than the sums.
            sums = torch.empty(shape, dtype=torch.float64)
            add_up(cells, np.array([len(cells)]), nodes, scores, asked, first, sums.numpy())
            return sums.flatten()

        return of


@dataclass(frozen=True)
class Late(Mapping[str, Tensor]):
    """One row by its slot, made when it is asked for: those of all sites at once take much memory.

    Attributes:
        slot: The slot.
        row: Returns the row.
    """

    slot: str
    row: Callable[[], Tensor]

    def __getitem__(self, name: str) -> Tensor:
        if name != self.slot:
            raise KeyError(name)
        return self.row()

    def __iter__(self) -> Iterator[str]:
        return iter((self.slot,))

    def __len__(self) -> int:
        return 1


def remembers(memory: Memory, round: int) -> bool:
    """Return whether a memory is of the round before."""
    return "boost.round" in memory and int(memory["boost.round"]) == round - 1


def divided(table: Mapping[str, Array], sizes: Sequence[int]) -> list[dict[str, Tensor]]:
    """Return what each site remembers of a table of all rows; of their losses the mean."""
    parts = {f"boost.{n}": torch.from_numpy(table[n]).split(sizes) for n in ROWS if n in table}
    if "losses" in table:
        sums = [part.sum() for part in np.split(table["losses"], np.cumsum(sizes)[:-1])]
        means = [float(total) / max(1, n) for total, n in zip(sums, sizes, strict=True)]
        parts["boost.loss"] = torch.tensor(means, dtype=torch.float64).unbind()
    return [dict(zip(parts, own, strict=True)) for own in zip(*parts.values(), strict=True)]


def joined(parts: Sequence[Tensor], sizes: Sequence[int]) -> Array:
    """Concatenate contiguous parts of these sizes; neighbours in memory are not copied."""
    first, shape = parts[0], parts[0].shape[1:]
    row, memory = first.element_size() * math.prod(shape), first.untyped_storage()
    begins = accumulate(sizes, lambda place, n: place + n * row, initial=first.data_ptr())
    *places, end = begins
    whole: Array
    if [part.data_ptr() for part in parts] == places and end <= memory.data_ptr() + memory.nbytes():
        whole = first.as_strided((sum(sizes), *shape), first.stride()).numpy()
    else:
        whole = torch.cat(list(parts)).numpy()
    return whole


def rows(client: Client) -> tuple[Array, Array]:
    """Return the training inputs [N, d] and labels [N]."""
    x, y = client.split("train").batch(slice(None))
    return x.flatten(1).cpu().numpy(), y.cpu().numpy()


def cells_of(x: Array, trees: Grown) -> Array:
    """Return the bins that rows lie in [N, d]."""
    cells = np.zeros(x.shape, np.uint8)
    for edges in trees.edges.T:
        cells += x > edges
    return cells


def descend(trees: Grown, iteration: int, cells: Array, nodes: Array) -> None:
    """Move rows one level down in an iteration's trees.

    Args:
        trees: The trees.
        iteration: Which of them.
        cells: The bins that the rows lie in [N, d].
        nodes: The nodes that the rows are at [N, G]; it is changed.
    """
    loops(cells.size).descend(cells, nodes, *trees.splits(iteration))


def derivatives(f: Array, y: Array, forest: BoostedForest) -> dict[str, Array]:
    """Return (f, g, h) as "scores" [N, G, 3], and "losses" [N].

    Args:
        f: The scores [N, G].
        y: The labels [N].
        forest: Of how many classes.
    """
    scores = np.empty((*f.shape, 3))
    scores[:, :, 0], g, h = f, scores[:, :, 1], scores[:, :, 2]
    if forest.classes is None:
        error = f - y[:, None]
        g[:], h[:], losses = in_steps(error), 1.0, error[:, 0] ** 2
    elif forest.scores == 1:
        p = 1 / (1 + np.exp(-f))
        g[:], h[:] = in_steps(p - y[:, None]), in_steps(p * (1 - p))
        wrong = np.where(y == 1, -f[:, 0], f[:, 0])  # the score of the other class
        losses = np.maximum(wrong, 0) + np.log1p(np.exp(-np.abs(wrong)))
    else:
        shifted, own = f - f.max(1, keepdims=True), (np.arange(len(y)), y)
        p = np.exp(shifted)
        norm = p.sum(1, keepdims=True)
        losses = np.log(norm[:, 0]) - shifted[own]
        p /= norm
        g[:], h[:] = in_steps(p), in_steps(p * (1 - p))
        g[own] -= 1
    return {"scores": scores, "losses": losses}
