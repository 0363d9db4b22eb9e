"""The lists and pages for people."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from pathlib import Path
from typing import Literal

import pytest
from support.command_line import Command

from unseen import UnseenError
from unseen.cli.catalogue import (
    CATALOGUES,
    clock,
    compositions,
    list_methods,
    list_studies,
    page,
)
from unseen.methods import METHODS, MODIFIERS
from unseen.methods.base import cited
from unseen.methods.combine import PPDG
from unseen.studies.execution import Study
from unseen.studies.settings.named import minutes, named_studies

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from method_pages import DOCS, FAMILIES, pages  # noqa: E402


def test_the_methods_pages_are_those_of_the_code():
    written = {path.name: path.read_text("utf-8") for path in DOCS.glob("*.md")}
    assert written == pages(), "run `make docs`"


def test_each_method_and_modifier_is_once_in_the_families():
    named = [name for members in FAMILIES.values() for name in members]
    assert sorted(named) == sorted([*METHODS, *(f"+{m}" for m in MODIFIERS if m not in METHODS)])


def test_each_refused_composition_has_a_reason():
    refused = [reason for reason in compositions().values() if reason is not None]
    assert refused
    assert all(len(reason.split()) >= 5 for reason in refused)


def test_ppdgs_page_says_what_does_not_hold():
    assert "does not hold under conflict" in " ".join(page("ppdg").split())


def test_a_page_describes_each_option_once_by_the_part_that_it_sets():
    for name in (*METHODS, *MODIFIERS):
        for section in page(name).split("\n\nOptions\n")[1:]:
            lines = section.split("\n\n")[0].split("\n")
            options = [i for i, line in enumerate(lines) if line[:3].strip()]
            described = [lines[i + 1 : i + 2] for i in options if lines[i] != "  none"]
            assert all(text and text[0].startswith(" " * 6) for text in described), (name, lines)


def test_a_page_cites_every_source():
    sources = {
        "shift": ("gao2023targeted", "zhou2023fedfa"),
        "boost": ("chen2016xgboost", "ke2017lightgbm"),
        "+ga": ("zhang2023ga",),
        "stack": ("wolpert1992stacked", "breiman1996stacked", "wu2012glore"),
    }
    for name, keys in sources.items():
        text = page(name)
        cited = re.findall(r"^@\w+\{(\w+),$", text, re.MULTILINE)
        assert tuple(cited[: len(keys)]) == keys
        lines = text.partition("\nSource\n")[2].partition("\n\n")[0].splitlines()
        assert len(lines) == len(cited)
    assert "mcmahan" not in page("shift")  # of the method that it is shown on


def test_the_lists_name_up_to_two_sources():
    sources = {row[0]: row[2] for row in list_methods()[1]}
    assert "Targeted Augmentations" in sources["+shift"] and "FedFA" in sources["+shift"]
    assert sources["stack"].startswith("Wolpert") and sources["stack"].endswith("more.")


def test_options_are_those_of_the_rule():
    """Names and defaults of the method and the modifier, with the prior as `weights`."""
    fields = {f.name: f.default for f in dataclasses.fields(PPDG)}
    prior = fields.pop("prior")
    method, modifier = (
        {n: p.default for n, p in list(inspect.signature(part).parameters.items())[1:]}
        for part in (METHODS["ppdg"], MODIFIERS["ppdg"])
    )
    assert modifier == fields
    assert method == fields | {"weights": prior.by}
    assert (
        inspect.signature(METHODS["ppdg"]).parameters["when"].annotation
        == Literal["conflict", "always"]
    )


def test_references_are_read_by_their_key():
    reference = cited("tian2023ppdg")
    assert reference.text.startswith("Tian, Li, Wang, Wang.")
    assert reference.bibtex.startswith("@article{tian2023ppdg,\n")
    assert reference.bibtex.endswith("\n}")
    with pytest.raises(UnseenError, match="no entry 'tian2023'"):
        cited("tian2023")


def test_every_list_has_rows_as_wide_as_its_header():
    for rows in CATALOGUES.values():
        header, lines = rows()
        assert lines
        assert {len(line) for line in lines} == {len(header)}


def test_a_recipe_is_described_part_by_part() -> None:
    text = page("ppdg(lam=0.2)+ga+ensemble(members=3)")
    assert text.startswith("ppdg(lam=0.2)+ga+ensemble(members=3)\n")
    titles = re.findall(r"^(\+?[a-z-]+)\n=+$", text, re.MULTILINE)
    assert titles == ["ppdg", "+ga", "+ensemble"]
    assert page("bag(of='trees')").endswith(page("bag"))
    with pytest.raises(UnseenError, match="is a modifier, not a method"):
        page("ga+ppdg+fedavg")
    with pytest.raises(UnseenError, match="did you mean 'ensemble'"):
        page("fedavg+ensembel")


def test_an_unknown_page_names_the_nearest():
    with pytest.raises(UnseenError, match="did you mean 'pcgrad'"):
        page("pcgard")


@pytest.mark.parametrize("name", named_studies())
def test_every_named_study_is_valid(name: str):
    study = Study.read(name)
    assert study.name == name
    assert study.title
    study.training.build("classes")


def test_studies_are_listed_with_how_long_they_take() -> None:
    kept = minutes()
    names = {name for times in kept.values() for name in times}
    assert names and names <= set(named_studies())
    header, rows = list_studies()
    times = {row[0]: row[header.index("on two cores")] for row in rows}
    for name, took in kept["ran"].items():
        number, unit = times[name].split()
        assert float(number) * {"s": 1 / 60, "min": 1, "h": 60}[unit] == pytest.approx(took, 0.1)
    assert all(times[name].startswith("~") for name in kept["estimated"].keys() - kept["ran"])


def test_an_unknown_list_names_the_nearest(unseen: Command) -> None:
    ran = unseen("list", "model")
    assert ran.code == 2 and "did you mean 'models'" in ran.err


def test_times_for_people() -> None:
    assert [clock(s) for s in (0.04, 59, 61, 3600, 90_000)] == [
        "0.0 s", "59.0 s", "1.0 min", "1.0 h", "1.0 days",
    ]  # fmt: skip
