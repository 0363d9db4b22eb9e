"""Runs put together: one method in two folders, and models of single sites."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from support.small_studies import rows, study, write
from typer.testing import CliRunner

from unseen.cli.main import app
from unseen.errors import UnseenError
from unseen_papers.compare.sites_of_studies import Run, figures


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FedAvg without two sites at two rates, and each site alone."""
    folder = tmp_path_factory.mktemp("runs")
    path = write(folder / "rows.csv", rows("abcde"))
    usual = {"methods": ["fedavg"], "seeds": 2, "rounds": 3, "selection": "last"}
    two = {"groups": 2, "of": ["a", "b", "c"]}
    for name, rate in (("slow", 0.01), ("fast", 0.5)):
        training = {"optimiser": f"sgd(lr={rate})"}
        study(path, **usual, holdout=two, training=training).run(folder / name)
    study(path, **usual, holdout={"alone": True}).run(folder / "alone")
    return folder


def test_one_method_in_two_folders_is_two_rows(ran: Path) -> None:
    plain = [figures([Run(ran / name)])[0].figures["fedavg"] for name in ("slow", "fast")]
    (both,) = figures([Run(ran / "slow"), Run(ran / "fast", "at a high rate")])
    assert list(both.figures) == ["fedavg", "at a high rate: fedavg"]
    assert [both.figures[row] for row in both.figures] == plain and plain[0] != plain[1]
    with pytest.raises(UnseenError, match="two of these folders hold fedavg.*label one"):
        figures([Run(ran / "slow"), Run(ran / "fast")])


def test_models_of_single_sites_join_at_the_sites_that_were_left_out(ran: Path) -> None:
    (both,) = figures([Run(ran / "slow"), Run(ran / "alone", "alone")])
    assert both.figures.keys() == {"fedavg", "alone: fedavg"}
    # Sites d and e are sources of the federation always: nothing is compared there.
    assert set(both.figures["fedavg"]) == set(both.figures["alone: fedavg"]) == {"a", "b", "c"}
    assert both.groups == {frozenset("ac"), frozenset("b")}
    for site in "abc":
        own = [
            float(np.mean([at_site(ran, source, site, seed) for source in set("abcde") - {site}]))
            for seed in range(2)
        ]
        assert both.figures["alone: fedavg"][site] == pytest.approx(np.mean(own))
    (alone,) = figures([Run(ran / "alone")])
    assert set(alone.figures["fedavg"]) == set("abcde")
    assert any("models of single sites, 5 in all" in line for line in both.lines)
    assert both.budgets["alone"].startswith("each site alone; no search")
    assert both.alone == {"alone: fedavg"} and both.expressions["alone: fedavg"] == "fedavg"


def at_site(ran: Path, source: str, site: str, seed: int) -> float:
    """The accuracy in the last round, read from the records' lines."""
    file = ran / "alone" / "records" / "fedavg" / source / f"seed-{seed}" / "target.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    last = max(line["round"] for line in lines)
    (figure,) = (x["accuracy"] for x in lines if (x["round"], x["domain"]) == (last, site))
    return float(figure)


def test_a_label_is_some_words_before_a_folder(ran: Path, tmp_path: Path) -> None:
    assert Run.read(f"no search={ran / 'slow'}") == Run(ran / "slow", "no search")
    assert Run.read(str(ran / "slow")) == Run(ran / "slow")
    odd = tmp_path / "rate=0.1"
    (odd / "records").mkdir(parents=True)
    assert Run.read(str(odd)) == Run(odd)  # a folder that is there is that folder
    for label in ("", " ", "a, b", "a|b", "a: b", "a `b`", "a\nb", "a (b", " a"):
        with pytest.raises(UnseenError, match="cannot be the label"):
            Run.read(f"{label}={ran / 'slow'}")
    with pytest.raises(UnseenError, match="there is no folder"):
        Run.read("fast=nowhere")


def test_a_seed_counts_where_all_other_sites_models_are_there(ran: Path, tmp_path: Path) -> None:
    """One model that is missing leaves its seed out at every site that it would be judged at."""
    (before,) = figures([Run(ran / "alone")])
    out = tmp_path / "alone"
    shutil.copytree(ran / "alone", out)
    shutil.rmtree(out / "records" / "fedavg" / "b" / "seed-1")
    (after,) = figures([Run(out)])
    assert after.by_seed["fedavg"]["b"] == before.by_seed["fedavg"]["b"]
    for site in "acde":
        assert after.by_seed["fedavg"][site] == {0: before.by_seed["fedavg"][site][0]}
    shutil.rmtree(out / "records" / "fedavg" / "c")
    (after,) = figures([Run(out)])
    assert after.by_seed == {"fedavg": {"c": {0: before.by_seed["fedavg"]["c"][0]}}}


def test_rows_of_sites_that_nobody_left_out_are_named(ran: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    shutil.copy(ran / "rows.csv", path)
    usual = {"methods": ["fedavg"], "seeds": 1, "rounds": 1, "selection": "last"}
    for name, plan in (("only", "leave-one-domain-out"), ("alone", {"alone": True})):
        study(path, **usual, targets=["a"], holdout=plan).run(tmp_path / name)
    (both,) = figures([Run(tmp_path / "only"), Run(tmp_path / "alone", "alone")])
    assert set(both.figures) == {"fedavg"}
    assert "without a figure at the sites that were left out: `alone: fedavg`" in both.lines


def test_folders_of_one_name_are_told_apart(ran: Path, tmp_path: Path) -> None:
    shutil.copytree(ran / "slow", tmp_path / "slow" / "run")
    two = {"groups": 2, "of": ["a", "b", "c"]}
    glm = study(ran / "rows.csv", methods=["glm"], seeds=2, selection="last", holdout=two)
    glm.run(tmp_path / "exact" / "run")
    folders = [tmp_path / "slow" / "run", tmp_path / "exact" / "run"]
    (both,) = figures([Run(folder) for folder in folders])
    assert set(both.budgets) == set(map(str, folders))
    (both,) = figures([Run(folders[0], "slow"), Run(folders[1])])
    assert set(both.budgets) == {"slow", "run"} and "slow: last, 2 seeds" in both.lines


@pytest.mark.parametrize("against", ["fst: fedavg", "fast: fedvag", "fedvag"])
def test_a_mistyped_row_is_refused(ran: Path, against: str) -> None:
    command = ["compare", str(ran / "slow"), f"fast={ran / 'fast'}", "--method", "fedavg",
               "--against", f"fast: fedavg,{against}"]  # fmt: skip
    result = CliRunner().invoke(app, command)
    assert result.exit_code and isinstance(result.exception, UnseenError)


def test_rows_with_labels_are_compared_by_the_command(ran: Path) -> None:
    command = ["compare", str(ran / "slow"), f"fast={ran / 'fast'}", f"alone={ran / 'alone'}",
               "--method", "fast: fedavg", "--against", "fedavg,alone: fedavg",
               "--columns", "alone: fedavg,fedavg|fast: fedavg"]  # fmt: skip
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "| `alone: fedavg` | best of `fedavg`, `fast: fedavg` |" in result.output
    assert "each site alone; no search; 3 rounds" in result.output


def test_without_tests_there_are_means_alone(ran: Path) -> None:
    command = ["compare", str(ran / "slow"), f"fast={ran / 'fast'}", "--against", "none",
               "--columns", "fedavg,fast: fedavg"]  # fmt: skip
    text = CliRunner().invoke(app, command, catch_exceptions=False).output
    assert (
        "| `fedavg` | `fast: fedavg` |" in text and "- means over sites [95 % over sites]\n" in text
    )
    assert "Wilcoxon" not in text and "sites better" not in text and "▼" not in text
