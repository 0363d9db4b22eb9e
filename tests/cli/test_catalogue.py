"""The lists and pages for people."""

from __future__ import annotations

from pathlib import Path

import pytest

from unseen import UnseenError
from unseen.cli.catalogue import CATALOGUES, compositions, compositions_markdown, page, pages
from unseen.spec.named import named_studies
from unseen.study import Study

DOCS = Path(__file__).parents[2] / "docs"


def test_the_methods_pages_are_those_of_the_code():
    written = {path.name: path.read_text("utf-8") for path in (DOCS / "methods").glob("*.md")}
    assert written == pages(), "run `make docs`"


def test_the_matrix_of_compositions_is_that_of_the_code():
    written = (DOCS / "compositions.md").read_text("utf-8")
    assert written == compositions_markdown(), "run `make docs`"


def test_each_refused_composition_has_a_reason():
    refused = [reason for reason in compositions().values() if reason is not None]
    assert refused
    assert all(len(reason.split()) >= 5 for reason in refused)


def test_ppdgs_page_says_what_does_not_hold():
    assert "does not hold under conflict" in " ".join(page("ppdg").split())


def test_every_list_has_rows_as_wide_as_its_header():
    for rows in CATALOGUES.values():
        header, lines = rows()
        assert lines
        assert {len(line) for line in lines} == {len(header)}


def test_an_unknown_page_names_the_nearest():
    with pytest.raises(UnseenError, match="did you mean 'pcgrad'"):
        page("pcgard")


@pytest.mark.parametrize("name", named_studies())
def test_every_named_study_is_valid(name: str):
    study = Study.read(name)
    assert study.name == name
    assert study.title
    study.training.build(regression=False)
