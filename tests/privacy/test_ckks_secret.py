"""Where the secret key is: in no process, record or checkpoint of the server."""

from __future__ import annotations

import functools
import itertools
import json
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.channels import Stack, updates

pytest.importorskip("tenseal", reason="the extra `he` is not installed")

from support.secret_scan import holds, memory, words

from unseen import Study
from unseen.methods.combine import PPDG
from unseen.privacy import ckks, seal
from unseen.privacy.wire import unpack

READINGS = [
    f"ppdg(base='{base}', others='{others}')"
    for base, others in itertools.product(("raw", "running", "equation"), ("modified", "raw"))
]
RULES = ["fedavg", "pcgrad", "fedavg+ga", "fednova", "ppdg(when='always')", *READINGS]


@pytest.fixture(scope="module")
def keys() -> tuple[bytes, bytes]:
    return ckks.make_keys()


# --- where the secret is --------------------------------------------------------------------------

SERVER = """
import os, struct, sys, torch
from unseen.core.apply import Add
from unseen.methods.combine import PPDG
from unseen.core.exchange import Exchange, Method, Slot, Turn
from unseen.core.metrics.evaluation import plain
from unseen.privacy import blind, kinds
from unseen.privacy.wire import pack, unpack

out = sys.stdout.buffer
def send(content):
    out.write(struct.pack("<Q", len(content)) + content)
    out.flush()
def receive():
    return sys.stdin.buffer.read(struct.unpack("<Q", sys.stdin.buffer.read(8))[0])

rule, names = PPDG(), ["site-0", "site-1", "site-2"]
exchange = Exchange("train", None, {"model": Slot(rule, apply=Add())})
method = Method("m", (exchange,), (), plain)
server = blind.Server({kinds.PUBLIC: receive()})
def deliver(header, parts, rows, ask):
    send(pack({"final": 1}, parts))
    return torch.zeros(1)
server.begin(exchange, Turn(0, 0, 1, "train"))
sealed = [server.opened(n, {"model": receive()})["model"] for n in names]
rows = server.rows("model", sealed, None)
server.deliver = deliver
def ask(questions):
    answers = {}
    for name, question in questions.items():
        send(question)
        answers[name] = receive()
    return answers
rows.ask = ask
rule(rows, {}, rule.init(*rows.shape))
receive()
"""


def test_the_server_process_holds_no_secret_and_no_update(
    tmp_path: Path, keys: tuple[bytes, bytes]
) -> None:
    if not Path("/proc/self/mem").exists():
        pytest.skip("no /proc/PID/mem here")
    from dataclasses import replace

    from unseen.core.exchange import Reply

    rows = updates(3, 6000)
    stack = Stack(rows, PPDG(), keys=keys)
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path
    )
    assert process.stdin is not None and process.stdout is not None

    def send(content: bytes) -> None:
        process.stdin.write(struct.pack("<Q", len(content)) + content)
        process.stdin.flush()

    def receive() -> bytes:
        (size,) = struct.unpack("<Q", process.stdout.read(8))
        return process.stdout.read(size)

    try:
        send(keys[1])
        for name, row in zip(stack.names, rows, strict=True):
            turn = replace(stack.turn, client=name)
            reply = Reply({"model": row})
            message = stack.sites[name].seal(stack.exchange, reply, {}, turn)["model"]
            send(message)
        for name in stack.names:
            send(stack.sites[name].answer(receive()))
        assert unpack(receive(), "the sum")[0]["final"]
        regions = list(memory(process.pid))
    finally:
        process.kill()
        process.wait()
    secret = unpack(keys[0], "keys")[1]
    # The scan finds what is there: a row as it came.
    assert holds(regions, words(message[5000:9000]), run=4)
    needles = [bytes(part[64:]) for part in secret]
    for levels, part in zip(seal.MODULI, secret, strict=True):
        scheme = seal.scheme(levels)
        numbers = scheme.read(scheme.api.SecretKey(), part, "the key").data().dyn_array()
        needles.append(np.array([numbers[i] for i in range(512)], dtype=np.uint64).tobytes())
    # Any 64 bytes of an update hold four of its aligned words in a row.
    for row in rows:
        needles += [row.numpy().tobytes(), row.numpy()[1:-1].tobytes()]
    assert not holds(regions, words(*needles), run=4)
    assert not list(tmp_path.iterdir())


def test_no_record_or_checkpoint_holds_the_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: tuple[bytes, bytes]
) -> None:
    from unseen.studies.execution import plan, setting

    monkeypatch.setattr(ckks, "make_keys", lambda: keys)
    monkeypatch.setattr(plan, "Setting", functools.partial(setting.Setting, checkpoint_seconds=0.0))
    unlink, kept = Path.unlink, []

    def keep(path: Path, missing_ok: bool = False) -> None:
        if path.name == "checkpoint.pt" and path.exists():
            kept.append(path.read_bytes())
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", keep)
    settings = {"dataset": "rotated-digits", "methods": ["fedavg"], "targets": ["0"], "seeds": 1}
    privacy = {"channel": "ckks(gram='exact')", "server": "blind"}
    Study(**settings, rounds=2, model="mlp(widths=[8])", privacy=privacy).run(out=tmp_path)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name == "ledger.jsonl" for path in files)
    secret = unpack(keys[0], "keys")[1]
    looked_for = words(*(bytes(part[64:]) for part in secret))
    assert kept
    for content in (*kept, *(path.read_bytes() for path in files)):
        assert b"ckks secret" not in content
        assert not holds([content], looked_for, run=4)


def test_a_study_over_the_channel_finds_what_one_in_the_clear_does(tmp_path: Path) -> None:
    settings = {
        "dataset": "rotated-digits", "methods": ["fedavg"], "targets": ["0"], "seeds": 1,
        "rounds": 2, "model": "mlp(widths=[8])",
    }  # fmt: skip
    found = {}
    for over in ("clear", "ckks"):
        study = Study(**settings, privacy={"channel": over})
        study.run(out=tmp_path / over)
        lines = (tmp_path / over).rglob("target.jsonl")
        found[over] = [json.loads(line) for p in lines for line in p.read_text().splitlines()]
    metrics = [[record["loss"] for record in found[over]] for over in found]
    assert np.allclose(*metrics, rtol=1e-4)
