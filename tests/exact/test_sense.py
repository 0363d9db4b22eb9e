"""Sums of trees and linear models that no rows have are named."""

from __future__ import annotations

import pytest
import torch
from exact.test_boosting import rows, sites
from support.alone import played
from torch import Tensor

from unseen import InProcess, Training
from unseen.core.losses import SquaredError
from unseen.core.parts import innermost
from unseen.methods.exact.sense import Sender, senseless

ROWS = 200


class Kept(InProcess):
    """Keeps what the one client sent, and what made it."""

    def map(self, exchange, inbox, clients, turn):
        replies = super().map(exchange, inbox, clients, turn)
        row = replies[0].rows["model"]
        row = row.total() if hasattr(row, "total") else row
        SENT.append((innermost(exchange.local), torch.as_tensor(row).clone()))
        return replies


SENT: list[tuple[Sender, Tensor]] = []


def sums(text: str, numbers: bool) -> list[tuple[Sender, Tensor]]:
    SENT.clear()
    x, y, score = rows(ROWS, 2)
    options = {"training": Training(loss=SquaredError())} if numbers else {}
    labels, classes = (score, None) if numbers else (y, 2)
    played(text, sites(x, labels, classes, 1), backend=Kept, **options)
    return [*SENT]


@pytest.mark.parametrize("numbers", [False, True])
@pytest.mark.parametrize("text", ["boost(trees=1,depth=3)", "forest(trees=2,depth=3)", "glm"])
def test_sums_of_rows_make_sense_and_lies_do_not(text: str, numbers: bool) -> None:
    found = sums(text, numbers)
    assert len(found) > 2
    for sender, row in found:
        assert senseless(sender, row, ROWS) is None and senseless(sender, row, None) is None
        assert senseless(sender, -row - 1, ROWS) is not None
        if text != "glm":  # which says no count
            assert senseless(sender, row * 1e6, ROWS) is not None or not bool(row.any())
    if text.startswith("boost"):  # which begins with all rows
        assert all("rows, and it said" in str(senseless(*own, ROWS - 1)) for own in found[:2])


def test_counts_that_do_not_add_up() -> None:
    (counts, row), (histogram, level), *_ = sums("boost(trees=1,depth=2)", False)
    for place in (0, len(row) - 1, len(row) - 3):
        changed = row.clone()
        changed[place] += 1
        assert "add up" in str(senseless(counts, changed, 10**6))
        changed[place] -= 0.5
        assert "whole" in str(senseless(counts, changed, 10**6))
    level[2] += 5
    assert "from column to column" in str(senseless(histogram, level, 10**6))
