"""`forest` grows the trees of the pooled rows, by cuts that the paper's algorithm would choose."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from exact.test_boosting import rows, sites
from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor
from support.alone import blueprint, completed, played

from unseen import InProcess, Training, method, start
from unseen.core.losses import SquaredError
from unseen.core.round import play_round
from unseen.core.turn import keyed

SQUARED = Training(loss=SquaredError())


def outputs(run, x):
    with torch.no_grad():
        return run.model(torch.from_numpy(x)).double().numpy()


def grown(x, y, expression, classes=2, count=3, **options):
    return played(expression, sites(x, y, classes, count), **options)


def literal_tree(x, y, edges, tops, *, depth, least, tries, classes, tree=0):
    """Return the shares of classes at each row's leaf of one tree, node by node.

    Geurts et al.'s Build_an_extra_tree, with cuts drawn among borders of bins, level by level.
    """
    inside = [(np.arange(len(x)), np.full(x.shape[1], -1), tops.copy())]
    leaf = np.tile(np.bincount(y, minlength=classes) / len(y), (len(x), 1))

    def impurity(labels):  # n times Gini's
        counts = np.bincount(labels, minlength=classes)
        return counts.sum() - (counts**2).sum() / max(1, counts.sum())

    for level in range(depth):
        generator = keyed(f"forest/0/{tree}/{level}")
        order = torch.rand(len(inside), x.shape[1], generator=generator).numpy()
        where = torch.rand(len(inside), tries, generator=generator).numpy()
        after = []
        for (members, low, high), keys, at in zip(inside, order, where, strict=True):
            keys = np.where(high - low < 2, np.inf, keys)
            best = None
            for column, u in zip(np.argsort(keys, kind="stable")[:tries], at, strict=True):
                free = high[column] - low[column] - 1
                if free < 1:
                    continue
                cut = edges[
                    column, low[column] + 1 + min(int(np.floor(u * np.float32(free))), free - 1)
                ]
                left = x[members, column] <= cut
                if min(left.sum(), (~left).sum()) < least:
                    continue
                gain = impurity(y[members]) - sum(impurity(y[members[s]]) for s in (left, ~left))
                if gain > 1e-9 * len(members) and (best is None or gain > best[0] + 1e-9):
                    best = gain, column, cut, left
            if best is None:
                continue
            _, column, cut, left = best
            for side, own in ((0, members[left]), (1, members[~left])):
                leaf[own] = np.bincount(y[own], minlength=classes) / len(own)
                box = low.copy(), high.copy()
                if side == 0:
                    box[1][column] = np.searchsorted(edges[column], cut, "left")
                else:
                    box[0][column] = np.searchsorted(edges[column], cut, "right") - 1
                if len(own) >= 2 * least and len(set(y[own])) > 1:
                    after.append((own, *box))
        inside = after
    return leaf


@pytest.mark.parametrize("classes", [2, 3])
def test_a_tree_node_by_node(classes):
    """One tree against a literal transcription that holds all rows."""
    x, y, _ = rows(300, classes)
    run = grown(x, y, "forest(trees=1, depth=5, columns=2, bins=8, least=3)", classes)
    edges = run.model.module.workspace.detach().numpy()[: 4 * 7].reshape(4, 7)
    tops = np.array([(e < c.max()).sum() for e, c in zip(edges, x.T, strict=True)])
    expected = literal_tree(x, y, edges, tops, depth=5, least=3, tries=2, classes=classes)
    np.testing.assert_allclose(np.exp(outputs(run, x)), np.maximum(expected, 1e-6), atol=1e-6)
    assert len(np.unique(expected, axis=0)) > 4


@pytest.mark.parametrize("classes", [2, 3, None])
def test_the_trees_of_sites_are_those_of_the_pooled_rows(classes):
    """The same bits, for counts are whole numbers, and sums of multiples of 2^-30 exact."""
    x, y, score = rows(classes=classes or 2)
    y, options = (score, {"training": SQUARED}) if classes is None else (y, {})
    order = np.random.default_rng(1).permutation(len(x))
    many = grown(x, y, "forest(trees=12, depth=6)", classes, 4, **options)
    one = grown(x[order], y[order], "forest(trees=12, depth=6)", classes, 1, **options)
    assert torch.equal(many.state.inbox["model"], one.state.inbox["model"])


@pytest.mark.parametrize("classes", [2, 4])
def test_as_good_as_scikit_learns(classes):
    """Brier score on new rows, within three standard errors of the paired difference."""
    x, y, _ = rows(1200, classes)
    new, labels, _ = rows(2000, classes, seed=1)
    truth = np.eye(classes)[labels]
    ours = np.exp(outputs(grown(x, y, "forest(least=5)", classes), new))
    theirs = ExtraTreesClassifier(100, min_samples_leaf=5, random_state=0).fit(x, y)
    ours, theirs = (((p - truth) ** 2).sum(1) for p in (ours, theirs.predict_proba(new)))
    worse = ours - theirs
    assert worse.mean() < 3 * worse.std() / len(worse) ** 0.5
    assert ours.mean() < 0.8 * ((truth.mean(0) - truth) ** 2).sum(1).mean()


def test_numbers_as_good_as_scikit_learns():
    x, _, y = rows(1200)
    new, _, truth = rows(2000, seed=1)
    ours = outputs(grown(x, y, "forest(least=5)", None, training=SQUARED), new)[:, 0]
    theirs = ExtraTreesRegressor(100, min_samples_leaf=5, max_features=2, random_state=0)
    worse = (ours - truth) ** 2 - (theirs.fit(x, y).predict(new) - truth) ** 2
    assert worse.mean() < 3 * worse.std() / len(worse) ** 0.5


def test_of_too_many_nodes_those_with_most_rows_are_split(monkeypatch):
    x, y, _ = rows(600)
    monkeypatch.setattr("unseen.methods.forest.WIDTH", 2)
    narrow = grown(x, y, "forest(trees=3, depth=5)").model.module
    feature, child = narrow.feature.int().tolist(), narrow.child.int().tolist()
    for own, children in zip(feature, child, strict=True):
        level = [0]
        while level:
            split = [node for node in level if own[node] >= 0]
            assert len(split) <= 2
            level = [children[node] + side for node in split for side in (0, 1)]


def test_a_last_block_that_is_smaller():
    x, y, _ = rows()
    few = grown(x, y, "forest(trees=10, depth=4)").model.module
    more = grown(x, y, "forest(trees=13, depth=4)").model.module
    assert torch.equal(more.feature[:10], few.feature)
    assert (more.feature[10:, 0] >= 0).all()


def test_columns_with_one_value_are_never_split():
    x, y, _ = rows()
    x[:, 1], x[:, 2] = 0.5, x[:, 2] > 0
    module = grown(x, y, "forest(trees=5, depth=6, columns=2)").model.module
    used = set(module.feature.int().unique().tolist())
    assert used == {-1, 0, 2, 3}


def test_another_draw_is_another_forest():
    x, y, _ = rows()
    first, second = (grown(x, y, f"forest(trees=4, draw={n})").model.module for n in (0, 1))
    assert not torch.equal(first.feature, second.feature)


@pytest.mark.parametrize("count", [2, 40, 100])
def test_numbers_of_few_rows(count):
    """Rows run out before levels do, and then no cut has any on its left."""
    x, _, y = rows(count)
    run = grown(x, y, "forest(trees=10)", None, 2, training=SQUARED)
    assert np.abs(outputs(run, x)[:, 0] - y).mean() <= np.abs(y - y.mean()).mean()
    same = grown(x, np.full_like(y, 3.0), "forest(trees=10)", None, 2, training=SQUARED)
    np.testing.assert_allclose(outputs(same, x), 3.0, rtol=1e-6)


@pytest.mark.parametrize("classes", [2, None])
def test_rows_counted_in_runs_are_the_same_bits(classes, monkeypatch):
    x, y, score = rows(200)
    y, options = (score, {"training": SQUARED}) if classes is None else (y, {})
    at_once = grown(x, y, "forest(trees=10, depth=5)", classes, **options)
    monkeypatch.setattr("unseen.methods.exact.random_counts.ROWS", 7)
    in_runs = grown(x, y, "forest(trees=10, depth=5)", classes, **options)
    assert torch.equal(at_once.state.inbox["model"], in_runs.state.inbox["model"])


def test_leaves_of_numbers_far_from_zero_are_their_means():
    """Of 5,000 labels of mean 1,000 the sum has more digits than a float32."""
    x, _, score = rows(5000)
    y = (1000 + 1.4 * score).astype(np.float32)
    predicted = outputs(grown(x, y, "forest(trees=1, depth=3)", None, training=SQUARED), x)[:, 0]
    leaves = np.unique(predicted)
    assert len(leaves) > 4
    for leaf in leaves:
        exact = y[predicted == leaf].astype(np.float64).mean()
        assert abs(leaf - exact) < 1e-7 * 1000


def test_trees_that_do_not_grow_yet_answer_with_the_mean():
    x, _, score = rows(300)
    y = (1000 + score).astype(np.float32)
    clients = sites(x, y, None, 3)
    names, plan = sorted(clients), blueprint(clients, "mlp(widths=[8])")
    chosen, model = completed(method("forest(trees=30, depth=4)", SQUARED), plan)
    state, backend = start(chosen, model, names, 0), InProcess(model, clients)
    for _ in range(4):  # one block of three
        state, _ = play_round(chosen, state, backend, names, chosen.rounds)
    model.bind(state.inbox["model"].clone(), state.inbox["buffers"].clone())
    with torch.no_grad():
        np.testing.assert_allclose(model(torch.from_numpy(x)).mean(), y.mean(), atol=0.5)


def test_trees_of_another_block_are_other_trees():
    x, y, _ = rows()
    module = grown(x, y, "forest(trees=20, depth=4)").model.module
    assert not torch.equal(module.feature[:10], module.feature[10:])
