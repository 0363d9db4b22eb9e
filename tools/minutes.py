"""Estimate the minutes of every study that ships, for `unseen list studies`.

    python tools/minutes.py DATA_DIR... [--only NAME,...] [--ran NAME=MINUTES,...]

Each study is planned with the first of the folders that has its data, its rounds are timed for a
few seconds, and `src/unseen/spec/minutes.json` keeps the minutes on two cores, job by job; studies
whose data are in none of the folders keep what the file says. Trials of a search count as jobs of
full length, so that these are upper ends, and `stacked` studies take a fraction: `--ran` keeps what
one took on two cores, which no estimate replaces.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
from collections.abc import Mapping
from pathlib import Path

from unseen import Study
from unseen.core.atomic import write_atomically
from unseen.errors import UnseenError
from unseen.spec.named import named_studies
from unseen.study import estimate
from unseen.study.plan import prepare_study
from unseen.study.search import jobs_of

FILE = Path(__file__).parents[1] / "src/unseen/spec/minutes.json"
#: Seconds of measurement for all methods of a study.
SECONDS = 12.0
#: Seconds after which a study is given up: its data take longer to read than others' tables.
PATIENCE = 240
PROCESSES = 2


def minutes(name: str, folder: Path) -> float:
    """Return a study's minutes in two processes, from short rounds."""
    estimate.SECONDS = SECONDS
    with tempfile.TemporaryDirectory() as out:
        planned = prepare_study(Study.read(name, {}), Path(out), folder)
        costs, _ = estimate.estimates(planned)
        study = planned.setting.study
        trials = jobs_of(study, planned.methods, planned.tasks)
    seconds = sum(one.total for one in costs) * (1 + trials / max(1, len(planned.jobs)))
    return seconds / 60 / PROCESSES


def measure(name: str, folders: list[Path], found: multiprocessing.Queue[float]) -> None:
    """Put the minutes into the queue, or nothing where no folder has the data."""
    for folder in folders:
        try:
            found.put(minutes(name, folder))
        except UnseenError as error:
            print(f"{name}: {str(error).splitlines()[0][:100]}", flush=True)
        else:
            return


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--ran", default="")
    given = parser.parse_args()
    kept = json.loads(FILE.read_text()) if FILE.exists() else {}
    known, ran = kept.get("estimated", {}), kept.get("ran", {})
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
    """Write the file."""
    write_atomically(FILE, (json.dumps(content, indent=1, sort_keys=True) + "\n").encode())


if __name__ == "__main__":
    main()
