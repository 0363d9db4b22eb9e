"""Studies on a table of a few rows, and what they write."""

from __future__ import annotations

import csv
import itertools
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from unseen.core.turn import keyed
from unseen.data import Domain
from unseen.errors import UnseenError
from unseen.studies.execution import Study
from unseen.studies.results.records import Job
from unseen.studies.results.study_results import Results

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


def domain(name: str, n: int = 20, scale: float = 1.0, y: torch.Tensor | None = None) -> Domain:
    y = torch.arange(n) % 2 if y is None else y
    x = torch.randn(n, 3, generator=keyed(name)) + y[:, None]
    return Domain(name, x * scale, y)
