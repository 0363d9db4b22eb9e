"""Texts of a study that could steer a terminal or pretend to be other lines."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unseen.errors import UnseenError
from unseen.studies.settings.study import StudySpec
from unseen.visible import hidden, visible

STEERING = ["a\nb", "a\rb", "a\x1b[8mb", "a\x00b", "a\x85b", "a\u202eb", "a\u2066b", "a\u2028b",
            "a\u200bb", "a\ud800b"]  # fmt: skip


@pytest.mark.parametrize("text", STEERING)
@pytest.mark.parametrize("setting", ["name", "title", "dataset", "model", "methods", "training",
                                     "privacy"])  # fmt: skip
def test_a_study_has_no_text_that_steers(setting: str, text: str) -> None:
    inside = {"training": {"optimiser": text}, "privacy": {"channel": text}, "methods": [text]}
    with pytest.raises(UnseenError) as caught:
        StudySpec(**{setting: inside.get(setting, text)})
    said = str(caught.value)
    assert said.startswith(f"the study's settings cannot work: {setting}")
    assert f"U+{ord(text[1]):04X}" in said and "at place 2" in said and "one line" in said
    assert said.isprintable()


def test_a_tab_separates_cells_and_not_words_of_a_name() -> None:
    assert "\t" in StudySpec(dataset="table(path='v.tsv', separator='\t')").dataset
    with pytest.raises(UnseenError, match=r"U\+0009"):
        StudySpec(name="a\tb")


def test_writing_of_every_language_stays() -> None:
    for name in ("Größe", "سلامت\u200cروان", "心臓", "👩\u200d⚕️", "a b", "a\u00a0b"):
        assert StudySpec(name=name).name == name


def test_what_is_shown() -> None:
    assert visible("heart\n\x1b[8m\u202e") == r"heart\n\x1b[8m\u202e"
    assert visible("Größe ε 心臓") == "Größe ε 心臓"


@given(st.text())
def test_what_is_shown_is_one_line_that_is_seen_as_it_is(text: str) -> None:
    shown = visible(text)
    assert shown.isprintable() and len(shown.splitlines()) <= 1
    assert shown == visible(shown)
    if not hidden(text):
        assert not {unicodedata.category(c) for c in text} & {"Cc", "Cs", "Zl", "Zp"}
