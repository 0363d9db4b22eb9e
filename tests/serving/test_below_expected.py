"""A model that fails at its own sites is not handed out with what others were expected to do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.command_line import Command

from unseen.serving.decisions import Evidence
from unseen.serving.fit import below_expected


def spec(accuracy: float, **more: object) -> dict[str, object]:
    results = [
        {"site": name, "role": "validation split", "metrics": {"accuracy": [accuracy, 0.0, 1.0]}}
        for name in "ab"
    ]
    held_out = {"site": "z", "role": "held out", "metrics": {"accuracy": [0.0, 0.0, 0.0]}}
    return {"metric": "accuracy", "results": [*results, held_out], **more}


EXPECTED = {"metric": "accuracy", "mean": 0.9, "low": 0.8, "high": 1.0}


@pytest.mark.parametrize(("accuracy", "broken"), [(0.5, True), (0.79, True), (0.81, False)])
def test_what_was_expected_at_a_new_site_is_asked_of_its_own(accuracy: float, broken: bool) -> None:
    text = below_expected(spec(accuracy, **{"expected at a new site": EXPECTED}), None)
    assert bool(text) == broken
    assert not broken or ("its training failed" in text and "80.0" in text)


def test_so_is_what_models_without_a_site_had_there() -> None:
    """The worst site left out had two of three right."""
    outputs = torch.tensor([[2.0, 0.0], [0.0, 2.0], [0.0, 2.0]])
    both = {"a": outputs, "b": outputs}
    labels = {"a": torch.tensor([0, 1, 1]), "b": torch.tensor([0, 1, 0])}
    assert below_expected(spec(0.1), Evidence("validation", both, labels)) == ""
    assert below_expected(spec(0.7), Evidence("left-out", both, labels)) == ""
    assert "66.7" in below_expected(spec(0.6), Evidence("left-out", both, labels))
    assert below_expected(spec(0.6) | {"metric": "worst accuracy@age"}, None) == ""


def test_a_metric_without_a_value_at_sites_left_out_promises_nothing() -> None:
    one_class = Evidence("left-out", {"a": torch.zeros(3, 2)}, {"a": torch.zeros(3).long()})
    content = spec(0.5) | {"metric": "auroc"}
    results = [{"site": "a", "role": "validation split", "metrics": {"auroc": [0.4, 0.0, 1.0]}}]
    assert below_expected(content | {"results": results}, one_class) == ""


STUDY = """
dataset = "table(path='visits.csv', domain='site', label='kind')"
methods = ["glm"]
seeds = 1
holdout = "none"
"""


def test_a_class_that_one_site_alone_has_is_named_where_calibration_follows_it(
    tmp_path: Path, unseen: Command
) -> None:
    kinds = {"a": "red blue", "b": "red blue", "c": "red blue green"}
    rows = [
        f"{site},{i % 7},{kind}" for site, names in kinds.items() for i in range(12)
        for kind in names.split()
    ]  # fmt: skip
    (tmp_path / "visits.csv").write_text("\n".join(["site,age,kind", *rows]))
    (tmp_path / "visits.toml").write_text(STUDY)
    command = ("train", tmp_path / "visits.toml", "--data-dir", tmp_path, "--out", tmp_path / "m")
    assert "had no row of" not in unseen(*command).out
    text = unseen(*command, "--leave-out", "3").out
    assert "warning: the models that were trained without some sites had no row of green" in text
    assert "green without c" in (tmp_path / "m" / "README.md").read_text()
