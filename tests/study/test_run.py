"""Whole studies on a table of a few rows: what is run, written, shown and refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.small_studies import (
    expression,
    records,
    refused,
    rows,
    shown,
    study,
    write,
    written,
)

from unseen.errors import UnseenError
from unseen.studies.execution import job as job_module
from unseen.studies.results.records import Job

# --- the same folder again -----------------------------------------------------------------


def stamps(out: Path) -> dict[Path, int]:
    return {f: f.stat().st_mtime_ns for f in out.rglob("*.json*") if f.name != "study.json"}


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({"methods": ["fedavg"]}, {"methods": ["ppdg", "fedavg"]}),
        ({"seeds": 1}, {"seeds": 2}),
        ({"targets": ["b"]}, {"targets": ["a", "b"]}),
        ({"targets": ["b"]}, {"targets": None}),
    ],
)
def test_what_is_added_is_run_and_the_rest_reused(
    table: Path, tmp_path: Path, first: dict[str, Any], then: dict[str, Any]
) -> None:
    base = {"methods": ["fedavg"], "targets": ["a"]}
    study(table, **base | first).run(tmp_path / "grown")
    before = stamps(tmp_path / "grown")
    study(table, **base | then).run(tmp_path / "grown")
    after = stamps(tmp_path / "grown")
    assert before.items() < after.items()
    study(table, **base | then).run(tmp_path / "fresh")
    assert written(tmp_path / "grown") == written(tmp_path / "fresh")


def test_the_order_of_methods_only_orders_the_table(table: Path, tmp_path: Path) -> None:
    one = study(table, methods=["fedavg", "fedsgd"], targets=["a"]).run(tmp_path / "one")
    other = study(table, methods=["fedsgd", "fedavg"], targets=["a"]).run(tmp_path / "other")
    assert one.table().methods == ("fedavg", "fedsgd")
    assert other.table().methods == ("fedsgd", "fedavg")
    lines = [
        {name: content for name, content in written(out).items() if name.startswith("records")}
        for out in (tmp_path / "one", tmp_path / "other")
    ]
    assert lines[0] == lines[1]


def test_spellings_of_one_method_are_one_job(table: Path, tmp_path: Path) -> None:
    methods = ["fedavg", "FedAvg", " fedavg "]
    results = study(table, methods=methods, targets=["a"]).run(tmp_path)
    assert results.methods == ("fedavg",)
    assert len(list(tmp_path.rglob("done.json"))) == 1


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"rounds": 3}, ("rounds was 2 and is 3",)),
        ({"training": {"batch_size": 4}}, ("training.batch_size was 8 and is 4",)),
        ({"model": "mlp(widths=[3])"}, ("model was 'logistic' and is 'mlp(widths=[3])'",)),
        ({"participation": 0.5}, ("participation was 1.0 and is 0.5",)),
        ({"participation": 1}, ("participation was 1.0 and is 1",)),
        ({"validation": 0.3}, ("validation was 0.1 and is 0.3",)),
        ({"groups": ["region"]}, ("groups",)),
        ({"metrics": ["loss"]}, ("metrics",)),
    ],
)
def test_another_setting_in_the_same_folder_is_refused(
    table: Path, tmp_path: Path, changed: dict[str, Any], words: tuple[str, ...]
) -> None:
    study(table, targets=["a"]).run(tmp_path / "out")
    before = written(tmp_path / "out")
    with pytest.raises(UnseenError) as caught:
        study(table, targets=["a"], **changed).run(tmp_path / "out")
    for word in (*words, "--out"):
        assert word in str(caught.value)
    assert written(tmp_path / "out") == before


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda row: [*row[:1], "1.5", *row[2:]], id="feature"),
        pytest.param(lambda row: [*row[:5], "1"], id="label"),
        pytest.param(lambda row: [*row[:4], "N", *row[5:]], id="metadata"),
    ],
)
def test_another_table_under_the_same_name_is_refused(
    table: Path, tmp_path: Path, change: Callable[[list[str]], list[str]]
) -> None:
    planned = study(table, targets=["a"], groups=["region"])
    planned.run(tmp_path / "out")
    write(table, [change(row) if row[0] == "a" else row for row in rows()])
    with pytest.raises(UnseenError, match="data was .* and is"):
        planned.run(tmp_path / "out")


def test_a_table_is_read_again_by_the_next_run(table: Path, tmp_path: Path) -> None:
    study(table, targets=["a"]).run(tmp_path / "before")
    write(table, [[*row[:5], "0" if row[0] == "a" else row[5]] for row in rows()])
    study(table, targets=["a"]).run(tmp_path / "after")
    name = "records/fedavg/a/seed-0/target.jsonl"
    assert written(tmp_path / "before")[name] != written(tmp_path / "after")[name]


def test_two_runs_in_one_folder_are_refused(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = study(table, targets=["a"])
    play, met = job_module.play_round, []

    def meanwhile(*arguments: Any) -> Any:
        if not met:
            met.append(True)
            with pytest.raises(UnseenError, match="another run is writing to") as caught:
                planned.run(tmp_path)
            assert str(tmp_path) in str(caught.value)
        return play(*arguments)

    monkeypatch.setattr(job_module, "play_round", meanwhile)
    planned.run(tmp_path)
    assert met
    assert (tmp_path / "table.csv").exists()


def test_a_table_names_every_version_that_made_its_records(table: Path, tmp_path: Path) -> None:
    planned = study(table, targets=["a"])
    planned.run(tmp_path)
    mark = Job("fedavg", "a", 0).folder(tmp_path) / "done.json"
    content = json.loads(mark.read_bytes())
    content["versions"]["torch"] = "1.0.99"
    mark.write_text(json.dumps(content))
    assert "1.0.99" in "\n".join(planned.run(tmp_path).table().notes)


# --- plans, groups, metrics ----------------------------------------------------------------


def roles(out: Path, job: Job) -> dict[str, str]:
    both = (*records(out, job, "source.jsonl"), *records(out, job, "target.jsonl"))
    return {record["domain"]: record["role"] for record in both}


def test_leave_one_domain_out(table: Path, tmp_path: Path) -> None:
    results = study(table).run(tmp_path)
    assert results.table().columns == ("a", "b", "c", "d", "average", "worst")
    for target in "abcd":
        job = Job("fedavg", target, 0)
        expected = {name: "target" if name == target else "source" for name in "abcd"}
        assert roles(tmp_path, job) == expected
        assert {r["domain"] for r in records(tmp_path, job, "target.jsonl")} == {target}
        assert [r["clients"] for r in records(tmp_path, job, "rounds.jsonl")] == 2 * [
            [name for name in "abcd" if name != target]
        ]


def test_fixed_lists_select_on_a_domain_that_is_neither_source_nor_target(
    table: Path, tmp_path: Path
) -> None:
    holdout = {"source": ["a", "c"], "validation": ["b"], "target": ["d"], "name": "west"}
    results = study(table, holdout=holdout, selection="ood-validation", rounds=4).run(tmp_path)
    job = Job("fedavg", "west", 0)
    expected = {"a": "source", "b": "ood-validation", "c": "source", "d": "target"}
    assert roles(tmp_path, job) == expected
    assert all(r["clients"] == ["a", "c"] for r in records(tmp_path, job, "rounds.jsonl"))
    source = records(tmp_path, job, "source.jsonl")
    (b,) = {r["examples"] for r in source if r["domain"] == "b"}
    assert b == 24  # all of it validates; nothing is held back for training
    scores = {r["round"]: r["accuracy"] for r in source if r["domain"] == "b"}
    chosen = max(scores, key=lambda r: (scores[r], -r))
    (target,) = [r for r in records(tmp_path, job, "target.jsonl") if r["round"] == chosen]
    (run,) = results.table().runs
    assert (run.round, run.metrics["accuracy"]) == (chosen, target["accuracy"])


def test_growing_sources(table: Path, tmp_path: Path) -> None:
    holdout = {"growing": ["c", "a", "b"], "target": ["d"], "first": 2}
    results = study(table, holdout=holdout).run(tmp_path)
    assert results.table().columns[:2] == ("2", "3")
    for name, sources in {"2": "ac", "3": "abc"}.items():
        rounds = records(tmp_path, Job("fedavg", name, 0), "rounds.jsonl")
        assert [r["clients"] for r in rounds] == 2 * [list(sources)]


def test_metrics_by_group_with_the_worst(table: Path, tmp_path: Path) -> None:
    results = study(table, groups=["region"], metric="worst accuracy@region").run(tmp_path)
    every = rows()
    for target in "abcd":
        job = Job("fedavg", target, 0)
        expected = {g: sum(r[0] == target and r[4] == g for r in every) for g in "NSW"}
        for record in records(tmp_path, job, "target.jsonl"):
            assert record["examples@region"] == expected
            correct = sum(
                n * record["accuracy@region"][g] for g, n in record["examples@region"].items() if n
            )
            assert correct / 24 == pytest.approx(record["accuracy"], abs=1e-12)
    (run,) = (r for r in results.table().runs if r.task == "b")
    record = records(tmp_path, Job("fedavg", "b", 0), "target.jsonl")[run.round]
    assert record["accuracy@region"]["W"] is None  # nobody at site b
    worst = min(record["accuracy@region"][g] for g in "NS")
    assert run.metrics["worst accuracy@region"] == worst
    assert shown(results, "fedavg", "b") == f"{100 * worst:.1f}"


def test_auroc_of_one_class_is_undefined(tmp_path: Path) -> None:
    body = [[*row[:5], "0" if row[0] == "b" else row[5]] for row in rows("abc")]
    planned = study(write(tmp_path / "one.csv", body), metrics=["auroc", "auprc", "accuracy"])
    with pytest.warns(UserWarning, match=r"of one class only.*undefined: 'b' \(0\)"):
        results = planned.run(tmp_path / "out")
    for metric in ("auroc", "auprc"):
        assert shown(results, "fedavg", "b", metric) == "undefined"
        assert float(shown(results, "fedavg", "average", metric)) > 0
        assert float(shown(results, "fedavg", "a", metric)) > 0
    target = records(tmp_path / "out", Job("fedavg", "b", 0), "target.jsonl")
    assert [(r["auroc"], r["auprc"]) for r in target] == [(None, None)] * 2
    assert "undefined" not in results.table("auroc").to_csv()


@pytest.mark.parametrize("metrics", [None, ["loss", "pearson"]])
def test_regression_goes_by_metrics_of_numbers(
    tmp_path: Path, metrics: Sequence[str] | None
) -> None:
    body = [[*row[:5], row[2]] for row in rows("abc")]  # y is the feature v: learnable
    path = write(tmp_path / "numbers.csv", body)
    dataset = expression(path)[:-1] + ', task="regression")'
    results = study(dataset, metrics=metrics, rounds=20).run(tmp_path / "out")
    record = records(tmp_path / "out", Job("fedavg", "a", 0), "target.jsonl")[-1]
    assert "accuracy" not in record
    assert "accuracy" not in results.table().metric
    if metrics:
        assert record["pearson"] > 0.95


def test_methods_for_classes_stand_as_not_applicable_where_labels_are_numbers(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "numbers.csv", [[*row[:5], row[2]] for row in rows("abc")])
    dataset = expression(path)[:-1] + ', task="regression")'
    methods = ["fedavg", "csac(strategy='none')", "fedcsa", "rsc", "fedprox+rsc", "fedccrl"]
    results = study(dataset, methods=methods, rounds=1, targets=["a"]).run(tmp_path / "out")
    assert results.not_applicable == {
        "csac(strategy='none')": "needs classes", "fedcsa": "needs classes",
        "rsc": "needs classes", "fedprox+rsc": "needs classes",
        "fedccrl": "needs images and classes",
    }  # fmt: skip


# --- settings ------------------------------------------------------------------------------


@pytest.mark.parametrize(("participation", "count"), [(1.0, 3), (0.67, 2), (2, 2), (1, 1)])
def test_participation_is_a_fraction_or_a_count(
    table: Path, tmp_path: Path, participation: float, count: int
) -> None:
    settings = {"participation": participation, "rounds": 8, "targets": ["d"]}
    study(table, **settings).run(tmp_path)
    rounds = records(tmp_path, Job("fedavg", "d", 0), "rounds.jsonl")
    assert {len(r["clients"]) for r in rounds} == {count}
    assert set().union(*(r["clients"] for r in rounds)) == set("abc")
    evaluated = records(tmp_path, Job("fedavg", "d", 0), "source.jsonl")
    assert len(evaluated) == 8 * 3  # everyone validates, whoever trained


def test_a_count_of_participants_leaves_pooled_training_alone(table: Path, tmp_path: Path) -> None:
    planned = study(table, methods=["deepall", "fedavg"], participation=2, targets=["d"])
    planned.run(tmp_path)
    rounds = records(tmp_path, Job("deepall", "d", 0), "rounds.jsonl")
    assert [r["clients"] for r in rounds] == [["pooled"]] * 2


@pytest.mark.parametrize("threads", [1, 2])
def test_a_job_has_the_threads_it_asks_for(
    table: Path, tmp_path: Path, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, play, before = [], job_module.play_round, torch.get_num_threads()

    def looking(*arguments: Any) -> Any:
        seen.append(torch.get_num_threads())
        return play(*arguments)

    monkeypatch.setattr(job_module, "play_round", looking)
    results = study(table, threads=threads, targets=["a"]).run(tmp_path)
    assert seen == [threads] * 2
    assert torch.get_num_threads() == before
    assert f"{threads} thread" in "\n".join(results.table().notes)


OWN = """
import torch

class Small(torch.nn.Module):
    def __init__(self, shape, outputs, hidden=3):
        super().__init__()
        self.first = torch.nn.Linear(shape[0], hidden)
        self.head = torch.nn.Linear(hidden, outputs)

    def forward(self, x):
        return self.head(self.first(x).tanh())

def one_logit(shape):
    return torch.nn.Linear(shape[0], 1)

def three(shape):
    return torch.nn.Linear(shape[0], 3)

class Pair(Small):
    def forward(self, x):
        return super().forward(x), x

class Normed(Small):
    def forward(self, x):
        return self.norm(super().forward(x))
    def __init__(self, shape, outputs):
        super().__init__(shape, outputs)
        self.norm = torch.nn.BatchNorm1d(outputs)
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of the user's models in the current folder."""
    name = f"models_of_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield name
    sys.modules.pop(name, None)


@pytest.mark.parametrize("factory", ["Small", "one_logit", "Normed"])
def test_a_model_of_the_users_own(own: str, table: Path, tmp_path: Path, factory: str) -> None:
    results = study(table, model=f"{own}:{factory}", targets=["a"], rounds=3).run(tmp_path / "out")
    assert f"model: {own}:{factory}" in "\n".join(results.table().notes)
    losses = [r["loss"] for r in records(tmp_path / "out", Job("fedavg", "a", 0), "source.jsonl")]
    assert len(set(losses)) == len(losses)  # it learns: no two evaluations are alike


@pytest.mark.parametrize("model", ["three", "Pair"])
def test_a_model_whose_output_does_not_fit(
    own: str, table: Path, tmp_path: Path, model: str
) -> None:
    found = "[2, 3]" if model == "three" else "tuple"
    wrong = study(table, model=f"{own}:{model}")
    refused(wrong, tmp_path / "out", "does not fit 2 classes", "[2, 2]", found)


def test_a_batch_of_one_for_batchnorm_is_refused(own: str, table: Path, tmp_path: Path) -> None:
    # 24 rows, of which 2 validate: 22 = 3 · 7 + 1
    wrong = study(table, model=f"{own}:Normed", training={"batch_size": 7})
    refused(wrong, tmp_path / "out", "client 'b'", "22", "batch_size = 7", "drop_last")
    dropping = {"batch_size": 7, "drop_last": True}
    study(table, model=f"{own}:Normed", training=dropping, targets=["a"]).run(tmp_path / "out")


def test_a_batch_of_one_in_the_pooled_data_is_refused(
    own: str, table: Path, tmp_path: Path
) -> None:
    # 22 = 2 · 10 + 2 leaves two at each site, but 3 · 22 = 66 = 5 · 13 + 1 leaves one of all
    settings = {"model": f"{own}:Normed", "training": {"batch_size": 13}, "targets": ["a"]}
    study(table, methods=["fedavg"], **settings).run(tmp_path / "apart")
    wrong = study(table, methods=["deepall"], **settings)
    refused(wrong, tmp_path / "out", "66", "batch_size = 13", "drop_last")
