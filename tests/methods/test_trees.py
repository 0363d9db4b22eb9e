"""`trees` are scikit-learn's, as one place would fit them, and as a bag of sites does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from support.alone import played

from unseen import Training, UnseenError, method
from unseen.core.client import Client, Split
from unseen.core.losses import SquaredError

OPTIONS = {"max_leaf_nodes": 7, "max_depth": 8, "min_samples_leaf": 20}
BOOSTED = {**OPTIONS, "max_iter": 6, "early_stopping": False}


def rows(n=400, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 4)).astype(np.float32)
    score = x[:, 0] + x[:, 1] * x[:, 2] + 0.3 * rng.normal(size=n)
    y = np.digitize(score, np.quantile(score, np.arange(1, classes) / classes))
    return x, y, score.astype(np.float32)


def site(x, y, classes, name="a"):
    return Client(name, Split(torch.from_numpy(x), torch.as_tensor(y)), None, classes)


def outputs(run, x):
    with torch.no_grad():
        return run.model(torch.from_numpy(x))


def shares(run, x):
    return outputs(run, x).double().softmax(1).numpy()


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_boosted_classes_as_scikit_learn_predicts(classes):
    x, y, _ = rows(classes=classes)
    run = played("trees(count=6, leaves=7)", {"a": site(x, y, classes)})
    theirs = HistGradientBoostingClassifier(**BOOSTED).fit(x, y)
    np.testing.assert_allclose(shares(run, x), theirs.predict_proba(x), atol=1e-5)


def test_boosted_numbers_as_scikit_learn_predicts():
    x, _, y = rows()
    run = played(
        "trees(count=6, leaves=7)", {"a": site(x, y, None)}, training=Training(loss=SquaredError())
    )
    theirs = HistGradientBoostingRegressor(**BOOSTED).fit(x, y)
    np.testing.assert_allclose(outputs(run, x)[:, 0].numpy(), theirs.predict(x), atol=1e-5)


def test_a_forest_of_one_tree_that_sees_all_columns_is_as_good_as_theirs():
    """Theirs draws by a seed, which ours keys by the turn: so the accuracy, and the sums to 1."""
    x, y, score = rows(n=2000)
    fresh, truth, numbers = rows(n=2000, seed=1)
    run = played("trees(kind='forest', count=50, leaves=31)", {"a": site(x, y, 3)})
    options = {**OPTIONS, "max_leaf_nodes": 31, "n_estimators": 50}
    theirs = RandomForestClassifier(**options, random_state=0).fit(x, y)
    found = outputs(run, fresh).double().exp().numpy()
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-4)
    assert abs((found.argmax(1) == truth).mean() - theirs.score(fresh, truth)) < 0.03
    assert np.corrcoef(found[:, 0], theirs.predict_proba(fresh)[:, 0])[0, 1] > 0.98
    run = played(
        "trees(kind='forest', count=50, leaves=31)", {"a": site(x, score, None)},
        training=Training(loss=SquaredError()),
    )  # fmt: skip
    theirs = RandomForestRegressor(**options, random_state=0).fit(x, score)
    error = [np.mean((guess - numbers) ** 2) for guess in
             (outputs(run, fresh)[:, 0].numpy(), theirs.predict(fresh))]  # fmt: skip
    assert error[0] == pytest.approx(error[1], rel=0.1)


def test_a_bag_is_the_mean_of_what_each_site_would_predict():
    x, y, _ = rows(n=900)
    x[3] = np.nextafter(x[4], np.float32(9))  # no threshold may round between neighbours
    clients = {f"s{k}": site(x[k::3][: 300 - 50 * k], y[k::3][: 300 - 50 * k], 3, f"s{k}")
               for k in range(3)}  # fmt: skip
    run = played("bag(of='trees(count=6, leaves=7)')", clients)
    expected = np.zeros((len(x), 3))
    for client in clients.values():
        own = client.train.x.numpy(), client.train.y.numpy()
        theirs = HistGradientBoostingClassifier(**BOOSTED).fit(*own)
        expected += len(own[1]) / 750 * theirs.predict_proba(x)
    np.testing.assert_allclose(shares(run, x), expected, atol=1e-5)


@pytest.mark.parametrize("present", [[1], [0, 2], [0, 1, 2]])
def test_classes_that_a_site_lacks_are_rare_not_impossible(present):
    x, y, _ = rows(n=600, classes=3)
    chosen = np.isin(y, present)
    run = played("trees(count=6, leaves=7)", {"a": site(x[chosen], y[chosen], 4)})
    p = shares(run, x[chosen])
    absent = [c for c in range(4) if c not in present]
    assert (p[:, absent] > 0).all()
    assert (p[:, absent].sum(1) < 0.05).all()
    if len(present) == 1:
        assert (p.argmax(1) == present[0]).all()
        return
    theirs = HistGradientBoostingClassifier(**BOOSTED).fit(x[chosen], y[chosen])
    np.testing.assert_array_equal(p.argmax(1), theirs.predict(x[chosen]))
    odds = np.log(p[:, present[1]] / p[:, present[0]])
    expected = np.log(theirs.predict_proba(x[chosen]))
    np.testing.assert_allclose(odds, expected[:, 1] - expected[:, 0], atol=1e-4)


def test_options_out_of_range_are_refused():
    for text in ("trees(kind='none')", "trees(count=0)", "trees(leaves=1)", "trees(rate=2)"):
        with pytest.raises(UnseenError, match="trees"):
            method(text, Training())
