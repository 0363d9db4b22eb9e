"""Messages: what was expected, what was found, what to do."""

from __future__ import annotations

import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unseen.errors import BadReply, UnseenError, choice, nearest, number


@pytest.mark.parametrize(
    ("name", "hint"),
    [("fedagv", "'fedavg'"), ("FedAvg", "'fedavg'"), ("ppgd", "'ppdg'"), ("fed-avg", "'fedavg'")],
)
def test_the_nearest_right_name(name: str, hint: str) -> None:
    message = str(nearest("method", name, {"ppdg": 1, "fedavg": 2}))
    assert message == f"unknown method {name!r}; did you mean {hint}? Known: fedavg, ppdg."


def test_of_names_with_a_word_the_first_is_nearest() -> None:
    message = str(nearest("data set", "mnist", ["rotated-mnist", "color-mnist"]))
    assert "did you mean 'rotated-mnist'?" in message


def test_no_name_is_near() -> None:
    assert str(nearest("method", "zzzz", ["fedavg"])) == "unknown method 'zzzz'. Known: fedavg."
    assert str(nearest("method", "x", [])) == "unknown method 'x'. Known: none."


def test_of_many_names_the_nearest_are_shown() -> None:
    known = [f"study/{i}" for i in range(60)] + ["digits", "digest", "widgets"]
    message = str(nearest("study", "digitss", known))
    assert message.startswith("unknown study 'digitss'; did you mean 'digits'? Nearest of 63: ")
    listed = message.partition("Nearest of 63: ")[2].partition(" (")[0].split(", ")
    assert len(listed) == 5 and listed[:3] == ["digits", "digest", "widgets"]
    assert message.endswith(" (`unseen list studies` names all).")
    columns = str(nearest("column", "x", [f"c{i}" for i in range(800)]))
    assert "Nearest of 800: " in columns and columns.count(", ") == 11 and "list" not in columns


def test_a_choice() -> None:
    choice("buffers", "local", ("average", "local"))
    with pytest.raises(UnseenError) as caught:
        choice("buffers", "locl", ("average", "local"))
    assert str(caught.value) == (
        "buffers must be one of 'average', 'local'; found 'locl' (did you mean 'local'?)."
    )
    with pytest.raises(UnseenError, match="found None"):
        choice("buffers", None, ("average", "local"))


@given(st.floats(0, 1))
def test_numbers_in_the_interval_pass(x: float) -> None:
    number("x", x, 0, 1)


@pytest.mark.parametrize(
    ("value", "options"),
    [
        (-0.1, {}),
        (1.1, {}),
        (math.nan, {}),
        (math.inf, {}),
        (True, {}),
        ("0.5", {}),
        (None, {}),
        (0, {"open_low": True}),
        (0.5, {"whole": True}),
        (1.0, {"whole": True}),
    ],
)
def test_other_values_do_not(value: object, options: dict[str, bool]) -> None:
    with pytest.raises(UnseenError) as caught:
        number("x", value, 0, 1, **options)
    assert str(caught.value).startswith("x must be a")
    assert f"found {value!r}." in str(caught.value)


@pytest.mark.parametrize(
    ("options", "interval"),
    [
        ({"low": 0, "high": 1}, "a number in [0, 1]"),
        ({"low": 0, "high": 1, "open_low": True}, "a number in (0, 1]"),
        ({"low": 1, "whole": True}, "an integer in [1, inf)"),
        ({}, "a number in (-inf, inf)"),
    ],
)
def test_the_interval_is_written_as_mathematics_does(
    options: dict[str, float], interval: str
) -> None:
    with pytest.raises(UnseenError) as caught:
        number("x", "?", **options)  # type: ignore[arg-type]
    assert interval in str(caught.value)


def test_errors_cross_processes() -> None:
    error = BadReply("client 'b' replied with NaN")
    error.add_note("(round 3)")
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is BadReply
    assert str(back) == str(error)
    assert issubclass(BadReply, UnseenError)
    assert issubclass(UnseenError, ValueError)
