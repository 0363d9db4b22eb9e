"""Names of the package's studies, and of the papers' tables and figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from unseen.cli.main import read_studies
from unseen.errors import UnseenError
from unseen.studies.execution import Study
from unseen.studies.settings.named import members, metrics_of, named_studies, settings_of
from unseen.studies.settings.published import contents


def test_34_tables_and_figures_of_the_papers_are_studies_by_name() -> None:
    names = [*(f"ppdg/table{i}" for i in range(1, 8)), "ppdg/figure1"]
    names += [*(f"csac/table{i}" for i in range(1, 7)), *(f"csac/figure{i}" for i in range(3, 7))]
    names += [*(f"fedilc/table{i}" for i in range(1, 7))]
    names += [*(f"fedilc/figure{i}" for i in (2, 3, 5, 6, 7))]
    names += [*(f"ga/table{i}" for i in range(1, 4)), *(f"ga/figure{i}" for i in (3, 4))]
    assert len(names) == 34
    assert set(names) == set(contents())
    for name in names:
        for study in members(name):
            assert Study.read(study).methods


def test_every_study_has_a_title_and_its_own_name() -> None:
    for name in named_studies():
        study = Study.read(name)
        assert study.name == name and members(name) == (name,)
        assert study.title
        study.training.build("classes")


def test_a_folder_stands_for_its_studies() -> None:
    ones = {"methods/digits", "methods/heart", "methods/mtae"}
    tuned = {f"methods/tuned/{name}{end}" for name in ("heart", "digits") for end in ("", "-steps")}
    tuned.add("methods/tuned/mtae")
    assert set(members("methods")) == ones | tuned
    assert set(members("methods/tuned")) == tuned
    with pytest.raises(UnseenError, match="unknown study 'method'"):
        members("method")


def test_what_a_papers_table_shows() -> None:
    assert metrics_of("fedilc/table6") == ("accuracy",)
    assert metrics_of("fedilc/figure3") == ()


@pytest.mark.parametrize(
    ("name", "metrics"),
    [
        (
            "ppdg/table2",
            (
                "validation pearson",
                "validation worst pearson@urban",
                "pearson",
                "worst pearson@urban",
            ),
        ),
        ("ppdg/table1", ("validation accuracy", "accuracy")),
        ("csac/table1", ()),  # what the study goes by, which the command line may set
        ("digits", ()),
        ("fedilc/table4", ("auroc", "auprc")),
        ("fedilc/table5", ("source accuracy@environment",)),
    ],
)
def test_a_name_shows_every_metric_of_its_table(name: str, metrics: tuple[str, ...]) -> None:
    shown = [found for _, _, found in read_studies(name, None, {}, None)]
    assert shown and set(shown) == {metrics}


def test_several_studies_are_no_one_study() -> None:
    with pytest.raises(UnseenError, match="stands for several studies.*ga/table1/office-home"):
        Study.read("ga/table1")


def test_a_figure_records_more_of_the_tables_runs() -> None:
    figure, table = Study.read("ga/figure3/pacs"), Study.read("ga/table1/pacs")
    assert figure.record == ("gaps",)
    same = figure.model_copy(update={"record": (), "name": table.name, "title": table.title})
    assert same == table


def test_a_study_of_other_data_has_neither_title_nor_figures_of_the_first(tmp_path: Path) -> None:
    def read(source: str | Path, **overrides: object) -> Study:
        return Study.read(source, overrides)

    (tmp_path / "own.toml").write_text('base = "ga/table1/pacs"\ndataset = "rotated-digits"\n')
    for study in (
        read("ga/table1/pacs", dataset="rotated-digits"),
        read(tmp_path / "own.toml"),
    ):
        assert study.title == "rotated-digits" and not study.published
    own = read("ga/table1/pacs", dataset="rotated-digits", title="Mine")
    assert own.title == "Mine"
    smaller = read("ga/table1/pacs", dataset="pacs(size=64)")
    assert smaller.title == read("ga/table1/pacs").title and smaller.published


def test_every_tuned_table_of_the_evidence_searches_the_same_space() -> None:
    found = {
        n: settings_of(n)[0]["tune"] for n in named_studies() if n.startswith("evidence/tuned")
    }
    assert len(found) >= 15
    assert {(t["trials"], tuple(t["space"].items())) for t in found.values()} == {
        (12, (("training.optimiser",
               "sgd(lr=log(0.005, 0.5), momentum=0.9, weight_decay=log(0.00001, 0.01))"),))
    }  # fmt: skip
