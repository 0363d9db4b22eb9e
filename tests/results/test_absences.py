"""Sites that were absent from rounds, by records made by hand."""

from __future__ import annotations

import json
from pathlib import Path

from unseen.studies.results.absences import absences
from unseen.studies.results.records import Job
from unseen.studies.results.study_folder import JobFolder
from unseen.studies.settings.holdout import Task

TASK = Task("east", ("north", "south", "west"), ("east",))


def job(out: Path, seed: int, absent: dict[int, list[str]]) -> JobFolder:
    """Four rounds, without some sites; the evaluation of a round goes without them as well."""
    folder = Job("fedavg", "east", seed).folder(out)
    folder.mkdir(parents=True)
    lines: dict[str, list[object]] = {"rounds": [], "source": [], "target": []}
    for r in range(4):
        gone = absent.get(r, [])
        dropped = {site: "was not connected" for site in gone if site != "east"}
        lines["rounds"].append({"round": r, "dropped": dropped})
        for name, sites in (("source", TASK.sources), ("target", TASK.targets)):
            lines[name] += [{"round": r, "domain": site} for site in sites if site not in gone]
    for name, rows in lines.items():
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return JobFolder(Job("fedavg", "east", seed), folder)


def about(out: Path, **more: object) -> None:
    (out / "study.json").write_text(json.dumps(more))


def test_the_rounds_of_a_site_that_fell_out(tmp_path: Path) -> None:
    about(tmp_path, sites={"north": {}})
    one = job(tmp_path, 0, {0: ["south"], 1: ["west"], 2: ["west", "south"], 3: ["west", "east"]})
    assert absences(tmp_path, [TASK], [one]) == [
        "east: absent in round 4; why is in the server's messages.jsonl",
        "south: absent in rounds 1, 3; why is in the server's messages.jsonl",
        "west: absent in rounds 2 to 4; why is in the server's messages.jsonl",
    ]


def test_several_jobs_are_named(tmp_path: Path) -> None:
    about(tmp_path, sites={"north": {}})
    gone = {r: ["west"] for r in range(4)}  # never there: its task alone names it
    jobs = [job(tmp_path, seed, gone if seed != 1 else {}) for seed in range(6)]
    (line,) = absences(tmp_path, [TASK], jobs)
    each = [f"rounds 1 to 4 of fedavg on east, seed {seed}" for seed in (0, 2, 3)]
    where, _, why = line.rpartition("; ")
    assert where == f"west: absent in {'; '.join(each)} and of 2 more jobs"
    assert why == "why is in the server's messages.jsonl"
    assert absences(tmp_path, [], [jobs[1]]) == []


def test_one_process_has_no_sites(tmp_path: Path) -> None:
    about(tmp_path)
    assert absences(tmp_path, [TASK], [job(tmp_path, 0, {1: ["west"]})]) == []
