"""CPU time of whole studies in one process, by what it was spent on; two trees side by side.

    python benchmarks/where_time_goes.py [--against TREE] [--only demo,tuned,frozen] [--quick]
    python benchmarks/where_time_goes.py --only pacs --pacs DIR

Every command runs in a process of its own (`--jobs 1`, torch on one thread) under cProfile, whose
clock is each thread's CPU time. Its own cost is in the figures: it makes many short calls look
dearer than they are. `--against` names another checkout, in whose `src` the same commands run; one
that this tree does not know is n/a there. The tuned table reads $UNSEEN_DATA/sites. The images
of the frozen trunk are drawn here, those of `pacs` are PACS's 9,991 in DIR (three trials, one seed,
20 rounds), and every run computes their features again.

A function's own time belongs to the part of its file (`PARTS`). Functions of no part, torch's and
numpy's among them, pass theirs on to their callers, in proportion to the time that each caller
spent in them. What is imported before the command begins is measured without the profile.
"""

from __future__ import annotations

import argparse
import json
import os
import pstats
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from extraction import write

HERE = Path(__file__).resolve().parents[1]
#: A cProfile key: file, line, function.
Function = tuple[str, int, str]
OTHER = "setting up jobs, other"
#: What the time is spent on, and the files under src/unseen, of this layout and of older ones; the
#: first that matches counts. A file that is in none serves whoever calls it.
PARTS = {
    "search": r"studies/execution/(search|sampler|spaces)\.py|studies/results/search_records",
    "reading and checking": r"studies/settings/|studies/execution/(plan|checks)\.py",
    "data and frozen features": r"data/(?!networks)|studies/execution/(prepare|frozen|setting)\.py",
    "training": (
        r"methods/(local|gradient)/|engine/(model_batch|perceptrons|meeting|stacked|batch_plan)"
    ),
    "server": (
        r"methods/combine/|engine/(inprocess|messages)|"
        r"core/(round|apply|rows|row_store|memory|replies)\.py"
    ),
    "evaluation": r"core/metrics/",
    "records and tables": (
        r"studies/(results|report|tracking)/|privacy/ledger|core/(atomic|record_lines)|"
        r"studies/execution/watcher"
    ),
    "networks and weights": (
        r"studies/execution/runtime|data/networks/(__init__|weight_files|pretrained)\.py"
    ),
    OTHER: r"studies/execution/(job|runner)\.py|cli/",
}
#: Runs in each child: imports first, then the command line.
CHILD = """
import cProfile, contextlib, importlib, json, sys, threading, time
out, *command = sys.argv[1:]
loaded = {}
for name in ("cli", "cli.main", "studies.execution", "studies.execution.runner"):
    with contextlib.suppress(ModuleNotFoundError):  # older trees have others
        loaded[name] = importlib.import_module(f"unseen.{name}")
imports = time.process_time()
sys.argv = ["unseen", *command]
profiles, run = [], threading.Thread.run

def profiled(work, *arguments):
    profiles.append(cProfile.Profile(time.thread_time))
    return profiles[-1].runcall(work, *arguments)

threading.Thread.run = lambda thread: profiled(run, thread)
try:
    profiled(loaded.get("cli.main", loaded["cli"]).main)
except SystemExit as end:
    if end.code:
        raise
for k, profile in enumerate(profiles):
    profile.dump_stats(f"{out}/{k}.prof")
with open(f"{out}/imports.json", "w") as file:
    json.dump(imports, file)
"""
FROZEN = """
title = "A head on frozen features of drawn images"
dataset = "folder(path='{photos}', size=224)"
model = "efficientnet-lite0"
weights = "pretrained"
freeze = "trunk"
methods = ["fedavg", "ppdg"]
seeds = 1
rounds = 2
selection = "source-validation"

[training]
optimiser = "sgd(lr=0.01, momentum=0.9)"
epochs = 1
batch_size = 32
"""


def commands(here: Path, quick: bool, pacs: Path | None) -> dict[str, list[str]]:
    """Return name -> the arguments of `unseen`; without those whose data are not at hand."""
    few = ["--methods", "fedavg,ppdg", "tune.trials=3", "seeds=1", "rounds=20"]
    found = {
        "demo": [
            "study",
            "digits",
            *(["seeds=1", "rounds=1", "--methods", "fedavg"] if quick else []),
        ]
    }
    if data := os.environ.get("UNSEEN_DATA"):
        found["tuned"] = ["study", "evidence/tuned/communities", *few, "--data-dir", data]
    if pacs:
        found["pacs"] = ["study", "pacs/frozen", *few, "--data-dir", str(pacs.resolve())]
    found["frozen"] = ["study", str(here / "frozen.toml")]
    return found


def drawn(here: Path) -> None:
    """Leave three domains of three classes with twelve photographs each, and their study."""
    for domain in "abc":
        write(here / domain, 36, 224)
        for i, image in enumerate(sorted((here / domain / "site" / "class").iterdir())):
            folder = here / "photos" / domain / f"class-{i % 3}"
            folder.mkdir(parents=True, exist_ok=True)
            image.rename(folder / image.name)
    (here / "frozen.toml").write_text(FROZEN.format(photos=here / "photos"))


def part_of(function: Function, source: str) -> str | None:
    """Return the part that a function belongs to; None: its callers'.

    Example:
        >>> part_of(("/here/src/unseen/methods/combine/ppdg.py", 3, "combine"), "/here/src/unseen/")
        'server'
    """
    file, _, name = function
    if name in ("_find_and_load", "<module>"):
        return "imports"
    if not file.startswith(source):
        return None
    inside = file.removeprefix(source)
    return next((part for part, files in PARTS.items() if re.match(files, inside)), None)


def by_part(stats: Mapping[Function, tuple], source: str) -> dict[str, float]:
    """Return part -> seconds.

    A function f of no part belongs to part p by the share

        D(f, p) = Σ_c t(c, f) D(c, p) / Σ_c t(c, f),

    where t(c, f) is the time that its caller c spent in it and below; D is solved by iteration. The
    own time of f under c is then shared out by D(c), that of a function without a caller goes to
    `OTHER`.

    Args:
        stats: What `pstats` read.
        source: The folder of the package, with a slash at its end.
    """
    parts = ["imports", *PARTS]
    places = {function: k for k, function in enumerate(stats)}
    named = [part_of(function, source) for function in stats]
    named = [
        part or (None if set(stats[f][4]) - {f} else OTHER)
        for part, f in zip(named, stats, strict=True)
    ]
    fixed = np.array([part is not None for part in named])
    share = np.array([[part == p for p in parts] for part in named], dtype=float)
    edges = [
        (places[caller], places[f], own, below)
        for f, (_, _, _, _, callers) in stats.items()
        for caller, (_, _, own, below) in callers.items()
        if caller in places
    ]
    up, down, own, below = map(np.array, zip(*edges, strict=True))
    weight = np.where(up == down, 0.0, np.maximum(below, 1e-9))
    weight /= np.maximum(np.bincount(down, weight, len(share)), 1e-12)[down]
    for _ in range(1000):
        sums = [np.bincount(down, weight * column[up], len(share)) for column in share.T]
        new = np.where(fixed[:, None], share, np.stack(sums, axis=1))
        change, share = np.abs(new - share).max(), new
        if change < 1e-6:
            break
    whole = np.array([entry[2] for entry in stats.values()])
    seconds = whole[fixed] @ share[fixed]
    loose = ~fixed[down]
    seconds += own[loose] @ share[np.where(up == down, down, up)[loose]]
    found = dict(zip(parts, seconds.tolist(), strict=True))
    found[OTHER] += float(whole.sum() - seconds.sum())
    return found


def measured(tree: Path, arguments: list[str], here: Path) -> dict[str, float] | str:
    """Return part -> CPU seconds of a command with a tree's code, or why it could not run."""
    environment = os.environ | {
        "PYTHONPATH": str(tree / "src"),
        "UNSEEN_CACHE": str(here / "cache"),
    }
    environment |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    out = here / "profile"
    out.mkdir(parents=True)
    command = [sys.executable, "-c", CHILD, str(out), *arguments, "--out", str(here / "records")]
    done = subprocess.run(
        [*command, "--jobs", "1"], cwd=here, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        return textwrap.shorten(done.stderr.strip().splitlines()[-1], 100)
    stats = pstats.Stats(*map(str, out.glob("*.prof"))).stats  # type: ignore[attr-defined]
    found = by_part(stats, f"{tree / 'src' / 'unseen'}/")
    found["imports"] += json.loads((out / "imports.json").read_text())
    return found | {"sum": sum(found.values())}


def lines(name: str, now: dict[str, float], before: dict[str, float] | str | None) -> Iterator[str]:
    """Yield a table in Markdown, side by side with the other tree's seconds where there are any."""
    old = before if isinstance(before, dict) else {}
    side = before is not None
    yield f"| {name} |" + (" before | now | ratio |" if side else " CPU s | share |")
    yield "|:--|" + "--:|" * (3 if side else 2)
    for part, seconds in now.items():
        if not side:
            yield f"| {part} | {seconds:.2f} | {seconds / now['sum']:.0%} |"
        elif part in old:
            ratio = f"{seconds / old[part]:.2f}" if old[part] > 0.05 else ""
            yield f"| {part} | {old[part]:.2f} | {seconds:.2f} | {ratio} |"
        else:
            yield f"| {part} | n/a | {seconds:.2f} | |"
    if isinstance(before, str):
        yield f"\nn/a: {before}"


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--only", default="", help="some of: demo,tuned,frozen,pacs")
    parser.add_argument("--pacs", type=Path, help="the folder that holds PACS, for `pacs`")
    parser.add_argument("--quick", action="store_true", help="a demo of one method, seed and round")
    asked = parser.parse_args()
    usual = "demo" if asked.quick else "demo,tuned,frozen"
    names = (asked.only or usual).split(",")
    with tempfile.TemporaryDirectory() as place:
        here = Path(place)
        if "frozen" in names:
            drawn(here)
        found = commands(here, asked.quick, asked.pacs)
        for name in names:
            if name not in found:
                print(f"{name}: without its data (UNSEEN_DATA, --pacs) this is left out.\n")
                continue
            now = measured(HERE, found[name], here / f"{name}-now")
            if isinstance(now, str):
                sys.exit(f"{name}: {now}")
            tree = asked.against
            before = tree and measured(tree.resolve(), found[name], here / f"{name}-before")
            print("\n".join(lines(name, now, before)), flush=True)
            print()


if __name__ == "__main__":
    main()
