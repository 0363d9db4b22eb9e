"""Rows and images that occur more than once, where chance does not explain it."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unseen.data.dataset import Domain
from unseen.data.image_files.images import Image
from unseen.data.tables.sheet import Sheet

#: The probability below which chance does not explain equal rows.
CHANCE = 1e-4
#: A value in more rows than this, and than this share of all, is common.
ROWS, SHARE = 5, 0.01
#: Rows by which the column with the most different values is known.
SAMPLE = 5000

Codes = NDArray[np.int64]


@dataclass(frozen=True)
class Copies:
    """The rows of a table or the images of a tree, by codes [N] that are equal where these are.

    Attributes:
        at: Returns the line of a row, or the file of an image.
        sites: The sites' names, by code.
        site: Whose row it is.
        unit: What the row belongs to; equal rows of one unit of a site are not copies.
        content: All features and the label, or the pixels.
        what: What they are.
    """

    at: Callable[[int], str]
    sites: Sequence[str]
    site: Codes
    unit: Codes
    content: Codes
    what: str = "row"

    def within(self) -> list[str]:
        """Return a remark on the rows that repeat a row of another unit of their site."""
        first: dict[tuple[int, int], int] = {}
        before = set[tuple[int, int, int]]()
        repeats = list[tuple[int, int]]()
        for i, (site, unit, content) in enumerate(self._rows()):
            other = first.setdefault((site, content), i)
            if self.unit[other] != unit and (site, unit, content) not in before:
                repeats.append((other, i))
            before.add((site, unit, content))
        return [
            f"{len(repeats):,} of {len(self.site):,} {self.what}s are exact copies of an earlier "
            f"{self.what} of their site, such as {self.at(i)} and {self.at(j)}: a split may put "
            "one into both training and validation, which flatters a model; remove the copies, or "
            f"say by unit which {self.what}s belong together"
            for i, j in repeats[:1]
        ]

    def between(self) -> list[str]:
        """Return a remark on the rows that several sites have."""
        owners: dict[int, dict[int, int]] = {}
        for i, (site, _, content) in enumerate(self._rows()):
            owners.setdefault(content, {}).setdefault(site, i)
        shared = [[*own.items()] for own in owners.values() if len(own) > 1]
        return [
            f"{len(shared):,} different {self.what}s occur at more than one site, exactly alike, "
            f"such as {self.at(i)} at {self.sites[a]} and {self.at(j)} at {self.sites[b]}: if they "
            "are the same examples, a held-out site is not unseen; leave them at one site only"
            for (a, i), (b, j), *_ in shared[:1]
        ]

    def _rows(self) -> Iterable[tuple[int, int, int]]:
        return zip(self.site.tolist(), self.unit.tolist(), self.content.tolist(), strict=True)


def copied_images(domains: Sequence[Domain], images: Mapping[str, Sequence[Image]]) -> list[str]:
    """Return remarks on images that are copies of others, within a site and between sites.

    Files of one size are compared, by the pixels that a model gets.

    Args:
        domains: The sites, with the pixels of their images.
        images: The images of each, in the same order.
    """
    files = [image.file for domain in domains for image in images[domain.name]]
    sizes = Counter(file.size for file in files)
    content, site, unit = list[int](), list[int](), list[int]()
    for code, domain in enumerate(domains):
        for j in range(len(domain.y)):
            i, size = len(content), files[len(content)].size
            pixels = domain.x[j].numpy().tobytes() if sizes[size] > 1 else i
            content.append(hash((size, pixels)))
            site.append(code)
            unit.append(i if domain.units is None else int(domain.units[j]))
    every = Copies(
        lambda i: files[i].path, [domain.name for domain in domains], np.array(site),
        np.array(unit), np.array(content), "image",
    )  # fmt: skip
    return every.within() + every.between()


def copies(
    sheet: Sheet,
    x: Tensor,
    others: Sequence[Tensor],
    owners: Tensor,
    sites: Sequence[str],
    units: Tensor | None = None,
) -> list[str]:
    """Return remarks on rows that are copies of others, within a site and between sites.

    Args:
        sheet: The table.
        x: The features [N, C].
        others: What rows are compared by as well: the label and other columns [N, ...].
        owners: The code of each row's site [N].
        sites: The sites' names, by code.
        units: The code of each row's unit [N].

    Note:
        In a few columns of words or of small whole numbers many rows are equal by chance. The
        column with the most different values tells: rows that share one of its uncommon values are
        compared with rows whose values are neighbours in its order. If the former agree in all
        else no more often than the latter do, equal rows are chance. A table of one feature is too
        little to tell.
    """
    if x.shape[1] < 2:
        return []
    table = x.numpy()
    rest = [other.reshape(len(x), -1).double().numpy() for other in others]
    content = _equal(table, *rest)
    if int(content.max()) + 1 == len(content):
        return []
    column = _most_different(table)
    without = _equal(np.delete(table, column, axis=1), *rest)
    alone = torch.arange(len(x)) if units is None else units
    rows = Copies(sheet.at_row, sites, owners.numpy(), alone.numpy(), content)
    inside, across = (_implausible(table[:, column], without, rows, own) for own in (True, False))
    return (rows.within() if inside else []) + (rows.between() if across else [])


def _equal(*tables: NDArray[np.float64]) -> Codes:
    """Codes of rows that are equal where the rows of all tables are."""
    mixed = np.zeros(len(tables[0]), dtype=np.uint64)
    for column in (column for table in tables for column in table.T):
        bits = np.where(np.isnan(column), np.nan, column).view(np.uint64)
        mixed = _mixed(mixed * np.uint64(31) + _mixed(bits))
    return np.unique(mixed, return_inverse=True)[1]


def _mixed(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix 64 bits (the finaliser of splitmix64), so that sums of different ones differ."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return bits ^ (bits >> np.uint64(31))


def _most_different(table: NDArray[np.float64]) -> int:
    some = table[:: -(-len(table) // SAMPLE)]
    return int(np.argmax([len(np.unique(column)) for column in some.T]))


def _implausible(values: NDArray[np.float64], rest: Codes, rows: Copies, inside: bool) -> bool:
    """Whether rows of one uncommon value agree in the rest more often than neighbours do.

    Args:
        values: The column with the most different values [N], NaN where missing.
        rest: Codes of all other columns.
        rows: Whose rows they are.
        inside: Whether to compare rows within sites or between them.
    """
    from scipy.stats import binom

    _, codes, counts = np.unique(values, return_inverse=True, return_counts=True)
    usable = (counts[codes] <= max(ROWS, SHARE * len(codes))) & ~np.isnan(values)
    places = np.arange(len(codes))
    order = np.lexsort((places, codes, rows.site) if inside else (places, codes))
    a, b = order[:-1], order[1:]
    pairs = usable[a] & usable[b] & ((rows.site[a] == rows.site[b]) == inside)
    if inside:
        pairs &= rows.unit[a] != rows.unit[b]
    tied, equal = codes[a] == codes[b], rest[a] == rest[b]
    neighbours, alike = int((pairs & ~tied).sum()), int((pairs & ~tied & equal).sum())
    trials, hits = int((pairs & tied).sum()), int((pairs & tied & equal).sum())
    by_chance = (alike + 1) / (neighbours + 1)
    return bool(hits and binom.sf(hits - 1, trials, min(1.0, by_chance)) < CHANCE)
