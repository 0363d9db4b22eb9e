"""What a table says about how training ended."""

from typing import Any

import pytest

from unseen import Study
from unseen.studies.results.ends import Ends
from unseen.studies.results.selection import Selected


def run(method: str, losses: list[float], chosen: int) -> tuple[Selected, list[dict[str, Any]]]:
    rows = [
        {"round": 5 * i + 4, "role": "source", "domain": domain, "loss": loss + shift}
        for i, loss in enumerate(losses) for domain, shift in (("a", 0.0), ("b", 0.5))
    ]  # fmt: skip
    return Selected(method, "c", 0, 5 * chosen + 4, {}), rows


def noted(
    *runs: tuple[Selected, list[dict[str, Any]]], until_flat: bool = False, every: int = 5
) -> str:
    ends = Ends(without=["boost"], every=every)
    assert len(list(ends.watch(runs))) == len(runs)
    return "\n".join(ends.notes("accuracy", until_flat))


def test_most_jobs_decide() -> None:
    flat, falling = [0.9, 0.5, 0.6], [0.9, 0.5, 0.4]
    runs = run("fedavg", falling, 0), run("fedavg", falling, 0), run("fedavg", flat, 1)
    others = run("ppdg", flat, 1), run("ppdg", falling, 0), run("boost", falling, 0)
    text = noted(*runs, *others)
    assert "the first round of fedavg: by accuracy" in text
    assert "still falling: fedavg;" in text.replace("\n", " ")
    assert "ppdg" not in text and "boost" not in text
    assert "falling" not in noted(*runs, until_flat=True)


def test_the_first_round_of_packed_records_need_not_be_the_study_s() -> None:
    """Rounds 4, 9, 14 of a study that evaluates each round: others were there and are not kept."""
    assert "first round" not in noted(run("fedavg", [0.9, 0.5, 0.6], 0), every=1)


@pytest.mark.parametrize("losses", [[0.9, 0.8], [0.5, 0.6, 0.7]])
def test_nothing_is_said_of_few_rounds_or_of_curves_that_turned(losses: list[float]) -> None:
    assert noted(run("fedavg", losses, 1)) == ""


def test_a_table_says_that_training_was_short(tmp_path: Any) -> None:
    study = Study(
        dataset="rotated-digits", methods=["fedavg"], targets=["0"], seeds=1, rounds=4,
        training={"optimiser": "sgd(lr=0.001)"},
    )  # fmt: skip
    notes = study.run(tmp_path).table().notes
    assert any("still falling: fedavg" in note for note in notes)


def test_records_that_begin_with_the_second_round_have_no_first() -> None:
    rows = [{"round": r, "role": "source", "domain": "a", "loss": r / 10} for r in (1, 2, 3)]
    assert "first round" not in noted((Selected("fedavg", "c", 0, 1, {}), rows), every=1)
    rows = [{**row, "round": row["round"] - 1} for row in rows]
    assert "first round" in noted((Selected("fedavg", "c", 0, 0, {}), rows), every=1)
