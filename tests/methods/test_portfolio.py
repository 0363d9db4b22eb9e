"""Members are tried at every rate without each group of sites, and trained at the one chosen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.alone import RECIPE, Played, blueprint, completed, played
from support.sites import federation, images

from unseen import UnseenError, method
from unseen.core.client import Client, Split
from unseen.core.optimiser import SGD
from unseen.engine.stacked import models_of

MEMBERS = "members=['fedavg', 'glm', 'fedavg+shift']"
RATES = (0.2, 1.0, 5.0)


def at(factor: float):
    return replace(RECIPE, optimiser=SGD(RECIPE.optimiser.lr * factor))


def without(clients: dict[str, Client], group: int, groups: int) -> dict[str, Client]:
    return {n: c for i, (n, c) in enumerate(sorted(clients.items())) if i % groups != group}


def part(run: Played, name: str) -> torch.Tensor:
    return run.state.inbox["model"][run.model.layout.part(name)]


@pytest.mark.parametrize("seed", range(3))
def test_the_rate_of_each_member_by_a_loop(seed):
    clients = federation(4, seed=seed)
    run = played(f"portfolio({MEMBERS}, ensemble=2, groups=2)", clients)
    place, chosen = 3 * 2, []  # behind the folds of three members
    for i, text in ((0, "fedavg"), (2, "fedavg+shift")):
        scores = np.zeros(3)
        for r, factor in enumerate(RATES):
            for g in range(2):
                alone = played(text, without(clients, g, 2), training=at(factor))
                tried = part(run, f"others.{place}")
                torch.testing.assert_close(tried, alone.state.inbox["model"])
                place += 1
                for client in [c for i, (_, c) in enumerate(sorted(clients.items())) if i % 2 == g]:
                    y = np.eye(3)[client.train.y.numpy()]
                    with torch.no_grad():
                        p = alone.model(client.train.x).double().softmax(-1).numpy()
                    scores[r] += ((p - y) ** 2).sum() / len(y)
        mark = run.state.inbox[f"rate.{i}"]
        assert mark.tolist() == [float(r == scores.argmin()) for r in range(3)]
        chosen.append((i, text, RATES[scores.argmin()]))
    assert "rate.1" not in run.state.inbox
    for i, text, factor in chosen:
        whole = played(f"{text}+ensemble(members=2)", clients, training=at(factor))
        torch.testing.assert_close(part(run, f"members.{i}"), whole.state.inbox["model"])
        for g in range(2):
            rest = without(clients, g, 2)
            fold = played(f"{text}+ensemble(members=2)", rest, training=at(factor))
            expected = fold.state.inbox["model"]
            torch.testing.assert_close(part(run, f"others.{2 * i + g}"), expected)


@pytest.mark.parametrize("factor", [1.0, 0.2])
def test_one_rate_is_the_stack_at_that_rate_bit_for_bit(factor):
    clients = federation(4)
    run = played(f"portfolio({MEMBERS}, ensemble=2, groups=2, rates=[{factor}])", clients)
    members = ["fedavg+ensemble(members=2)", "glm", "fedavg+shift+ensemble(members=2)"]
    stack = played(f"stack(members={members}, groups=2)", clients, training=at(factor))
    assert torch.equal(run.state.inbox["model"], stack.state.inbox["model"])
    assert run.method.rounds == stack.method.rounds


def plane(k: int, n: int = 60) -> Client:
    """A site whose classes are a plane apart."""
    generator = torch.Generator().manual_seed(k)
    x = torch.randn(n, 6, generator=generator)
    return Client(f"s{k}", Split(x, (x.sum(1) > 0).long()), None, 2)


def test_rates_repair_a_rate_that_is_far_off():
    clients, new = {f"s{k}": plane(k) for k in range(5)}, plane(9, 2000).split("train")
    right = {}
    for rates in ("[1]", "[1, 50000]"):
        text = f"portfolio(members=['fedavg', 'fedprox'], ensemble=2, groups=2, rates={rates})"
        run = played(text, clients, 12, training=replace(RECIPE, optimiser=SGD(1e-5)))
        with torch.no_grad():
            right[rates] = float((run.model(new.x).argmax(1) == new.y).float().mean())
    assert run.state.inbox["rate.0"].tolist() == run.state.inbox["rate.1"].tolist() == [0.0, 1.0]
    assert right["[1]"] < 0.7 < 0.9 < right["[1, 50000]"]


def test_a_rate_at_which_training_diverges_is_not_chosen_and_stops_nothing():
    clients = federation(4)
    text = "portfolio(members=['fedavg', 'glm'], ensemble=1, groups=2, rates=[{}])"
    run = played(text.format("1, 1e12"), clients)
    assert run.state.inbox["rate.0"].tolist() == [1.0, 0.0]
    plain = played(text.format("1"), clients)
    torch.testing.assert_close(part(run, "members"), part(plain, "members"))


@pytest.mark.parametrize("ensemble", [1, 2])
def test_a_member_that_diverges_at_its_rate_is_given_no_weight_and_stops_nothing(ensemble):
    """A rate that held in the trials may not hold in the training after them."""
    clients = federation(4)
    options = f"ensemble={ensemble}, groups=2, rates=[1e12, 1e13]"
    run = played(f"portfolio(members=['fedavg', 'glm'], {options})", clients)
    assert bool(run.state.inbox["model"].isfinite().all())
    fedavg, glm = part(run, "weights").tolist()
    assert fedavg < 0.4 < 0.6 < glm


def test_members_that_end_by_themselves_do_not_wait():
    clients = federation(4)
    text = "portfolio(members=['fedavg', 'glm(steps=3)'], ensemble=1, groups=2, rates=[{}])"
    plan = blueprint(clients, "mlp(widths=[8])")
    rounds = {r: completed(method(text.format(r), RECIPE), plan)[0].rounds for r in ("1", "1, 5")}
    assert rounds == {"1": 4, "1, 5": 8}
    begin = {
        e.name: e.rounds for e in completed(method(text.format("1, 5"), RECIPE), plan)[0].exchanges
    }
    assert begin["screen"] == (3, 0)
    assert begin["stack"] == begin["judge"] == (7, 0)


@pytest.mark.parametrize("rates", ["[]", "'fast'", "[0]", "[1, -1]"])
def test_factors_that_are_none_are_refused(rates):
    with pytest.raises(UnseenError, match=r"portfolio\(rates\)"):
        method(f"portfolio(rates={rates})", RECIPE)


def test_members_are_those_for_the_kind_of_data():
    clients = images(4)
    run = played("portfolio(ensemble=2, groups=2, rates=[1])", clients, rounds=1, net="bn-cnn")
    members = "['fedavg', 'fedavg+shift(alpha=0.5)', 'fedavg+am', 'fedavg+mixup']"
    text = f"portfolio(members={members}, ensemble=2, groups=2, rates=[1])"
    named = played(text, clients, rounds=1, net="bn-cnn")
    assert torch.equal(run.state.inbox["model"], named.state.inbox["model"])
    assert torch.equal(run.state.inbox["buffers"], named.state.inbox["buffers"])
    assert run.method.shares == named.method.shares
    plan = blueprint(federation(4), "mlp(widths=[8])")
    tables, model = completed(method("portfolio", RECIPE), plan)
    kinds = [type(member).__name__ for member in model.module.members]
    assert kinds == ["Mixture", "Mixture", "Mixture", "Sequential", "Trees", "RandomTrees"]
    assert len(tables.shares) > len(run.method.shares)
    assert tables.rounds == 500  # of 100 trees, five levels each


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("stack(members=['fedavg', 'glm'])", 5 + 1),
        ("portfolio(members=['fedavg', 'glm'])", 3 * (5 + 1)),
        ("portfolio(members=['fedavg', 'glm'], ensemble=1)", 3 * 5),  # the trials
        ("portfolio(members=['fedavg', 'fedavg+mixup', 'glm'])", 2 * 3 * (5 + 1)),
    ],
)
def test_a_batch_counts_every_model_that_trains_at_a_time(text, most):
    """M networks on all sites and without each of five groups, or one at each of three rates."""
    assert models_of(method(text)) == most
