"""Attacks and faults over TLS: what is tried, and what happens.

    python deploy/trial.py WORK [PART...]

WORK: a folder for kits, data, records and logs, empty at first. PART: some of `PARTS`; all that
have no log there yet, if none is named. Hospitals of its own making, over TLS with keys, encrypted
sums and approvals, all on this machine. Writes docs/results/federation-trial.md, which also says
what was not run, and ends with code 1 if something did not hold. Linux; half an hour where nothing
else runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import faulty
import flood
from drill import Part

from unseen.serving.directory import fingerprint
from unseen.sites.asked_studies import model_study
from unseen.sites.control import standing
from unseen.sites.kits.kit import ACCOUNT, Kit
from unseen.sites.policy.approvals import Approvals, Proposal, federated
from unseen.studies.execution import Study

PAGE = Path(__file__).parent.parent / "docs" / "results" / "federation-trial.md"
TESTS = Path(__file__).parent.parent / "tests" / "federation"
MAIN = [sys.executable, "-c", "from unseen.cli.main import main; main()"]
EVERY = ("north", "south", "west", "east")
#: How long any one thing may take, in seconds.
PATIENCE = 900
FEDERATION = """name = "trial"
servers = ["localhost", "127.0.0.1"]
port = {port}
ckks = true
masks = true
[sites]
north = "train"
south = "train"
west = "train"
east = "evaluate"
"""
STUDY = """dataset = "table(path='visits.csv', domain='hospital', label='died'{options})"
model = "mlp(widths=[8])"
methods = ["{method}"]
seeds = 1
rounds = {rounds}
[holdout]
source = ["north", "south", "west"]
target = ["east"]
[training]
batch_size = 16
{training}
[privacy]
{privacy}
[federation]
deadline = {deadline}
patience = {patience}
minimum = 2
"""
#: What a study may read, as these hospitals decide.
RULES = """files = ["visits.csv", "link.csv"]
[columns]
age = "feature"
pressure = "feature"
sex = ["feature", "levels"]
died = ["label", "levels"]
[least]
batch_size = 8
channel = "{channel}"
"""
BLIND = 'channel = "ckks"\nserver = "blind"'
#: What west does wrongly, by round from 1.
PLAN = {2: "huge", 3: "many", 4: "large", 5: "nan", 6: "words", 7: "half"}
TEXT = """# Attacks and faults, tried over TLS

`deploy/trial.py WORK` tries the attacks (S) and faults (B) below: processes over TLS with keys,
three hospitals that train, one that evaluates, rules of sites, and approvals. Data are made up.
The table at the end counts what held. `tests/federation/test_hostile_server.py` tries what
[a server that lies](../privacy.md#a-server-that-lies) can send, in one process.

`$` is what is tried, `→` what a command printed last, `held` or `FAILED` the outcome. The left
column is seconds since the part began.

{parts}
## All of it

{table}
"""


@dataclass
class Log:
    """What is tried in one part, what happened, and whether all of it held."""

    title: str
    lines: list[str] = field(default_factory=list)
    faults: int = 0
    begun: float = field(default_factory=time.monotonic)

    def __call__(self, text: str) -> None:
        """One line."""
        line = f"{time.monotonic() - self.begun:6.1f}  {text}"
        print(line, flush=True)
        self.lines.append(line)

    def holds(self, what: str, true: object) -> None:
        """Whether something is as it should be."""
        self.faults += not true
        self(f"{'held  ' if true else 'FAILED'}  {what}")


class Ward:
    """The hospitals, their data, and the processes of their federation."""

    def __init__(self, work: Path) -> None:
        self.work, self.kits, self.out = work, work / "kits", work / "records"
        self.log = Log("")
        self.parts: dict[str, Part] = {}

    def build(self) -> None:
        """Data, kits and rules."""
        if self.kits.exists():
            return
        self.out.mkdir(parents=True)
        for shift, name in enumerate(EVERY):
            folder = self.work / "data" / name
            folder.mkdir(parents=True)
            self.write_rows(name, 120 + 10 * shift)
            (folder / "staff_salaries.csv").write_text("employee,salary\nsecret person,1\n" * 30)
            (folder / "link.csv").symlink_to("/etc/passwd")
        port = 20000 + random.randrange(20000)
        (self.work / "federation.toml").write_text(FEDERATION.format(port=port))
        self.do("federation", "provision", self.work / "federation.toml", "--out", self.kits)
        for name in EVERY:
            self.rules(name)

    def rules(self, name: str, channel: str = "clear") -> None:
        """The hospital's own rules."""
        (self.kits / name / "site.toml").write_text(RULES.format(channel=channel))

    def write_rows(self, name: str, count: int) -> None:
        """A hospital's patients: names, numbers and notes lie beside what may be read."""
        draws = random.Random(name)
        lines = ["patient_name,ssn,note,age,pressure,sex,died"]
        for i in range(count):
            age, pressure = draws.gauss(60, 9), draws.gauss(120, 15)
            died = "yes" if age / 9 + pressure / 15 + draws.gauss(0, 1) > 14.7 else "no"
            note = draws.choice(["hiv pos", "none", "none"])
            who = f"{name.title()} Patient{i:03}"
            lines.append(
                f"{who},111-60-{i:04},{note},{age:.0f},{pressure:.0f},{'mf'[i % 2]},{died}"
            )
        (self.work / "data" / name / "visits.csv").write_text("\n".join(lines) + "\n")

    def study(
        self, name: str, options: str = "", method: str = "fedavg", rounds: int = 1,
        training: str = "", privacy: str = "", deadline: int = 60, patience: int = 20,
    ) -> Path:  # fmt: skip
        """A study's file."""
        file = self.work / f"{name}.toml"
        values = {"options": options, "method": method, "rounds": rounds, "training": training}
        limits = {"privacy": privacy, "deadline": deadline, "patience": patience}
        file.write_text(STUDY.format(**values, **limits))
        return file

    def do(self, *words: object, seconds: float = PATIENCE) -> tuple[int, str]:
        """A command from its beginning to its end: its code, and the last line that it said."""
        ran = subprocess.run(
            [*MAIN, *map(str, words)], cwd=self.work, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds,
        )  # fmt: skip
        said = [line for line in ran.stdout.strip().splitlines() if line.strip()]
        self.said = ran.stdout
        return ran.returncode, said[-1] if said else ""

    def tried(self, *words: object) -> tuple[int, str]:
        """The same, written down as it was typed and answered."""
        typed = " ".join(str(word).replace(f"{self.work}/", "") for word in words)
        self.log(f"$ unseen {typed}")
        code, last = self.do(*words)
        self.log(f"  → {self.short(last)} (code {code})")
        return code, last

    def short(self, text: str) -> str:
        """A line as the page shows it."""
        text = text.replace(f"{self.work}/", "").replace(f"{sys.base_prefix}/lib/", "")
        return text if len(text) < 420 else text[:400] + " …"

    def until(self, what: str, true: Callable[[], object], seconds: float = PATIENCE) -> bool:
        """Wait for something to be true."""
        end = time.monotonic() + seconds
        while not true():
            if time.monotonic() > end:
                self.log.holds(f"{what} within {seconds:g} s", False)
                return False
            time.sleep(0.3)
        return True

    def serve(self) -> None:
        """Start the server, and wait until it serves."""
        kit = Kit.read(self.kits / "server").folder
        part = Part(kit, self.work / "server.log", "serve", kit)
        self.parts["server"] = part
        self.until("the server is up", lambda: "serving" in part.said())

    def join(self, name: str, changed: Path | None = None) -> None:
        """Start a site."""
        kit = Kit.read(self.kits / name).folder
        words = ("join", kit, "--data", self.work / "data" / name)
        self.parts[name] = Part(kit, self.work / f"{name}.log", *words, changed=changed)

    def gather(self) -> None:
        """Start what is not there, and wait for all."""
        if "server" not in self.parts:
            self.serve()
        for name in EVERY:
            if name not in self.parts:
                self.join(name)
        said = self.parts["server"].said
        self.until("all are connected", lambda: all(f"{n}: connected" in said() for n in EVERY))

    def approve(self, study: Path, model: bool = False) -> None:
        """Somebody at each hospital approves a study."""
        for name in EVERY:
            approve(self.kits / name, study, model)
        self.log(f"every hospital approved {study.name}")

    def run(self, study: Path, *words: object) -> tuple[int, str]:
        """A study over the hospitals."""
        out = ("--out", self.out / study.stem)
        kit = ("--kit", self.kits / "server")
        return self.tried("federation", "run", study, *kit, *out, *words)

    def end(self) -> None:
        """End all processes."""
        for part in reversed(list(self.parts.values())):
            part.end()
        self.parts.clear()

    def server_has(self, text: bytes) -> list[str]:
        """The server's files that hold a text: its kit with Flower's database, its records."""
        paths = [p for folder in (self.kits / "server", self.out) for p in folder.rglob("*")]
        return [str(p) for p in paths if p.is_file() and text in p.read_bytes()]


def approve(kit: Path, study: Path, model: bool) -> None:
    """What `unseen federation approve KIT STUDY` does, without a process for each."""
    proposal = Proposal(model_study(study) if model else federated(Study.read(study)))
    approvals = Approvals(Kit.read(kit, "site").folder / ACCOUNT)
    approvals.approve(approvals.ask(proposal))


def s1(ward: Ward) -> None:
    """S1. The server asks for patients' names as groups, for another file, through a link."""
    log = ward.log
    ward.gather()
    asked = {
        "groups": ("columns", ", groups=['patient_name', 'ssn', 'note']"),
        "staff": ("files|columns", None), "link": ("files", None),
    }  # fmt: skip
    for name, (rule, options) in asked.items():
        study = ward.study(name, options or "", privacy=BLIND, patience=25)
        if name == "staff":
            study.write_text(
                study.read_text().replace("visits.csv", "staff_salaries.csv").replace(
                    "label='died'", "label='employee'")
            )  # fmt: skip
        if name == "link":
            study.write_text(study.read_text().replace("visits.csv", "link.csv"))
        ward.approve(study)
        _, last = ward.run(study)
        refused = re.search(rf"refused by its rule ({rule}):", last)
        log.holds(f"refused by the rule {refused[1] if refused else rule}", refused)
    for secret in (b"111-60-", b"Patient0", b"hiv pos", b"secret person", b"root:x"):
        log.holds(f"{secret.decode()!r} is in no file of the server", not ward.server_has(secret))


def s2(ward: Ward) -> None:
    """S2. The server chooses: no channel, one example per step, no approval, no signature."""
    log = ward.log
    for name in EVERY:
        ward.rules(name, "ckks")
    ward.gather()
    cases = {
        "plain": ("least.channel", {}),
        "single": ("least.batch_size", {"training": "steps = 1", "privacy": BLIND}),
        "unasked": ("approval", {"privacy": BLIND}),
    }
    for name, (rule, more) in cases.items():
        study = ward.study(name, patience=25, **more)
        if name == "single":
            study.write_text(study.read_text().replace("batch_size = 16", "batch_size = 1"))
        if name != "unasked":
            ward.approve(study)
        _, last = ward.run(study)
        log.holds(f"refused by the rule {rule}", f"refused by its rule {rule}:" in last)
    study = ward.study("unsigned", privacy=BLIND, patience=25)
    away = ward.kits / "coordinator"
    away.rename(ward.work / "coordinator")
    try:
        ward.approve(study)
        _, last = ward.run(study)
        log.holds("refused by the rule signed", "refused by its rule signed:" in last)
    finally:
        (ward.work / "coordinator").rename(away)
        for name in EVERY:
            ward.rules(name)
    code, last = ward.tried("federation", "ledger", ward.kits / "north", "--verify")
    log.holds("the site's ledger has every refusal, in an unbroken chain", code == 0)


def s3(ward: Ward) -> None:
    """S3. A model's directory that names code, with a new fingerprint."""
    log, model = ward.log, ward.work / "small"
    rows = ward.work / "data" / "north" / "visits.csv"
    whole = rows.read_text().splitlines()
    every = ward.work / "visits.csv"
    every.write_text("\n".join([f"{whole[0]},hospital", *(f"{x},a" for x in whole[1:60]),
                                *(f"{x},b" for x in whole[60:])]) + "\n")  # fmt: skip
    options = "domain='hospital', label='died', drop=['patient_name', 'ssn', 'note']"
    (ward.work / "small.toml").write_text(
        f"dataset = \"table(path='{every}', {options})\"\n"
        'model = "mlp(widths=[4])"\nmethods = ["fedavg"]\nrounds = 1\nseeds = 1\n'
    )
    ward.do("train", ward.work / "small.toml", "--out", model)
    mark = ward.work / "PWNED"
    for code in (f"os:system(command='id > {mark}')", f"subprocess:getoutput(cmd='id > {mark}')"):
        spec = json.loads((model / "model.json").read_text())
        spec["model"] = spec["study"]["model"] = code
        spec["fingerprint"] = fingerprint(spec)
        (model / "model.json").write_text(json.dumps(spec))
        for words in (("predict", model, every), ("evaluate", model, "--data", every)):
            status, _ = ward.tried(*words)
            log.holds("refused, and nothing ran", status != 0 and not mark.exists())


def s4(ward: Ward) -> None:
    """S4. Floods of the port by somebody without a key; memory and a healthy site meanwhile."""
    ward.gather()
    log = ward.log

    def say(text: str) -> None:
        log(text)
        size = int((re.findall(r"holds (\d+) MiB", text) or [0])[0])
        sizes.append(size)
        if re.search(r"after flood \d", text):
            left.append(size)
        answers.append("answers in" in text)

    sizes: list[int] = []
    left: list[int] = []
    answers: list[bool] = []
    flood.Flood(Kit.read(ward.kits / "server"), ward.parts["server"].process.pid, say).all()
    log.holds("others are answered in every flood", all(answers))
    most, stays, more = max(sizes) - sizes[0], left[-1] - sizes[0], left[-1] - left[0]
    log.holds(f"memory grew by {most} MiB at most", most < 150)
    log.holds(f"{stays} MiB of it stay", stays < 60)
    log.holds(f"the third time all floods left {more} MiB more than the first", more < 15)


def s5(ward: Ward) -> None:
    """S5, B2, B3. A registered site sends 1e38, 1e15 examples, 64 MiB, NaN, no words, half."""
    log = ward.log
    changed = faulty.install(ward.work / "changed", PLAN)
    if "west" in ward.parts:
        ward.parts.pop("west").end()
    if "server" not in ward.parts:
        ward.serve()
    mark = len(ward.parts["server"].said())
    ward.join("west", changed)
    for name in EVERY:
        if name not in ward.parts:
            ward.join(name)
    back = ward.parts["server"].said
    ward.until("west is there", lambda: "west: connected" in back()[mark if mark else 0 :], 300)
    study = ward.study("hostile", rounds=8, deadline=75, patience=200)
    ward.approve(study)
    begun = time.monotonic()
    code, _ = ward.run(study)
    log(f"the run took {time.monotonic() - begun:.0f} s")
    (rounds,) = (ward.out / "hostile").rglob("rounds.jsonl")
    lines = [json.loads(line) for line in rounds.read_text().splitlines()]
    for line in lines:
        why = "; ".join(f"without {n}: {ward.short(w)}" for n, w in line["dropped"].items())
        log(f"round {line['round'] + 1}: {', '.join(line['clients'])}; {why}".rstrip("; "))
    wrong = {line["round"] + 1 for line in lines if set(line["dropped"]) == {"west"}}
    log.holds("the run ends well", code == 0 and len(lines) == 8)
    log.holds("west alone is left out, by name, in these rounds", wrong >= set(PLAN))
    (last,) = (ward.out / "hostile").rglob("target.jsonl")
    loss = json.loads(last.read_text().splitlines()[-1])["loss"]
    log.holds(f"the model was not poisoned: its loss at east is {loss:.3f}", loss < 5)
    ward.parts.pop("west").end()
    if "server" in ward.parts:
        mark = len(back())
        ward.join("west")
        ward.until("west is back", lambda: "west: connected" in back()[mark:], 300)


def s6(ward: Ward) -> None:
    """S6. A site answers in another's name."""
    tested(ward, "test_senders.py")


def b1(ward: Ward) -> None:
    """B1. A site's data change within a run, which is broken off and goes on."""
    log = ward.log
    for name in EVERY:
        ward.rules(name)
    ward.gather()
    study, out = ward.study("changed", rounds=40, patience=150), ward.out / "changed"
    ward.approve(study)
    run = Part(out, ward.work / "run.log", "run", study, "--kit", ward.kits / "server",
               "--out", out)  # fmt: skip
    begun = ward.until("round 2 is played", lambda: standing(out).get("round", -1) >= 1)
    run.process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        run.process.wait(60)
    run.end()
    log("the run was broken off in round 2; west loses a quarter of its rows")
    file = ward.work / "data" / "west" / "visits.csv"
    before = file.read_text()
    lines = before.splitlines()
    file.write_text("\n".join(lines[: len(lines) * 3 // 4]) + "\n")
    (out / "federation.json").unlink(missing_ok=True)
    part = Part(out, ward.work / "again.log", "run", study, "--kit", ward.kits / "server",
                "--out", out)  # fmt: skip
    words = "the data of site 'west' changed"
    seen = ward.until("the run says so", lambda: words in part.said(), 240)
    for line in part.said().splitlines():
        log(f"    {ward.short(line)}")
    log.holds("west is refused by the digest that was agreed at the start", begun and seen)
    part.process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        part.process.wait(60)
    part.end()
    file.write_text(before)


def b4(ward: Ward) -> None:
    """B4. A damaged study.json, and the same folder with another batch size."""
    study = ward.work / "small.toml"
    if not study.exists():
        s3(ward)
    text, out = study.read_text(), ward.work / "small-study"
    study.write_text(text + "[training]\nbatch_size = 16\n")
    ward.do("study", study, "--out", out, "holdout=none")
    (out / "study.json").write_text("{")
    study.write_text(text + "[training]\nbatch_size = 8\n")
    code, _ = ward.tried("study", study, "--out", out, "holdout=none")
    study.write_text(text)
    ward.log.holds("records of other settings are not taken for these", code != 0)


def b5(ward: Ward) -> None:
    """B5. Sites that are started before their server."""
    ward.end()
    for name in EVERY:
        ward.join(name)
    time.sleep(2)
    ward.serve()
    said = ward.parts["server"].said
    here = ward.until("all come in", lambda: all(f"{n}: connected" in said() for n in EVERY), 300)
    ends = [name for name in EVERY if ward.parts[name].process.poll() is not None]
    for name in ends:
        ward.log(f"{name}: {ward.parts[name].said().strip().splitlines()[-1]}")
    ward.log.holds("nobody is sent away", here and not ends)


def b6(ward: Ward) -> None:
    """B6. Words in the place of tracebacks."""
    log, work = ward.log, ward.work
    (work / "latin.toml").write_bytes(b'name = "caf\xe9"\n')
    (work / "file").write_text("")
    model = work / "broken"
    model.mkdir()
    (model / "model.json").write_text(json.dumps({"format": 1, "tensors": 3}))
    spec = json.loads((model / "model.json").read_text())
    (model / "model.json").write_text(json.dumps({**spec, "fingerprint": fingerprint(spec)}))
    (model / "model.safetensors").write_bytes(b"")
    study = work / "small.toml"
    if not study.exists():
        s3(ward)
    for words in (
        ("study", work / "latin.toml"), ("study", study, "--out", work / "file"),
        ("predict", model, work / "visits.csv"),
    ):  # fmt: skip
        code, last = ward.tried(*words)
        log.holds("an error in words", code and "Traceback" not in ward.said and last)
    tested(ward, "../study/test_foreign_records.py")
    tested(ward, "../study/test_resume.py", "-k", "checkpoint or damaged or pickle")


def b7(ward: Ward) -> None:
    """B7. Modes of folders, cells that only look like numbers, processes that are left behind."""
    log, work = ward.log, ward.work
    for name in EVERY:
        for folder in ("state", "account"):
            path = ward.kits / name / folder
            if path.is_dir():
                log.holds(f"{name}/{folder} is mode {path.stat().st_mode & 0o777:o}",
                          not path.stat().st_mode & 0o077)  # fmt: skip
    for what, header, cell in (
        ("0x10", "age", "0x10"), ("1_000", "age", "1_000"), ("１２", "age", "１２"),
        ("a column without a name", "", "5"),
    ):  # fmt: skip
        file = work / "odd.csv"
        lines = [f"hospital,{header},died", *(f"{'ab'[i % 2]},{40 + i},{'ny'[i % 3 > 0]}"
                                             for i in range(40))]  # fmt: skip
        lines[7] = lines[7].rpartition(",")[0].partition(",")[0] + f",{cell},n"
        file.write_text("\n".join(lines) + "\n")
        dataset = f"dataset=table(path='{file}', domain='hospital', label='died')"
        code, _ = ward.tried("study", "table", dataset, "--dry-run")
        log.holds(f"{what} is not taken for a number or a category in silence", code != 0)
    tested(ward, "test_bounds_of_answers.py")
    begun = subprocess.Popen(
        [*MAIN, "study", "digits", "--jobs", "2", "--out", str(work / "killed")], cwd=work,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    ward.until("workers have begun", lambda: len(family(begun.pid)) > 2)
    time.sleep(3)
    own = set(family(begun.pid)) - {begun.pid}
    begun.kill()
    begun.wait()
    time.sleep(10)
    left = [pid for pid in own if alive(pid)]
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    log.holds(f"10 s after their parent was killed, {len(left)} of {len(own)} workers are left",
              not left)  # fmt: skip


def model(ward: Ward) -> None:
    """From kits to predict: three hospitals, encrypted, a blind server, approvals."""
    log = ward.log
    for name in EVERY:
        ward.rules(name, "ckks")
    ward.gather()
    study = ward.study("recipe", rounds=3, privacy=BLIND, patience=300, deadline=300)
    north = ward.kits / "north"
    ward.tried("federation", "review", north, study, "--model")
    for line in ward.said.splitlines():
        log(f"    {ward.short(line)}")
    ward.approve(study, model=True)
    out = ward.work / "model"
    code, _ = ward.tried("federation", "train", study, "--kit", ward.kits / "server", "--out", out)
    log.holds("the run ends well", code == 0)
    for line in (out / "sites.txt").read_text().splitlines():
        log(f"    {line}")
    held = [path.name for path in out.rglob("model.*")]
    log.holds("the server has card, report and records, and no weights", not held)
    folders = {name: next((ward.kits / name / "models").iterdir()) for name in EVERY}
    digests = {n: json.loads((f / "model.json").read_text())["tensors"] for n, f in folders.items()}
    log.holds("all four hospitals have the same weights", len(set(digests.values())) == 1)
    rows = ward.work / "data" / "west" / "visits.csv"
    answers = ward.work / "answers.csv"
    code, _ = ward.tried("predict", folders["west"], rows, "--out", answers)
    count = len(answers.read_text().splitlines()) - 1 if answers.exists() else 0
    log.holds(f"{count} patients of west have a prediction", code == 0 and count == 140)
    code, _ = ward.tried("federation", "ledger", north, "--verify", "--server", out / "training")
    log.holds("the ledgers of north and of the server say the same", code == 0)


def keys(ward: Ward) -> None:
    """Keys: they are renewed while server and sites run, and old ones are of no use."""
    log, kits = ward.log, ward.kits
    for name in EVERY:
        ward.rules(name)
    ward.gather()
    said, mark = ward.parts["server"].said, len(ward.parts["server"].said())
    ward.tried("federation", "provision", "--renew", "north", "--out", kits)
    ward.until("it is told", lambda: "north: shut out" in said()[mark:], 120)
    gone = ward.until("old north ends", lambda: ward.parts["north"].process.poll() is not None, 300)
    last = ward.parts["north"].said().strip().splitlines()[-1]
    log(f"north with its old key: {ward.short(last)}")
    log.holds("the old key of north is shut out of a running server", gone)
    ward.parts.pop("north").end()
    mark = len(said())
    ward.join("north")
    here = ward.until("north is back", lambda: "north: connected" in said()[mark:], 300)
    log.holds("the new one is let in, and nothing was started again but north", here)
    old = ward.work / "old"
    shutil.rmtree(old, ignore_errors=True)
    shutil.copytree(kits / "coordinator", old / "coordinator")
    shutil.copy(kits / "south" / "ckks.secret", old)
    for name in ("coordinator", "ckks"):
        ward.tried("federation", "provision", "--renew", name, "--out", kits)
    (kits / "coordinator").rename(old / "new")
    shutil.copytree(old / "coordinator", kits / "coordinator")
    study = ward.study("oldsigned", privacy=BLIND, patience=25)
    ward.approve(study)
    _, last = ward.run(study)
    refused = "refused by its rule signed:" in last or "revoked" in last
    log.holds("what the coordinator's old key signed is refused", refused)
    shutil.rmtree(kits / "coordinator")
    (old / "new").rename(kits / "coordinator")
    for name in ("oldkey", "newkeys"):
        new = (kits / "south" / "ckks.secret").read_bytes()
        if name == "oldkey":
            (kits / "south" / "ckks.secret").write_bytes((old / "ckks.secret").read_bytes())
        study = ward.study(name, privacy=BLIND, patience=60)
        ward.approve(study)
        code, _ = ward.run(study)
        (kits / "south" / "ckks.secret").write_bytes(new)
        found = [json.loads(line) for path in (ward.out / name).rglob("rounds.jsonl")
                 for line in path.read_text().splitlines()]  # fmt: skip
        for line in found:
            why = "; ".join(f"without {n}: {ward.short(w)}" for n, w in line["dropped"].items())
            log(f"round {line['round'] + 1}: {', '.join(line['clients'])}; {why}".rstrip("; "))
        left = {name for line in found for name in line["dropped"]}
        if name == "oldkey":
            log.holds("south with the old key of sums is left out, by name", left == {"south"})
        else:
            log.holds("with the new key all take part", code == 0 and found and not left)


def tested(ward: Ward, *words: str) -> None:
    """Tests of the package that try it in one process."""
    shown = " ".join(words)
    ward.log(f"$ pytest tests/federation/{shown}")
    paths = [str(TESTS / words[0]), *words[1:]]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", "-m", "not slow", "-p",
         "no:cacheprovider", *paths], cwd=TESTS.parent.parent, capture_output=True, text=True,
        timeout=PATIENCE,
    )  # fmt: skip
    last = (ran.stdout.strip().splitlines() or [""])[-1]
    count = re.search(r"(\d+ passed)", ran.stdout)
    ward.log.holds(f"{count[1] if count else last}", ran.returncode == 0)


def family(pid: int) -> list[int]:
    """A process and all that it started."""
    from unseen.sites.process import descendants

    return [pid, *descendants(pid)]


def alive(pid: int) -> bool:
    """Whether a process runs."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


PARTS: dict[str, Callable[[Ward], None]] = {
    "B5": b5, "S1": s1, "S2": s2, "S5": s5, "B1": b1, "model": model, "keys": keys, "S4": s4,
    "S3": s3, "S6": s6, "B4": b4, "B6": b6, "B7": b7,
}  # fmt: skip


@contextlib.contextmanager
def hospitals(work: Path) -> Iterator[Ward]:
    """The federation, and its end whatever happens."""
    ward = Ward(work)
    ward.build()
    try:
        yield ward
    finally:
        ward.end()


def main(work: Path, chosen: list[str]) -> int:
    """The parts, then the page."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to stop"))
    folder = work / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    with hospitals(work) as ward:
        for name in chosen or [name for name in PARTS if not (folder / f"{name}.json").exists()]:
            log = ward.log = Log(" ".join((PARTS[name].__doc__ or name).split()))
            print(f"\n== {log.title}", flush=True)
            try:
                PARTS[name](ward)
            except Exception as error:  # the other parts go on
                log.holds(f"{type(error).__name__}: {error}", False)
            told = {"title": log.title, "lines": log.lines, "faults": log.faults}
            (folder / f"{name}.json").write_text(json.dumps(told))
    logs = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    for name, part in logs.items():
        print(f"{name}: {part['faults']} did not hold" if part["faults"] else f"{name}: held")
    PAGE.write_text(page(logs), encoding="utf-8")
    return int(any(part["faults"] for part in logs.values()))


def page(logs: dict[str, Any]) -> str:
    """All logs, and how many things held in each part."""
    rows, blocks = ["| part | held | did not |", "|:--|--:|--:|"], []
    for name, part in logs.items():
        text = "\n".join(part["lines"])
        blocks.append(f"## {part['title']}\n\n```text\n{text}\n```\n")
        rows.append(f"| {name} | {text.count('held  ')} | {part['faults']} |")
    rows += [f"| {name} | not run | |" for name in PARTS if name not in logs]
    return TEXT.format(parts="\n".join(blocks), table="\n".join(rows))


if __name__ == "__main__":
    if len(sys.argv) < 2 or set(sys.argv[2:]) - set(PARTS):
        raise SystemExit(__doc__)
    raise SystemExit(main(Path(sys.argv[1]).absolute(), sys.argv[2:]))
