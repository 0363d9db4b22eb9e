"""A model that fails at its own sites is not handed out with what others were expected to do."""

from __future__ import annotations

import pytest
import torch

from unseen.serving.decisions import Evidence
from unseen.serving.promise import broken_promise


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
    text = broken_promise(spec(accuracy, **{"expected at a new site": EXPECTED}), None)
    assert bool(text) == broken
    assert not broken or ("its training failed" in text and "80.0" in text)


def test_so_is_what_models_without_a_site_had_there() -> None:
    """The worst site left out had two of three right."""
    outputs = torch.tensor([[2.0, 0.0], [0.0, 2.0], [0.0, 2.0]])
    both = {"a": outputs, "b": outputs}
    labels = {"a": torch.tensor([0, 1, 1]), "b": torch.tensor([0, 1, 0])}
    assert broken_promise(spec(0.1), Evidence("validation", both, labels)) == ""
    assert broken_promise(spec(0.7), Evidence("left-out", both, labels)) == ""
    assert "66.7" in broken_promise(spec(0.6), Evidence("left-out", both, labels))
    assert broken_promise(spec(0.6) | {"metric": "worst accuracy@age"}, None) == ""


def test_a_metric_without_a_value_at_sites_left_out_promises_nothing() -> None:
    one_class = Evidence("left-out", {"a": torch.zeros(3, 2)}, {"a": torch.zeros(3).long()})
    content = spec(0.5) | {"metric": "auroc"}
    results = [{"site": "a", "role": "validation split", "metrics": {"auroc": [0.4, 0.0, 1.0]}}]
    assert broken_promise(content | {"results": results}, one_class) == ""
