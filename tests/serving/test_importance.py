"""Permutation importance of a model's columns: against scikit-learn's of the encoded features."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.inspection import permutation_importance
from support.command_line import Command
from support.federations import write_table
from torch import Tensor

from unseen.core.metrics.evaluation import METRICS
from unseen.data.tables.encoding import Schema
from unseen.data.tables.hashing import Hashed
from unseen.errors import UnseenError
from unseen.serving.directory import Trained
from unseen.serving.evaluation.importance import features_by_column, importance
from unseen.serving.policy import policy_of
from unseen.serving.reading.inputs import TableInputs


def drawn(of_rows: Trained, rows: int = 40) -> tuple[Tensor, Tensor]:
    x = torch.randn(rows, of_rows.inputs.shape[0])
    return x, (x[:, 0] + 0.5 * torch.randn(rows) > 0).long()


class Encoded:
    """A model of encoded features, as scikit-learn takes it."""

    def __init__(self, trained: Trained) -> None:
        self.trained = trained

    def fit(self, X: object, y: object) -> None:
        """Nothing to fit."""

    def score(self, X: np.ndarray, y: Tensor) -> float:
        value = METRICS["auroc"](self.trained.outputs(torch.from_numpy(X)), y)
        assert value is not None
        return value


def test_a_column_of_one_feature_is_as_important_as_the_feature(of_rows: Trained) -> None:
    torch.manual_seed(0)
    sites = {"a": drawn(of_rows), "b": drawn(of_rows)}
    table = importance(of_rows.outputs, of_rows.inputs, sites, "auroc", policy_of(of_rows), 4)
    found = {name: float(loss) for name, loss, _ in table.rows}
    plain = [
        permutation_importance(Encoded(of_rows), x.numpy(), y, n_repeats=4, random_state=0)
        for x, y in sites.values()
    ]
    expected = np.mean([result.importances_mean[0] for result in plain])
    assert of_rows.inputs.features[0] == "age"  # type: ignore[union-attr]
    assert found["age"] == pytest.approx(expected, abs=5e-5)
    assert set(found) == {"age", "dose", "drug"}


def test_all_features_of_a_column_move_together(of_rows: Trained) -> None:
    torch.manual_seed(1)
    features = of_rows.inputs.features  # type: ignore[union-attr]
    drug = [i for i, name in enumerate(features) if name.startswith("drug")]
    assert len(drug) > 1
    x, _ = drawn(of_rows)
    x[:, drug] = torch.nn.functional.one_hot(torch.arange(40) % len(drug), len(drug)).float()
    seen = []

    def outputs(inputs: Tensor) -> Tensor:
        seen.append(inputs[:, drug].sum(1))
        return torch.stack([-inputs[:, drug[0]], inputs[:, drug[0]]], 1)

    y = (x[:, drug[0]] > 0).long()
    table = importance(outputs, of_rows.inputs, {"a": (x, y)}, "loss", policy_of(of_rows), 3)
    assert all(bool((row == 1).all()) for row in seen)  # a row never has two drugs, or none
    found = {name: float(loss) for name, loss, _ in table.rows}
    assert found["drug"] > 0 and found["age"] == found["dose"] == 0


def test_evaluate_shows_it_and_images_are_refused(
    of_rows: Trained, of_photos: Trained, tmp_path: Path, unseen: Command
) -> None:
    table = write_table(tmp_path / "visits.csv")
    ran = unseen("evaluate", of_rows.folder, "--data", table, "--importance", "3")
    assert "Importance: mean loss of" in ran.out and "deviation over sites" in ran.out
    with pytest.raises(UnseenError, match="takes images"):
        importance(of_photos.outputs, of_photos.inputs, {}, "loss", policy_of(of_photos), 1)


def test_features_belong_to_their_column_whatever_the_columns_are_called() -> None:
    """Beside "age" with gaps there is a column that is called as its indicator is."""
    schema = Schema(
        ("age", "age missing", "ward", "ok"), {"ward": ("a", "b=c")}, flags=("ok",),
        texts={"note": Hashed(4, False)},
    )  # fmt: skip
    nan = float("nan")
    x = torch.tensor(
        [[1.0, 5.0, 0.0, 1.0, 0, 0, 0, 1], [nan, 6.0, 1.0, nan, 0, 1, 0, 0]], dtype=torch.float64
    )
    inputs = TableInputs(schema, schema.sums(x))
    assert inputs.features[:3] == ("age", "age missing", "age missing")
    found = features_by_column(inputs)
    count = len(inputs.features)
    assert found[:2] == [[0, 2], [1]] and found[4] == [*range(count - 4, count)]
    assert sorted(place for own in found for place in own) == [*range(count)]
    assert [len(own) for own in found[2:4]] == [
        sum(name.startswith(f"{column}") for name in inputs.features) for column in ("ward", "ok")
    ]
