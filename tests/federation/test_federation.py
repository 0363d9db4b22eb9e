"""Real federations on loopback, over TLS with keys: the same bits as in one process, and faults."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

pytest.importorskip("flwr", reason="needs the extra flower")

from support.deployment import SLOWER, UNSEEN, Federation, descendants, faulty, told
from support.hall import contents

from unseen import Study
from unseen.core.turn import keyed
from unseen.engine.messages import QUIET

HEADER = "a,b,c,d,died"
STUDY = """
dataset = "table(path='visits.csv', domain='site', label='died')"
methods = [{methods}]
seeds = 1
rounds = {rounds}
evaluate_every = {rounds}
model = "mlp(widths=[8])"
save = ["final"]
[holdout]
source = ["north", "south", "west"]
target = ["east"]
[training]
batch_size = 16
{training}
[federation]
deadline = {deadline}
patience = 600
minimum = 2
"""


#: What does not depend on a target that takes part in one of the runs alone.
MODELS = ("source.jsonl", "rounds.jsonl", "final.safetensors")


def made(folder: Path, methods: str, rounds: int = 2, deadline: float = 120,
         training: str = "") -> tuple[Path, dict[str, tuple[str, Path]]]:  # fmt: skip
    """A study, all data in one file for one process, and each site's own."""
    quoted = ", ".join(f'"{m}"' for m in methods.split())
    study = folder / "study.toml"
    study.write_text(
        STUDY.format(methods=quoted, rounds=rounds, deadline=deadline * SLOWER, training=training)
    )
    whole, sites = [f"site,{HEADER}"], {}
    for shift, name in enumerate(("north", "south", "west", "east")):
        x = torch.randn(40 + shift, 4, generator=keyed(name)) + 0.2 * shift
        y = (x.sum(1) > shift).long().tolist()
        own = [",".join(map(str, (*row, label))) for row, label in zip(x.tolist(), y, strict=True)]
        (folder / f"{name}.csv").write_text("\n".join([HEADER, *own]) + "\n")
        whole += [f"{name},{line}" for line in own]
        sites[name] = ("evaluate" if name == "east" else "train", folder / f"{name}.csv")
    (folder / "visits.csv").write_text("\n".join(whole) + "\n")
    return study, sites


def same(one: Path, other: Path, names: tuple[str, ...] = ()) -> None:
    expected, found = contents(one), contents(other)
    compared = [path for path in expected if not names or Path(path).name in names]
    assert {Path(path).name for path in compared} >= set(MODELS)
    for path in compared:
        if path.endswith(".safetensors"):  # its title names the data as given
            left, right = load(expected[path]), load(found[path])
            assert set(left) == set(right)
            assert all(torch.equal(left[name], right[name]) for name in left), path
        else:
            assert expected[path] == found[path], path


def lines(out: Path, method: str, name: str) -> list[dict[str, Any]]:
    path = out / "records" / method / "target" / "seed-0" / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def three(sites: dict[str, tuple[str, Path]]) -> dict[str, tuple[str, Path]]:
    return {name: sites[name] for name in ("north", "south", "west")}


def flwr(federation: Federation, *words: str) -> Any:
    """What one of Flower's own commands says on the server's machine, as JSON."""
    command = [str(Path(sys.executable).parent / "flwr"), *words, "--format", "json"]
    home = {"FLWR_HOME": str(federation.kit("server") / "flower"), **QUIET}
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **home})
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def played_by_flower(federation: Federation, study: Path, out: Path) -> None:
    """Sign a study, start it by Flower's own command, and wait for its end."""
    coordinator = federation.kit("coordinator")
    subprocess.run([*UNSEEN, "sign", str(study), "--kit", str(coordinator)], check=True)
    settings = f'study="{study}" out="{out}"'
    begun = flwr(federation, "run", str(federation.kit("server") / "state" / "app"),
                 "--run-config", settings)  # fmt: skip
    number = str(begun["run-id"])
    assert number in json.dumps(flwr(federation, "list"))
    federation.until(lambda: told(out).get("finished"))


@pytest.mark.timeout(600 * SLOWER)  # a minute where nothing else runs
def test_three_sites_over_tls_give_the_bits_of_one_process(tmp_path: Path) -> None:
    study, sites = made(tmp_path, "ppdg+ga")
    Study.read(study).run(tmp_path / "one", data_dir=tmp_path)
    with Federation(tmp_path, three(sites)) as federation:
        federation.begin(study, tmp_path / "out")
        assert federation.ends(560) == 0, federation.logs()
        played_by_flower(federation, study, tmp_path / "flower")
        long = flwr(federation, "run", str(federation.kit("server") / "state" / "app"),
                    "--run-config", f'study="{study}" out="{tmp_path / "long"}"')  # fmt: skip
        assert flwr(federation, "stop", str(long["run-id"]))["success"]
    same(tmp_path / "one", tmp_path / "flower", MODELS)
    same(tmp_path / "one", tmp_path / "out", MODELS)
    assert told(tmp_path / "out")["finished"]
    sent = lines(tmp_path / "out", "ppdg+ga", "messages.jsonl")
    assert {m["exchange"] for m in sent} == {"statistics", "train", "validate"}
    assert all(m["up"] > 0 and m["down"] > 0 and not m["fault"] for m in sent)


@pytest.mark.slow
@pytest.mark.timeout(900 * SLOWER)
def test_every_kind_of_method_gives_the_bits_of_one_process(tmp_path: Path) -> None:
    study, sites = made(tmp_path, "fedavg ppdg scaffold fedavg+ga fedilc-inter")
    Study.read(study).run(tmp_path / "one", data_dir=tmp_path)
    with Federation(tmp_path, sites) as federation:
        federation.begin(study, tmp_path / "out")
        assert federation.ends(560) == 0, federation.logs()
    same(tmp_path / "one", tmp_path / "out")
    assert [r["role"] for r in lines(tmp_path / "out", "fedavg", "target.jsonl")] == ["target"]


@pytest.mark.slow
@pytest.mark.timeout(900 * SLOWER)
def test_a_killed_server(tmp_path: Path) -> None:
    """The same command goes on from the last finished round; the bits are those of one process."""
    study, sites = made(tmp_path, "scaffold+ga", rounds=4)
    Study.read(study).run(tmp_path / "one", data_dir=tmp_path)
    out = tmp_path / "out"
    with Federation(tmp_path, three(sites)) as federation:
        federation.begin(study, out)
        federation.until(lambda: told(out).get("round", 0) >= 2)
        federation.kill("server")
        federation.kill("run")
        before = len(lines(out, "scaffold+ga", "rounds.jsonl"))
        federation.serve()
        federation.run(study, out)  # waits until the server has noticed that the other is gone
        assert federation.ends(500) == 0, federation.logs()
    assert before >= 2
    same(tmp_path / "one", out, MODELS)


@pytest.mark.slow
@pytest.mark.timeout(900 * SLOWER)
def test_a_site_killed_in_mid_training(tmp_path: Path) -> None:
    """The round goes on without it; started again at once, it is let in once Flower missed it."""
    study, sites = made(tmp_path, "scaffold+ga", rounds=12, training="steps = 300")
    out = tmp_path / "out"
    with Federation(tmp_path, three(sites)) as federation:
        federation.begin(study, out)
        federation.until(lambda: told(out).get("exchange") == "train")
        # In the middle of a message: its process is there.
        federation.until(lambda: _working(federation, "south"))
        federation.kill("south")
        federation.join("south")
        assert federation.ends(500) == 0, federation.logs()
    rounds = lines(out, "scaffold+ga", "rounds.jsonl")
    assert set(rounds[0]["dropped"]) <= {"south"} and len(rounds) == 12
    assert rounds[-1]["clients"] == ["north", "south", "west"]


@pytest.mark.slow
@pytest.mark.timeout(600 * SLOWER)
def test_a_site_that_leaves_for_good(tmp_path: Path) -> None:
    study, sites = made(tmp_path, "fedavg", rounds=3, deadline=40)
    out = tmp_path / "out"
    with Federation(tmp_path, three(sites)) as federation:
        federation.begin(study, out)
        federation.until(lambda: told(out).get("round", 0) >= 1)
        federation.kill("west")  # and does not come back
        assert federation.ends(400) == 0, federation.logs()
    rounds = lines(out, "fedavg", "rounds.jsonl")
    assert rounds[0]["clients"] == ["north", "south", "west"]
    assert rounds[-1]["clients"] == ["north", "south"]
    assert set(rounds[-1]["dropped"]) == {"west"}
    faults = [m["fault"] for m in lines(out, "fedavg", "messages.jsonl") if m["site"] == "west"]
    reasons = ("deadline", "left", "Node Unavailable", "was not connected")
    assert any(reason in fault for fault in faults for reason in reasons), faults


@pytest.mark.slow
@pytest.mark.timeout(900 * SLOWER)
def test_a_site_that_answers_wrongly(tmp_path: Path) -> None:
    """One site's installation was changed: the round goes on without it, and the records say why;
    an answer that comes twice changes nothing."""
    plan = {
        2: ("nan", "NaN or infinite values in 'model'"),
        3: ("short", "of shape [57] where [58] was expected"),
        4: ("old", "the layout of the model does not match: the server says '"),
        5: ("twice", ""),
        6: ("late", "no answer within the deadline"),
        7: ("", ""),
    }
    study, sites = made(tmp_path, "fedavg", rounds=7, deadline=60)
    faults = {round: fault for round, (fault, _) in plan.items() if fault}
    changed = faulty().install(tmp_path / "changed", faults, late=75 * SLOWER)
    with Federation(tmp_path, three(sites)) as federation:
        federation.begin(study, tmp_path / "out", {"south": changed})
        assert federation.ends(700) == 0, federation.logs()
    rounds = lines(tmp_path / "out", "fedavg", "rounds.jsonl")
    for round, (_, reason) in plan.items():
        dropped = rounds[round - 1]["dropped"]
        assert set(dropped) == ({"south"} if reason else set()), (round, dropped)
        assert reason in dropped.get("south", "")
    assert told(tmp_path / "out")["finished"]


def _working(federation: Federation, name: str) -> bool:
    for pid in descendants(federation.running[name].pid):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"flwr-clientapp" in words:
            return True
    return False
