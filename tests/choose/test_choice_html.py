"""The answer as a page, a picture and a table."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from support.made_trials import trials

from unseen.studies.choice import Choice, choose
from unseen.studies.choice.choice_html import ends, html
from unseen.studies.choice.shown_answer import Answer

FIGURES = {
    "fedavg": [0.7, 0.75, 0.68, 0.72], "glm": [0.8, 0.78, 0.82, 0.79],
    "boost": [0.71, 0.9, 0.6, 0.95],
}  # fmt: skip


@pytest.fixture
def answer() -> Choice:
    found = choose(trials(FIGURES))
    dataset = "table(path='/home/anna/secret <b>/visits.csv', domain='ward', label='died')"
    return replace(found, study={**found.study, "dataset": dataset})


def test_the_page_has_every_recipe_and_every_site(answer: Choice) -> None:
    page = html(answer, "unseen train --recipe choice.json --out model")
    assert all(f"<span>{name}</span>" in page for name in FIGURES)
    sites = sum(map(len, answer.figures.values()))
    assert page.count('class="site"') == sites
    assert page.count('class="bar-row recommended"') == 1
    assert "unseen train --recipe choice.json --out model" in page


def test_the_page_names_the_file_and_label_and_no_folder(answer: Choice) -> None:
    page = html(answer, "")
    assert "<h1>visits.csv</h1>" in page and "label died" in page
    assert "anna" not in page and "secret" not in page


def test_the_page_needs_no_other_file(answer: Choice) -> None:
    page = html(answer, "")
    assert not re.search(r"(?:src|href)=\"(?!data:)", page) and "http" not in page
    HTMLParser().feed(page)


def test_nothing_is_drawn_outside_of_the_plot(answer: Choice) -> None:
    places = [float(x) for x in re.findall(r'(?:cx|x1|x2)="([-\d.]+)%"', html(answer, ""))]
    assert min(places) >= 0 and max(places) <= 100
    low, high = ends(answer)
    assert 0 <= low < high <= 1  # accuracies


def test_a_notebook_shows_page_picture_and_table(answer: Choice) -> None:
    pytest.importorskip("pandas", reason="needs the extra pandas")
    shown = Answer(**vars(answer))
    assert shown.recommendation == answer.recipe
    table = shown.table
    assert [*table.index] == [row.recipe for row in answer.rows]
    assert (table["low"] < table["high"]).all() and table.loc["glm", "mean"] > 0.79
    assert len(shown.plot().axes[0].get_yticklabels()) == len(answer.rows)
    assert shown.plot()._repr_png_().startswith(b"\x89PNG")  # as notebooks ask for it
    assert shown._repr_html_().startswith("<iframe srcdoc=")
