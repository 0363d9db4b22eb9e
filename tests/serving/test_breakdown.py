"""What is not a sum over rows is never computed across sites."""

from __future__ import annotations

import pytest
import torch

from unseen.core.metrics.evaluation import METRICS
from unseen.serving.evaluation.answer_curves import figures
from unseen.serving.evaluation.breakdown import Answers, by_group
from unseen.serving.event_times import Times
from unseen.serving.policy import Policy


def of(outputs: list[float], y: torch.Tensor) -> Answers:
    return Answers(torch.tensor(outputs)[:, None], y, {"sex": ("f",) * len(outputs)})


@pytest.mark.parametrize(
    ("metric", "answers", "classes"),
    [
        (
            "auroc",
            {
                "low": of([0.0, 1.0, 2.0, 3.0], torch.tensor([1, 0, 0, 0])),
                "high": of([10.0, 11.0, 12.0, 13.0], torch.tensor([1, 1, 1, 0])),
            },
            ("no", "yes"),
        ),
        (
            "concordance",
            {
                "late": of([0.0, 1.0], torch.tensor([[10.0, 1.0], [11.0, 1.0]])),
                "early": of([5.0, 6.0], torch.tensor([[1.0, 1.0], [2.0, 1.0]])),
            },
            None,
        ),
    ],
)
def test_a_subgroup_that_every_site_ranks_wrongly_is_ranked_wrongly(
    metric: str, answers: dict[str, Answers], classes: tuple[str, ...] | None
) -> None:
    """Pooled, the sites' own levels would make 0.56 and 0.67 of it."""
    table, _ = by_group(answers, "sex", [metric], Policy(classes))
    ((level, rows, cell),) = table.rows
    assert (level, float(cell)) == ("f", 0.0)
    assert int(rows) == sum(len(a.y) for a in answers.values())
    assert f"{metric}: mean over sites" in table.note


def test_risk_sets_hold_the_rows_of_one_site() -> None:
    """Both sites are ranked alike; pooled, the risks of one would dwarf those of the other."""
    y = torch.tensor([[1.0, 1.0], [2.0, 1.0], [3.0, 0.0]])
    answers = {"low": of([2.0, 1.0, 0.0], y), "high": of([52.0, 51.0, 50.0], y)}
    policy = Policy(None, times=Times("days", "died", None))
    table, _ = by_group(answers, "sex", ["loss"], policy)
    alone = METRICS["loss"](answers["low"].outputs, y)
    ((_, _, cell),) = table.rows
    assert float(cell) == pytest.approx(alone, abs=1e-3) and "loss: mean over sites" in table.note
    # Nor is there a curve of log-risks against times and events.
    assert figures(answers, policy) == []
