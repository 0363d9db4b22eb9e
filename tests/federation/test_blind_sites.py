"""A blind server over messages: the records of one process, resumed, and what the server held."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load

pytest.importorskip("flwr", reason="needs the extra flower")
pytest.importorskip("tenseal", reason="needs the extra he")

from support.deployment import SLOWER, Federation, descendants, told
from support.hall import Answer, Hall, kits
from support.secret_scan import files, holds, memory, secret_words, words

from unseen import Study, UnseenError
from unseen.core.turn import keyed
from unseen.engine.inprocess import InProcess
from unseen.sites.flower import server_run as federated
from unseen.sites.flower import site_handler, site_messages
from unseen.sites.flower.site import Site
from unseen.sites.kits.provision import write_sum_keys
from unseen.sites.kits.signatures import sign_kit
from unseen.sites.policy.approvals import Approvals

SITES = {"a": "train", "b": "train", "c": "train", "d": "evaluate"}
STUDY = """
dataset = "table(path='visits.csv', domain='site', label='died')"
methods = [{methods}]
seeds = 1
rounds = {rounds}
model = "mlp(widths=[8])"
on_bad_reply = "drop"
[holdout]
source = ["a", "b", "c"]
target = ["d"]
[training]
batch_size = 16
{training}
[privacy]
channel = "ckks"
server = "blind"
[federation]
deadline = 60
patience = 0
minimum = 2
"""
MOMENTUM = 'server = "sgd(lr=0.9, momentum=0.5)"'


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_messages, "POLL", 0.005)
    monkeypatch.setattr(site_messages, "LOOK", 0.01)


@dataclass
class Blind:
    """A study, its data, kits with keys, and all that passed between the sites and the server."""

    folder: Path
    study: Path
    kits: dict[int, Path]
    passed: list[Answer] = field(default_factory=list)
    meddle: Callable[[str, Mapping[str, Any], Answer], Iterable[Answer]] = field(
        default=lambda site, turn, answer: [answer]
    )

    def hall(self) -> Hall:
        def tamper(site: str, question: Answer, answer: Answer) -> Iterable[Answer]:
            turn = json.loads(question["head"]).get("position", {})
            answers = list(self.meddle(site, turn, answer))
            self.passed += [question, *answers]
            return answers

        self.last = Hall(self.kits, tamper)
        return self.last

    def run(self, name: str = "out") -> Path:
        out = self.folder / name
        federated.run(str(self.study), str(out), self.hall(), list(SITES))
        return out

    def finals(self) -> dict[str, dict[str, torch.Tensor]]:
        return {n: load(next((k / "state").rglob("final.safetensors")).read_bytes())
                for n, k in zip(SITES, self.kits.values(), strict=True)}  # fmt: skip

    def agree(self) -> dict[str, torch.Tensor]:
        """The model that every site ended with, bit for bit."""
        one, *others = self.finals().values()
        assert all(torch.equal(one[k], other[k]) for other in others for k in one)
        return one


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Blind]:
    def make(methods: str, rounds: int = 2, training: str = "") -> Blind:
        quoted = ", ".join(f'"{m}"' for m in methods.split())
        study = tmp_path / "study.toml"
        study.write_text(STUDY.format(methods=quoted, rounds=rounds, training=training))
        lines = ["site,v,w,x,y,died"]
        for shift, name in enumerate(SITES):
            x = torch.randn(40 + shift, 4, generator=keyed(name)) + 0.2 * shift
            y = (x.sum(1) > shift).long().tolist()
            rows = zip(x.tolist(), y, strict=True)
            lines += [",".join(map(str, (name, *row, label))) for row, label in rows]
        (tmp_path / "visits.csv").write_text("\n".join(lines) + "\n")
        found = kits(tmp_path, SITES, tmp_path)
        write_sum_keys(tmp_path / "kits", list(SITES), ["ckks"])
        monkeypatch.setenv("FLWR_HOME", str(tmp_path / "kits" / "server" / "flower"))
        return Blind(tmp_path, study, found)

    return make


def lines(out: Path, name: str) -> dict[str, list[Any]]:
    return {
        path.parts[-4]: [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted(out.rglob(name))
    }


def alike(found: Any, expected: Any, where: str = "") -> None:
    """The same but for the rounding of numbers."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key, value in expected.items():
            alike(found[key], value, f"{where}/{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for i, value in enumerate(expected):
            alike(found[i], value, f"{where}/{i}")
    elif isinstance(expected, float):
        assert math.isclose(found, expected, rel_tol=1e-4, abs_tol=1e-6), where
    else:
        assert found == expected, where


@pytest.mark.parametrize(
    ("methods", "training"), [("fedavg fednova fedavg+ga", ""), ("scaffold fednova", MOMENTUM)]
)
def test_sites_write_the_records_of_one_process(
    made: Callable[..., Blind], methods: str, training: str
) -> None:
    blind = made(methods, 2, training)
    Study.read(blind.study).run(blind.folder / "one", data_dir=blind.folder)
    out = blind.run()
    for name in ("source.jsonl", "target.jsonl", "rounds.jsonl"):
        alike(lines(out, name), lines(blind.folder / "one", name))
    told = lines(out, "ledger.jsonl")
    left = [item for own in told.values() for line in own for item in line["left"]]
    plain = {item["slot"] for item in left if item["form"] == "plain"}
    assert plain <= {"scalars", "statistics", "model weights"}
    assert {"model", "state"} <= {item["slot"] for item in left if item["form"] == "encrypted"}


def test_every_site_ends_with_the_model_of_the_run_in_the_clear(
    made: Callable[..., Blind],
) -> None:
    blind = made("fedavg", 2)
    clear = {"privacy.channel": "clear", "privacy.server": "clear", "save": ["final"]}
    Study.read(blind.study, clear).run(blind.folder / "one", data_dir=blind.folder)
    (expected,) = (blind.folder / "one").rglob("final.safetensors")
    blind.run()
    left, right = load(expected.read_bytes()), blind.agree()
    assert all(torch.allclose(left[k], right[k], rtol=1e-5, atol=1e-6) for k in left)
    assert not list((blind.folder / "out").rglob("final.safetensors"))


def test_a_run_goes_on_after_the_server_was_killed(made: Callable[..., Blind]) -> None:
    """In the middle of round 1, once its sums were on their way: all of it is done again."""
    blind = made("scaffold", 3, MOMENTUM)
    before = lines(blind.run("whole"), "target.jsonl")
    whole = blind.agree()

    def killed(site: str, turn: Mapping[str, Any], answer: Answer) -> list[Answer]:
        if turn.get("exchange") == "validate" and turn["round"] == 1:
            raise KeyboardInterrupt
        return [answer]

    for kit in blind.kits.values():  # a new run needs a new approval
        approvals = Approvals(Site.read(kit).account)
        approvals.approve(*approvals.every())
        for path in (kit / "state").rglob("final.safetensors"):
            path.unlink()
    blind.meddle = killed
    with pytest.raises(KeyboardInterrupt):
        blind.run()
    assert list((blind.folder / "out").rglob("checkpoint.pt"))
    blind.meddle = lambda site, turn, answer: [answer]
    alike(lines(blind.run(), "target.jsonl"), before)
    found = blind.agree()
    assert all(torch.allclose(found[k], whole[k], atol=1e-5) for k in found)
    asked = [json.loads(q["head"])["position"]["round"] for _, q in blind.last.sent
             if "position" in q["head"]]  # fmt: skip
    assert min(asked) == 1


def test_who_was_away_gets_the_state_when_it_comes_back(made: Callable[..., Blind]) -> None:
    blind = made("fedavg", 4, MOMENTUM)

    def leaves(site: str, turn: Mapping[str, Any], answer: Answer) -> list[Answer]:
        if turn.get("exchange") == "train" and turn["round"] == 3:
            blind.last.away.clear()
        if site == "b" and turn.get("exchange") == "train" and turn["round"] == 1:
            blind.last.away.add(2)
            return []
        return [answer]

    blind.meddle = leaves
    out = blind.run()
    rounds = lines(out, "rounds.jsonl")["fedavg"]
    assert [r["clients"] for r in rounds[:3]] == [["a", "b", "c"], ["a", "c"], ["a", "c"]]
    last = [r for r in lines(out, "source.jsonl")["fedavg"] if r["round"] == 3]
    assert {r["domain"] for r in last} == {"a", "b", "c"}
    blind.agree()


def test_a_lost_disk_costs_a_site_nothing(made: Callable[..., Blind]) -> None:
    import shutil

    blind = made("fedavg", 2)

    def lost(site: str, turn: Mapping[str, Any], answer: Answer) -> list[Answer]:
        shutil.rmtree(blind.kits[1] / "state", ignore_errors=True)
        return [answer]

    blind.meddle = lost
    out = blind.run()
    assert not any(r["dropped"] for r in lines(out, "rounds.jsonl")["fedavg"])


def test_a_site_that_sends_no_state_is_left_out(made: Callable[..., Blind]) -> None:
    blind = made("fedavg", 1)

    def bare(site: str, turn: Mapping[str, Any], answer: Answer) -> list[Answer]:
        return [answer if site != "b" else {k: v for k, v in answer.items() if "carried" not in k}]

    blind.meddle = bare
    (line,) = lines(blind.run(), "rounds.jsonl")["fedavg"]
    assert line["clients"] == ["a", "c"] and "no sealed state" in line["dropped"]["b"]


def as_bytes(parcel: Answer) -> bytes:
    def one(value: Any) -> bytes:
        if isinstance(value, torch.Tensor):
            return value.numpy().tobytes()
        return value if isinstance(value, bytes) else str(value).encode()

    return b"\n".join(map(one, parcel.values()))


def test_a_site_with_an_old_key_is_left_out_and_its_state_too(made: Callable[..., Blind]) -> None:
    """It answers first; what it sealed nobody else could open."""
    blind = made("fedavg")
    kit = blind.folder / "kits"
    old = (kit / "a" / "ckks.secret").read_bytes()
    write_sum_keys(kit, list(SITES), ["ckks"])
    (kit / "a" / "ckks.secret").write_bytes(old)
    out = blind.run()
    (rounds,) = lines(out, "rounds.jsonl").values()
    trained = [line for line in rounds if line["exchange"] == "train"]
    assert [line["clients"] for line in trained] == [["b", "c"]] * 2
    assert all("context" in line["dropped"]["a"] for line in trained[:1])


def test_neither_disk_nor_messages_hold_an_update_or_a_model_or_the_key(
    made: Callable[..., Blind], monkeypatch: pytest.MonkeyPatch
) -> None:
    blind = made("fedavg", 3)
    updates: list[torch.Tensor] = []
    models: list[tuple[int, torch.Tensor]] = []

    class Seen(InProcess):
        def map(self, exchange: Any, inbox: Any, clients: Any, turn: Any) -> Any:
            if exchange.slots:
                models.append((turn.round, inbox["model"].clone()))
            replies = super().map(exchange, inbox, clients, turn)
            updates.extend(r.rows["model"].clone() for r in replies if "model" in r.rows)
            return replies

    monkeypatch.setattr(site_handler, "InProcess", Seen)
    disk: dict[bytes, bytes] = {}  # all contents of files at all moments at which a site answers

    def look(site: str, turn: Mapping[str, Any], answer: Answer) -> list[Answer]:
        disk.update((sha256(f).digest(), f) for f in files(blind.folder / "out"))
        return [answer]

    blind.meddle = look
    out = blind.run()
    (first, *_), later = ([m for r, m in models if (r > 0) == late] for late in (False, True))
    assert len(updates) == 9 and len(later) == 6
    searched = words(*updates, *later, but=[first])
    assert len(searched) > 200
    kit = blind.folder / "kits" / "server"
    server = [*disk.values(), *files(out), *files(kit)]
    messages = [*map(as_bytes, blind.passed)]
    assert not holds([*server, *messages], searched)
    # What looks like this where it is held: a message in the clear, the model at a site.
    assert holds([as_bytes({"inbox/model": later[0]})], words(*later, but=[first]))
    final = next((blind.kits[1] / "state").rglob("final.safetensors")).read_bytes()
    trained = words(*load(final).values(), but=[first])
    assert holds([final], trained) and not holds([*server, *messages], trained)
    secret = (blind.kits[1] / "ckks.secret").read_bytes()
    key = secret_words(secret, (kit / "ckks.public").read_bytes())
    assert holds([secret], key) and not holds([*server, *messages], key)


def test_what_a_blind_server_cannot_do_is_refused_before_the_run(
    made: Callable[..., Blind],
) -> None:
    blind = made("fedavg", 1, 'server = "adam(lr=0.01)"')
    with pytest.raises(UnseenError, match="blind cannot be.*roots"):
        blind.run()
    text = blind.study.read_text().replace('server = "adam(lr=0.01)"', "")
    blind.study.write_text(text.replace("seeds = 1", 'seeds = 1\nsave = ["final"]'))
    with pytest.raises(UnseenError, match="it has none"):
        blind.run("other")


@pytest.mark.slow
@pytest.mark.timeout(1200 * SLOWER)
def test_over_tls_the_server_holds_neither_key_nor_update(
    made: Callable[..., Blind], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real processes: the records of one process, and nothing of the sites' in the server's."""
    blind = made("fedavg", 3)
    study, folder = Study.read(blind.study), blind.folder
    study.run(folder / "one", data_dir=folder)
    updates: list[torch.Tensor] = []  # of round 0, whose bits are those of a run in the clear

    class Seen(InProcess):
        def map(self, exchange: Any, inbox: Any, clients: Any, turn: Any) -> Any:
            replies = super().map(exchange, inbox, clients, turn)
            if turn.round == 0:
                updates.extend(r.rows["model"].clone() for r in replies if "model" in r.rows)
            return replies

    monkeypatch.setattr("unseen.studies.execution.runtime.InProcess", Seen)
    clear = {"privacy.channel": "clear", "privacy.server": "clear", "rounds": 1}
    Study.read(blind.study, clear).run(folder / "clear", data_dir=folder)
    real = folder / "real"
    real.mkdir()
    text = blind.study.read_text().replace("deadline = 60", f"deadline = {300 * SLOWER}")
    blind.study.write_text(text.replace("patience = 0", "patience = 600"))
    sites = {name: (role, folder / "visits.csv") for name, role in SITES.items()}
    with Federation(real, sites) as federation:
        write_sum_keys(real / "kits", list(SITES), ["ckks"])
        sign_kit(real / "kits/ca", real / "kits/server")
        public = (real / "kits/server/ckks.public").read_bytes()
        key = secret_words((real / "kits/a/ckks.secret").read_bytes(), public)
        looked_for = np.unique(np.concatenate([key, words(*updates)]))
        federation.begin(blind.study, folder / "out")
        federation.until(lambda: told(folder / "out").get("round", 0) >= 1, 600)
        pid = federation.running["server"].pid
        looked = [0, 0]
        for process in [pid, *descendants(pid)]:
            for piece in memory(process):
                looked = [looked[0] + 1, looked[1] + len(piece)]
                assert not holds([piece], looked_for), process
        assert looked[1] > 100 * 2**20
        assert federation.ends(900) == 0, federation.logs()
    assert len(updates) == 3 and holds(memory(os.getpid()), words(*updates))
    on_disk = [*files(real / "kits" / "server"), *files(folder / "out")]
    assert not holds(on_disk, looked_for) and holds(files(real / "kits" / "a"), looked_for)
    for name in ("source.jsonl", "target.jsonl", "rounds.jsonl"):
        alike(lines(folder / "out", name), lines(folder / "one", name))
