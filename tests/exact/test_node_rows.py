"""Trees grown with sites that send no sum over few of their rows."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from exact.test_boosting import rows, sites
from hypothesis import given, settings
from hypothesis import strategies as st
from support.alone import RECIPE, blueprint, completed, played

from unseen import InProcess, method
from unseen.core import Exchange
from unseen.core.joint import changed
from unseen.errors import TooFewRows
from unseen.methods.exact import Counts, Derivatives, Histograms, LeftOfCuts
from unseen.methods.exact.node_rows import with_siblings
from unseen.methods.exact.spared_histograms import joined_cells, spread, unions

LEAST = 10
TREES = (Counts, Derivatives, Histograms, LeftOfCuts)


def sparing(exchange: Exchange, least: int) -> Exchange:
    def spared(part):
        return replace(part, least=least) if isinstance(part, TREES) else part

    return replace(exchange, local=changed(exchange.local, spared))


class Sparing(InProcess):
    """Sites with a minimum of rows; keeps what each of them sent."""

    least = LEAST

    sent: ClassVar[list] = []

    def map(self, exchange, inbox, clients, turn):
        replies = super().map(sparing(exchange, self.least), inbox, clients, turn)
        if len(clients) == 1:
            row = replies[0].rows["model"]
            row = row.total() if hasattr(row, "total") else row
            self.sent.append((turn, torch.as_tensor(row).clone()))
        return replies


@pytest.mark.parametrize("text", ["forest(trees=12, depth=6)", "boost(trees=9, depth=3, rate=0.3)"])
@pytest.mark.parametrize("classes", [2, 3])
def test_trees_are_nearly_as_good(text: str, classes: int) -> None:
    """Three sites of 200 rows: the mean log-loss on new rows, with and without a minimum."""
    x, y, _ = rows(600, classes)
    new, labels, _ = rows(2000, classes, seed=1)

    def loss(backend) -> float:
        run = played(text, sites(x, y, classes, 3), backend=backend)
        with torch.no_grad():
            outputs = run.model(torch.from_numpy(new)).double()
        if outputs.shape[1] == 1:
            outputs = torch.cat([torch.zeros_like(outputs), outputs], 1)
        return float(torch.nn.functional.cross_entropy(outputs, torch.from_numpy(labels)))

    assert loss(Sparing) < loss(InProcess) + 0.08 * float(np.log(classes))


@pytest.mark.parametrize("text", ["forest(trees=4, depth=6)", "boost(trees=2, depth=5)"])
def test_what_leaves_is_of_enough_rows(text: str) -> None:
    x, y, _ = rows(300, 2)
    Sparing.sent.clear()
    played(text, sites(x, y, 2, 1), backend=Sparing)
    seen = 0
    for turn, row in Sparing.sent:
        if turn.exchange == "bins":
            continue
        counts = row.view(-1, 2).sum(1) if text.startswith("forest") else row.view(-1, 3)[:, 2]
        if text.startswith("forest") or turn.exchange == "train":
            assert bool(((counts == 0) | (counts >= LEAST - 1e-6)).all())
            seen += int((counts > 0).sum())
    assert seen > 50


@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7), st.booleans()), min_size=5,
             max_size=60),
    st.integers(2, 8),
)  # fmt: skip
@settings(deadline=None, max_examples=60)
def test_both_children_follow_from_sums_of_enough_rows(table, least: int) -> None:
    """Where the server has a parent's and a child's sums, it has no other one's of few rows."""
    cells = np.array([row[:2] for row in table])
    if len(cells) < least:
        return
    joined = joined_cells(cells, 8, least)
    sides = np.array([[2 if row[2] else 1] for row in table])
    nodes = with_siblings(sides, least)[:, 0]
    g = np.arange(1, len(cells) + 1) / 64  # every sum of different rows is another one

    def histogram(here):
        sums = np.zeros((2, 8, 3))
        for j in range(2):
            for c, value in enumerate((g, np.ones_like(g), np.ones_like(g))):
                sums[j, :, c] = np.bincount(joined[here, j], value[here], 8)
        return sums

    parent = histogram(slice(None))
    assert bool(((parent[..., 2] == 0) | (parent[..., 2] >= least)).all())
    children = np.stack([histogram(nodes == 1), histogram(nodes == 2)])
    sent = spread(children[None], parent[None, None], least)[0]
    np.testing.assert_allclose(sent[0] + sent[1], parent, atol=1e-9)
    np.testing.assert_allclose(sent.sum(2), children.sum(2), atol=1e-6)
    assert bool((sent[..., 1:] > -1e-9).all())
    for j in range(2):
        # What was sent is the same for every table with these unions and these sums.
        counts = children[:, j, :, 2]
        group = unions(counts, least, np.ones(8, bool))
        for own in counts:
            rows_in = np.bincount(group, own, 8)
            assert bool(((rows_in == 0) | (rows_in >= least)).all())


def test_too_few_rows_count_with_their_siblings_or_nowhere() -> None:
    nodes = np.repeat([[1], [2]], [12, 3], 0)
    assert with_siblings(nodes, 10).ravel().tolist() == [1] * 15
    assert with_siblings(nodes[::-1] * 0 + np.repeat([[1], [2]], [3, 12], 0), 10).sum() == 30
    assert with_siblings(np.repeat([[1], [2]], [6, 6], 0), 10).ravel().tolist() == [1] * 12
    assert with_siblings(nodes, 1) is nodes
    with pytest.raises(TooFewRows, match="fewer than 10 rows"):
        with_siblings(np.repeat([[1], [4]], [12, 3], 0), 10)


def test_parts_of_a_mixture_have_the_minimum_too() -> None:
    """A linear model among the members of a stack sends no derivatives of few rows."""
    x, y, _ = rows(60, 2)
    clients = sites(x, y, 2, 3)
    whole = method("stack(members=['glm', 'forest(trees=2, depth=2)'])", training=RECIPE)
    whole, _ = completed(whole, blueprint(clients, "mlp(widths=[8])"))
    found = []
    for exchange in whole.exchanges:

        def note(part, found=found):
            found.append((type(part), getattr(part, "least", None)))
            return part

        changed(sparing(exchange, 7).local, note)
    assert {(Derivatives, 7), (LeftOfCuts, 7), (Counts, 7)} <= set(found)
