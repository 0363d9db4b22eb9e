"""What a site sends for a level of a tree: sums of derivatives by node, column and bin."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from unseen.core import Client, Inbox, Memory, Model, Reply, Turn
from unseen.core.joint import JointLocal
from unseen.exact.forest import Array, Forest, Grown

#: Cells of a site's table from which on compiled loops are worth their import.
MANY = 2**15
#: Moves rows [N] with cells [N, d] from their nodes by (feature, edge) of every node [M].
Descend = Callable[[Array, Array, Array, Array], None]
#: Adds (g, h, 1) of each site's rows at nodes first, first + 2, ... to sums [K, nodes, d, B, 3]:
#: (cells [N, d], where each site's rows end [K], nodes [N], g [N], h [N], first, sums).
AddUp = Callable[[Array, Array, Array, Array, Array, int, Array], None]


@dataclass(frozen=True)
class Histograms(JointLocal):
    """What a site sends for one level: Σ g, Σ h and the count by score, node, column and bin.

    It remembers where its rows are in the trees under way, so that a round reads one level only:
    the bins of its rows, the scores and their derivatives before the tree, the nodes.
    """

    forest: Forest

    def answers(
        self,
        model: Model,
        inbox: Inbox,
        clients: Sequence[Client],
        memories: Sequence[Memory],
        turn: Turn,
    ) -> list[tuple[Reply, Memory]]:
        level = self.forest.level(turn.round)
        trees = Grown.of(model.vector, self.forest)
        sites = [
            remembered(memory, turn.round) or self._replayed(trees, client, turn.round)
            for client, memory in zip(clients, memories, strict=True)
        ]
        sizes = [len(site["nodes"]) for site in sites]
        table = {name: joined([site[name] for site in sites]).numpy() for name in sites[0]}
        table["nodes"] = table["nodes"].copy()
        if turn.round:
            iteration = (turn.round - 1) // self.forest.depth
            descend(trees, iteration, table["cells"], table["nodes"])
            if level == 0:  # the tree is complete
                table["scores"] = table["scores"] + trees.values(iteration, table["nodes"])
        if level == 0:
            y = np.concatenate([rows(client)[1] for client in clients])
            table |= derivatives(table["scores"], y, self.forest)
            table["nodes"] = np.zeros_like(table["nodes"])
        later = {n: torch.from_numpy(values).split(sizes) for n, values in table.items()}
        named = {f"boost.{name}": parts for name, parts in later.items()}
        round = {"boost.round": torch.tensor(turn.round)}
        return [
            (reply, {**memory, **{name: parts[i] for name, parts in named.items()}, **round})
            for i, (reply, memory) in enumerate(
                zip(self._replies(table, sizes, level), memories, strict=True)
            )
        ]

    def _replayed(self, trees: Grown, client: Client, round: int) -> dict[str, Tensor]:
        """Return where a site's rows were after the round before, from the trees alone."""
        forest, before = self.forest, max(0, round - 1)
        x, y = rows(client)
        cells = np.empty(x.shape, np.uint8)
        for j, edges in enumerate(trees.edges):
            cells[:, j] = np.searchsorted(edges, x[:, j])
        scores = np.repeat(trees.baseline[None].astype(np.float64), len(y), 0)
        iterations = before // forest.depth
        for iteration in range(iterations + 1):
            nodes = np.zeros((len(y), forest.scores), np.int32)
            for _ in range(forest.depth if iteration < iterations else forest.level(before)):
                descend(trees, iteration, cells, nodes)
            if iteration < iterations:
                scores = scores + trees.values(iteration, nodes)
        table = {"cells": cells, "scores": scores, "nodes": nodes}
        table |= derivatives(scores, y, forest)
        return {name: torch.from_numpy(values) for name, values in table.items()}

    def _replies(self, table: Mapping[str, Array], sizes: Sequence[int], level: int) -> list[Reply]:
        """Return each site's histograms [G, nodes sent, d, B, 3], flat, and its loss.

        Args:
            table: The rows of all sites, one site after the other.
            sizes: How many rows each has [K].
            level: The level.
        """
        forest, ends = self.forest, np.cumsum(sizes)
        shape = (len(sizes), forest.sent(level), forest.inputs, forest.bins, 3)
        add_up = (loops() if table["cells"].size >= MANY else ARRAYS)[1]
        sums = [np.zeros(shape) for _ in range(forest.scores)]
        for k, own in enumerate(sums):
            at, g, h = (
                np.ascontiguousarray(table[n][:, k]) for n in ("nodes", "slopes", "curvatures")
            )
            add_up(table["cells"], ends, at, g, h, 2**level - 1, own)
        matrix = torch.from_numpy(sums[0] if len(sums) == 1 else np.stack(sums, 1)).flatten(1)
        losses = np.split(table["losses"], ends[:-1])
        return [
            Reply({"model": row}, {"examples": n, "steps": 1, "loss": float(own.sum()) / max(1, n)})
            for row, n, own in zip(matrix, sizes, losses, strict=True)
        ]


def remembered(memory: Memory, round: int) -> dict[str, Tensor]:
    """Return where a site's rows were after the round before; nothing if it has forgotten."""
    if "boost.round" not in memory or int(memory["boost.round"]) != round - 1:
        return {}
    return {n[6:]: v for n, v in memory.items() if n.startswith("boost.") and v.ndim}


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate parts; those that follow each other in memory are not copied."""
    first, place = parts[0], parts[0].storage_offset()
    address = first.untyped_storage().data_ptr()
    for part in parts:
        if part.untyped_storage().data_ptr() != address or part.storage_offset() != place:
            return torch.cat(list(parts))
        place += part.numel()
    count = sum(map(len, parts))
    return first.as_strided((count, *first.shape[1:]), first.stride())


def rows(client: Client) -> tuple[Array, Array]:
    """Return the training inputs [N, d] and labels [N]."""
    x, y = client.split("train").batch(slice(None))
    return x.flatten(1).cpu().numpy(), y.cpu().numpy()


def descend(trees: Grown, iteration: int, cells: Array, nodes: Array) -> None:
    """Move rows one level down in an iteration's trees.

    Args:
        trees: The trees.
        iteration: Which of them.
        cells: The bins that the rows lie in [N, d].
        nodes: The nodes that the rows are at [N, G]; it is changed.
    """
    move = (loops() if cells.size >= MANY else ARRAYS)[0]
    G = nodes.shape[1]
    for k in range(G):
        feature, edge = trees.splits(iteration * G + k)
        at = np.ascontiguousarray(nodes[:, k])
        move(cells, at, feature, edge)
        nodes[:, k] = at


def derivatives(scores: Array, y: Array, forest: Forest) -> dict[str, Array]:
    """Return slopes g and curvatures h [N, G] at scores [N, G], and the losses [N] of the rows."""
    if forest.classes is None:
        g, h = scores - y[:, None], np.ones_like(scores)
        return {"slopes": g, "curvatures": h, "losses": (g**2)[:, 0]}
    if forest.scores == 1:
        p = 1 / (1 + np.exp(-scores))
        losses = np.logaddexp(0, np.where(y[:, None] == 1, -scores, scores))[:, 0]
        return {"slopes": p - y[:, None], "curvatures": p * (1 - p), "losses": losses}
    shifted = scores - scores.max(1, keepdims=True)
    p = np.exp(shifted)
    norm = p.sum(1, keepdims=True)
    chosen = np.arange(len(y)), y
    losses = np.log(norm[:, 0]) - shifted[chosen]
    p /= norm
    g = p.copy()
    g[chosen] -= 1
    return {"slopes": g, "curvatures": p * (1 - p), "losses": losses}


def _descend_arrays(cells: Array, nodes: Array, feature: Array, edge: Array) -> None:
    column = feature[nodes]
    right = cells[np.arange(len(nodes)), column] > edge[nodes]
    nodes[:] = np.where(column >= 0, 2 * nodes + 1 + right, nodes)


def _add_up_arrays(
    cells: Array, ends: Array, nodes: Array, g: Array, h: Array, first: int, sums: Array
) -> None:
    _, _, d, bins, _ = sums.shape
    place = nodes - first
    chosen = np.flatnonzero((place >= 0) & (place % 2 == 0))
    for site, rows in enumerate(np.split(chosen, np.searchsorted(chosen, ends[:-1]))):
        flat = sums[site].reshape(-1, 3)
        at = cells[rows] + np.arange(d) * bins
        at = (at + (place[rows] // 2 * (d * bins))[:, None]).ravel()
        for c, values in enumerate((g, h)):
            flat[:, c] = np.bincount(at, np.repeat(values[rows], d), len(flat))
        flat[:, 2] = np.bincount(at, minlength=len(flat))


def _descend_loop(cells: Array, nodes: Array, feature: Array, edge: Array) -> None:
    for i in range(len(nodes)):
        node = nodes[i]
        if feature[node] >= 0:
            nodes[i] = 2 * node + 1 + (cells[i, feature[node]] > edge[node])


def _add_up_loop(
    cells: Array, ends: Array, nodes: Array, g: Array, h: Array, first: int, sums: Array
) -> None:
    begin = 0
    for site in range(len(ends)):
        for i in range(begin, ends[site]):
            place = nodes[i] - first
            if place < 0 or place % 2 == 1:
                continue
            own, slope, curvature = sums[site, place // 2], g[i], h[i]
            for j in range(cells.shape[1]):
                c = cells[i, j]
                own[j, c, 0] += slope
                own[j, c, 1] += curvature
                own[j, c, 2] += 1.0
        begin = ends[site]


ARRAYS: tuple[Descend, AddUp] = (_descend_arrays, _add_up_arrays)


@cache
def loops() -> tuple[Descend, AddUp]:
    """Return the two steps compiled by numba, or by arrays where it is not installed.

    Both add in the order of the rows, so that the sums are the same bits.
    """
    try:
        import numba
    except ImportError:
        return ARRAYS
    compiled = numba.njit(cache=True)
    return compiled(_descend_loop), compiled(_add_up_loop)
