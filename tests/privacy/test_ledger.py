"""The ledger tells what really moved, and ε as the accountants have it."""

from __future__ import annotations

import json

import pytest
import torch
from remote import Remote
from sites import federation

from unseen import Model, Training, method, play, start
from unseen.backend.inprocess import InProcess
from unseen.exchange import keyed
from unseen.models import build
from unseen.optimiser import SGD
from unseen.privacy.dp import Clients, Examples, private
from unseen.privacy.ledger import Left, Metered, card, summary
from unseen.study import records
from unseen.study.spec import Study

TRAINING = Training(SGD(0.05), batch_size=8)


class Weighing(InProcess):
    """Weighs every reply as bytes, tensor by tensor."""

    weighed = 0

    def map(self, exchange, inbox, clients, turn):
        replies = super().map(exchange, inbox, clients, turn)
        for reply in replies:
            for row in reply.rows.values():
                self.weighed += len(row.contiguous().numpy().tobytes())
            for value in reply.scalars.values():
                self.weighed += len(torch.as_tensor(value, dtype=torch.float64).numpy().tobytes())
        return replies


@pytest.mark.parametrize("expression", ["fedavg", "fedcurv", "scaffold", "fedavg+ga", "fediir"])
def test_bytes_are_those_that_moved(expression):
    clients, federated = federation(3), method(expression, TRAINING)
    model = Model(build("mlp(widths=[12])", (6,), 3, keyed("net")))
    backend = Weighing(model, clients)
    metered = Metered(backend, federated)
    state = start(federated, model, sorted(clients), seed=0)
    play(federated, state, metered, sorted(clients), 2)
    lines = metered.lines()
    assert sum(b for line in lines for left in line["left"] for b in left["bytes"]) == (
        backend.weighed
    )
    assert {left["form"] for line in lines for left in line["left"]} == {"plain"}
    assert metered.lines() == []
    assert metered.closing() == []


def test_metering_changes_no_bit():
    clients, federated = federation(3), method("ppdg", TRAINING)

    def run(wrap):
        model = Model(build("mlp(widths=[12])", (6,), 3, keyed("net")))
        state = start(federated, model, sorted(clients), seed=0)
        backend = wrap(InProcess(model, clients))
        return play(federated, state, backend, sorted(clients), 2)[0].inbox["model"]

    assert torch.equal(run(lambda b: b), run(lambda b: Metered(b, federated)))


def test_a_channel_tells_itself_what_left():
    class Channel(InProcess):
        def left(self):
            return [
                Left("site-a", "model", "encrypted", 999),
                Left("site-a", "weights", "plain", 5),
            ]

    clients = federation(1)
    federated = private(method("fedavg", TRAINING), Examples(1.0, 1.0, 1e-3))
    model = Model(build("mlp(widths=[12])", (6,), 3, keyed("net")))
    metered = Metered(Channel(model, clients), federated)
    play(federated, start(federated, model, sorted(clients), 0), metered, sorted(clients), 1)
    (line,) = metered.lines()
    assert [(e["slot"], e["form"], e["bytes"]) for e in line["left"]] == [
        ("model", "noised+encrypted", [999]),
        ("weights", "noised", [5]),
        ("scalars", "plain", [16]),
    ]


def test_epsilon_so_far_grows_as_the_accountant_says(tmp_path):
    pytest.importorskip("opacus", reason="the extra dp is not installed")
    from unseen.privacy.accounting import epsilon

    clients = federation(2)
    federated = private(method("fedavg", TRAINING), Examples(1.0, 1.2, 1e-3))
    model = Model(build("mlp(widths=[12])", (6,), 3, keyed("net")))

    def fresh():
        return Metered(InProcess(model, clients), federated)

    metered = fresh()
    state = start(federated, model, sorted(clients), 0)
    play(federated, state, metered, sorted(clients), 4, fraction=1)  # one client a round
    lines = metered.lines()
    seen: dict[str, int] = {}
    for line in lines:
        (client,), (n,) = line["clients"], line["examples"]
        assert n == len(clients[client].split("train"))
        seen[client] = seen.get(client, 0) + 1
        expected = epsilon(1.2, 8 / n, -(-n // 8) * seen[client], 1e-3, "rdp")
        assert line["epsilon"]["example"] == [pytest.approx(expected, rel=1e-4)]
    (closing,) = metered.closing()
    assert len(closing["guarantees"]) == len(seen)
    # What a run that stopped has spent counts on.
    (tmp_path / records.LEDGER).write_bytes(b"".join(map(records.to_line, lines)))
    resumed = fresh()
    resumed.resume(tmp_path, sorted(clients))
    assert resumed.closing() == [closing]


def test_whole_clients_are_told_apart_from_examples():
    pytest.importorskip("opacus", reason="the extra dp is not installed")
    clients = federation(2)
    federated = private(
        method("fedavg(weights='uniform')", TRAINING),
        Examples(1.0, 1.2, 1e-3),
        Clients(1.0, 4.0, 1e-3),
    )
    model = Model(build("mlp(widths=[12])", (6,), 3, keyed("net")))
    metered = Metered(InProcess(model, clients), federated)
    play(federated, start(federated, model, sorted(clients), 0), metered, sorted(clients), 1)
    (line,) = metered.lines()
    # No scalar leaves a client whose data as a whole is private, not even its size.
    assert [left["slot"] for left in line["left"]] == ["model"]
    assert "client" in line["epsilon"]


def small(**settings) -> Study:
    return Study(
        dataset="rotated-digits", model="mlp(widths=[8])", methods=("fedavg",), seeds=1, rounds=2,
        targets=("0",), **settings,
    )  # fmt: skip


def test_a_job_leaves_a_ledger_and_the_card_reads_it(tmp_path):
    small().run(tmp_path)
    folder = records.Job("fedavg", "0", 0).folder(tmp_path)
    lines = records.read_lines(folder / records.LEDGER)
    assert [line["exchange"] for line in lines] == ["train", "validate", "test"] * 2
    rounds = records.read_lines(folder / "rounds.jsonl")
    for line, counted in zip(lines[::3], rounds, strict=True):
        (row,) = [left for left in line["left"] if left["slot"] == "model"]
        assert sum(row["bytes"]) == counted["bytes"]["up"]
    assert records.is_done(folder)
    text = "\n".join(card(folder))
    assert "| train | model | plain | 2,440 | 10 |" in text
    assert "Differential privacy: none" in text
    assert card(tmp_path) == []


def test_a_job_with_noise_states_the_guarantee(tmp_path):
    pytest.importorskip("opacus", reason="the extra dp is not installed")
    study = small(privacy={"examples": "dp(clip=1.0, noise=1.1, delta=1e-4)"})
    results = study.run(tmp_path)
    assert "noise on examples' gradients" in results.table().to_markdown()
    folder = records.Job("fedavg", "0", 0).folder(tmp_path)
    text = "\n".join(card(folder))
    assert "noised" in text
    assert text.count("ε = ") == 5
    found = summary(records.read_lines(folder / records.LEDGER))
    assert {promise["client"] for promise in found.guarantees} == {"15", "30", "45", "60", "75"}
    # The clients' secrets are in no file.
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"dp.secret" not in path.read_bytes()
    json.loads((folder / "done.json").read_bytes())


def test_a_resumed_noised_job_goes_on_with_its_secret():
    clients = federation(2)
    federated = private(method("fedavg", TRAINING), Examples(1.0, 1.0, 1e-3))
    network = build("mlp(widths=[12])", (6,), 3, keyed("net"))
    names = sorted(clients)
    backend = Remote(network, clients)
    state = start(federated, Model(network), names, 0)
    first, _ = play(federated, state, backend, names, 2)
    second, _ = play(federated, first, backend, names, 3)
    again, _ = play(federated, first, backend, names, 3)
    assert torch.equal(second.inbox["model"], again.inbox["model"])
