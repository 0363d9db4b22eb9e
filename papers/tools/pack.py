"""Pack a study's records for docs/results, and unpack them again.

    python papers/tools/pack.py results/methods/digits docs/results/methods-digits/records.json.xz
    python papers/tools/pack.py --unpack docs/results/methods-digits/records.json.xz results/again

What is left of a job are its evaluations at the rounds that source-validation, ood-validation,
target-oracle or `last` choose by any of the study's metrics or by the loss, the first ones where
these are too few to tell whether the loss still fell, the clients' gaps in the last rounds, and
their local models' evaluations at the target in the first round and the last. Tables and verdicts
by these rules are the same as from all records; curves, weights and what left each site need the
whole records, which the study's command makes again.
"""

from __future__ import annotations

import argparse
import json
import lzma
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from unseen.core import record_lines
from unseen.core.atomic import write_atomically
from unseen.core.record_lines import Record
from unseen.errors import UnseenError
from unseen.studies.results import records
from unseen.studies.results.ends import FEWEST
from unseen.studies.results.metric_name import main_metric
from unseen.studies.results.selection import SELECTIONS, select

EVALUATIONS = ("source.jsonl", "target.jsonl")
#: Rules as they were when equal rounds went to the earliest, by which older results were made.
FIRST = "source-validation(ties='first')", "ood-validation(ties='first')"
#: How many of the last rounds gaps are kept of.
LAST = 5
#: What of a job's mark is kept: digests are made again, seconds and memory are of one machine.
MARK = ("versions", "commit", "diverged", "fallbacks")
#: What every record of a job has in common.
NAMES = ("method", "task", "seed")


def pack(folder: Path, out: Path) -> None:
    """Write the archive of a study's folder."""
    about = json.loads((folder / "study.json").read_bytes())
    identity = about["identity"]
    main = main_metric(identity["settings"].get("metric"), identity["metrics"])
    metrics = tuple(dict.fromkeys((main, *identity["metrics"], "loss")))
    content = {"study": about, "jobs": [thin(job, metrics) for job in jobs(folder)]}
    plain = json.dumps(content, separators=(",", ":")).encode()
    write_atomically(out, lzma.compress(plain, preset=9 | lzma.PRESET_EXTREME))


def jobs(folder: Path) -> Iterator[Path]:
    """The folders of the finished jobs."""
    yield from sorted(p.parent for p in folder.glob("records/*/*/seed-*/done.json"))


def thin(folder: Path, metrics: tuple[str, ...]) -> dict[str, Any]:
    """A job's evaluations at the rounds that count, its last gaps, and its mark."""
    mark = records.mark(folder)
    chosen = rounds(folder, metrics) if "diverged" not in mark else set()
    found: dict[str, Any] = {"mark": {key: mark[key] for key in MARK if key in mark}}
    for name in EVALUATIONS:
        lines = [r for r in record_lines.read_lines(folder / name) if r["round"] in chosen]
        found[name] = columns(lines)
        found |= {key: line[key] for line in lines[:1] for key in NAMES}
    if constant := record_lines.read_lines(folder / records.CONSTANT):
        found[records.CONSTANT] = columns(constant)
    if locals_ := list(local_models(folder)):
        found[records.CROSS] = columns(locals_)
    if gaps := list(last_gaps(folder)):
        found["rounds.jsonl"] = gaps
    return {**found, "folder": str(folder.relative_to(folder.parents[3]))}


def rounds(folder: Path, metrics: tuple[str, ...]) -> set[int]:
    """The rounds of a job that a rule can choose by one of the metrics."""
    source, target = (record_lines.read_lines(folder / name) for name in EVALUATIONS)
    chosen = set()
    for metric in metrics:
        for rule in (*SELECTIONS, *FIRST):
            with suppress(UnseenError):  # no such domain, or no target
                chosen.add(select(rule, source, target, metric))
    others = sorted({record["round"] for record in source} - chosen)
    return chosen.union(others[: max(0, FEWEST - len(chosen))])


def local_models(folder: Path) -> Iterator[Record]:
    """Evaluations of local models at the target, in the first round and the last."""
    lines = [r for r in record_lines.read_lines(folder / records.CROSS) if r["role"] == "target"]
    ends = {lines[0]["round"], lines[-1]["round"]} if lines else set()
    yield from (line for line in lines if line["round"] in ends)


def last_gaps(folder: Path) -> Iterator[Record]:
    """The gaps that clients reported in the last rounds of training."""
    trained = [
        r for r in record_lines.read_lines(folder / "rounds.jsonl") if r["exchange"] == "train"
    ]
    for line in trained[-LAST:]:
        if "gap" in line["scalars"]:
            kept = {key: line[key] for key in ("round", "exchange", "clients")}
            gaps = [_eight(value) for value in line["scalars"]["gap"]]
            yield {**kept, "scalars": {"gap": gaps}}


def columns(lines: Sequence[Record]) -> dict[str, list[Any]]:
    """Records with the same keys as columns, without what all records of a job share."""
    keys = [key for key in (lines[0] if lines else ()) if key not in NAMES]
    return {key: [_short(key, line[key]) for line in lines] for key in keys}


def _short(key: str, value: Any) -> Any:
    """A loss in eight digits, which are more than a table prints.

    Shares stay as they are, since ties between them count.
    """
    return _eight(value) if key == "loss" and isinstance(value, float) else value


def _eight(value: float) -> float:
    return float(f"{value:.8g}")


def lines_of(found: Mapping[str, list[Any]], shared: Mapping[str, Any]) -> Iterator[Record]:
    """The records of columns."""
    for values in zip(*found.values(), strict=True):
        yield {**shared, **dict(zip(found, values, strict=True))}


def unpack(packed: Path, out: Path) -> None:
    """Write the folder of an archive, for `unseen table`, or for `unseen study` to go on.

    A job's mark is written last and has the digests of its files, so that one that was unpacked in
    part counts as damaged, and none of the many files has to reach the disk before the next.
    """
    content = json.loads(lzma.decompress(packed.read_bytes()))
    _put(out / "study.json", json.dumps(content["study"], indent=1).encode())
    for job in content["jobs"]:
        folder = out / job["folder"]
        shared = {key: job[key] for key in NAMES if key in job}
        for name in EVALUATIONS:
            _write(folder / name, lines_of(job[name], shared))
        if records.CONSTANT in job:
            _write(folder / records.CONSTANT, lines_of(job[records.CONSTANT], {}))
        if records.CROSS in job:
            _write(folder / records.CROSS, lines_of(job[records.CROSS], shared))
        _write(folder / "rounds.jsonl", job.get("rounds.jsonl", ()))
        mark = {"records": records.digests(folder), **job["mark"]}
        _put(folder / "done.json", json.dumps(mark, indent=1).encode())


def _write(path: Path, lines: Iterable[Record]) -> None:
    _put(path, b"".join(map(record_lines.to_line, lines)))


def _put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def main() -> None:
    """Pack, or unpack."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--unpack", action="store_true")
    parser.add_argument("source", type=Path, help="a study's --out, or an archive to unpack")
    parser.add_argument("target", type=Path, help="records.json.xz, or a folder")
    asked = parser.parse_args()
    (unpack if asked.unpack else pack)(asked.source, asked.target)


if __name__ == "__main__":
    main()
