"""Ranges in settings: how they are read, filled, and what cannot be one."""

from __future__ import annotations

from typing import Annotated

import pytest

from unseen.errors import UnseenError
from unseen.expression import parse
from unseen.methods import METHODS, MODIFIERS
from unseen.methods.compose import method
from unseen.ranges import log, one, whole
from unseen.studies.settings.search_plan import Tune
from unseen.studies.settings.search_space import Space, declared, of_method


def parts(place, call):
    return (MODIFIERS if place else METHODS).get(call.name)


@pytest.mark.parametrize(
    ("setting", "written", "values", "filled"),
    [
        ("model", "mlp(widths=one([8], [8, 8]))", {"model.widths": [8, 8]}, "mlp(widths=[8, 8])"),
        ("rounds", "whole(5, 50)", {"rounds": 7}, 7),
        ("training.batch_size", [16, 32], {"training.batch_size": 32}, 32),
        ("model", "mlp(widths=[whole(8, 64)])", {"model": 9}, "mlp(widths=[9])"),
        (
            "model", "one('mlp(widths=[8])', 'logistic')",
            {"model": "mlp(widths=[8])"}, "mlp(widths=[8])",
        ),
        (
            "training.optimiser", "sgd(lr=log(0.001, 1), momentum=one(0.0, 0.9))",
            {"training.optimiser.lr": 0.02, "training.optimiser.momentum": 0.9},
            "sgd(lr=0.02, momentum=0.9)",
        ),
    ],
)  # fmt: skip
def test_a_setting_is_filled_and_its_values_are_found_in_it(setting, written, values, filled):
    space = Space.read(setting, written)
    assert list(space.ranges) == list(values)
    assert space.filled(values) == filled
    assert space.values_in(filled) == values


def test_a_setting_of_another_form_has_no_values_of_the_space():
    space = Space.read("training.optimiser", "sgd(lr=log(0.001, 1))")
    assert space.values_in("adam(lr=0.1)") is None
    assert space.values_in("sgd(lr=0.1, momentum=0.9)") is None


def test_written_options_stay_and_others_with_a_range_are_searched():
    space = of_method("fedprox(mu=0.5)+shift+ga", parts, {})
    assert list(space.ranges) == ["shift.alpha", "ga.step"]
    text = space.filled({"shift.alpha": 0.3, "ga.step": 0.1})
    assert text == "fedprox(mu=0.5)+shift(alpha=0.3)+ga(step=0.1)"
    assert of_method("fedprox(mu=0.5)", parts, {}) is None


def test_a_range_of_the_study_stands_for_the_declared_one():
    space = of_method("fedprox", parts, {"fedprox.mu": "one(0.01, 0.1)"})
    assert space.ranges == {"fedprox.mu": one(0.01, 0.1)}
    more = of_method("fedavg", parts, {"fedavg.weights": "one('uniform', 'examples')"})
    assert more.filled({"fedavg.weights": "examples"}) == "fedavg(weights='examples')"


def test_an_option_that_another_switches_off_is_not_searched():
    assert of_method("harmofl", parts, {}).ranges.keys() == {"harmofl.alpha"}
    low = of_method("harmofl(window='low')", parts, {})
    assert low.ranges.keys() == {"harmofl.alpha", "harmofl.L"}
    assert "csac.lam" in of_method("csac", parts, {}).ranges
    assert "csac.lam" not in of_method("csac(strategy='none')", parts, {}).ranges
    assert "csac.lam" in of_method("csac(strategy='none', logits=True)", parts, {}).ranges


def mine(training, mu: Annotated[float, log(0.001, 1)] = 0.1):
    """A user's own method, whose options are plain parameters."""


def test_a_users_own_method_declares_ranges_as_the_packages_do():
    assert declared(mine) == {"mu": log(0.001, 1)}


@pytest.mark.parametrize("name", METHODS)
def test_both_ends_of_every_declared_range_are_options_of_the_method(name):
    needed = {"harmofl.L": "window='low', "}
    for option, search in declared(METHODS[name]).items():
        for value in (search.values[0], search.values[-1]):
            method(f"{name}({needed.get(f'{name}.{option}', '')}{option}={value!r})")


@pytest.mark.parametrize("name", MODIFIERS)
def test_both_ends_of_every_declared_range_are_options_of_the_modifier(name):
    base = "fedsgd" if name in ("fishr", "coral") else "fedavg"
    for option, search in declared(MODIFIERS[name]).items():
        for value in (search.values[0], search.values[-1]):
            text = f"{base}+{name}({option}={value!r})"
            assert parse(text)[1].arguments[option] == value
            method(text)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"space": {"rounds": "5"}}, "has no range"),
        ({"space": {"rounds": "log(0, 1)"}}, "two numbers above 0"),
        ({"space": {"rounds": "whole(5, 2)"}}, "the lower one first"),
        ({"space": {"rounds": "whole(1.5, 2)"}}, "an integer"),
        ({"space": {"rounds": "one(3)"}}, "two or more values"),
        ({"space": {"rounds": "log(a, b)"}}, "cannot read the range"),
        ({"criterion": "lodo(groups=1)"}, "two or more groups"),
        ({"criterion": "target"}, "unknown criterion"),
        ({"sampler": "best"}, "sampler"),
    ],
)
def test_a_search_that_cannot_work_is_refused_with_a_reason(settings, words):
    with pytest.raises(UnseenError, match=words):
        Tune(**settings)


def test_ranges_are_written_as_they_are_read():
    for search in (log(0.001, 1.0), whole(2, 9), one("a", "b")):
        assert Space.read("x", str(search)).ranges == {"x": search}
