"""`glm` is the fit of the pooled rows, by scikit-learn and by closed form."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from support.alone import RECIPE, played
from support.sites import federation

from unseen import Study, Training, UnseenError
from unseen.core.client import Client, Split
from unseen.core.losses import SquaredError
from unseen.errors import Diverged
from unseen.methods.exact.newton import Newton, Shape, solved, too_large


def pooled(clients):
    names = sorted(clients)
    x = torch.cat([clients[n].train.x for n in names]).double().numpy()
    return x, torch.cat([clients[n].train.y for n in names]).numpy()


def fitted(clients, expression="glm", training=RECIPE):
    """Weights [C, d] and intercepts [C] of the fit."""
    model = played(expression, clients, training=training).model
    return model.module.head.weight.detach().numpy(), model.module.head.bias.detach().numpy()


@pytest.mark.parametrize("ridge", [1.0, 0.1, 30.0])
def test_two_classes_as_scikit_learn_on_pooled_rows(ridge):
    clients = federation(4, classes=2)
    x, y = pooled(clients)
    theirs = LogisticRegression(C=1 / ridge, tol=1e-12, solver="newton-cholesky").fit(x, y)
    weight, bias = fitted(clients, f"glm(ridge={ridge})")
    np.testing.assert_allclose(weight[1] - weight[0], theirs.coef_[0], atol=1e-6)
    np.testing.assert_allclose(bias[1] - bias[0], theirs.intercept_[0], atol=1e-6)


def test_several_classes_as_scikit_learn_on_pooled_rows():
    clients = federation(5, classes=4)
    x, y = pooled(clients)
    theirs = LogisticRegression(C=2.0, tol=1e-12, solver="newton-cholesky").fit(x, y)
    weight, bias = fitted(clients, "glm(ridge=0.5)")
    np.testing.assert_allclose(weight, theirs.coef_, atol=1e-6)
    # A number added to all intercepts changes no probability.
    np.testing.assert_allclose(
        bias - bias.mean(), theirs.intercept_ - theirs.intercept_.mean(), rtol=1e-6, atol=1e-6
    )


def test_numbers_as_the_normal_equations():
    generator = torch.Generator().manual_seed(1)
    clients = {}
    for k in range(3):
        x = torch.randn(30 + k, 5, generator=generator)
        y = x @ torch.arange(5.0) + k + 0.1 * torch.randn(30 + k, generator=generator)
        clients[f"s{k}"] = Client(f"s{k}", Split(x, y), None, None)
    x, y = pooled(clients)
    theirs = Ridge(alpha=2.0).fit(x, y)
    weight, bias = fitted(clients, "glm(ridge=2.0)", Training(loss=SquaredError()))
    np.testing.assert_allclose(weight[0], theirs.coef_, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(bias[0], theirs.intercept_, rtol=1e-5)


def test_the_split_into_sites_does_not_matter():
    clients = federation(4, classes=3)
    names = sorted(clients)
    x = torch.cat([clients[n].train.x for n in names])
    y = torch.cat([clients[n].train.y for n in names])
    one = {"all": Client("all", Split(x, y), None, 3)}
    for a, b in zip(fitted(clients), fitted(one), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_constant_columns_and_classes_that_a_site_lacks():
    clients = federation(3, classes=2)
    changed = {}
    for k, (name, client) in enumerate(sorted(clients.items())):
        x, y = client.train.x.clone(), client.train.y.clone()
        x[:, 2] = 0.0
        if k == 0:
            y[:] = 1
        changed[name] = Client(name, Split(x, y), None, 2)
    x, y = pooled(changed)
    theirs = LogisticRegression(tol=1e-12, solver="newton-cholesky").fit(x, y)
    weight, _ = fitted(changed)
    np.testing.assert_allclose(weight[1] - weight[0], theirs.coef_[0], atol=1e-6)
    free, _ = fitted(changed, "glm(ridge=0)")
    assert abs(free[1, 2] - free[0, 2]) < 1e-6  # the shortest of all solutions


def test_ten_sites_with_eight_rows_each():
    clients = {}
    for name, client in federation(10, n=16, classes=2).items():
        rows = torch.arange(8)
        clients[name] = Client(name, client.train.take(rows), None, 2)
    x, y = pooled(clients)
    theirs = LogisticRegression(tol=1e-12, solver="newton-cholesky").fit(x, y)
    weight, _ = fitted(clients)
    np.testing.assert_allclose(weight[1] - weight[0], theirs.coef_[0], atol=1e-6)


def test_separated_classes_bring_a_penalty_in_and_name_the_column():
    x = torch.linspace(-2, 2, 40)[:, None].repeat(1, 2)
    x[:, 1] = torch.randn(40, generator=torch.Generator().manual_seed(0))
    clients = {"a": Client("a", Split(x, (x[:, 0] > 0).long()), None, 2)}
    run = played("glm(ridge=0, steps=40)", clients)
    weight = run.model.module.head.weight.detach().numpy()
    theirs = LogisticRegression(C=1 / 1e-2, tol=1e-12, solver="newton-cholesky").fit(
        x.double().numpy(), (x[:, 0] > 0).numpy()
    )
    np.testing.assert_allclose(weight[1] - weight[0], theirs.coef_[0], rtol=1e-4)
    memory = run.state.rules["train/model"]["apply"]
    assert memory["separated"].tolist() == [True, False]


@pytest.mark.parametrize("seed", range(4))
def test_separated_classes_are_fitted_to_the_end_by_the_default_steps(seed):
    """Every row is on its side of the penalised fit's border."""
    x = torch.randn(90, 4, generator=torch.Generator().manual_seed(seed))
    y = (x[:, 0] + 0.3 * x[:, 1] > 0).long()
    weight, bias = fitted({"a": Client("a", Split(x, y), None, 2)}, "glm(ridge=0)")
    theirs = LogisticRegression(C=1 / 1e-2, tol=1e-12, solver="newton-cholesky")
    theirs.fit(x.double().numpy(), y.numpy())
    np.testing.assert_allclose(weight[1] - weight[0], theirs.coef_[0], rtol=1e-4)
    np.testing.assert_allclose(bias[1] - bias[0], theirs.intercept_[0], rtol=1e-3, atol=1e-3)


def test_a_step_that_overshoots_is_halved():
    shape = Shape(2, 1, "multinomial")
    step = Newton(shape, ridge=1e-9)
    # One row far out: the curvature there says nothing, and Newton's step is far too long.
    old = shape.vector(torch.tensor([[3.0, 0.0]], dtype=torch.float64))
    state = {"objective": torch.tensor(1.0), "beta": torch.zeros(1, 2, dtype=torch.float64)}
    row = torch.zeros(shape.row, dtype=torch.float64)
    row[0] = 5.0
    new, _ = step(old, row, state, {})
    torch.testing.assert_close(shape.coefficients(new), torch.tensor([[1.5, 0.0]]).double())


def test_data_with_too_many_columns_are_refused_with_a_remedy():
    x = torch.zeros(4, 5000)
    clients = {"a": Client("a", Split(x, torch.tensor([0, 1, 0, 1])), None, 2)}
    with pytest.raises(UnseenError, match="5,001") as error:
        played("glm", clients)
    assert "take fedavg" in str(error.value)


@pytest.mark.parametrize(("classes", "hinted"), [(2, False), (40, True)])
def test_many_classes_may_be_numbers(classes, hinted):
    reason = too_large(Shape(classes, 5000, "multinomial"))
    assert ("task='regression'" in reason) == hinted


def test_no_rule_selects_a_step_on_the_way(tmp_path):
    """An exact fit is evaluated once, where it ends: whatever rule selects takes it."""
    study = Study(
        dataset="heart-disease", methods=("glm",), targets=("va",), seeds=1, metric="auroc"
    )
    study.run(tmp_path)
    records = (tmp_path / "records" / "glm" / "va" / "seed-0" / "source.jsonl").read_text()
    assert {json.loads(line)["round"] for line in records.splitlines()} == {9}


@pytest.mark.parametrize("collinear", [False, True])
def test_equations_are_solved_as_numpy_solves_them(collinear):
    draws = np.random.default_rng(0)
    rows = draws.normal(size=(50, 8))
    if collinear:
        rows[:, 3] = rows[:, 2]
    matrix, right = rows.T @ rows, draws.normal(size=8)
    right = matrix @ right
    expected = np.linalg.lstsq(matrix, right, rcond=None)[0]
    result = solved(torch.from_numpy(matrix), torch.from_numpy(right))
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-7, atol=1e-9)


def test_equations_without_finite_numbers_are_refused_in_words():
    matrix = torch.full((3, 3), float("nan"), dtype=torch.float64)
    with pytest.raises(Diverged, match="glm's equations have no solution"):
        solved(matrix, torch.ones(3, dtype=torch.float64))
