"""`boost` grows the trees of the pooled rows, which scikit-learn grows too."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from support.alone import played

from unseen import Training
from unseen.core.client import Client, Split
from unseen.core.losses import SquaredError
from unseen.methods.exact.boosted_views import GRID, BoostedForest, Grown, grid
from unseen.methods.exact.histograms import derivatives, descend
from unseen.methods.exact.loops import ARRAYS, compiled


def rows(n=600, classes=2, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 4)).astype(np.float32)
    score = x[:, 0] + x[:, 1] * x[:, 2] + rng.normal(size=n)
    y = np.digitize(score, np.quantile(score, np.arange(1, classes) / classes))
    return x, y, score.astype(np.float32)


def sites(x, y, classes, count=3):
    return {
        f"s{k}": Client(
            f"s{k}", Split(torch.from_numpy(x[k::count].copy()), torch.as_tensor(y[k::count])),
            None, classes,
        )
        for k in range(count)
    }  # fmt: skip


def scores(model, x):
    """What the trees add up to, the last column of two classes."""
    with torch.no_grad():
        return model(torch.from_numpy(x)).double().numpy()


def binned(model, x):
    """The columns as numbers of bins, so that another library has the same ones."""
    module = model.module
    forest = BoostedForest(1, 1, 0.1, 0, 1, 64, module.scores, x.shape[1], None)
    edges = module.edges.detach().numpy().reshape(forest.inputs, -1)
    return np.stack([np.searchsorted(e, c) for e, c in zip(edges, x.T, strict=True)], 1)


THEIRS = {
    "max_depth": 4, "max_leaf_nodes": None, "early_stopping": False, "min_samples_leaf": 20,
    "max_bins": 255, "learning_rate": 0.1, "l2_regularization": 0.0,
}  # fmt: skip


@pytest.mark.parametrize(("classes", "columns"), [(2, 4), (3, 4), (2, 1)])
def test_classes_as_scikit_learn_with_the_same_bins(classes, columns):
    x, y, _ = rows(classes=classes)
    x = x[:, :columns].copy()
    run = played("boost(trees=8, depth=4)", sites(x, y, classes))
    theirs = HistGradientBoostingClassifier(max_iter=8, **THEIRS).fit(binned(run.model, x), y)
    found, expected = scores(run.model, x), theirs._raw_predict(binned(run.model, x))
    if classes == 2:
        np.testing.assert_allclose(found[:, 1] - found[:, 0], expected[:, 0], atol=1e-5)
    else:
        # Baselines may differ by a number that is the same for all classes.
        found, expected = (a - a.mean(1, keepdims=True) for a in (found, expected))
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_numbers_as_scikit_learn_with_the_same_bins():
    x, _, y = rows()
    run = played(
        "boost(trees=8, depth=4)", sites(x, y, None), training=Training(loss=SquaredError())
    )
    theirs = HistGradientBoostingRegressor(max_iter=8, **THEIRS).fit(binned(run.model, x), y)
    np.testing.assert_allclose(
        scores(run.model, x)[:, 0], theirs.predict(binned(run.model, x)), atol=1e-4
    )


@pytest.mark.parametrize("classes", [2, 3, None])
def test_the_trees_of_sites_are_those_of_the_pooled_rows(classes):
    """The same bits, for sums of multiples of 2^-30 are exact in any order."""
    x, y, score = rows(classes=classes or 2)
    y, training = (score, Training(loss=SquaredError())) if classes is None else (y, Training())
    order = np.random.default_rng(1).permutation(len(x))
    many = played("boost(trees=5)", sites(x, y, classes, count=4), training=training)
    pooled = sites(x[order], y[order], classes, count=1)
    one = played("boost(trees=5)", pooled, training=training)
    assert torch.equal(many.state.inbox["model"], one.state.inbox["model"])


def test_of_two_children_the_one_with_fewer_rows_is_sent():
    """Messages against counts of the rows that lie in each node of the grown tree."""
    from unseen.engine.inprocess import InProcess

    sent = []

    class Listening(InProcess):
        def map(self, exchange, inbox, clients, turn):
            replies = super().map(exchange, inbox, clients, turn)
            if exchange.name != "bins":
                sent.append(self.rows("model", replies, None).linear(torch.ones(len(replies))))
            return replies

    x, y, _ = rows()
    run = played("boost(trees=1, depth=4, bins=8)", sites(x, y, 2), backend=Listening)
    tree = run.model.module
    feature, threshold = tree.feature[0].int().tolist(), tree.threshold[0].tolist()
    inside = {0: np.full(len(x), True)}
    for node in range(7):
        right = x[:, feature[node]] > threshold[node]
        for child, side in ((2 * node + 1, ~right), (2 * node + 2, right)):
            inside[child] = inside[node] & side if feature[node] >= 0 else np.zeros(len(x), bool)
    for level, row in enumerate(sent):
        counts = row.numpy().reshape(-1, 4, 8, 3)[..., 2].sum(-1)  # of every column
        first = 2**level - 1
        pairs = [(n, n + 1) for n in range(first, 2 * first + 1, 2)] if level else [(0, 0)]
        for own, pair in zip(counts, pairs, strict=True):
            np.testing.assert_array_equal(own, min(inside[node].sum() for node in pair))
    larger = [inside[n].sum() < inside[n + 1].sum() for n in (1, 3, 5, 7, 9, 11, 13)]
    assert 0 < sum(larger) < len(larger)  # the left child of some, the right one of others


def test_edges_lie_at_equal_shares_of_the_rows():
    x, y, _ = rows(4000)
    model = played("boost(trees=1, bins=4)", sites(x, y, 2)).model
    edges = model.module.edges.detach().numpy().reshape(4, 3)
    widest = np.diff(grid()[GRID // 2 - 200 : GRID // 2 + 200]).max()
    for column, own in zip(x.T, edges, strict=True):
        np.testing.assert_allclose(own, np.quantile(column, [0.25, 0.5, 0.75]), atol=2 * widest)


def test_derivatives_by_differences():
    rng = np.random.default_rng(0)
    for classes, count in ((2, 1), (3, 3), (None, 1)):
        forest = BoostedForest(1, 1, 0.1, 0, 1, 4, count, 1, classes)
        y = rng.normal(size=6) if classes is None else rng.integers(classes, size=6)
        f, e = rng.normal(size=(6, count)), 1e-5
        scores, losses = derivatives(f, y, forest).values()
        slopes, curvatures = scores[:, :, 1], scores[:, :, 2]
        np.testing.assert_array_equal(scores[:, :, 0], f)
        factor = 2 if classes is None else 1  # the loss is printed without the half
        for i, k in np.ndindex(6, count):
            up, down = f.copy(), f.copy()
            up[i, k] += e
            down[i, k] -= e
            high, low = (derivatives(g, y, forest)["losses"].sum() for g in (up, down))
            middle = losses.sum()
            assert abs((high - low) / (2 * e) / factor - slopes[i, k]) < 1e-8
            assert slopes[i, k] * 2**30 % 1 == curvatures[i, k] * 2**30 % 1 == 0
            assert abs((high - 2 * middle + low) / e**2 / factor - curvatures[i, k]) < 1e-4


def test_a_row_stays_where_a_node_is_not_split():
    x, y, _ = rows(60)
    run = played("boost(trees=3, least=25)", sites(x, y, 2))
    forest = BoostedForest(3, 5, 0.1, 0.0, 25, 64, 1, 4, 2)
    trees = Grown.of(run.model.vector, forest)
    assert (trees.feature[:, 0] >= 0).all()  # 60 rows: one split, into 25 or more each
    assert (trees.feature[:, 1:] < 0).all()
    leaves, cells = np.zeros((60, 1), np.int32), binned(run.model, x).astype(np.uint8)
    for _ in range(5):
        descend(trees, 0, cells, leaves)
    assert set(np.unique(leaves)) == {1, 2}


def test_a_site_with_one_class_and_columns_that_are_constant():
    x, y, _ = rows(300)
    x[:, 3] = 1.0
    clients = sites(x, y, 2)
    first = clients["s0"]
    clients["s0"] = Client("s0", Split(first.train.x, torch.ones_like(first.train.y)), None, 2)
    run = played("boost(trees=4)", clients)
    assert np.isfinite(scores(run.model, x)).all()
    forest = BoostedForest(4, 5, 0.1, 0.0, 20, 64, 1, 4, 2)
    assert not (Grown.of(run.model.vector, forest).feature == 3).any()
    assert np.isfinite(run.outcomes[-1].table["loss"].numpy()).all()


def test_what_a_site_has_forgotten_it_finds_again():
    from unseen.core.client import Memories
    from unseen.engine.inprocess import InProcess

    class Forgetful(InProcess):
        def map(self, exchange, inbox, clients, turn):
            self.memories = Memories()
            return super().map(exchange, inbox, clients, turn)

    x, y, _ = rows(classes=3)
    usual = played("boost(trees=3, depth=3)", sites(x, y, 3)).state.inbox["model"]
    again = played("boost(trees=3, depth=3)", sites(x, y, 3), backend=Forgetful)
    assert torch.equal(again.state.inbox["model"], usual)


def test_compiled_loops_leave_the_same_bits_as_arrays():
    pytest.importorskip("numba")
    rng = np.random.default_rng(0)
    cells = rng.integers(7, size=(500, 3)).astype(np.uint8)
    scores = rng.normal(size=(500, 2, 3)) ** [1, 1, 2]
    feature = np.array([[1, -1, 0, -1, -1, -1, -1], [2, 0, 1, -1, -1, -1, -1]])
    edge = np.array([[3, 0, 2, 0, 0, 0, 0], [1, 4, 5, 0, 0, 0, 0]])
    every = np.array([[1, 1, 0, 0, 0, 0, 1], [1, 0, 1, 1, 0, 1, 0]], bool)
    found = []
    for way in (ARRAYS, compiled()):
        nodes, left = np.zeros((500, 2), np.int32), []
        for level in range(3):
            first, asked = 2**level - 1, np.zeros((2, 7), bool)
            asked[:, first : 2 * first + 1] = every[:, first : 2 * first + 1]
            sums = np.full((2, 2, 2 ** max(0, level - 1), 3, 7, 3), np.nan)
            way.add_up(cells, np.array([200, 500]), nodes, scores, asked, first, sums)
            for histograms in sums.reshape(-1, *sums.shape[2:]):
                left += way.best(histograms, histograms[:, 0].sum(1), 0.5, 9)
            for k in range(2):  # every column counts the rows at the nodes that are asked for
                there = asked[k, nodes[:, k]].sum()
                assert (sums[:, k, ..., 2].sum((0, 1, 3)) == there).all()
                assert there > 0
            way.descend(cells, nodes, feature, edge)
            left.append(sums)
        found.append((nodes, *left))
    assert compiled() is not ARRAYS
    for theirs, ours in zip(*found, strict=True):
        np.testing.assert_array_equal(theirs, ours)


def test_sites_together_send_the_same_bits_as_one_at_a_time():
    from unseen.engine.inprocess import InProcess

    class OneByOne(InProcess):
        def _ready(self, exchange, asks):
            return {}

    x, y, _ = rows(classes=3)
    together = played("boost(trees=4)", sites(x, y, 3))
    alone = played("boost(trees=4)", sites(x, y, 3), backend=OneByOne)
    assert torch.equal(together.state.inbox["model"], alone.state.inbox["model"])
    for first, second in zip(together.outcomes[1:], alone.outcomes[1:], strict=True):
        assert torch.equal(first.table["loss"], second.table["loss"])


def test_a_row_on_a_border_lies_left_of_it():
    """Both values of the column are borders of the grid, and so edges of bins."""
    x = np.repeat(grid()[[GRID // 2, GRID // 2 + 40]], 30)[:, None]
    y = np.repeat([0, 1], 30)
    run = played("boost(trees=1, depth=1, least=5)", sites(x, y, 2))
    found = scores(run.model, x).reshape(60, -1)[:, -1]
    assert (found[:30] < found[30:]).all()


def test_a_site_that_remembers_an_earlier_round_replays_the_trees():
    from unseen.core.client import Memories
    from unseen.engine.inprocess import InProcess

    class Late(InProcess):
        def map(self, exchange, inbox, clients, turn):
            if turn.round == 6:  # as after round 3
                self.memories = Memories(self.kept)
            replies = super().map(exchange, inbox, clients, turn)
            if turn.round == 3:
                self.kept = {name: list(own) for name, own in self.memories.by_client.items()}
            return replies

    x, y, _ = rows(classes=3)
    usual = played("boost(trees=3, depth=3)", sites(x, y, 3)).state.inbox["model"]
    again = played("boost(trees=3, depth=3)", sites(x, y, 3), backend=Late)
    assert torch.equal(again.state.inbox["model"], usual)
