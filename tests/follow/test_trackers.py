"""Trackers hold what finished jobs recorded, each point once, and never stop a study."""

from __future__ import annotations

import shutil
import struct
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from unseen import Study, UnseenError
from unseen.cli.main import main
from unseen.core import record_lines
from unseen.studies.results import records
from unseen.studies.results.records import Job, Log
from unseen.studies.results.study_folder import JobFolder
from unseen.studies.tracking import trackers
from unseen.studies.tracking.trackers import TRACKERS, Points, check, listed, track
from unseen.studies.tracking.trackers import points as points_of

JOB = Job("fedavg(weights='uniform')", "a", 0)
STUDY = Study(methods=["fedavg", "fedavg+ga"], targets=["0"], seeds=1, rounds=3)


def lines(r: int, shift: float = 0.0) -> dict[str, list[dict[str, object]]]:
    """One round's records: two sources, one of them undefined in one metric, and a target."""
    named = {"method": JOB.method, "task": JOB.task, "seed": JOB.seed, "round": r}
    row = {**named, "examples": 5, "loss": 0.5 + r + shift}
    source = {**row, "role": "source"}
    groups = {"accuracy@sex": {"f": 0.25 + r, "m": None}, "examples@sex": {"f": 3, "m": 0}}
    return {
        "source.jsonl": [
            {**source, "domain": "b", "auroc": None},
            {**source, "domain": "c", "auroc": 0.75, "loss": 1.5 + r + shift},
        ],
        "target.jsonl": [{**row, "role": "target", "domain": "a", "auroc": 0.1, **groups}],
        "rounds.jsonl": [
            {
                "round": r, "exchange": "train", "clients": ["b", "c"],
                "scalars": {"loss": [1.0, 3.0], "counts": [[1, 2], [3, 4]]},
                "weights": {"model": [0.25, 0.75]}, "dropped": {}, "bytes": {"down": 8, "up": 4},
            },
            {
                "round": r, "exchange": "second", "clients": ["b", "c"], "scalars": {},
                "weights": {"style": [[0.5, 0.5], [1.0, 0.0]]}, "dropped": {},
                "bytes": {"down": 2, "up": 1},
            },
        ],
    }  # fmt: skip


def write_job(out: Path, rounds: range, done: bool = False, shift: float = 0.0) -> Path:
    """Append these rounds to the job, which keeps what came before them."""
    folder = JOB.folder(out)
    kept = {name: (folder / name).stat().st_size if rounds.start else 0
            for name in records.FILES}  # fmt: skip
    log = Log.resume(folder, kept)
    for r in rounds:
        for name, rows in lines(r, shift).items():
            log.append(name, rows)
    log.close()
    if done:
        records.mark_done(folder, {"unseen": "0"}, 1.0, 1)
    return folder


def points(folder: Path) -> Points:
    return points_of(JobFolder(JOB, folder))


def events(folder: Path) -> Counter[tuple[str, int, float]]:
    """Every scalar event of a folder, counted, by TensorBoard's own loader."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util.tensor_util import make_ndarray

    return Counter(
        (value.tag, event.step, float(make_ndarray(value.tensor)))
        for path in sorted(folder.rglob("events.out.tfevents.*"))
        for event in EventFileLoader(str(path)).Load()
        for value in event.summary.value
    )


def single(number: float) -> float:
    """As single precision keeps it."""
    return float(struct.unpack("f", struct.pack("f", number))[0])


class TestReader:
    def test_every_point_by_hand(self, tmp_path: Path) -> None:
        found = points(write_job(tmp_path, range(2)))
        first = {tag: value for (tag, r), value in found.items() if r == 0}
        assert first == {
            "loss/validation": 1.0,
            "loss/validation/b": 0.5,
            "loss/validation/c": 1.5,
            "auroc/validation": 0.75,
            "loss/target": 0.5,
            "auroc/target": 0.1,
            "accuracy@sex/target/f": 0.25,
            "train.loss": 2.0,
            "train.loss/b": 1.0,
            "train.loss/c": 3.0,
            "weights.model/b": 0.25,
            "weights.model/c": 0.75,
            "weights.style/0/b": 0.5,
            "weights.style/0/c": 0.5,
            "weights.style/1/b": 1.0,
            "weights.style/1/c": 0.0,
            "bytes/down": 10.0,
            "bytes/up": 5.0,
        }
        assert found["loss/target", 1] == 1.5

    def test_half_a_line_and_no_file(self, tmp_path: Path) -> None:
        folder = write_job(tmp_path, range(1))
        before = points(folder)
        with (folder / "target.jsonl").open("ab") as file:
            file.write(b'{"round": 1, "ro')
        assert points(folder) == before
        assert points(tmp_path / "nothing") == {}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study without trackers."""
    out = tmp_path_factory.mktemp("plain") / "digits"
    STUDY.run(out)
    return out


class TestTensorBoard:
    @pytest.fixture(autouse=True)
    def _there(self) -> None:
        pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")

    def test_a_study_is_tracked_and_not_changed(self, plain: Path, tmp_path: Path) -> None:
        """The accumulator that TensorBoard itself uses finds every record."""
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        out = tmp_path / "digits"
        STUDY.run(out, track=["tensorboard"])
        jobs = sorted((out / "records").glob("*/*/seed-*"))
        assert len(jobs) == 2
        for job in jobs:
            place = job.relative_to(out / "records")
            for name in records.FILES:
                assert (job / name).read_bytes() == (plain / "records" / place / name).read_bytes()
            board = EventAccumulator(str(out / "tensorboard" / place), {"scalars": 0}).Reload()
            expected: dict[str, list[tuple[int, float]]] = {}
            for row in record_lines.read_lines(job / "target.jsonl"):
                for metric in ("loss", "accuracy"):
                    tag = f"{metric}/target"
                    expected.setdefault(tag, []).append((row["round"], single(row[metric])))
            for row in record_lines.read_lines(job / "source.jsonl"):
                for metric in ("loss", "accuracy"):
                    tag = f"{metric}/validation/{row['domain']}"
                    expected.setdefault(tag, []).append((row["round"], single(row[metric])))
            for row in record_lines.read_lines(job / "rounds.jsonl"):
                for client, weight in zip(row["clients"], row["weights"]["model"], strict=True):
                    tag = f"weights.model/{client}"
                    expected.setdefault(tag, []).append((row["round"], single(weight)))
            for tag, series in expected.items():
                assert [(e.step, e.value) for e in board.Scalars(tag)] == series, tag
            assert len(board.Scalars("accuracy/validation")) == 3

    def test_jobs_are_written_once_they_have_ended(self, tmp_path: Path) -> None:
        write_job(tmp_path, range(2))
        assert track(tmp_path, ["tensorboard"]) == ["tensorboard: 0 jobs written"]
        folder = write_job(tmp_path, range(2, 5), done=True)
        assert track(tmp_path, ["tensorboard"]) == ["tensorboard: 1 jobs written"]
        assert track(tmp_path, ["tensorboard"]) == ["tensorboard: 0 jobs written"]
        expected = {(tag, r, single(v)) for (tag, r), v in points(folder).items()}
        assert events(tmp_path / "tensorboard") == Counter(expected)

    def test_another_run_of_the_same_job_takes_its_place(self, tmp_path: Path) -> None:
        board = tmp_path / "tensorboard"
        write_job(tmp_path, range(2), done=True)
        track(tmp_path, ["tensorboard"])
        shutil.rmtree(JOB.folder(tmp_path))
        folder = write_job(tmp_path, range(1), done=True, shift=0.5)
        track(tmp_path, ["tensorboard"])
        expected = {(tag, r, single(v)) for (tag, r), v in points(folder).items()}
        assert events(board) == Counter(expected)

    def test_events_that_were_removed_are_written_again(self, tmp_path: Path) -> None:
        write_job(tmp_path, range(2), done=True)
        track(tmp_path, ["tensorboard"])
        before = events(tmp_path / "tensorboard")
        shutil.rmtree(tmp_path / "tensorboard")
        track(tmp_path, ["tensorboard"])
        assert events(tmp_path / "tensorboard") == before

    def test_the_commands(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def run(*arguments: str) -> int:
            monkeypatch.setattr(sys, "argv", ["unseen", *arguments])
            with pytest.raises(SystemExit) as caught:
                main()
                raise SystemExit(0)
            return int(caught.value.code or 0)

        write_job(tmp_path, range(2), done=True)
        assert run("study", "digits", "--track", "wandb", "--out", str(tmp_path / "x")) == 2
        assert not (tmp_path / "x").exists()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One SQLite store for all tests: to make one takes seconds."""
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    uri = f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'shared.db'}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", uri)
        yield uri


def histories(uri: str, folder: Path) -> dict[str, tuple[str, Counter[tuple[str, int, float]]]]:
    """Each run of a study's folder: its status and every point that MLflow's client finds."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    ids = [experiment.experiment_id for experiment in client.search_experiments()]
    found = {}
    for run in client.search_runs(ids):
        if run.data.tags.get("unseen.folder") == str(folder.resolve()):
            found[run.data.tags["unseen.job"]] = (
                run.info.status,
                Counter(
                    (point.key, point.step, point.value)
                    for key in run.data.metrics
                    for point in client.get_metric_history(run.info.run_id, key)
                ),
            )
    return found


class TestMLflow:
    def test_a_study_is_tracked(self, store: str, plain: Path) -> None:
        """The finished study, then nothing new; parameters are the settings."""
        from mlflow.tracking import MlflowClient

        assert track(plain, ["mlflow"]) == ["mlflow: 2 jobs written"]
        assert track(plain, ["mlflow"]) == ["mlflow: 0 jobs written"]
        found = histories(store, plain)
        assert sorted(found) == ["fedavg+ga/0/seed-0", "fedavg/0/seed-0"]
        for place, (status, history) in found.items():
            assert status == "FINISHED"
            expected = points(plain / "records" / place)
            assert history == Counter((tag, r, value) for (tag, r), value in expected.items())
        client = MlflowClient(store)
        experiment = client.get_experiment_by_name("study")
        run = client.search_runs([experiment.experiment_id])[0]
        assert run.data.params["rounds"] == "3"
        assert run.data.params["training.optimiser"] == "sgd(lr=0.1)"
        assert run.data.params["task"] == "0"

    def test_another_run_of_the_same_job_takes_its_place(self, store: str, tmp_path: Path) -> None:
        place = "/".join(JOB.folder(tmp_path).parts[-3:])
        write_job(tmp_path, range(2))
        track(tmp_path, ["mlflow"])
        assert place not in histories(store, tmp_path)
        folder = write_job(tmp_path, range(2, 3), done=True)
        track(tmp_path, ["mlflow"])
        status, history = histories(store, tmp_path)[place]
        assert status == "FINISHED"
        assert set(history.values()) == {1}
        # Letters that MLflow does not allow: @ in the name of a group.
        names = {tag for tag, _, _ in history}
        assert any(name.startswith("accuracy_sex/target/f-") for name in names)
        assert len(history) == len(points(folder))
        shutil.rmtree(folder)
        write_job(tmp_path, range(1), shift=0.5)
        records.mark_done(folder, {}, 1.0, 1, diverged="NaN at b")
        track(tmp_path, ["mlflow"])
        status, history = histories(store, tmp_path)[place]
        assert status == "FAILED"
        assert ("loss/target", 0, 1.0) in history and len(history) == 18


class Broken:
    """A tracker that cannot write."""

    def digest(self, place: str) -> str:
        return ""

    def write(self, job: JobFolder, digest: str) -> None:
        raise OSError("disk full")


class TestFailures:
    def test_a_tracker_that_fails_is_a_warning(
        self, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(TRACKERS, "tensorboard", lambda study: Broken())
        monkeypatch.setitem(trackers.PACKAGES, "tensorboard", ())
        shutil.copytree(plain, tmp_path / "again")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            results = STUDY.run(tmp_path / "again", track=["tensorboard"])
        told = [str(w.message) for w in caught if "tensorboard" in str(w.message)]
        assert told == ["tensorboard failed and is left out, the study goes on: OSError: disk full"]
        assert len(list(results.jobs())) == 2

    def test_what_is_not_installed_is_told_before_the_study(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(trackers.PACKAGES, "mlflow", ("a_package_that_nobody_has",))
        with pytest.raises(UnseenError, match=r'pip install "unseen\[mlflow\]"'):
            STUDY.run(tmp_path / "out", track=["mlflow"])
        assert not (tmp_path / "out").exists()

    def test_tracking_needs_a_folder(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(trackers.PACKAGES, "tensorboard", ())
        with pytest.raises(UnseenError, match="Name their folder"):
            STUDY.run(track=["tensorboard"])
        with pytest.raises(UnseenError, match="unknown tracker"):
            check(["wandb"])
        assert listed(" , ") == ()
