"""Folders of records as studies leave them, made up: no training, every number known."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unseen.studies.execution import Study
from unseen.studies.results import records
from unseen.studies.results.records import Job, Log

DOMAINS = ("d0", "d1", "d2", "d3")


def write_study(
    out: Path,
    methods: Sequence[str] = ("fedavg", "ppdg(lam=0.2)", "fedavg+ga"),
    tasks: Sequence[str] = ("d0", "d1"),
    seeds: int = 2,
    rounds: int = 6,
    domains: Sequence[str] = DOMAINS,
    settings: Mapping[str, Any] | None = None,
    told: bool = True,
) -> Study:
    """A finished study; told: whether study.json has the whole study besides the identity."""
    chosen = {"title": "Made <up> & told", "reference": "fedavg", **(settings or {})}
    study = Study(
        methods=tuple(methods), targets=tuple(tasks), seeds=seeds, rounds=rounds, **chosen
    )  # fmt: skip
    whole = study.model_dump(mode="json")
    free = {
        "name", "title", "methods", "targets", "seeds", "selection", "metric", "reference",
        "published", "weights",
    }  # fmt: skip
    identity = {
        "settings": {k: v for k, v in whole.items() if k not in free},
        "model": "mlp(widths=[8])",
        "metrics": ["loss", "accuracy"],
        "data": "rotated-digits 0123456789abcdef",
    }
    content = {"identity": identity} | ({"study": whole} if told else {})
    out.mkdir(parents=True, exist_ok=True)
    (out / "study.json").write_text(json.dumps(content))
    for m, method in enumerate(methods):
        for t, task in enumerate(tasks):
            for seed in range(seeds):
                write_job(out, Job(method, task, seed), rounds, domains, 0.5 + 0.01 * m + 0.02 * t)
    return study


def write_job(
    out: Path, job: Job, rounds: int, domains: Sequence[str], level: float, done: bool = True
) -> Path:
    """One job: accuracy climbs to `level` plus a tenth of its seed; the loss is its complement."""
    folder = job.folder(out)
    log = Log.resume(folder, {})
    sources = [d for d in domains if d != job.task]
    for r in range(rounds):
        score = level * (r + 1) / rounds + 0.001 * job.seed
        log.append("rounds.jsonl", [_round(job, r, sources)])
        log.append("source.jsonl", [_seen(job, r, "source", d, score + 0.1) for d in sources])
        log.append("target.jsonl", [_seen(job, r, "target", job.task, score)])
    log.close()
    if done:
        versions = {"unseen": "0.1.0", "torch": "2.13.0"}
        records.mark_done(folder, versions, 2.0 * rounds, 300, commit="abc1234")
    return folder


def _seen(job: Job, r: int, role: str, domain: str, score: float) -> dict[str, Any]:
    named = {"method": job.method, "task": job.task, "seed": job.seed, "round": r, "role": role}
    return named | {"domain": domain, "examples": 100, "loss": 1 - score, "accuracy": score}


def _round(job: Job, r: int, clients: Sequence[str]) -> dict[str, Any]:
    K = len(clients)
    shift = [0.01 * r * (i - (K - 1) / 2) for i in range(K)] if "+ga" in job.method else [0.0] * K
    scalars: dict[str, list[float]] = {"examples": [100.0] * K, "loss": [1 / (r + 1)] * K}
    if "+ga" in job.method:
        scalars |= {"gap": [0.1 * i / (r + 1) for i in range(K)], "gap_known": [float(r > 0)] * K}
    return {
        "round": r, "exchange": "train", "clients": list(clients), "scalars": scalars,
        "weights": {"model": [1 / K + s for s in shift]}, "dropped": {},
        "bytes": {"down": 1000 * K, "up": 500 * K},
    }  # fmt: skip
