"""Exact fits, bags, ensembles, averages and stacks become models in use like all others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support.federations import table_study, trained

from unseen.serving import directory, export

METHODS = [
    "glm",
    "boost(trees=3, depth=2)",
    "forest(trees=3, depth=3)",
    "bag(of='boost(trees=2, depth=2)')",
    "fedavg+shift+tail+ensemble(members=2)",
    "stack(members=['glm', 'fedavg+intercepts'], groups=2)",
]


@pytest.mark.parametrize("method", METHODS)
def test_a_member_is_trained_used_and_exported(method: str, tmp_path: Path) -> None:
    """`trained` compares what the directory predicts with what training recorded."""
    pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    found = trained(table_study(tmp_path), tmp_path / "model", method)
    assert found.method.name == method
    made = export.export(found.folder, [tmp_path / "visits.csv"])  # compared on real inputs
    assert made.difference <= 1e-4
    card = next((tmp_path / "model").glob("*.md")).read_text("utf-8")
    assert method in card
    own = "rounds as the method takes" in card
    assert own == (not method.startswith("fedavg"))
    spec = json.loads((tmp_path / "model" / "model.json").read_text("utf-8"))
    assert spec["own_rounds"] == own
    network = "fedavg" in method  # all others fit no network of the study's
    assert (spec["model"] in card) == ("batch" in card) == ("fits" not in spec) == network
    x = torch.zeros(3, *spec["input"]["shape"])
    assert torch.isfinite(found.outputs(x)).all()


def test_a_directory_has_what_predicts_and_no_more(tmp_path: Path) -> None:
    """Networks of the folds of a stack, and the model of which a tail is the mean, stay behind."""
    method = "stack(members=['glm', 'fedavg+tail'], groups=2)"
    found = trained(table_study(tmp_path), tmp_path / "model", method)
    names = set(found.model.module.state_dict())
    assert names and not any("others." in name or ".trained." in name for name in names)
    whole = {name for name in directory._tensors(found.folder, found.spec) if "/" not in name}
    assert whole == names
