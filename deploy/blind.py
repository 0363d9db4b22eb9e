"""Three hospitals, encrypted FedAvg and a server that never holds the model; what it did hold.

    python deploy/blind.py DATA WORK

DATA: a folder with heart_disease/, the four files of the UCI heart disease data. WORK: an empty
folder for kits, records and logs. Runs the federation with the kits' own commands, copies the
memory of every process of the server and its files while it runs, and looks in them for the
sites' secret key, for every update and for every model after round 0. Writes
docs/results/blind-federation.md. Linux, which shows a process's memory to who started it; ten
minutes where nothing else runs.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from heart import FEDERATION, SITES
from safetensors.torch import load_file
from terminals import Terminals
from torch import Tensor

from unseen import Study
from unseen.core.turn import Turn
from unseen.data.heart import HOSPITALS
from unseen.engine.inprocess import InProcess
from unseen.privacy import blind
from unseen.sites.control import standing
from unseen.sites.process import descendants
from unseen.studies.execution.plan import prepare_study
from unseen.studies.execution.prepare import prepare
from unseen.studies.execution.runtime import Runtime

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from support import secret_scan as scan

PAGE = Path(__file__).parent.parent / "docs" / "results" / "blind-federation.md"
STUDY = """dataset = "heart-disease"
model = "mlp(widths=[32])"
methods = ["fedavg"]
seeds = 1
rounds = 4
validation = 0.2

[holdout]
source = ["cleveland", "hungary", "va"]
target = ["switzerland"]

[training]
optimiser = "sgd(lr=0.05)"
batch_size = 16

[privacy]
channel = "ckks"
server = "blind"
"""
CLEAR = {"privacy.channel": "clear", "privacy.server": "clear", "save": ["final"]}
JOB, FINAL = Path("records/fedavg/target/seed-0"), "final.safetensors"
#: When the memory of the server's processes is copied, besides the end.
MOMENTS = ("round 2, train", "round 3, train", "round 3, validate", "round 4, train")
TEXT = """# Three hospitals, and a server that never holds the model

Encrypted FedAvg over TLS with `privacy.server = "blind"`. Cleveland, Hungary and the VA train;
Switzerland evaluates. `deploy/blind.py` types the commands, copies the server's memory and files
while they run, and writes this page. The result: a server that follows the protocol holds no key,
no update and no model after round 0, and the figures equal those in the clear up to rounding.
[A blind server](../privacy/blind.md) explains the protocol and its limits.

The study, `blind.toml`:

```toml
{study}
```

## Commands

The four `join`s and the `serve` had a terminal each, all on one machine. The run took {minutes}
minutes, with a load of {load} on {cores} cores. Lines that say whom it waited for are omitted.

```text
{commands}
```

## What the server held

The script searched for the following, in words of 8 bytes. Seven in a row at any alignment count
as found; every 64 bytes of a vector of float32 hold seven:

{looked_for}

The models are those that the sites sealed, opened with their key after the run. To get the
updates, the script repeated the sites' training from these models, which gives the same bits;
with the weights in the records they lead from each model to the next. Words of the first model,
which the server made, do not count.

{held}

The server had {files} files in {size} (its kit at these moments, with Flower's database; its
records in every version that the script saw): {in_files} found.

The same search where these are present:

{control}

The server's last checkpoint, from which it would have gone on, had:

{checkpoint}

## Bytes

The table shows one site's messages in the second round. The model has {parameters} parameters,
{plain} bytes in float32, and a ciphertext holds 4096 numbers. Bytes are rows and scalars as sent,
without the envelope.

{messages}

## Result

The table shows Switzerland; no training site had its patients. CKKS draws its noise from the
system, so two runs behind it are equal up to rounding.

{results}

After the last round the model at the sites, the same bits at all four, differs from that of the
run in the clear by {distance} of its length; training moved it by {moved} of its length."""


class Evidence:
    """What the server's machine held.

    That is the memory of its processes at some moments, its kit then, and every version of every
    file of its records.
    """

    def __init__(self, terminals: Terminals, kit: Path, out: Path) -> None:
        self.terminals, self.kit, self.out = terminals, kit, out
        self.memories = terminals.work / "memories"
        self.memories.mkdir()
        self.files: dict[bytes, bytes] = {}
        self.checkpoints: list[bytes] = []
        self.taken: list[tuple[str, str, Path]] = []
        self.over = threading.Event()
        self.watching = threading.Thread(target=self._watch)

    def __enter__(self) -> Evidence:
        self.watching.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.watching.join()

    def _watch(self) -> None:
        seen: set[str] = set()
        while not self.over.wait(0.3):
            self.look(self.out)
            told = standing(self.out)
            if told.get("round", -1) < 1 or told.get("finished"):
                continue
            moment = f"round {told['round'] + 1}, {told['exchange']}"
            if moment in MOMENTS and moment not in seen:
                seen.add(moment)
                self.dump(moment)

    def look(self, folder: Path) -> None:
        """Keep the content of every file that is new or has changed."""
        for path in folder.rglob("*"):
            with contextlib.suppress(OSError):
                if path.is_file():
                    content = path.read_bytes()
                    digest = sha256(content).digest()
                    if digest not in self.files and path.name == "checkpoint.pt":
                        self.checkpoints.append(content)
                    self.files[digest] = content

    def dump(self, moment: str) -> None:
        """Copy the memory of the server's processes, and look at its kit."""
        pids = []
        for name in ("server", "run"):
            process = self.terminals.started.get(name)
            if process is not None and process.poll() is None:
                pids += [process.pid, *descendants(process.pid)]
        for pid in pids:
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
                path = self.memories / str(len(self.taken))
                with path.open("wb") as file:
                    for piece in scan.memory(pid):
                        file.write(piece)
                if path.stat().st_size:  # or it has just ended
                    self.taken.append((moment, named(words), path))
        self.look(self.kit)


def named(words: list[str]) -> str:
    """What a process of the server is."""
    line = " ".join(words)
    for part, name in (
        ("federation.superlink", "SuperLink"),
        ("superexec", "starter of runs"),
        ("serverapp", "the run: rules, records"),
        (" serve ", "`unseen federation serve`"),
        (" run ", "`unseen federation run`"),
    ):
        if part in line:
            return name
    return Path(words[0]).name


def opened(checkpoint: bytes, secret: bytes, name: str) -> Tensor:
    """The model in a server's checkpoint, as who has the sites' key can read it."""
    content = torch.load(io.BytesIO(checkpoint[32:]), weights_only=True)
    assert bool(content["inbox"]["model"].isnan().all())
    ((_, kept),) = content["memories"][blind.SERVER]
    assert not any(key.startswith(blind.SUM) for key in kept)  # evaluations have applied them
    state = blind.open_state(bytes(kept[blind.STATE].numpy()), secret, name)
    return state.entries["model"]


class Replay:
    """The sites' training done again, from the models that they received: the same bits."""

    def __init__(self, study: Study, data: Path, out: Path) -> None:
        planned = prepare_study(study, out, data)
        (job,), (task,) = planned.jobs, planned.tasks
        self.setting, self.job = planned.setting, job
        prepared = prepare(planned.data, task, study, job.seed)
        runtime = Runtime.of(self.setting, planned.data, prepared, job.method, job.seed)
        self.method, self.model = runtime.method, runtime.model
        self.first = self.model.vector.clone()
        self.sites = tuple(sorted(prepared.sources))
        self.backend = InProcess(self.model, prepared.everyone)

    def flat(self, path: Path) -> Tensor:
        """A file's model as one vector."""
        return self.model.layout.pack(load_file(path))

    def updates(self, model: Tensor, round: int) -> list[Tensor]:
        """What each site made of the model, before it was encrypted."""
        exchange = self.method.exchanges[0]
        turn = Turn(self.job.seed, round, self.setting.study.rounds, exchange.name,
                    roster=self.sites)  # fmt: skip
        inbox = {"model": model, "buffers": self.model.buffers.clone()}
        replies = self.backend.map(exchange, inbox, self.sites, turn)
        return [reply.rows["model"].clone() for reply in replies]


def main(data: Path, work: Path) -> None:
    """All of it, then the page."""
    work.mkdir(parents=True, exist_ok=True)
    (work / "federation.toml").write_text(FEDERATION.format(port=9643))
    (work / "blind.toml").write_text(STUDY)
    for name in SITES:
        (work / "data" / name).mkdir(parents=True)
        file = HOSPITALS[name]
        shutil.copy(data / "heart_disease" / file, work / "data" / name / file)
    typed, out = Terminals(work, {f"{Path.home()}/": "~/"}), work / "records/blind"
    serve = ("federation", "serve", "kits/server")
    joins = {n: ("federation", "join", f"kits/{n}", "--data", f"data/{n}") for n in SITES}
    run = ("federation", "run", "blind.toml", "--kit", "kits/server", "--out", "records/blind")
    shown = [typed.do("federation", "provision", "federation.toml", "--out", "kits", "--ckks")]
    try:
        typed.start("server", *serve)
        typed.said("server", "serving")
        for name in SITES:
            typed.start(name, *joins[name])
        for name in SITES:
            typed.said("server", f"{name}: connected")
        begun = time.monotonic()
        with Evidence(typed, work / "kits/server", out) as evidence:
            for name in SITES:
                typed.do("federation", "approve", f"kits/{name}", "blind.toml")
            typed.start("run", *run)
            if typed.started["run"].wait():
                raise SystemExit(typed.log("run", *run))
            seconds = time.monotonic() - begun
            load = os.getloadavg()[2]
            evidence.dump("after the run")
    finally:
        typed.stop()
    shown += [typed.log("server", *serve), typed.log("cleveland", *joins["cleveland"])]
    shown.append(typed.log("run", *run))
    evidence.look(out)
    PAGE.write_text(page(work, data, shown, evidence, (seconds, load)), encoding="utf-8")


def page(
    work: Path, data: Path, shown: list[str], evidence: Evidence, took: tuple[float, float]
) -> str:
    """What happened, as a page."""
    study, out = Study.read(work / "blind.toml"), work / "records/blind"
    clear = Study.read(work / "blind.toml", CLEAR)
    study.run(work / "in-process", data_dir=data)
    clear.run(work / "in-clear", data_dir=data)
    replay = Replay(clear, data, work / "replay")
    secret = (work / "kits/cleveland/ckks.secret").read_bytes()
    public = (work / "kits/server/ckks.public").read_bytes()
    begun = json.loads((out / "terms.json").read_text())["run"]
    kept = [opened(c, secret, f"{begun}/fedavg/target/0") for c in evidence.checkpoints]
    if len(kept) != study.rounds - 1:
        raise SystemExit(f"{len(kept)} checkpoints were seen of {study.rounds - 1}")
    finals = [replay.flat(next((work / "kits" / n / "state").rglob(FINAL))) for n in SITES]
    if not all(torch.equal(finals[0], other) for other in finals):
        raise SystemExit("the sites ended with different models")
    models = [replay.first, *kept, finals[0]]
    updates = [replay.updates(model, r) for r, model in enumerate(models[:-1])]
    check(models, updates, out)
    rows = [row for own in updates for row in own]
    looked_for = {
        "the secret key, as written and as SEAL holds it": scan.secret_words(secret, public),
        f"any of the {len(rows)} updates of the sites": scan.words(*rows),
        f"any of the {study.rounds} models after round 0": scan.words(*models[1:], but=models[:1]),
    }
    expected = replay.flat(next((work / "in-clear").rglob(FINAL)))
    distance = float((finals[0] - expected).norm() / expected.norm())
    moved = float((finals[0] - replay.first).norm() / replay.first.norm())
    return TEXT.format(
        study=STUDY.rstrip(), commands="\n\n".join(shown), minutes=f"{took[0] / 60:.0f}",
        load=f"{took[1]:.0f}", cores=os.cpu_count(),
        held="\n".join(held(evidence, looked_for)), files=len(evidence.files),
        size=megabytes(sum(map(len, evidence.files.values()))),
        in_files="; ".join(found(list(evidence.files.values()), looked_for)) or "none of them",
        looked_for="\n".join(f"- {name}: {len(w):,} words" for name, w in looked_for.items()),
        control="\n".join(control(work, finals[0], rows, secret, looked_for)),
        checkpoint="\n".join(contents(evidence.checkpoints[-1])),
        messages="\n".join(messages(out)), results="\n".join(results(work)),
        distance=f"{distance:.0e}", moved=f"{moved:.2f}", parameters=f"{len(finals[0]):,}",
        plain=f"{4 * len(finals[0]):,}",
    )  # fmt: skip


def check(models: list[Tensor], updates: list[list[Tensor]], out: Path) -> None:
    """That what is looked for is what was there: weights and updates lead from model to model."""
    lines = [json.loads(line) for line in (out / JOB / "rounds.jsonl").read_text().splitlines()]
    for before, after, rows, line in zip(models, models[1:], updates, lines, strict=False):
        weights = line["weights"]["model"]
        step = sum(w * row.double() for w, row in zip(weights, rows, strict=True))
        if float((after.double() - before - step).abs().max()) > 1e-6:
            raise SystemExit(f"round {line['round']} cannot be done again from what was sent")


def found(contents: list[bytes], looked_for: dict[str, scan.Words]) -> list[str]:
    """Which of the things looked for are there."""
    every = np.unique(np.concatenate(list(looked_for.values())))
    if not scan.holds(contents, every):
        return []
    return [name for name, own in looked_for.items() if scan.holds(contents, own)]


def held(evidence: Evidence, looked_for: dict[str, scan.Words]) -> Iterator[str]:
    """A table of what was looked through: process, size at each moment, what was found."""
    moments = list(dict.fromkeys(moment for moment, *_ in evidence.taken))
    sizes: dict[str, dict[str, str]] = {}
    there: dict[str, dict[str, None]] = {}
    for moment, process, path in evidence.taken:
        content = path.read_bytes()
        sizes.setdefault(process, {})[moment] = megabytes(len(content))
        there.setdefault(process, {}).update(dict.fromkeys(found([content], looked_for)))
        path.unlink()
    yield f"| memory of | {' | '.join(moments)} | found |"
    yield f"| :-- |{' --: |' * len(moments)} :-- |"
    for process, own in sizes.items():
        cells = [own.get(moment, "ended") for moment in moments]
        yield f"| {process} | {' | '.join(cells)} | {'; '.join(there[process]) or 'nothing'} |"


def control(
    work: Path, final: Tensor, rows: list[Tensor], secret: bytes, looked_for: dict[str, scan.Words]
) -> Iterator[str]:
    """That the same search finds what is there."""
    kit = scan.files(work / "kits/cleveland")
    yield f"- in the kit of cleveland: {'; '.join(found([*kit], looked_for))}"
    assert len(final) and rows and secret  # they are in this process
    here = found(list(scan.memory(os.getpid())), looked_for)
    yield f"- in the memory of the process that wrote this page: {'; '.join(here)}"


def contents(checkpoint: bytes) -> Iterator[str]:
    """What lies in a server's checkpoint."""
    told = torch.load(io.BytesIO(checkpoint[32:]), weights_only=True)
    for name, entry in told["inbox"].items():
        if entry.numel():
            nothing = "every one of them NaN" if bool(entry.isnan().all()) else "numbers"
            yield f"- `{name}`: {entry.numel():,} numbers, {nothing}"
    ((_, kept),) = told["memories"][blind.SERVER]
    for name, content in kept.items():
        if name != "label":
            yield f"- `{name}`: {content.numel():,} bytes, sealed"


def messages(out: Path) -> Iterator[str]:
    """Bytes to and from one site, by exchange, in the second round."""
    names = {"statistics": "statistics, before round 1", "exchange": "{}", "channel": "{}: weights"}
    lines = [json.loads(line) for line in (out / JOB / "messages.jsonl").read_text().splitlines()]
    yield "| message | sites | bytes to a site | bytes back |"
    yield "| :-- | :-- | --: | --: |"
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in lines:
        if line["kind"] == "statistics" or line["round"] == 1:
            groups.setdefault((line["kind"], line["exchange"]), []).append(line)
    for (kind, exchange), own in groups.items():
        mean = [sum(line[key] for line in own) / len(own) for key in ("down", "up")]
        sites = ", ".join(line["site"] for line in own)
        label = names[kind].format(exchange)
        yield f"| {label} | {sites} | {mean[0]:,.0f} | {mean[1]:,.0f} |"


def results(work: Path) -> Iterator[str]:
    """The target's figures of this run, the same run in one process, and that in the clear."""
    runs = {"over TLS": "records/blind", "in one process": "in-process", "in the clear": "in-clear"}
    told = {
        name: [json.loads(x) for x in (work / path / JOB / "target.jsonl").read_text().splitlines()]
        for name, path in runs.items()
    }
    yield "| round | " + " | ".join(f"loss, {n} | accuracy" for n in runs) + " |"
    yield "| --: |" + " --: | --: |" * len(runs)
    for lines in zip(*told.values(), strict=True):
        cells = [f"{x['loss']:.9f} | {100 * x['accuracy']:.1f}" for x in lines]
        yield f"| {lines[0]['round'] + 1} | " + " | ".join(cells) + " |"


def megabytes(size: int) -> str:
    """A size as people read it."""
    return f"{size / 2**20:,.1f} MiB"


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute())
