"""Calibration, thresholds, abstention and prediction sets in the command line and evaluations."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
import sklearn.metrics as sk
import torch
from support.command_line import Command
from support.federations import table_study, write_table
from torch import nn
from torch.nn.functional import one_hot

from unseen import Model, Training, method
from unseen.data.networks.mixture import Mixture
from unseen.errors import UnseenError
from unseen.serving.answer_options import AnswerOptions, PredictOptions, TrainOptions
from unseen.serving.conformal import pool
from unseen.serving.decisions import Decisions
from unseen.serving.directory import Trained
from unseen.serving.evaluation.answer_curves import net_benefit
from unseen.serving.evaluation.breakdown import (
    Answers,
    by_class,
    by_group,
    coverage_by_class,
    held_by,
    over_sites,
)
from unseen.serving.evaluation.measures import Measured
from unseen.serving.fit import study_of, train
from unseen.serving.novelty import last_layer
from unseen.serving.policy import Policy, policy_of


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Three training sites, each left out in turn."""
    folder = tmp_path_factory.mktemp("left out")
    study = study_of(str(table_study(folder)), {})
    return train(study, folder / "model", TrainOptions(calibrate="platt", leave_out=3))


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_what_is_kept_is_of_rows_that_no_model_had_seen(calibrated: Trained) -> None:
    spec = calibrated.spec
    assert spec["decisions"]["evidence"]["kind"] == "left-out"
    assert spec["decisions"]["evidence"]["rows"] == 72  # all rows, not the validation splits
    counts = calibrated.decisions.counts
    assert counts is not None and int(counts.rows.sum()) == 72
    assert spec["format"] == 3 and any("to calibrate" in w for w in spec["left the sites"]["what"])
    card = (calibrated.folder / "README.md").read_text()
    assert "probabilities are calibrated (platt)" in card


def test_predictions_are_calibrated_and_say_so(
    calibrated: Trained, tmp_path: Path, unseen: Command
) -> None:
    table = write_table(tmp_path / "visits.csv")
    ran = unseen(
        "predict", calibrated.folder, table, "--accept-unseen", "--coverage", "0.7",
        "--threshold", "sensitivity>=0.8", "--abstain", "0.6",
    )  # fmt: skip
    assert "calibrated by Platt scaling" in ran.err and "sensitivity>=0.8" in ran.err
    fit = calibrated.decisions.calibration
    assert fit is not None
    rule = policy_of(calibrated, AnswerOptions("sensitivity>=0.8")).limit
    assert rule is not None and rule.sensitivity >= 0.8
    for row in rows(ran.out):
        p = {name: float(row[f"p({name})"]) for name in ("no", "yes")}
        decided = "yes" if p["yes"] >= rule.value else "no"
        assert row["abstained"] == ("yes" if p[decided] < 0.6 else "no")
        assert row["prediction"] == (decided if p[decided] >= 0.6 else "")
        assert max(p, key=lambda name: p[name]) in row["set"].split("|")
        assert 0 <= float(row["ood"]) <= 1


def test_outputs_are_the_networks_calibrated(calibrated: Trained) -> None:
    x = torch.randn(7, *calibrated.inputs.shape)
    raw = calibrated.method.predict(calibrated.model, calibrated.inbox, x).detach()
    fit = calibrated.decisions.calibration
    assert fit is not None
    torch.testing.assert_close(calibrated.outputs(x), fit(raw), rtol=1e-5, atol=1e-6)


def test_too_much_coverage_is_refused_and_so_is_a_model_without_evidence(
    calibrated: Trained, of_rows: Trained, of_numbers: Trained
) -> None:
    with pytest.raises(UnseenError, match="3 sites cannot promise a coverage of 0.9"):
        policy_of(calibrated, AnswerOptions(coverage=0.9))
    with pytest.raises(UnseenError, match="--leave-out"):
        policy_of(of_rows, AnswerOptions(coverage=0.5))
    with pytest.raises(UnseenError, match="for two classes"):
        policy_of(of_numbers, AnswerOptions("youden"))
    assert (
        policy_of(of_rows, AnswerOptions("youden")).limit is not None
    )  # counts are kept without being asked


def test_a_masked_study_keeps_nothing(tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="the extra he is not installed")
    study = study_of(str(table_study(tmp_path)), {"privacy.channel": "masks()"})
    with pytest.raises(UnseenError, match="leave in the clear"):
        train(study, tmp_path / "model", TrainOptions(calibrate="temperature"))
    trained = train(study, tmp_path / "model")
    assert "decisions" not in trained.spec


def test_an_evaluation_in_detail(calibrated: Trained, tmp_path: Path, unseen: Command) -> None:
    table, page = write_table(tmp_path / "visits.csv"), tmp_path / "page.html"
    ran = unseen(
        "evaluate", calibrated.folder, "--data", table, "--metrics", "all", "--groups", "drug",
        "--detail", "--coverage", "0.7", "--format", "json", "--page", page,
    )  # fmt: skip
    found = json.loads(ran.out)
    tables = {t["title"]: t["rows"] for t in found["tables"]}
    assert set(tables) == {
        "Over sites", "Classes", "Confusion matrix", "By drug", "Coverage", "Coverage of classes",
    }  # fmt: skip
    outputs, y = labelled(calibrated, table)
    matrix = sk.confusion_matrix(y, outputs.argmax(1))
    own = [[int(row["no"]), int(row["yes"])] for row in tables["Confusion matrix"]]
    assert own == matrix.tolist()
    recall = sk.recall_score(y, outputs.argmax(1), average=None)
    shown = [float(row["recall"].split()[0]) for row in tables["Classes"]]
    assert shown == pytest.approx(recall.tolist(), abs=5e-4)
    accuracy = [site["accuracy"][0] for site in found["domains"]]
    mean = next(r for r in tables["Over sites"] if r["metric"] == "accuracy")
    assert float(mean["mean over sites"].split()[0]) == pytest.approx(
        100 * sum(accuracy) / 3, abs=0.05
    )
    html = page.read_text()
    assert (
        html.count("<svg") > 5
        and "Decision curve" in html
        and "http" not in html.replace("http-equiv", "")
    )


def labelled(trained: Trained, table: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs and classes of a csv file's rows, read without the evaluation's code."""
    from unseen.serving.predict import predict

    lines = list(predict(trained, [table], PredictOptions(accept_unseen=True)))
    outputs = torch.tensor([line.answer.probabilities for line in lines])
    names = list(trained.classes or ())
    return outputs, torch.tensor([names.index(line.item.cells["died"]) for line in lines])


def test_intervals_of_numbers(tmp_path: Path, unseen: Command) -> None:
    study = study_of(str(table_study(tmp_path, label="score")), {})
    trained = train(study, tmp_path / "model", TrainOptions(leave_out=3))
    assert trained.decisions.scores is not None
    reach = trained.decisions.scores.quantile(0.5)
    table = write_table(tmp_path / "visits.csv")
    ran = unseen("predict", trained.folder, table, "--accept-unseen", "--coverage", "0.5")
    for row in rows(ran.out):
        low, value, high = (float(row[name]) for name in ("low", "prediction", "high"))
        assert high - value == pytest.approx(reach, rel=1e-6) == value - low


def test_the_net_benefit_is_vickers_and_elkins() -> None:
    score, label = torch.tensor([0.1, 0.4, 0.6, 0.9]).numpy(), torch.tensor([0, 1, 0, 1]).numpy()
    assert net_benefit(score, label, [0.5]) == [1 / 4 - 1 / 4 * 1]
    assert net_benefit(score, label, [0.2]) == pytest.approx([2 / 4 - 1 / 4 * 0.25])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"leave_out": 2}, "three training sites or more"),
        ({"calibrate": "site"}, "must be one of"),
    ],
)
def test_what_cannot_be_decided_is_refused_before_anything_trains(
    tmp_path: Path, options: dict[str, object], words: str
) -> None:
    study = study_of(str(table_study(tmp_path)), {"holdout": "west"})
    with pytest.raises(UnseenError, match=words):
        train(study, tmp_path / "model", TrainOptions(**options))  # type: ignore[arg-type]
    assert not (tmp_path / "model" / "model.json").exists()


def test_the_worst_group_may_be_that_of_empty_cells() -> None:
    y = torch.tensor([0, 1, 0, 1])
    outputs = torch.tensor([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    answers = {"a": Answers(outputs, y, {"deck": ("", "", "A", "A")})}
    table, worst = by_group(answers, "deck", ["accuracy"], Policy(("no", "yes")))
    assert worst == {"accuracy": ""} and "accuracy (empty)" in table.note


def test_an_answer_of_the_least_probability_is_given() -> None:
    policy = Policy(("no", "yes"), least=0.5)
    assert policy.answered(torch.tensor([[0.0, 0.0]])).tolist() == [True]


def test_the_width_of_an_interval_is_twice_its_reach() -> None:
    scores = pool({n: torch.full((4,), 0.5) for n in "abc"})
    policy = Policy(None, coverage=0.7, decisions=Decisions(scores=scores))
    answers = {"a": Answers(torch.zeros(2, 1), torch.tensor([0.1, 9.0]), {})}
    first = held_by(answers, policy).rows[0]
    assert first == ("a", "0.500", f"{2 * scores.quantile(0.7):.4g}")


def test_a_rare_class_that_no_set_holds_is_shown() -> None:
    # Three sites at which the likely class is right leave a set of this one class to a new site.
    scores = pool({n: torch.full((4,), 0.1) for n in "abc"})
    policy = Policy(("paid", "late"), coverage=0.7, decisions=Decisions(scores=scores))
    outputs, y = torch.tensor([[4.0, 0.0]]).repeat(10, 1), torch.tensor([0] * 9 + [1])
    answers = {n: Answers(outputs, y, {}) for n in "uv"}
    assert [row[1] for row in held_by(answers, policy).rows] == ["0.900", "0.900", "0.900"]
    rows = coverage_by_class(answers, ("paid", "late"), policy).rows
    assert rows == (("paid", "18", "1.000"), ("late", "2", "0.000"))


def test_the_worst_site_has_the_largest_loss_and_the_smallest_accuracy() -> None:
    good = {"loss": Measured(0.2), "accuracy": Measured(0.9)}
    bad = {"loss": Measured(0.6), "accuracy": Measured(0.5)}
    found = over_sites({"a": good, "b": bad})
    assert {metric: worst for metric, (_, worst) in found.items()} == {"loss": "b", "accuracy": "b"}
    assert found["loss"][0].value == pytest.approx(0.4)


def test_recall_and_precision_of_each_class_are_scikit_learns() -> None:
    y, guess = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 1, 1, 1])
    answers = {"a": Answers(5.0 * one_hot(guess, 2), y, {})}
    rows_of = by_class(answers, ("no", "yes"), Policy(("no", "yes"))).rows
    precision, recall, f1, count = sk.precision_recall_fscore_support(y, guess)
    for c, row in enumerate(rows_of):
        assert row[1] == str(count[c])
        assert [float(x) for x in row[2:5]] == pytest.approx(
            [recall[c], precision[c], f1[c]], abs=5e-4
        )


@pytest.mark.parametrize(("members", "layer"), [(1, "members.0.1"), (2, "")], ids=["one", "two"])
def test_distances_of_an_ensemble_are_those_of_the_input(members: int, layer: str) -> None:
    """The last layer of its last member is not the ensemble's."""

    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))

    model = Model(Mixture([net() for _ in range(members)], numbers=False), "cpu", (3,))
    inbox = {"model": model.vector, "buffers": model.buffers}
    found = last_layer(model, method("fedavg", Training()), inbox, torch.rand(2, 3))
    assert found == layer
