"""Rounds over Flower: ours against a plain Flower FedAvg app, and in one process against Ray."""

from __future__ import annotations

import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from harness import Goal, Ratio, fresh

extras = ("flower",)
goals = [
    Goal(
        "deployment", "a round over real sites: at most 1.1 times a plain Flower app's", None, 1.1
    ),
    Goal("simulation", "overhead of a round, Flower's simulation against one process", 20.0),
]

SITES = ("0", "15", "30")
#: The network of both: 43,020 parameters, on the digits of three angles.
MODEL = "mlp(widths=[256, 96])"
STUDY = """
dataset = "rotated-digits"
model = "{model}"
methods = ["fedavg"]
seeds = 1
rounds = {rounds}
holdout = "none"
[training]
steps = 1
batch_size = 32
[federation]
sites = ["0", "15", "30"]
deadline = 300
patience = 300
"""
PLAIN = """
import json, time
import numpy as np, torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

client = ClientApp()
server = ServerApp()

def net():
    torch.manual_seed(0)
    layers = [torch.nn.Flatten(), torch.nn.Linear(64, 256), torch.nn.ReLU(),
              torch.nn.Linear(256, 96), torch.nn.ReLU(), torch.nn.Linear(96, 10)]
    return torch.nn.Sequential(*layers)

def data(context):
    from sklearn.datasets import load_digits
    torch.set_num_threads(1)
    digits, own = load_digits(), int(context.node_config["site"]) // 15
    x, y = torch.tensor(digits.images).float()[own::6] / 16, torch.tensor(digits.target)[own::6]
    return x, y

def loaded(message):
    model = net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return model

@client.train()
def train(message: Message, context: Context) -> Message:
    model, (x, y) = loaded(message), data(context)
    step = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = torch.nn.functional.cross_entropy(model(x[:32]), y[:32])
    loss.backward()
    step.step()
    metrics = MetricRecord({"num-examples": len(y), "loss": float(loss)})
    records = {"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}
    return Message(RecordDict(records), reply_to=message)

@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    model, (x, y) = loaded(message), data(context)
    with torch.no_grad():
        right = float((model(x).argmax(1) == y).float().mean())
    metrics = MetricRecord({"num-examples": len(y), "accuracy": right})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)

@server.main()
def main(grid: Grid, context: Context) -> None:
    config, times = context.run_config, []
    def note(number, arrays):
        times.append(time.time())
        with open(str(config["out"]), "w") as file:
            json.dump(times, file)
    strategy = FedAvg(min_train_nodes=3, min_evaluate_nodes=3, min_available_nodes=3)
    strategy.start(grid, ArrayRecord(net().state_dict()), num_rounds=int(config["rounds"]),
                   evaluate_fn=note)
"""
PROJECT = """
[project]
name = "plain"
version = "1.0.0"
license = { file = "LICENSE" }
dependencies = ["flwr>=1.41,<1.43"]
[tool.flwr.app]
publisher = "unseen"
fab-format-version = 1
flwr-version-target = "1.41.0"
[tool.flwr.app.components]
serverapp = "plain:server"
clientapp = "plain:client"
[tool.flwr.app.config]
out = ""
rounds = 3
"""


def port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def until(true: Callable[[], object], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise TimeoutError("the federation did not get so far; is this machine busy?")
        time.sleep(0.05)


@contextmanager
def federation(folder: Path) -> Iterator[Callable[[Path, str], None]]:
    """A SuperLink and a SuperNode for each site, in plaintext; gives what starts a run."""
    from unseen.engine.messages import QUIET
    from unseen.sites.kits.kit_spec import Federation
    from unseen.sites.kits.provision import provision

    home, number = folder / "home", port()
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{number}"\n'
        "insecure = true\n"
    )
    bin = Path(sys.executable).parent
    environment = {
        **os.environ, **QUIET, "FLWR_HOME": str(home), "OMP_NUM_THREADS": "1",
        "PATH": f"{bin}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip
    running: list[subprocess.Popen[bytes]] = []

    def begin(*command: str) -> None:
        with (folder / "log").open("ab") as log:
            running.append(
                subprocess.Popen(
                    [str(bin / command[0]), *command[1:]], stdout=log, stderr=log, env=environment
                )
            )

    def listening() -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", number), 1):
            return True
        return False

    def start(app: Path, config: str) -> None:
        command = [str(bin / "flwr"), "run", str(app), "here", "--run-config", config]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"flwr run: {done.stdout}{done.stderr}")

    try:
        begin("flower-superlink", "--insecure", "--port", str(number),
              "--disable-runtime-dependency-installation")  # fmt: skip
        until(listening, 120)
        sites = dict.fromkeys(SITES, "train")
        provision(Federation(name="bench", servers=("localhost",), sites=sites), folder / "kits")
        for site in SITES:
            kit = folder / "kits" / site
            joined = f'name = "{site}"\nfederation = "bench"\ndata = "{folder}"\n'
            (kit / "join.toml").write_text(joined)
            rules = 'approval = "auto"\nsigned = false\n[least]\nexamples = 1\n'
            (kit / "site.toml").write_text(rules)
            begin("flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{number}", "--port",
                  str(port()), "--node-config", f'site="{site}" kit="{kit}"')  # fmt: skip
        yield start
    finally:
        for process in reversed(running):
            process.terminate()
        for process in running:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def plain(folder: Path, start: Callable[[Path, str], None], rounds: int) -> list[float]:
    """Seconds of each round after the first of the plain app."""
    app, out = folder / "plain", folder / f"plain-{time.time_ns()}.json"
    app.mkdir(exist_ok=True)
    (app / "plain.py").write_text(PLAIN)
    (app / "pyproject.toml").write_text(PROJECT)
    (app / "LICENSE").write_text("Apache-2.0\n")
    start(app, f'out="{out}" rounds={rounds}')

    def times() -> list[float]:
        with suppress(OSError, ValueError):
            return list(json.loads(out.read_text()))
        return []

    until(lambda: len(times()) > rounds, 600 + 300 * rounds)
    return gaps(times()[1:])


def ours(folder: Path, start: Callable[[Path, str], None], rounds: int) -> list[float]:
    """Seconds of each round after the first of FedAvg as a study."""
    from unseen.sites.flower import bundle

    out = folder / f"ours-{time.time_ns()}"
    study = folder / "study.toml"
    study.write_text(STUDY.format(model=MODEL, rounds=rounds))
    start(bundle.write(folder / "app"), f'study="{study}" out="{out}"')
    seen: list[float] = []

    def finished() -> bool:
        for path in out.glob("records/*/*/*/messages.jsonl"):
            for line in path.read_text().splitlines(keepends=True):
                if line.endswith("\n") and (fault := json.loads(line).get("fault")):
                    raise RuntimeError(f"a site did not answer: {fault}")
        found = list(out.glob("records/*/*/*/source.jsonl"))
        lines = found[0].read_text().count("\n") // len(SITES) if found else 0
        seen.extend([time.time()] * (lines - len(seen)))
        return len(seen) >= rounds

    until(finished, 600 + 300 * rounds)
    return gaps(seen)


def gaps(times: Sequence[float]) -> list[float]:
    return [b - a for a, b in itertools.pairwise(times)]


def in_place(backend: str, rounds: int) -> tuple[float, float]:
    """Seconds of a round's work at the clients, and of the whole round, in a fresh process."""
    import unseen.methods.local.train
    from unseen import Study
    from unseen.studies.results import records

    times: list[float] = []
    spent: list[float] = []
    append, call = records.Log.append, unseen.methods.local.train.Train.__call__

    def noted(log: Any, name: str, found: Any) -> None:
        if name == "rounds.jsonl":
            times.append(time.perf_counter())
        append(log, name, found)

    def timed(self: Any, *arguments: Any) -> Any:
        begun = time.perf_counter()
        made = call(self, *arguments)
        spent.append(time.perf_counter() - begun)
        return made

    records.Log.append = noted  # type: ignore[method-assign]
    unseen.methods.local.train.Train.__call__ = timed  # type: ignore[method-assign]
    study = Study(
        dataset="rotated-digits", model="mnist-cnn", methods=["fedavg"], targets=["75"],
        seeds=1, rounds=rounds, evaluate_every=rounds, training={"steps": 1, "batch_size": 32},
    )  # fmt: skip
    study.run(backend=backend)
    work = statistics.median(spent) * 5 if spent else 0.0
    return work, statistics.median(gaps(times))


def run(quick: bool) -> dict[str, Any]:
    """Both comparisons; quick: fewer rounds and no goal."""
    measured: list[dict[str, Any]] = []
    reached: dict[str, Any] = {}
    rounds = 2 if quick else 4
    with tempfile.TemporaryDirectory() as name, federation(Path(name)) as start:
        found = dict[str, list[float]]()
        found["plain Flower"] = plain(Path(name), start, rounds)
        found["unseen"] = ours(Path(name), start, rounds)
    ratio = Ratio.of(found["unseen"], found["plain Flower"]).list()
    for way, seconds in found.items():
        measured.append(
            {"table": "A round of FedAvg over three sites on loopback: training and evaluation",
             "what": "round", "way": way, "s": statistics.median(seconds),
             "ratio": ratio if way == "unseen" else None}
        )  # fmt: skip
    reached["deployment"] = ratio
    work, one = fresh(in_place, "in-process", 20 if quick else 200)
    _, many = fresh(in_place, "flower-simulation", 5 if quick else 20)
    for way, seconds in {"in-process": one, "flower-simulation": many}.items():
        measured.append(
            {"table": "A round of five clients, one step each, 44k parameters, on this machine",
             "what": "round", "way": way, "ms": 1000 * seconds,
             "overhead_ms": 1000 * (seconds - work)}
        )  # fmt: skip
    reached["simulation"] = (many - work) / max(one - work, 1e-6)
    return {"measured": measured, "goals": {} if quick else reached}


if __name__ == "__main__":
    from harness import main

    main(__file__)
