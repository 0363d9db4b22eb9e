"""Runs put together: one method in two folders, and models of single sites."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.small_studies import rows, study, write
from typer.testing import CliRunner

from unseen.cli.main import app
from unseen.errors import UnseenError
from unseen.results.sites_of_studies import Run, expression, figures


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
    assert expression("at a high rate: fedavg") == "fedavg"
    with pytest.raises(UnseenError, match="two of these folders hold fedavg.*tuned=FOLDER"):
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
    assert any("the other sites' own models" in line for line in both.lines)
    assert both.budgets["alone"].startswith("each site alone; no search")


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
    for label in ("", " ", "a, b", "a|b", "a: b"):
        with pytest.raises(UnseenError, match="names a run by"):
            Run.read(f"{label}={ran / 'slow'}")
    with pytest.raises(UnseenError, match="there is no folder"):
        Run.read("fast=nowhere")


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
