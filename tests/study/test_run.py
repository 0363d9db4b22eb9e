"""Whole studies on a table of a few rows: what is run, written, resumed, shown and refused."""

from __future__ import annotations

import csv
import itertools
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from unseen.core.exchange import Exchange, Reply, keyed
from unseen.datasets import DATASETS, DataSet, Domain, Info
from unseen.engine.inprocess import InProcess
from unseen.errors import BadReply, UnseenError
from unseen.results.records import Job
from unseen.results.study_results import Results
from unseen.study import Study
from unseen.study import job as job_module

FILES = ("source.jsonl", "target.jsonl", "rounds.jsonl")
#: Everything that can be carried from round to round: moments, server moments, gaps, draws.
CARRIED: dict[str, Any] = {
    "methods": ["fedavg+ga", "agrrand"],
    "targets": ["a"],
    "rounds": 4,
    "participation": 2,
    "model": "mlp(widths=[4], dropout=0.25)",
    "training": {
        "batch_size": 8,
        "optimiser": "sgd(lr=0.1, momentum=0.9)",
        "keep_optimiser": True,
        "server": "adam(lr=0.05)",
    },
}
numbered = (f"made-{n}" for n in itertools.count())


def rows(sites: str = "abcd", count: int = 24) -> list[list[str]]:
    """site, u, v, kind, region, y: numbers with gaps, a category, a metadata column, a class."""
    draw = random.Random(0)
    made = []
    for site in sites:
        for i in range(count):
            u, v = draw.gauss(i % 2, 1), draw.gauss(ord(site) - 97, 2)
            gap = draw.random() < 0.1
            kind, region = draw.choice("pq"), draw.choice("NSW" if site != "b" else "NS")
            made.append([site, "" if gap else f"{u:.3f}", f"{v:.3f}", kind, region, str(i % 2)])
    return made


def write(path: Path, body: Sequence[Sequence[str]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["site", "u", "v", "kind", "region", "y"], *body])
    return path


def expression(path: Path) -> str:
    return f'table(path="{path}", domain="site", label="y", groups=["region"])'


def study(dataset: str | Path, **settings: Any) -> Study:
    """A small study: logistic regression, two rounds, one seed."""
    text = expression(dataset) if isinstance(dataset, Path) else dataset
    base = {"model": "logistic", "rounds": 2, "seeds": 1, "training": {"batch_size": 8}}
    return Study(**{"dataset": text} | base | settings)


def written(out: Path) -> dict[str, bytes]:
    """The bytes of every record file and table file."""
    kinds = (".jsonl", ".csv", ".md", ".tex")
    files = (f for f in sorted(out.rglob("*")) if f.suffix in kinds)
    return {str(f.relative_to(out)): f.read_bytes() for f in files}


def records(out: Path, job: Job, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (job.folder(out) / name).read_text().splitlines()]


def shown(results: Results, row: str, column: str, metric: str | None = None) -> str:
    table = results.table(metric)
    header, *body = table.rows(lambda text, mark: text)
    return next(line for line in body if line[0] == row)[header.index(column)]


def refused(wrong: Study, out: Path, *words: str) -> None:
    """The study is refused in one paragraph that holds the words, before any training."""
    with pytest.raises(UnseenError) as caught:
        wrong.run(out)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message
    assert not list(out.rglob("*.jsonl")), "records were written"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write(tmp_path / "sites.csv", rows())


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Makes a data set of domains in memory known by name, and gives the name."""

    def put(
        *domains: Domain,
        classes: tuple[str, ...] | None = ("no", "yes"),
        metrics: tuple[str, ...] = ("loss", "accuracy"),
    ) -> str:
        name = next(numbered)
        data = DataSet(name, domains, classes, "", "", "")
        info = Info(lambda data_dir: data, "", "", "", "logistic", metrics)
        monkeypatch.setitem(DATASETS, name, info)
        return name

    return put


def domain(name: str, n: int = 20, scale: float = 1.0, y: torch.Tensor | None = None) -> Domain:
    y = torch.arange(n) % 2 if y is None else y
    x = torch.randn(n, 3, generator=keyed(name)) + y[:, None]
    return Domain(name, x * scale, y)


# --- interrupted and resumed ---------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    """The table, and what an uninterrupted run writes."""
    folder = tmp_path_factory.mktemp("whole")
    path = write(folder / "sites.csv", rows())
    study(path, **CARRIED).run(folder / "out")
    return path, written(folder / "out")


class Stopped(BaseException):
    """Ends a run as an interrupt does, at a place that the test chooses."""


def stop_at(monkeypatch: pytest.MonkeyPatch, method: str, round: int) -> None:
    """Checkpoints after every round; the job of the method stops before the given round."""
    play = job_module.play_round
    monkeypatch.setattr("unseen.study.plan.Setting", checkpointed)

    def stopping(played: Any, state: Any, *rest: Any) -> Any:
        if state.round == round and played.name == method:
            raise Stopped
        return play(played, state, *rest)

    monkeypatch.setattr(job_module, "play_round", stopping)


def checkpointed(*arguments: Any, **named: Any) -> job_module.Setting:
    return job_module.Setting(*arguments, **named, checkpoint_seconds=0.0)


@pytest.fixture
def halfway(whole: tuple[Path, dict[str, bytes]], tmp_path: Path) -> Path:
    """A folder in which the first method's job stopped after three of four rounds."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stopped):
        stop_at(patch, "fedavg+ga", 3)
        study(whole[0], **CARRIED).run(tmp_path / "out")
    assert (JOB.folder(tmp_path / "out") / "checkpoint.pt").exists()
    return tmp_path / "out"


JOB = Job("fedavg+ga", "a", 0)


def test_a_stopped_job_goes_on_where_it_was(
    whole: tuple[Path, dict[str, bytes]], halfway: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = []
    play = job_module.play_round

    def counting(method: Any, state: Any, *rest: Any) -> Any:
        played.append((method.name, state.round))
        return play(method, state, *rest)

    monkeypatch.setattr(job_module, "play_round", counting)
    study(whole[0], **CARRIED).run(halfway)
    assert played == [("fedavg+ga", 3), *(("agrrand", r) for r in range(4))]
    assert written(halfway) == whole[1]
    assert not list(halfway.rglob("checkpoint.pt*"))


KILLED = """
import os, signal, sys
import unseen.results.records as records
import unseen.study.plan as plan
from unseen.study.job import Setting
from unseen.study import Study

def fatal(function, calls):
    left = [calls]
    def wrapped(*arguments, **more):
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **more)
    return wrapped

settings, out, place, calls = sys.argv[1:]
owner, name = {"append": (records.Log, "append"), "fsync": (os, "fsync"),
               "mark": (records, "mark_done")}[place]
setattr(owner, name, fatal(getattr(owner, name), int(calls)))
plan.Setting = lambda *arguments, **named: Setting(*arguments, **named, checkpoint_seconds=0.0)
Study(**__import__("json").loads(settings)).run(out)
"""


@pytest.mark.parametrize(
    ("place", "calls"),
    [
        ("append", 7),  # between the records of a round: three exchanges each
        ("fsync", 6),  # study.json, three empty logs, then the second round's checkpoint, half made
        ("mark", 2),  # all rounds are played, the mark is missing
    ],
)
def test_killed_and_resumed_is_uninterrupted(
    whole: tuple[Path, dict[str, bytes]], tmp_path: Path, place: str, calls: int
) -> None:
    planned, out = study(whole[0], **CARRIED), tmp_path / "out"
    command = [sys.executable, "-c", KILLED, planned.model_dump_json(), str(out), place, str(calls)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    died = subprocess.run(command, env=env, capture_output=True, timeout=120)
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()
    assert list(out.rglob("checkpoint.pt*"))
    assert written(out) != whole[1]
    planned.run(out)
    assert written(out) == whole[1]


def half_line(content: bytes) -> bytes:
    return content + b'{"method":"fedavg+g'


def truncated(content: bytes) -> bytes:
    return content[: len(content) // 2]


def emptied(content: bytes) -> bytes:
    return b""


def garbage_inside(content: bytes) -> bytes:
    lines = content.split(b"\n")
    lines[1] = b"\x00\xff{]"
    return b"\n".join(lines)


def line_lost(content: bytes) -> bytes:
    lines = content.split(b"\n")
    return b"\n".join([lines[0], *lines[2:]])


def garbage(content: bytes) -> bytes:
    return b"no checkpoint at all" * 50


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", [half_line, truncated, emptied, garbage_inside, line_lost, None])
def test_damaged_records_of_a_stopped_job_are_recovered(
    whole: tuple[Path, dict[str, bytes]],
    halfway: Path,
    name: str,
    damage: Callable[[bytes], bytes] | None,
) -> None:
    path = JOB.folder(halfway) / name
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage(path.read_bytes()))
    study(whole[0], **CARRIED).run(halfway)
    assert written(halfway) == whole[1]


@pytest.mark.parametrize("damage", [truncated, emptied, garbage])
def test_an_unreadable_checkpoint_starts_the_job_again(
    whole: tuple[Path, dict[str, bytes]], halfway: Path, damage: Callable[[bytes], bytes]
) -> None:
    path = JOB.folder(halfway) / "checkpoint.pt"
    path.write_bytes(damage(path.read_bytes()))
    study(whole[0], **CARRIED).run(halfway)
    assert written(halfway) == whole[1]


@pytest.mark.parametrize("name", [*FILES, "done.json"])
def test_a_finished_job_that_was_damaged_is_run_again(
    whole: tuple[Path, dict[str, bytes]], tmp_path: Path, name: str
) -> None:
    planned = study(whole[0], **CARRIED)
    planned.run(tmp_path)
    path = JOB.folder(tmp_path) / name
    path.write_bytes(truncated(path.read_bytes()))
    planned.run(tmp_path)
    assert written(tmp_path) == whole[1]
    assert json.loads((JOB.folder(tmp_path) / "done.json").read_bytes())["records"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"other": 1}'])
def test_a_damaged_study_file_is_written_anew(
    whole: tuple[Path, dict[str, bytes]], tmp_path: Path, content: bytes
) -> None:
    planned = study(whole[0], **CARRIED)
    planned.run(tmp_path)
    good = (tmp_path / "study.json").read_bytes()
    (tmp_path / "study.json").write_bytes(content)
    planned.run(tmp_path)
    assert (tmp_path / "study.json").read_bytes() == good
    assert written(tmp_path) == whole[1]


def test_two_processes_write_what_one_does(
    whole: tuple[Path, dict[str, bytes]], tmp_path: Path
) -> None:
    study(whole[0], **CARRIED).run(tmp_path, jobs=2)
    assert written(tmp_path) == whole[1]


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
    try:
        notes = "\n".join(planned.run(tmp_path).table().notes)
    except UnseenError as error:
        notes = str(error)
    assert "1.0.99" in notes


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
    with pytest.warns(UserWarning, match=r"client 'b' .*class 0 only"):
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


# --- bad input -----------------------------------------------------------------------------


def test_a_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "nowhere.csv"
    refused(study(path), tmp_path / "out", str(path), "does not exist")


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        ("heart-disease", ("processed.cleveland.data", "10.24432/C52P4X", "heart_disease")),
        ("rotated-mnist", ("train-images", "MNIST database")),
    ],
)
def test_missing_files_of_a_data_set(tmp_path: Path, dataset: str, words: tuple[str, ...]) -> None:
    with pytest.raises(UnseenError) as caught:
        study(dataset, model=None).run(tmp_path / "out", data_dir=tmp_path / "empty")
    for word in (*words, str(tmp_path / "empty")):
        assert word in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_no_folder_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNSEEN_DATA", raising=False)
    refused(study("rotated-mnist"), tmp_path / "out", "--data-dir", "UNSEEN_DATA", "MNIST database")


def test_a_domain_without_examples(register: Callable[..., str], tmp_path: Path) -> None:
    empty = Domain("c", torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
    name = register(domain("a"), domain("b"), empty)
    refused(study(name), tmp_path / "out", "'c'", "no examples")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_features_that_are_not_finite(
    register: Callable[..., str], tmp_path: Path, value: float
) -> None:
    bad = domain("c")
    bad.x[3, 1] = value
    refused(study(register(domain("a"), domain("b"), bad)), tmp_path / "out", "'c'", "NaN or inf")


@pytest.mark.parametrize(("site", "cell"), [("a", "1e60"), ("c", "1e200")])
def test_a_cell_that_leaves_no_finite_feature(tmp_path: Path, site: str, cell: str) -> None:
    # At the target no float32 holds it; at a source its square is beyond float64 as well.
    body = rows("abc")
    body[[row[0] for row in body].index(site)][1] = cell
    path = write(tmp_path / "large.csv", body)
    refused(study(path, targets=["a"]), tmp_path / "out", f"'{site}'", "NaN or infinite")


@pytest.mark.parametrize("cell", ["inf", "-inf", "1e999"])
def test_an_infinite_cell(tmp_path: Path, cell: str) -> None:
    body = rows("abc")
    body[4][1] = cell
    path = write(tmp_path / "infinite.csv", body)
    refused(study(path), tmp_path / "out", "line 6 of infinite.csv", repr(cell), "'u'")


@pytest.mark.parametrize("label", [7, -1])
def test_labels_outside_the_classes(
    register: Callable[..., str], tmp_path: Path, label: int
) -> None:
    y = torch.arange(20) % 2
    y[5] = label
    name = register(domain("a"), domain("b"), Domain("c", torch.zeros(20, 3), y))
    refused(study(name), tmp_path / "out", "'c'", "0 to 1", str(label))


def test_a_single_domain(tmp_path: Path) -> None:
    path = write(tmp_path / "single.csv", rows("a"))
    refused(study(path), tmp_path / "out", "at least two domains", "'a'")


def test_a_batch_larger_than_a_clients_data(register: Callable[..., str], tmp_path: Path) -> None:
    name = register(domain("a"), domain("b", n=10), domain("c"))
    # 10 examples, of which 1 validates
    refused(
        study(name, training={"batch_size": 10}),
        tmp_path / "out",
        "client 'b'",
        "batch_size = 10",
        "9 training examples",
    )


def test_a_source_of_one_example(register: Callable[..., str], tmp_path: Path) -> None:
    name = register(domain("a"), domain("b", n=1), domain("c"))
    refused(study(name, training={"batch_size": 1}), tmp_path / "out", "'b'", "1 example")


def test_an_official_validation_split_of_nothing(
    register: Callable[..., str], tmp_path: Path
) -> None:
    none = torch.zeros(0, dtype=torch.int64)
    hollow = Domain("b", domain("b").x, domain("b").y, validation=none)
    name = register(domain("a"), hollow, domain("c"))
    refused(study(name), tmp_path / "out", "'b'", "validation")


REFUSED: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"selection": "source-validaton"}, ("source-validaton", "'source-validation'")),
    ({"selection": "target-oracle(afer=3)"}, ("afer", "'after'")),
    ({"selection": "ood-validation"}, ("ood-validation", "neither source nor target")),
    ({"metric": "acuracy"}, ("acuracy", "'accuracy'")),
    ({"metric": "worst accuracy@region"}, ("region",)),  # groups are not asked for
    ({"metrics": ["acuracy"]}, ("acuracy", "'accuracy'")),
    ({"metrics": ["loss", "pearson"]}, ("pearson",)),  # labels are classes
    ({"groups": ["regio"]}, ("regio", "'region'")),
    ({"methods": ["fedagv"]}, ("fedagv", "'fedavg'")),
    ({"methods": ["deepall+ga"]}, ("deepall+ga",)),
    ({"metric": "acuracy"}, ("unknown metric 'acuracy'", "'accuracy'")),
    ({"model": "logistc"}, ("logistc", "'logistic'")),
    ({"training": {"optimiser": "sgd(lrr=1)"}}, ("lrr", "'lr'")),
    ({"training": {"schedule": "cosin"}}, ("cosin", "'cosine'")),
    ({"participation": 4}, ("participation", "4", "3")),
    ({"targets": ["e"]}, ("target", "'e'")),
    ({"targets": []}, ("targets",)),
    ({"seeds": []}, ("seeds",)),
    ({"seeds": [1, 1]}, ("seeds", "1")),
    ({"device": "gpu"}, ("device", "gpu")),
    ({"holdout": {"growing": ["a", "b"], "target": ["c"], "first": 3}}, ("growing", "3")),
    (
        {"participation": 2, "holdout": {"growing": ["a", "b"], "target": ["c"]}},
        ("participation", "2", "1"),
    ),
]


@pytest.mark.parametrize(("settings", "words"), REFUSED, ids=[str(s) for s, _ in REFUSED])
def test_settings_that_cannot_work_are_refused_before_any_training(
    table: Path, tmp_path: Path, settings: dict[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(UnseenError) as caught:
        study(table, **settings).run(tmp_path / "out")
    for word in words:
        assert word in str(caught.value)
    assert not list((tmp_path / "out").rglob("*.jsonl")), "records were written"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_device_that_is_not_there(table: Path, tmp_path: Path) -> None:
    refused(study(table, device="cuda"), tmp_path / "out", "cuda")


def test_auroc_of_many_classes_is_refused_before_any_training(
    register: Callable[..., str], tmp_path: Path
) -> None:
    three = [domain(name, n=30, y=torch.arange(30) % 3) for name in "abc"]
    name = register(*three, classes=("x", "y", "z"))
    refused(study(name, metrics=["auroc"]), tmp_path / "out", "auroc", "two classes")


@pytest.mark.parametrize("metric", ["accuracy", "auroc"])
def test_metrics_of_classes_are_refused_for_numbers(
    register: Callable[..., str], tmp_path: Path, metric: str
) -> None:
    numbers = [Domain(name, domain(name).x, domain(name).x[:, 0]) for name in "abc"]
    name = register(*numbers, classes=None)
    refused(study(name, metrics=[metric]), tmp_path / "out", metric)


# --- bad replies ---------------------------------------------------------------------------


class Spoilt(InProcess):
    """Spoils what client b sends in round 1 of training, or what everybody does."""

    who: tuple[str, ...] = ("b",)

    @staticmethod
    def spoil(row: torch.Tensor) -> torch.Tensor:
        return torch.full_like(row, float("nan"))

    def _one(self, exchange: Exchange, inbox: Any, name: str, turn: Any, k: int) -> Reply:
        reply = super()._one(exchange, inbox, name, turn, k)
        if not exchange.slots or turn.round != 1 or name not in self.who:
            return reply
        return Reply({**reply.rows, "model": self.spoil(reply.rows["model"])}, reply.scalars)


class Cut(Spoilt):
    @staticmethod
    def spoil(row: torch.Tensor) -> torch.Tensor:
        return row[:-1].clone()


class Everyone(Spoilt):
    who = ("a", "b", "c")


def test_a_reply_of_the_wrong_shape_stops_the_study_by_name(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unseen.study.runtime.InProcess", Cut)
    with pytest.raises(BadReply) as caught:
        study(table, targets=["d"], rounds=3).run(tmp_path)
    for word in ("client 'b'", "shape", "drop"):
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(records(tmp_path, Job("fedavg", "d", 0), "rounds.jsonl")) == 1
    assert not list(tmp_path.rglob("done.json"))


def test_a_job_that_diverges_ends_and_the_others_go_on(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Client b sends NaN in round 1; where b is the target it takes no part in training."""
    monkeypatch.setattr("unseen.study.runtime.InProcess", Spoilt)
    results = study(table, targets=["b", "d"], rounds=3).run(tmp_path)
    assert len(records(tmp_path, Job("fedavg", "d", 0), "rounds.jsonl")) == 1
    assert len(records(tmp_path, Job("fedavg", "b", 0), "rounds.jsonl")) == 3
    assert shown(results, "fedavg", "d") == "undefined"
    assert float(shown(results, "fedavg", "b")) > 0
    notes = [n for n in results.table().notes if n.startswith("diverged")]
    assert len(notes) == 1
    for word in ("fedavg at d, seed 0", "client 'b'", "NaN"):
        assert word in notes[0]
    before = written(tmp_path)
    study(table, targets=["b", "d"], rounds=3).run(tmp_path)  # is not tried again
    assert written(tmp_path) == before


@pytest.mark.parametrize(("backend", "fault"), [(Spoilt, "NaN"), (Cut, "shape")])
def test_a_bad_reply_is_dropped_and_counted(
    table: Path,
    tmp_path: Path,
    backend: type[InProcess],
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("unseen.study.runtime.InProcess", backend)
    study(table, targets=["d"], rounds=3, on_bad_reply="drop").run(tmp_path)
    rounds = records(tmp_path, Job("fedavg", "d", 0), "rounds.jsonl")
    assert [r["clients"] for r in rounds] == [["a", "b", "c"], ["a", "c"], ["a", "b", "c"]]
    assert [list(r["dropped"]) for r in rounds] == [[], ["b"], []]
    assert fault in rounds[1]["dropped"]["b"]
    assert [len(r["weights"]["model"]) for r in rounds] == [3, 2, 3]
    assert sum(rounds[1]["weights"]["model"]) == pytest.approx(1)


def test_all_replies_bad_is_an_error(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unseen.study.runtime.InProcess", Everyone)
    results = study(table, targets=["d"], rounds=3, on_bad_reply="drop").run(tmp_path)
    (why,) = results.diverged().values()
    assert "every client's reply" in why
    for name in "abc":
        assert f"'{name}'" in why


def test_a_client_that_diverges_is_dropped_again_and_again(
    register: Callable[..., str], tmp_path: Path
) -> None:
    name = register(domain("a"), domain("b", scale=1e30), domain("c"), domain("d"))
    study(name, targets=["d"], rounds=3, on_bad_reply="drop").run(tmp_path)
    rounds = records(tmp_path, Job("fedavg", "d", 0), "rounds.jsonl")
    assert [r["clients"] for r in rounds] == [["a", "c"]] * 3
    assert [list(r["dropped"]) for r in rounds] == [["b"]] * 3
    (why,) = study(name, targets=["d"], rounds=3).run(tmp_path / "stop").diverged().values()
    assert "client 'b'" in why


# --- nothing is learnt from the target -------------------------------------------------------


def sources_of(path: Path, out: Path, **options: Any) -> dict[str, bytes]:
    """The records of the sources when site c is the target."""
    study(path, targets=["c"], methods=["fedavg+ga"]).run(out)
    return {name: b for name, b in written(out).items() if name.endswith(FILES[0::2])}


TARGETS: dict[str, Callable[[list[str]], list[str]]] = {
    "numbers": lambda row: [row[0], "1e6", "-3", *row[3:]],
    "missing": lambda row: [row[0], "", "", "", *row[4:]],
    "labels": lambda row: [*row[:5], "0"],
    "a category": lambda row: [*row[:3], "a", *row[4:]],
    "metadata": lambda row: [*row[:4], "E", row[5]],
}


@pytest.mark.parametrize("change", TARGETS.values(), ids=TARGETS)
def test_the_target_changes_nothing_at_the_sources(
    tmp_path: Path, change: Callable[[list[str]], list[str]]
) -> None:
    body = [row for row in rows("abc") if row[0] != "c" or row[3] == "p"]
    before = sources_of(write(tmp_path / "before.csv", body), tmp_path / "before")
    body = [change(row) if row[0] == "c" else row for row in body] + [change(body[-1])]
    after = sources_of(write(tmp_path / "after.csv", body), tmp_path / "after")
    assert before == after
    assert len(before) == 2


def test_spellings_at_the_target_change_nothing_at_the_sources(tmp_path: Path) -> None:
    """Sites write one code as 3 and as 3.0; a word at the target must not tell them apart."""

    def coded(target: str) -> dict[str, bytes]:
        body = [[*row[:3], "3" if row[3] == "p" else "3.0", *row[4:]] for row in rows("abc")]
        body = [[*r[:3], target, *r[4:]] if r[0] == "c" else r for r in body]
        path = write(tmp_path / f"{target}.csv", body)
        text = expression(path)[:-1] + ', categorical=["kind"])'
        out = tmp_path / f"out-{target}"
        study(text, targets=["c"]).run(out)
        return {name: b for name, b in written(out).items() if name.endswith(FILES[0::2])}

    assert coded("4") == coded("unknown")


@pytest.mark.filterwarnings("ignore:column 'u'")
def test_a_word_in_a_column_of_the_target_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    body = rows("abc")
    before = sources_of(write(tmp_path / "before.csv", body), tmp_path / "before")
    body[-1][1] = "n.a."
    try:
        after = sources_of(write(tmp_path / "after.csv", body), tmp_path / "after")
    except UnseenError as error:
        assert "'n.a.'" in str(error)
    else:
        assert before == after
