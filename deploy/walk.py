"""The federation of docs/results/federation-drill.md, run step by step; writes what happened.

    python deploy/walk.py DATA WORK

DATA: folder with cleveland/, hungary/, va/ and switzerland/, each with its file of the UCI heart
disease data. WORK: an empty folder for kits, records and logs. Needs two cores and half
an hour.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from heart import FEDERATION, SITES
from terminals import Terminals

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
PAGE = DOCS / "results" / "federation-drill.md"
STUDY = """dataset = "heart-disease"
model = "mlp(widths=[32])"
methods = {methods}
seeds = 1
rounds = {rounds}
evaluate_every = {rounds}
validation = 0.2

[holdout]
source = ["cleveland", "hungary", "va"]
target = ["switzerland"]

[training]
optimiser = "{optimiser}"
batch_size = 16
"""
STUDIES = {
    "heart": STUDY.format(methods='["fedavg"]', rounds=3, optimiser="sgd(lr=0.05)"),
    "drill": STUDY.format(methods='["fedavg"]', rounds=15, optimiser="sgd(lr=0.05)")
    + "\n[federation]\ndeadline = 90\nminimum = 2\npatience = 900\n",
}
#: Long lines of a log are broken between words alone.
WHOLE: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}


def main(data: Path, work: Path) -> None:
    """All of it, then the page."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to stop"))
    work.mkdir(parents=True, exist_ok=True)
    (work / "federation.toml").write_text(FEDERATION.format(port=9543))
    for name, text in STUDIES.items():
        (work / f"{name}.toml").write_text(text)
    walk = Terminals(work, {f"{data}/": "data/"})
    joins = {
        name: ("federation", "join", f"kits/{name}", "--data", str(data / name)) for name in SITES
    }
    serve = ("federation", "serve", "kits/server")
    parts = [walk.do("federation", "provision", "federation.toml", "--out", "kits")]
    parts.append(walk.do("federation", "doctor", "kits/server"))
    try:
        walk.start("server", *serve)
        walk.said("server", "serving")
        for name in SITES:
            walk.start(name, *joins[name])
        for name in SITES:
            walk.said("server", f"{name}: connected")
        review = walk.do("federation", "review", "kits/cleveland", "heart.toml")
        for name in SITES:
            for study in STUDIES:
                approve = walk.do("federation", "approve", f"kits/{name}", f"{study}.toml")
                review += f"\n\n{approve}" if (name, study) == ("cleveland", "heart") else ""
        server = ("--kit", "kits/server", "--out")
        run = walk.do("federation", "run", "heart.toml", *server, "records/heart")
        status = walk.do("federation", "status", *server, "records/heart")
        parts += [walk.log("server", *serve), walk.log("cleveland", *joins["cleveland"])]
        ledger = ("federation", "ledger", "kits/cleveland")
        left = walk.do(*ledger, "--last", "8")
        verified = walk.do(*ledger, "--verify", "--server", "records/heart")
        parts += [review, run, status, left, verified]
        checked = ("kits/cleveland", "--study", "heart.toml")
        doctor = walk.do("federation", "doctor", *checked)
    finally:
        walk.stop()
    fill("walk", "\n\n".join(parts))
    fill("doctor", doctor)
    drilled(work, data)


def drilled(work: Path, data: Path) -> None:
    """The fault drill on the same kits."""
    words = [str(work / "drill.toml"), str(work / "kits"), str(data), str(work / "records/drill")]
    command, log = [sys.executable, str(HERE / "drill.py"), *words], work / "drill.log"
    with log.open("w") as file:
        done = subprocess.run(command, stdout=file, stderr=sys.stderr, timeout=7200)
    print(log.read_text())
    if not done.returncode:
        typed = "python deploy/drill.py drill.toml kits data records/drill"
        said = log.read_text().replace(f"{work}/", "").splitlines()
        lines = [textwrap.fill(line, 112, subsequent_indent=" " * 9, **WHOLE) for line in said]
        fill("drill", "\n".join([f"$ {typed}", *lines]))


def fill(name: str, text: str) -> None:
    """Put a text between the marks `<!-- name -->` and `<!-- /name -->` of the page."""
    fenced = f"```text\n{text}\n```\n\n" if text else ""
    block = f"<!-- {name} -->\n\n{fenced}<!-- /{name} -->"
    pattern = rf"<!-- {name} -->.*?<!-- /{name} -->"
    page, count = re.subn(pattern, lambda _: block, PAGE.read_text("utf-8"), flags=re.DOTALL)
    if not count:
        raise SystemExit(f"{PAGE} has no place for {name}")
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute())
