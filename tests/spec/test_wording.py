"""Wrong settings are answered in our own words: for every field, whatever was given."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from unseen import Training
from unseen.errors import UnseenError
from unseen.sites.kits.kit_spec import Federation as Kits
from unseen.studies.execution import Study
from unseen.studies.settings.holdout import Fixed, Growing
from unseen.studies.settings.study import Federation, Privacy
from unseen.studies.settings.training import Recipe
from unseen.studies.settings.wording import Settings, WrongSettings

#: What pydantic says, and nobody who writes a study should read.
FOREIGN = (
    "Input should", "constrained", "instance of", "ield required", "validation error", "literal[",
    "tuple[", "Value error", "valid dictionary", "valid string", "valid tuple", "pydantic", "For ",
)  # fmt: skip
WRONG: list[Any] = [
    object(), object, len, Training(), np.zeros(3), b"bytes", -1, -0.5, 1e9, "?", "", None, {}, [],
    [object()], {"a": object()}, {"a": {"b": 1}}, [[1]], {1: 2}, ["?", -1], float("nan"), (),
]  # fmt: skip
NEEDED: dict[type[Settings], dict[str, Any]] = {
    Fixed: {"source": ["a"], "target": ["b"]},
    Growing: {"growing": ["a"], "target": ["b"]},
    Kits: {"name": "x", "servers": ["localhost"], "sites": {"a": "train"}},
}
KINDS: list[type[Settings]] = [Study, Recipe, Privacy, Federation, Fixed, Growing, Kits]


def refused(kind: type[Settings], field: str) -> list[str]:
    """What is said to each of the wrong values that the field does not take."""
    found = []
    for value in WRONG:
        try:
            kind(**(NEEDED.get(kind, {}) | {field: value}))
        except UnseenError as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize(
    ("kind", "field"), [(kind, field) for kind in KINDS for field in kind.model_fields]
)
def test_every_field_refuses_in_our_own_words(kind: type[Settings], field: str) -> None:
    found = refused(kind, field)
    assert found  # none takes an object
    for text in found:
        assert field in text
        assert " must " in text or ": " in text
        assert [words for words in FOREIGN if words in text] == []
        assert "\n" not in text and "  " not in text
        assert text.endswith((".", "?"))


@pytest.mark.parametrize("table", ["training", "privacy", "federation", "holdout"])
@pytest.mark.parametrize("value", WRONG)
def test_so_do_the_tables_of_a_study(table: str, value: object) -> None:
    kind = {"training": Recipe, "privacy": Privacy, "federation": Federation, "holdout": Fixed}
    count = 0
    for field in kind[table].model_fields:
        try:
            Study(**{table: NEEDED.get(kind[table], {}) | {field: value}})
        except UnseenError as error:
            count += 1
            assert f"{table}.{field}" in str(error)
            assert [words for words in FOREIGN if words in str(error)] == []
    assert count > 0


@pytest.mark.parametrize("kind", NEEDED)
def test_what_is_missing_is_named(kind: type[Settings]) -> None:
    for field in NEEDED[kind]:
        others = {k: v for k, v in NEEDED[kind].items() if k != field}
        with pytest.raises(UnseenError, match=f"{field} is missing: it must be a "):
            kind(**others)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rounds": 0}, "rounds must be an integer of at least 1, such as 20; found 0."),
        ({"seeds": -1}, "seeds must be a number of seeds, 1 or more, or a list of which"),
        ({"seeds": [3, -1]}, "found [3, -1]"),
        ({"metrics": ["loss", 3]}, "metrics must be a list of texts or a table of classes, "),
        ({"metrics": ["loss", 3]}, "found 3 at its position 2."),
        ({"holdout": "nona"}, "did you mean 'none'"),
        ({"holdout": {"target": ["a"]}}, "holdout.source is missing"),
        ({"privacy": {"columns": {"age": [0]}}}, "a table of lists of 2 numbers by name"),
        ({"training": {"epochs": 1, "steps": 1}}, "training: either epochs or steps per round"),
        ({"buffers": "local"}, "unknown setting 'buffers'"),
    ],
)
def test_what_is_said(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UnseenError) as caught:
        Study(**settings)
    assert str(caught.value).startswith("the study's settings cannot work: ")
    assert words in str(caught.value)


def test_data_that_are_none_are_refused() -> None:
    with pytest.raises(UnseenError, match=r"arrays \(X, y, sites\); found ndarray"):
        Study(dataset=np.zeros(3))


def test_a_recipe_by_itself_is_answered_too() -> None:
    with pytest.raises(WrongSettings, match="batch_size must be an integer of at least 1") as one:
        Recipe(batch_size=0)
    again = pickle.loads(pickle.dumps(one.value))
    assert (str(again), again.faults) == (str(one.value), one.value.faults)
