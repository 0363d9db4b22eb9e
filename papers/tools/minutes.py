"""Estimate the minutes of every study of unseen and of the papers, for `unseen list studies`.

    python papers/tools/minutes.py DATA_DIR... [--only NAME,...] [--ran NAME=MINUTES,...]

On a quiet machine. Each study is run with the first of the folders that has its data: every method
on one target and seed, for two rounds and for six. The file `minutes.json` in
the folder of the study's package keeps the minutes on two cores that all its jobs take at that
pace. Trials of a search count as jobs of full length, so that these are upper ends. A study without
data, or one that takes too long, keeps its figure. `--ran` keeps what a study took on two cores,
which no estimate replaces.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unseen import Study
from unseen.core.atomic import write_atomically
from unseen.errors import UnseenError
from unseen.methods.compose import method
from unseen.studies.execution.plan import prepare_study
from unseen.studies.execution.search import jobs_of
from unseen.studies.results.study_folder import StudyFolder
from unseen.studies.settings.named import OWN, named_studies
from unseen.studies.settings.named import minutes as kept_minutes
from unseen_papers import studies

#: The folders of the studies.
FOLDERS = (OWN, Path(studies.__file__).parent)
#: The two lengths that are timed: the longer one's further rounds are what a round takes.
FEW, MORE = 2, 6
#: Seconds after which a study is given up.
PATIENCE = 400
PROCESSES = 2


def minutes(name: str, folder: Path) -> float:
    """Return a study's minutes in two processes, from short jobs of every method."""
    with tempfile.TemporaryDirectory() as out:
        whole = prepare_study(Study.read(name), Path(out), folder)
    study = whole.setting.study
    first = {"seeds": [study.seed_list[0]], "targets": [whole.tasks[0].name]}
    few, more = (seconds(name, folder, first | {"rounds": rounds}) for rounds in (FEW, MORE))
    total = 0.0
    for text, took in more.items():
        each = max(0.0, took - few[text]) / (MORE - FEW)
        total += took + (each * (study.rounds - MORE) if method(text).rounds is None else 0.0)
    trials = jobs_of(study, whole.methods, whole.tasks)
    count = len(whole.tasks) * len(study.seed_list) * (1 + trials / max(1, len(whole.jobs)))
    return total * count / 60 / PROCESSES


def seconds(name: str, folder: Path, settings: Mapping[str, Any]) -> dict[str, float]:
    """Return what a job of each method takes with these settings, in seconds."""
    short = {**settings, "patience": None, "tune": None, "evaluate_every": 1}
    with tempfile.TemporaryDirectory() as out:
        Study.read(name, short).run(out, data_dir=folder)
        return {job.job.method: job.mark["seconds"] for job in StudyFolder(Path(out)).jobs()}


def measure(name: str, folders: list[Path], found: multiprocessing.Queue[float]) -> None:
    """Put the minutes into the queue, or nothing where they cannot be known."""
    for folder in folders:
        try:
            return found.put(minutes(name, folder))
        except UnseenError as error:
            print(f"{name}: {str(error).splitlines()[0][:100]}", flush=True)


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--ran", default="")
    given = parser.parse_args()
    kept = kept_minutes()
    known, ran = kept["estimated"], kept["ran"]
    ran |= {n: float(m) for n, m in (pair.split("=") for pair in given.ran.split(",") if pair)}
    context = multiprocessing.get_context("fork")
    names = given.only.split(",") if given.only else named_studies()
    for name in (name for name in names if name not in ran):
        queue = context.Queue()
        process = context.Process(target=measure, args=(name, given.folders, queue))
        process.start()
        process.join(PATIENCE)
        if process.is_alive():
            process.kill()
            print(f"{name}: not within {PATIENCE} s", flush=True)
        elif not queue.empty():
            known[name] = float(f"{queue.get():.2g}")
            print(f"{name}: {known[name]} min", flush=True)
        keep({"estimated": known, "ran": ran})


def keep(content: Mapping[str, Mapping[str, float]]) -> None:
    """Write each folder's file, of the studies that are there."""
    for folder in FOLDERS:
        own = {
            key: {
                name: value for name, value in values.items() if (folder / f"{name}.toml").exists()
            }
            for key, values in content.items()
        }
        text = json.dumps(own, indent=1, sort_keys=True) + "\n"
        write_atomically(folder / "minutes.json", text.encode())


if __name__ == "__main__":
    main()
