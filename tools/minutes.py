"""Estimate the minutes of every study that ships, for `unseen list studies`.

    python tools/minutes.py DATA_DIR... [--only NAME,...] [--ran NAME=MINUTES,...]

Each study is planned with the first of the folders that has its data, its rounds are timed for a
few seconds, and `src/unseen/studies/settings/minutes.json` keeps the minutes on two cores, job by
job. Where
none has them, a synthetic stand-in is drawn and its time multiplied by how many more examples the
published set has. Trials of a search count as jobs of full length, so that these are upper ends.
`--ran` keeps what a study took on two cores, which no estimate replaces.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from unseen import Study
from unseen.core.atomic import write_atomically
from unseen.data import DATASETS
from unseen.data.networks.pretrained import PRETRAINED
from unseen.errors import UnseenError
from unseen.expression import parse
from unseen.studies.execution.costs import estimate
from unseen.studies.execution.plan import Plan, prepare_study
from unseen.studies.execution.search import jobs_of
from unseen.studies.settings.named import named_studies

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from support.sketches import SKETCHES, write_stand_in

FILE = Path(__file__).parents[1] / "src/unseen/studies/settings/minutes.json"
#: Seconds of measurement for all methods of a study.
SECONDS = 12.0
#: Seconds after which a study is given up: its data take longer to read than others' tables.
PATIENCE = 400
PROCESSES = 2
#: Examples in a batch of a stand-in's few.
SMALL = 8
#: Examples of sets whose catalogue has no totals of all domains: those of WILDS' paper.
PUBLISHED = {"camelyon17": 455_954, "povertymap": 19_669, "fmow": 141_696}


def minutes(name: str, folder: Path, batch: int | None = None) -> float:
    """Return a study's minutes in two processes, from short rounds, without initial weights."""
    estimate.SECONDS = SECONDS
    pretrained = Study.read(name, {}).weights == PRETRAINED
    settings: dict[str, object] = {} if pretrained else {"weights": None, "weights_bands": None}
    settings |= {"training.batch_size": batch, "training.drop_last": True} if batch else {}
    with tempfile.TemporaryDirectory() as out:
        planned = prepare_study(Study.read(name, settings), Path(out), folder)
        study = planned.setting.study
        costs, _ = estimate.estimates(planned)
        trials = jobs_of(study, planned.methods, planned.tasks)
    seconds = sum(one.total for one in costs)
    more = larger(planned) if planned.stand_in and study.training.steps is None else 1.0
    return more * seconds * (1 + trials / max(1, len(planned.jobs))) / 60 / PROCESSES


def larger(planned: Plan) -> float:
    """Return how many times a stand-in's examples the published set has."""
    entry = parse(planned.setting.study.dataset)[0].name
    total = PUBLISHED.get(entry) or sum(DATASETS[entry].totals.values())
    if not total:
        raise UnseenError(f"{entry}'s size is not known.")
    return total / sum(len(domain.y) for domain in planned.data.domains)


def measure(name: str, folders: list[Path], found: multiprocessing.Queue[float]) -> None:
    """Put the minutes into the queue, or nothing where they cannot be known."""
    for folder in folders:
        with reported(name):
            return found.put(minutes(name, folder))
    with tempfile.TemporaryDirectory() as stand_in, reported(name):
        entry = parse(Study.read(name, {}).dataset)[0].name
        if entry not in SKETCHES:
            raise UnseenError("its data are not at hand, and nothing draws any in their place.")
        found.put(minutes(name, write_stand_in(entry, Path(stand_in)), SMALL))


@contextmanager
def reported(name: str) -> Iterator[None]:
    """Print an error of a study, and go on."""
    try:
        yield
    except UnseenError as error:
        print(f"{name}: {str(error).splitlines()[0][:100]}", flush=True)


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
