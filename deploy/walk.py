"""The federation of docs/deployment.md, run step by step; writes what happened into that page.

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
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE, FIGURES = HERE.parent / "docs" / "deployment.md", HERE.parent / "docs" / "figures"
SITES = ("cleveland", "hungary", "va", "switzerland")
FEDERATION = """name = "heart"
servers = ["localhost", "127.0.0.1"]
port = 9543

[sites]
cleveland = "train"
hungary = "train"
va = "train"
switzerland = "evaluate"
"""
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
    "fishr": STUDY.format(
        methods='["fedilc-inter", "fedilc-intra-geo"]', rounds=1, optimiser="adam(lr=3e-4)"
    ),
    "drill": STUDY.format(methods='["fedavg"]', rounds=12, optimiser="sgd(lr=0.05)")
    + "\n[federation]\ndeadline = 90\nminimum = 2\npatience = 900\n",
}
#: Long lines of a log are broken between words alone.
WHOLE: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
UNSEEN = [sys.executable, "-c", "from unseen.cli import main; main()"]


class Walk:
    """What was typed, and what was answered."""

    def __init__(self, data: Path, work: Path) -> None:
        self.data, self.work = data, work
        self.started: dict[str, subprocess.Popen[bytes]] = {}

    def do(self, *words: str) -> str:
        """A command and its answer, as the page shows them."""
        done = subprocess.run(
            [*UNSEEN, *words], cwd=self.work, capture_output=True, text=True, timeout=1800
        )
        print(done.stdout, done.stderr, sep="", flush=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(words)} ended with {done.returncode}")
        return self.shown(words, done.stdout + done.stderr)

    def start(self, name: str, *words: str) -> None:
        """A command in a terminal of its own."""
        with (self.work / f"{name}.log").open("wb") as log:
            self.started[name] = subprocess.Popen(
                [*UNSEEN, *words], cwd=self.work, stdout=log, stderr=log, start_new_session=True
            )

    def said(self, name: str, words: str, seconds: float = 300) -> None:
        """Wait until it says so."""
        end = time.monotonic() + seconds
        while words not in (self.work / f"{name}.log").read_text():
            if time.monotonic() > end or self.started[name].poll() is not None:
                raise SystemExit(f"{name} did not say {words!r}")
            time.sleep(0.2)

    def shown(self, words: tuple[str, ...], answer: str) -> str:
        """As in a terminal, with the folder left out."""
        text = f"$ unseen {' '.join(words)}\n{answer.rstrip()}"
        return text.replace(f"{self.work}/", "").replace(f"{self.data}/", "data/")

    def log(self, name: str, *words: str) -> str:
        """What a command in its own terminal has said so far."""
        return self.shown(words, (self.work / f"{name}.log").read_text())

    def stop(self) -> None:
        """End what still runs."""
        for process in reversed(self.started.values()):
            if process.poll() is None:
                process.terminate()
        for process in self.started.values():
            process.wait(60)


def main(data: Path, work: Path) -> None:
    """All of it, then the page."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to stop"))
    work.mkdir(parents=True, exist_ok=True)
    (work / "federation.toml").write_text(FEDERATION)
    for name, text in STUDIES.items():
        (work / f"{name}.toml").write_text(text)
    walk = Walk(data, work)
    serve = ("federation", "serve", "kits/server")
    parts = [walk.do("federation", "provision", "federation.toml", "--out", "kits")]
    parts.append(walk.do("federation", "doctor", "kits/server"))
    try:
        walk.start("server", *serve)
        walk.said("server", "serving")
        for name in SITES:
            walk.start(name, *join(walk, name))
        for name in SITES:
            walk.said("server", f"{name}: connected")
        server = ("--kit", "kits/server", "--out")
        run = walk.do("federation", "run", "heart.toml", *server, "records/heart")
        status = walk.do("federation", "status", *server, "records/heart")
        parts += [walk.log("server", *serve), walk.log("cleveland", *join(walk, "cleveland"))]
        parts += [run, status]
        checked = ("kits/cleveland", "--study", "heart.toml")
        doctor = walk.do("federation", "doctor", *checked)
        walk.do("federation", "run", "fishr.toml", *server, "records/fishr")
    finally:
        walk.stop()
    for path in sorted((work / "records/fishr/records").glob("*/*/seed-0")):
        figure = FIGURES / f"exchanges-{path.parts[-3]}.svg"
        walk.do("federation", "sequence", str(path), "--out", str(figure))
    fill("sequence", "")
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


def join(walk: Walk, name: str) -> tuple[str, ...]:
    """The command of one site."""
    return ("federation", "join", f"kits/{name}", "--data", str(walk.data / name))


def fill(name: str, text: str) -> None:
    """Put a text between the marks `<!-- name -->` and `<!-- /name -->` of the page."""
    page = PAGE.read_text(encoding="utf-8")
    fenced = f"```text\n{text}\n```\n\n" if text else ""
    block = f"<!-- {name} -->\n\n{fenced}<!-- /{name} -->"
    pattern = rf"<!-- {name} -->.*?<!-- /{name} -->"
    if not re.search(pattern, page, re.DOTALL):
        raise SystemExit(f"{PAGE} has no place for {name}")
    PAGE.write_text(re.sub(pattern, lambda _: block, page, flags=re.DOTALL), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute())
