"""Whatever a site sends, in whatever kind of answer: the others' run ends well."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra flower")

from support.hall import OPEN, Answer, Hall, kits
from test_bounds_of_answers import SITES, _quick, spoilt, trains, written

from unseen.errors import BadReply, UnseenError
from unseen.serving.thresholds import EDGES
from unseen.sites.asked_studies import choosing_study
from unseen.sites.flower import choice_run, model_run, server_run
from unseen.sites.flower.answers import figures_of
from unseen.studies.settings.named import toml

__all__ = ["_quick"]


@pytest.fixture
def reportless(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Reports of a model take longer than all else."""
    monkeypatch.setattr("unseen.studies.report.write.report", lambda *folders, **options: None)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "kits" / "server" / "flower"))


SEARCH = """
[tune]
trials = 3
sampler = "random"
space = {"training.optimiser" = "sgd(lr=log(0.01, 1))"}
"""


class Liar(Hall):
    """Sites of which north answers wrongly, but to its first questions of a kind and to hellos."""

    def __init__(self, folder: Path, seed: int, honest: int = 0) -> None:
        policy = OPEN.replace("[least]\n", "[least]\nsites = 1\n")  # one good answer is enough
        super().__init__(kits(folder, SITES, folder, policy), self.lie)
        self.draws, self.honest, self.asked = Random(seed), honest, Counter[str]()

    def lie(self, site: str, question: Answer, answer: Answer) -> Iterable[Answer]:
        kind = str(question["kind"])
        if site != "north" or kind == "hello":
            return [answer]
        self.asked[kind] += 1
        return [answer] if self.asked[kind] <= self.honest else [self.spoil(answer)]

    def spoil(self, answer: Answer) -> Answer:
        if self.draws.random() < 0.5:
            return spoilt(answer, self.draws)
        return {key: self.distorted(key, value) for key, value in answer.items()}

    def distorted(self, key: str, value: Any) -> Any:
        """A value of the same form that is wrong."""
        by = self.draws.choice([0.0, -1.0, -1e-30, 1e15, 1e30, 1.0, 1.0])
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value * by
        if isinstance(value, float) or (isinstance(value, list) and key.startswith("scalar/")):
            return [by * x for x in value] if isinstance(value, list) else by * value
        return value


def alone(folder: Path, rounds: int) -> Path:
    """The study, where one good answer is enough: a search leaves sites out."""
    file = written(folder, rounds)
    file.write_text(file.read_text().replace("minimum = 2", "minimum = 1"))
    return file


def finished(out: Path) -> bool:
    return bool(json.loads((out / "federation.json").read_text())["finished"])


@pytest.mark.parametrize("seed", range(3))
def test_every_kind_of_answer_of_a_run(tmp_path: Path, seed: int) -> None:
    """Statistics, training, validation."""
    hall, out = Liar(tmp_path, seed), tmp_path / "out"
    server_run.run(str(alone(tmp_path, 6)), str(out), hall, list(SITES))
    assert finished(out) and hall.asked["exchange"] >= 12 and hall.asked["statistics"]


@pytest.mark.parametrize("method", ["fedavg+ga", "fednova", "groupdro"])
def test_a_scalar_that_a_rule_reads_is_missed_where_two_answer(tmp_path: Path, method: str) -> None:
    """Of two nobody is most of them: the first to answer is not believed for that."""
    file = alone(tmp_path, 2)
    text = file.read_text().replace('"fedavg"', f'"{method}"')
    file.write_text(text.replace('"east", "north", "south"', '"north", "south"'))
    sites = {"north": "train", "south": "train"}

    def forget(site: str, question: Answer, answer: Answer) -> Iterable[Answer]:
        if site == "north" and trains(question) == 1:
            kept = {k: v for k, v in answer.items() if not k.startswith("scalar/")}
            return [kept | {"order": '["other"]', "scalar/other": 1.0}]
        return [answer]

    hall = Hall(kits(tmp_path, sites, tmp_path), forget)
    server_run.run(str(file), str(tmp_path / "out"), hall, list(sites))
    (path,) = (tmp_path / "out").rglob("rounds.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    (dropped,) = [d for line in lines if (d := line["dropped"])]
    assert set(dropped) == {"north"} and "among its scalars" in dropped["north"]


@pytest.mark.parametrize("seed", range(2))
def test_every_answer_of_a_search(tmp_path: Path, seed: int) -> None:
    file = alone(tmp_path, 2)
    file.write_text(file.read_text() + SEARCH)
    hall, out = Liar(tmp_path, seed), tmp_path / "out"
    server_run.run(str(file), str(out), hall, list(SITES))
    assert finished(out) and hall.asked["exchange"] >= 12


def test_every_answer_of_a_choice(tmp_path: Path) -> None:
    study = choosing_study(alone(tmp_path, 2), ("fedavg", "glm"), 3, [0.5, 1.0], 1)
    file = tmp_path / "choosing.toml"
    file.write_text(toml(study.model_dump(mode="json", exclude_defaults=True, exclude_none=True)))
    hall, out = Liar(tmp_path, 0), tmp_path / "out"
    options = json.dumps({"groups": 3, "rates": [0.5, 1.0], "nested": False})
    choice_run.run(str(file), str(out), hall, options, list(SITES))
    assert finished(out / "records") and hall.asked["exchange"] >= 12


@pytest.mark.parametrize("seed", range(3))
def test_every_answer_about_a_model(tmp_path: Path, seed: int, reportless: None) -> None:
    """Its figures, its counts by probability, its fingerprint."""
    hall, out = Liar(tmp_path, seed), tmp_path / "model"
    file = alone(tmp_path, 2)
    file.write_text(file.read_text().replace('save = ["final"]\n', ""))

    def about(site: str, question: Answer, answer: Answer) -> Iterable[Answer]:
        if site != "north" or question["kind"] not in ("measure", "keep"):
            return [answer]
        hall.asked[question["kind"]] += 1
        if question["kind"] == "measure" and seed:
            line = json.loads(str(answer["results"]))
            key = hall.draws.choice([*line])
            values = [None, "x", [], {}, {"loss": [1]}, {"loss": [1, 2, "x"]}, -1, 1e400, "target"]
            line[key] = hall.draws.choice(values)
            counts = hall.draws.choice([torch.zeros(2), -answer["counts"], answer["counts"] * 1e9])
            return [{**answer, "results": json.dumps(line), "counts": counts}]
        return [hall.spoil(answer)]

    hall.tamper = about
    try:
        model_run.train(str(file), str(out), hall, list(SITES))
    except UnseenError as error:  # a site that does not say that it has the model is named
        assert "not at every site yet: north: " in str(error)
    spec = json.loads((out / "model.json").read_text())
    assert {"east", "south"} <= {line["site"] for line in spec["results"]} <= {*SITES}
    assert hall.asked["measure"] == 1 and hall.asked["keep"]


def test_what_is_wrong_with_figures_is_said() -> None:
    """One by one; a figure that is nowhere between 0 and 1 may be a loss."""
    metrics = {"loss": [0.5, 0.4, 0.6], "accuracy": [None, None, None]}
    line = {"site": "a", "role": "source", "trained on": 9, "examples": 3, "metrics": metrics}
    counts = torch.zeros(2, len(EDGES) + 1, dtype=torch.int64)
    counts[0, 7] = 3

    def fault(counts: Any = counts, **other: Any) -> str:
        answer = {"site": "a", "results": json.dumps({**line, **other}), "counts": counts}
        try:
            figures_of(answer, "source", ("loss", "accuracy"), 12)
        except BadReply as error:
            return str(error)
        return ""

    assert fault() == ""
    assert "'b' as 'site', where 'a' answers" in fault(site="b")
    assert "'target' as 'role'" in fault(role="target")
    assert "13 rows, and it said that it has 12" in fault(examples=13)
    assert "no whole number as 'trained on'" in fault(**{"trained on": 1.5})
    assert "loss, accuracy" in fault(metrics={"loss": [1, 1, 1]})
    assert "NaN or infinite values as 'loss'" in fault(metrics={**metrics, "loss": [1e400, 1, 1]})
    assert "'loss' must be three numbers or nulls" in fault(metrics={**metrics, "loss": [1]})
    assert "ends before it begins" in fault(metrics={**metrics, "loss": [0.5, 0.6, 0.4]})
    assert "counts" in fault(counts=-torch.ones_like(counts))
    assert "counts of 6 rows by probability, and it has 3" in fault(counts=2 * counts)
    assert "counts" in fault(counts=counts.double())
    assert "counts" in fault(counts=torch.zeros(2))
    with pytest.raises(BadReply, match="cannot be read"):
        figures_of({"site": "a", "results": "[]"}, "source", ("loss",), None)


def test_a_site_that_comes_again_as_another_changes_no_choice(tmp_path: Path) -> None:
    """What the sites said at the start is what later trials are planned by."""
    study = choosing_study(alone(tmp_path, 2), ("fedavg",), 3, [0.5, 1.0], 1)
    file = tmp_path / "choosing.toml"
    file.write_text(toml(study.model_dump(mode="json", exclude_defaults=True, exclude_none=True)))
    hall, out = Hall(kits(tmp_path, SITES, tmp_path)), tmp_path / "out"

    def change(site: str, question: Answer, answer: Answer) -> Iterable[Answer]:
        if site != "north":
            return [answer]
        if question["kind"] == "hello" and hall.starts.get(2):
            facts = json.loads(str(answer["facts"])) | {"role": "evaluate", "classes": ["z"]}
            return [answer | {"facts": json.dumps(facts)}]
        hall.starts[2] = 1  # from now on it is another start of the site
        return [answer]

    hall.tamper = change
    options = json.dumps({"groups": 3, "rates": [0.5, 1.0], "nested": False})
    choice_run.run(str(file), str(out), hall, options, list(SITES))
    assert finished(out / "records")
