"""Pack a study's records for docs/results: only the rounds that a selection rule can choose.

    python tools/pack.py results/methods/digits docs/results/methods-digits/records.tar.xz

What is left of a job are its evaluations, and of these the rounds that source-validation,
ood-validation, target-oracle or `last` choose by the study's metric or by the loss. Tables and
verdicts by these rules are the same as from all records, since a rule takes the best of the rounds
and the earliest of equal ones; curves, weights and what left each site need the whole records.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from unseen.errors import UnseenError
from unseen.results import records
from unseen.results.selection import SELECTIONS, less_is_better, main_metric, select

EVALUATIONS = ("source.jsonl", "target.jsonl")


def rounds(folder: Path, metrics: tuple[str, ...]) -> set[int]:
    """The rounds of a job that a rule can choose by one of the metrics."""
    source, target = (records.read_lines(folder / name) for name in EVALUATIONS)
    chosen = set()
    for metric in metrics:
        for rule in SELECTIONS:
            with suppress(UnseenError):  # no such domain, or no target
                chosen.add(select(rule, source, target, metric, less_is_better(metric)))
    return chosen


def thin(folder: Path, out: Path, metrics: tuple[str, ...]) -> None:
    """A job's evaluations at those rounds, and its mark, with their digests."""
    out.mkdir(parents=True)
    mark = records.mark(folder)
    keep = rounds(folder, metrics) if "diverged" not in mark else set()
    for name in EVALUATIONS:
        lines = (folder / name).read_text("utf-8").splitlines(keepends=True)
        text = "".join(line for line in lines if json.loads(line)["round"] in keep)
        (out / name).write_text(text, "utf-8")
    with suppress(FileNotFoundError):
        shutil.copy(folder / "constant.jsonl", out)
    mark["records"] = records.digests(out)
    (out / "done.json").write_text(json.dumps(mark, indent=1), "utf-8")


def jobs(folder: Path) -> Iterator[Path]:
    """The folders of the finished jobs."""
    yield from sorted(p.parent for p in folder.glob("records/*/*/seed-*/done.json"))


def pack(folder: Path, out: Path) -> None:
    """Write the archive."""
    about = json.loads((folder / "study.json").read_bytes())
    metric = main_metric(about["identity"]["settings"].get("metric"), about["identity"]["metrics"])
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        shutil.copy(folder / "study.json", place)
        for job in jobs(folder):
            thin(job, place / job.relative_to(folder), tuple(dict.fromkeys((metric, "loss"))))
        with tarfile.open(out, "w:xz", preset=9) as archive:
            for part in ("study.json", "records"):
                archive.add(place / part, part, filter=_anonymous)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="a study's --out")
    parser.add_argument("out", type=Path, help="records.tar.xz")
    asked = parser.parse_args()
    pack(asked.folder, asked.out)
