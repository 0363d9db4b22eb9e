"""Ours beside the papers': rows matched, differences in joint standard errors by hand."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from unseen.errors import UnseenError
from unseen.expression import parse
from unseen.methods.compose import method
from unseen.studies.execution import Study
from unseen.studies.results.published_rows import Gap, Printed, gap, printed
from unseen.studies.results.selection import Selected
from unseen.studies.results.statistics import Cell
from unseen.studies.results.study_results import Results
from unseen.studies.results.table_of_runs import table as made_of
from unseen.studies.settings.named import named_studies
from unseen.studies.settings.published import Figure
from unseen_papers.published import table, tables

PAPERS = [name for name in named_studies() if re.match("(ppdg|csac|fedilc|ga)/", name)]
#: CSAC as its released commands compute it.
AS_RUN = "strategy='none', logits=True, smoothing=0)"
#: Methods of the papers' studies that are in no printed row.
OURS = {
    "csac/table1": {"feddg(scale='sum')", "csac(acquisition=30, " + AS_RUN},
    "csac/table3": {"csac(" + AS_RUN},
    "fedilc/color-mnist": {"fedcurv"},
    "ppdg/table4": {"fedavg(weights='uniform')"},
}
#: Methods that FedILC's Tables 3 and 5 leave out.
NOT_AT_SOURCES = {"geometric(zeros='released')", "fedilc-intra-arith(lam=1.0, scale='released')"}


def test_the_difference_by_hand() -> None:
    # 80, 82, 84: mean 82, s = 2, se² = 4/3. Theirs 82.60 ± 0.44.
    found = gap(Cell((0.80, 0.82, 0.84), 0, 3), Figure("82.60", "0.44"), 100)
    assert found is not None and found.value == pytest.approx(-0.60)
    assert found.errors == pytest.approx(-0.60 / math.sqrt(4 / 3 + 0.44**2))
    assert found.text(1) == "-0.5 se"


def test_a_plain_difference_where_either_has_no_error() -> None:
    whole = Cell((0.80, 0.84), 0, 2)
    assert gap(whole, Figure("82.60"), 100) == Gap(pytest.approx(-0.6), None)
    assert gap(Cell((0.8,), 0, 1), Figure("82.60", "0.44"), 100) == Gap(pytest.approx(-2.6), None)
    assert gap(Cell((0.5, 0.5), 0, 2), Figure("0.5", "0"), 1) == Gap(0.0, None)
    assert Gap(-0.04, None).text(1) == "+0.0" and Gap(0.0123, None).text(3) == "+0.012"


def test_no_difference_of_cells_that_lack_a_seed_or_of_what_is_no_number() -> None:
    assert gap(Cell((0.80,), 0, 2), Figure("82.60"), 100) is None
    assert gap(Cell((0.80,), 1, 2), Figure("82.60"), 100) is None
    assert gap(Cell((), 0, 2, applies=False), Figure("82.60"), 100) is None
    assert gap(Cell((0.80, 0.81), 0, 2), Figure("-"), 100) is None


@pytest.mark.parametrize("name", PAPERS)
def test_every_printed_row_has_the_one_method_that_makes_it(name: str) -> None:
    study = Study.read(name)
    training = study.training.build("classes")
    names = [method(text, training).name for text in study.methods]
    parts = (study.published,) if isinstance(study.published, str) else study.published
    for metric in {metric for part in parts for metric in table(str(part)).by_metric()}:
        paper = printed(study.published, metric)
        without = OURS.get(name, set()) | (NOT_AT_SOURCES if "source " in metric else set())
        rows = [paper.row_of(m) for m in names if m not in without]
        assert sorted(map(str, rows)) == sorted(paper.rows), metric


def test_every_row_of_table_7_has_a_method_and_all_methods_parse() -> None:
    assert set(table("ppdg/table7/rotated-mnist").tests()) <= set(table("ppdg/table7").methods)
    assert all(parse(text) for found in tables().values() for text in found.methods.values())


def test_a_row_takes_the_methods_that_no_closer_row_takes() -> None:
    paper = printed("csac/table4/pacs", "accuracy")
    assert paper.row_of("csac(layers=['layer4'])") == "CSAC"
    assert paper.row_of("csac(distance='l1', layers=['layer4'])") == "L1 distance"
    assert paper.row_of("csac(distance='l2')") == "CSAC"
    assert paper.row_of("fedavg") is None and paper.row_of("[bold]") is None
    # Rows of other tables are not there to be taken.
    assert printed("csac/table3", "accuracy").row_of("csac(distance='l1')") == "CSAC"
    paper = printed("ga/table1/pacs", "accuracy")
    assert paper.row_of("fedprox(mu=0.1)+ga(step=0.05)") == "FedProx+GA"
    assert paper.row_of("fedprox(mu=0.1)") == "FedProx"
    assert paper.row_of("fedprox+ga+csac") is None
    assert printed("fedilc/table6/color-mnist", "accuracy").row_of("fishr(lam=15.0)") == "FedCurv"


def test_figures_of_ones_own_go_by_their_labels() -> None:
    own = {"loss": {"FedAvg": {"t": ("0.5", "0.1")}, "Their best": {"t": "0.4"}}}
    paper = printed(own, "loss")
    assert paper.row_of("fedavg(weights='uniform')") == "FedAvg"
    assert paper.row_of("ppdg") is None
    assert printed(own, "accuracy") == Printed()


def test_differences_stand_under_the_row_they_are_from() -> None:
    values = {"fedavg": [0.80, 0.82, 0.84], "csac(lam=0.5)": [0.85, 0.86, 0.87]}
    runs = [
        Selected(m, "M0", s, 1, {"accuracy": x})
        for m, xs in values.items()
        for s, x in enumerate(xs)
    ]
    study = Study(published="csac/table1")
    made = made_of(runs, metric="accuracy", published=printed(study.published, "accuracy"))
    rows = [row[:2] for row in made.rows(lambda text, _: text)]
    # csac: 86 against 84.57 ± 0.31, s = 1: 1.43 / √(1/3 + 0.0961) = 2.18
    assert rows[1:] == [
        ["fedavg", "82.0 ± 1.2"],
        ["csac(lam=0.5)", "86.0 ± 0.6"],
        ["DeepAll (published)", "86.73 ± 0.45"],
        ["FedAvg (published)", "82.60 ± 0.44"],
        ["fedavg − published", "-0.5 se"],
        ["FedDG (published)", "73.07 ± 0.67"],
        ["CSAC (published)", "84.57 ± 0.31"],
        ["csac(lam=0.5) − published", "+2.2 se"],
    ]
    assert made.differences["CSAC"]["csac(lam=0.5)"]["M0"].value == pytest.approx(1.43)
    assert "± of csac/table1: standard error over three runs" in made.notes
    assert "$-$ published" in made.to_latex()
    assert max(map(len, str(made).splitlines()[:11])) <= 120


def test_table_7_says_what_is_unknown_and_tests_as_the_paper_did() -> None:
    study = Study.read("ppdg/table7")
    paper = printed(study.published, "accuracy")
    assert paper.tests == {
        "FedAvg": "0.0033/1", "AggRand": "1.03e-4/1", "ArgSum": "1.01e-4/1", "PCGrad": "0.043/1",
        "COPA": "0.0212/1",
    }  # fmt: skip
    (note,) = paper.notes
    assert "What was paired, and how many pairs, is unsaid" in note
    assert "do not follow from Table 4" in note
    assert printed(study.published, "loss") == Printed(methods=paper.methods)
    # Its runs are those of Table 4, so one folder of records serves both.
    four = Study.read("ppdg/table4")
    assert study.training == four.training
    same = ("dataset", "model", "rounds", "seeds", "participation", "validation", "holdout")
    assert all(getattr(study, key) == getattr(four, key) for key in same)
    assert set(study.methods) < set(four.methods) and study.reference == four.reference


def test_a_whole_table_of_tests_is_refused() -> None:
    with pytest.raises(UnseenError, match="Name one part of it, such as ppdg/table7/camelyon17"):
        table("ppdg/table7").tests()


def test_results_show_the_texts() -> None:
    results = Results(Study(published="ppdg/table6"), Path(), (), (), ("accuracy",), "", "", {})
    assert results.published("accuracy")["PPDG"] == {"average": "48.4"}
