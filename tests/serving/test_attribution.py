"""Integrated gradients of a model's columns: a closed form, completeness, the command."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.command_line import Command
from support.federations import table_study, trained, write_table
from torch import Tensor

from unseen.core.outputs import probabilities
from unseen.core.survival import Intervals
from unseen.errors import UnseenError
from unseen.serving.directory import Trained
from unseen.serving.evaluation.attribution import attribution
from unseen.serving.event_times import Times


def drawn(of_rows: Trained, rows: int, key: int) -> Tensor:
    generator = torch.Generator().manual_seed(key)
    return torch.randn(rows, of_rows.inputs.shape[0], generator=generator)


def cells(of_rows: Trained, column: str) -> list[int]:
    features = of_rows.inputs.features  # type: ignore[union-attr]
    return [i for i, name in enumerate(features) if name.startswith(column)]


def test_shares_of_a_linear_model_are_weights_times_values(of_rows: Trained) -> None:
    x = {"a": drawn(of_rows, 30, 0), "b": drawn(of_rows, 20, 1)}
    w = torch.linspace(-1, 1, of_rows.inputs.shape[0])
    table = attribution(lambda rows: (rows @ w)[:, None] + 3.0, of_rows.inputs, x, False, 8)
    sizes = {name: (float(size), float(mean)) for name, size, _, mean in table.rows}
    for column in ("age", "dose", "drug"):
        own = cells(of_rows, column)
        shares = [(rows[:, own] @ w[own]) for rows in x.values()]
        size = sum(float(share.abs().mean()) for share in shares) / 2
        mean = sum(float(share.mean()) for share in shares) / 2
        assert sizes[column] == pytest.approx((size, mean), abs=6e-5)
    assert [row[0] for row in table.rows] == sorted(sizes, key=lambda name: -sizes[name][0])


def test_shares_of_a_row_add_up_to_what_its_answer_gains(of_rows: Trained) -> None:
    for key in range(3):
        x = drawn(of_rows, 1, key)
        table = attribution(of_rows.answered, of_rows.inputs, {"a": x}, True, 200)
        with torch.no_grad():
            here, base = (probabilities(of_rows.answered(r)).log()[0] for r in (x, 0 * x))
        gain = float(here.max() - base[int(here.argmax())])
        # 200 steps over a perceptron's kinks, and four digits of each column.
        assert sum(float(row[3]) for row in table.rows) == pytest.approx(gain, abs=5e-3)


def test_evaluate_shows_them_and_images_are_refused(
    of_rows: Trained, of_photos: Trained, tmp_path: Path, unseen: Command
) -> None:
    table = write_table(tmp_path / "visits.csv")
    ran = unseen("evaluate", of_rows.folder, "--data", table, "--gradients", "20")
    assert "Gradients: integrated gradients of the log probability" in ran.out
    x = drawn(of_rows, 4, 0)
    with pytest.raises(UnseenError, match="takes images"):
        attribution(of_photos.answered, of_photos.inputs, {"a": x}, True, 4)


def test_a_mixture_with_trees_is_refused_since_its_shares_would_not_add_up(
    tmp_path: Path, unseen: Command
) -> None:
    study = table_study(tmp_path, 'holdout = "west"')
    mixed = trained(study, tmp_path / "model", "stack(members=['glm', 'boost'])")
    ran = unseen("evaluate", mixed.folder, "--data", tmp_path / "visits.csv", "--gradients", "20")
    assert ran.code == 2 and "this one has trees" in ran.err and "--importance" in ran.err


def test_shares_of_hazards_add_up_to_the_chance_of_an_event(of_rows: Trained) -> None:
    """Not to the logit of the first interval."""
    times = Times("days", "died", Intervals((1.0, 2.0, 3.0)))
    w = torch.randn(of_rows.inputs.shape[0], 3, generator=torch.Generator().manual_seed(0))
    x = drawn(of_rows, 1, 4)
    table = attribution(
        lambda rows: 0.3 * rows @ w, of_rows.inputs, {"a": x}, False, 200, times.answer
    )
    gain = float(times.answer(0.3 * x @ w) - times.answer(0.0 * x @ w))
    assert abs(gain) > 0.01
    assert sum(float(row[3]) for row in table.rows) == pytest.approx(gain, abs=1e-3)
