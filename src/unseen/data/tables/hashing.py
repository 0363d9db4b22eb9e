"""Columns of text: the words of a cell counted in columns that a hash names, without a vocabulary.

A hash of a word depends on the word alone, so sites have nothing to agree on and send nothing: no
list of words, no counts, no means.

Source:
    Weinberger et al. 2009, "Feature Hashing for Large Scale Multitask Learning"; computed by
    scikit-learn's `HashingVectorizer`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unseen.errors import UnseenError, number

if TYPE_CHECKING:
    from unseen.data.tables.sheet import Sheet

#: Numbers per cell up to which tables stay in memory: they are dense.
MOST = 2**16
#: Words of a cell that looks like text.
SENTENCE = 5


@dataclass(frozen=True)
class Hashed:
    """How the cells of a column of text become F numbers.

        h_f(t) = Σ_{w in t, hash(w) mod F = f} ±1,   x = h / ‖h‖₂

    The sums are over the words of a text t in lower case, and over its pairs of neighbours where
    asked for; a word's sign is a bit of the same hash (MurmurHash3), so that words that share a
    column cancel on average instead of adding up.

    Attributes:
        features: F.
        pairs: Whether pairs of neighbouring words count as well.
    """

    features: int = 1024
    pairs: bool = False

    def __post_init__(self) -> None:
        number("text_features", self.features, 1, MOST, whole=True)

    def __call__(self, cells: Sequence[str | None]) -> Tensor:
        """Return the numbers [N, F] of the cells, float64; all are 0 without a word.

        Example:
            >>> x = Hashed(8)(["free money", "Money, free!", None])
            >>> bool((x[0] == x[1]).all()), round(float(x[0].norm()), 6), float(x[2].norm())
            (True, 1.0, 0.0)
        """
        hashed = vectorizer(self.features, self.pairs).transform([cell or "" for cell in cells])
        return torch.from_numpy(hashed.toarray())


@cache
def vectorizer(features: int, pairs: bool) -> Any:
    """Return scikit-learn's transformer, imported once a table has text."""
    from sklearn.feature_extraction.text import HashingVectorizer

    return HashingVectorizer(n_features=features, ngram_range=(1, 2 if pairs else 1))


def looks_like_text(sheet: Sheet, name: str) -> bool:
    """Return whether half of a column's cells or more have five words or more."""
    cells = sheet.column(name)
    long = int(cells.counts[cells.word_counts >= SENTENCE].sum())
    return 2 * long >= max(1, cells.present)


def check_texts(sheet: Sheet, names: Sequence[str], others: Sequence[str]) -> list[str]:
    """Refuse columns that cannot be text.

    Args:
        sheet: The table.
        names: The columns of text.
        others: The columns that have another role.

    Returns:
        A remark on each column without a word: all of its features are 0.

    Raises:
        UnseenError: A column does not exist, is named twice or has another role, or holds numbers
            alone.
    """
    notes = []
    for name in names:
        cells = sheet.column(name)
        if name in others or names.count(name) > 1:
            raise UnseenError(
                f"the column {name!r} is named in 'text' and once more in the data set's options.",
                remedy="Give each column one role.",
            )
        if cells.present and cells.all_numbers:
            raise UnseenError(
                f"the column {name!r} of {sheet.name}, named in 'text', holds only numbers.",
                remedy="Leave it out of 'text'; if they are codes, name it in 'categorical'.",
            )
        if not cells.word_counts.any():
            notes.append(f"the text {name!r} has no words in any row: all of its features are 0")
    return notes
