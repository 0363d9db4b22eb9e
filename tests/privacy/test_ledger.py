"""The ledger tells what really moved, and ε as the accountants have it."""

from __future__ import annotations

import json
import math

import pytest
import torch
from support.remote import Remote
from support.sites import federation

from unseen import Model, Training, method, play, start
from unseen.core import record_lines
from unseen.core.exchange import Reply
from unseen.core.optimiser import SGD
from unseen.core.round import Backend
from unseen.core.turn import Turn, keyed
from unseen.data.networks import build
from unseen.engine.inprocess import InProcess
from unseen.errors import BadReply
from unseen.privacy.accounting import epsilon
from unseen.privacy.dp import Clients, Examples, private
from unseen.privacy.ledger import Disclosure, Metered, card, summary
from unseen.studies.execution import Study
from unseen.studies.results import records

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
        def disclosed(self):
            return [
                Disclosure("site-a", "model", "encrypted", 999),
                Disclosure("site-a", "weights", "plain", 5),
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
    (tmp_path / record_lines.LEDGER).write_bytes(b"".join(map(record_lines.to_line, lines)))
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


CHANNELS = [("ckks", "ppdg", "encrypted"), ("masks()", "fedavg", "masked")]


def metered_behind(over, expression, inner=InProcess):
    """Three clients behind a channel, and what measures it."""
    pytest.importorskip("tenseal", reason="the extra he is not installed")
    from unseen.privacy import channel

    clients, federated = federation(3), method(expression, TRAINING)
    model = Model(build("mlp(widths=[12])", (6,), 3, keyed("net")))
    names = sorted(clients)
    backend = inner(model, clients)
    kind = channel.read(over)
    if kind.hides:
        backend = channel.wrap(kind, federated, backend, names)
        backend.played(federated)
    return Metered(backend, federated), federated, start(federated, model, names, 0), names


@pytest.mark.parametrize(("over", "expression", "form"), CHANNELS)
def test_the_bytes_of_a_channel_are_those_of_its_messages(over, expression, form):
    metered, federated, state, names = metered_behind(over, expression)
    sides, lengths = metered.backend.sites, []
    for side in sides.values():
        # Under masks a reply says of its two rows that they are there: nothing to count.
        for call in ("answer",) if form == "masked" else ("seal", "answer"):
            original = getattr(side, call)

            def weighed(*given, original=original):
                found = original(*given)
                lengths.extend(map(len, found.values() if isinstance(found, dict) else [found]))
                return found

            setattr(side, call, weighed)
    play(federated, state, metered, names, 2)
    lines = metered.lines()
    left = [item for line in lines for item in line["left"]]
    assert {e["form"] for e in left if e["slot"] == "model"} == {form}
    told = sum(b for e in left if e["slot"] != "scalars" for b in e["bytes"])
    assert told == sum(lengths)


@pytest.mark.parametrize(("over", "expression", "form"), CHANNELS)
def test_rows_poisoned_between_rounds_change_nothing_on_a_channel(over, expression, form):
    class Poisoned(InProcess):
        def map(self, exchange, inbox, clients, turn):
            self.matrix.fill_(torch.nan)
            self.buffers.fill_(torch.nan)
            self.model.gradient.fill_(torch.nan)
            return super().map(exchange, inbox, clients, turn)

    ends = []
    for way, inner in ((over, Poisoned), (over, InProcess), ("clear", InProcess)):
        metered, federated, state, names = metered_behind(way, expression, inner)
        ends.append(play(federated, state, metered, names, 2)[0].inbox["model"])
        assert metered.lines()
    for end in ends[:2]:
        torch.testing.assert_close(end, ends[2], rtol=1e-5, atol=1e-6)


class Breaking(InProcess):
    """The second client's number of examples, or its row, is not a number."""

    what = "examples"

    def map(self, exchange, inbox, clients, turn):
        replies = super().map(exchange, inbox, clients, turn)
        for i, name in enumerate(clients):
            if name == "site-b" and self.what == "examples":
                replies[i] = Reply(replies[i].rows, {**replies[i].scalars, "examples": math.nan})
            elif name == "site-b":
                replies[i].rows["model"].fill_(math.nan)
        return replies


@pytest.mark.parametrize("what", ["examples", "row"])
@pytest.mark.parametrize("over", ["clear", "ckks", "masks()"])
def test_a_broken_reply_is_measured_and_left_out_by_name(over, what, monkeypatch):
    monkeypatch.setattr(Breaking, "what", what)
    metered, federated, state, names = metered_behind(over, "fedavg", Breaking)
    with pytest.raises(BadReply, match="site-b"):
        play(federated, state, metered, names, 1)
    metered, federated, state, names = metered_behind(over, "fedavg", Breaking)
    state, outcomes = play(federated, state, metered, names, 2, on_bad_reply="drop")
    assert [list(outcome.dropped) for outcome in outcomes] == [["site-b"]] * 2
    assert bool(state.inbox["model"].isfinite().all())
    assert [line["clients"] for line in metered.lines()] == [names] * 2


@pytest.mark.parametrize("said", [math.nan, math.inf, -3.0, 0.0, 1e300, torch.ones(2)])
def test_a_number_of_examples_that_is_none_is_not_counted(said):
    pytest.importorskip("opacus", reason="the extra dp is not installed")

    class Site(Backend):
        """Some sites behind messages, of whose sizes the server knows what they say."""

        first, model, clients, memories = True, None, {}, None

        def map(self, exchange, inbox, clients, turn):
            told = said if self.first else 32.0
            self.first = False
            return [Reply({}, {"examples": 32.0}), Reply({}, {"examples": told}),
                    Reply(fault="no answer")]  # fmt: skip

    federated = private(method("fedavg", TRAINING), Examples(1.0, 1.1, 1e-3))
    metered = Metered(Site(), federated)
    (exchange,) = federated.exchanges
    names = ["a", "b", "c"]
    for round in range(2):
        metered.map(exchange, {}, names, Turn(0, round, 2, "train", roster=tuple(names)))
    first, second = metered.lines()
    assert first["examples"] == [32, 0, 0]
    spent = [line["epsilon"]["example"] for line in (first, second)]
    assert spent[0][1:] == [None, None]
    # What left before it said how many examples it has counts as soon as it does.
    assert spent[1] == [spent[1][0]] * 2 + [None]
    assert spent[1][0] > spent[0][0]
    (closing,) = metered.closing()
    assert [promise["client"] for promise in closing["guarantees"]] == ["a", "b"]


@pytest.mark.parametrize(("over", "expression", "form"), CHANNELS)
def test_a_study_over_a_channel_leaves_a_ledger_of_it(tmp_path, over, expression, form):
    pytest.importorskip("tenseal", reason="the extra he is not installed")
    study = small(privacy={"channel": over}).model_copy(update={"methods": (expression,)})
    study.run(tmp_path)
    (path,) = tmp_path.rglob(record_lines.LEDGER)
    lines = record_lines.read_lines(path.parent / record_lines.LEDGER)
    assert [line["exchange"] for line in lines] == ["train", "validate", "test"] * 2
    rows = [left for line in lines for left in line["left"] if left["slot"] == "model"]
    assert {left["form"] for left in rows} == {form}
    sizes = [size for left in rows for size in left["bytes"]]
    assert len(sizes) == 2 * 5 and min(sizes) > 2 * 2440  # twice float32 and more


def test_sums_over_columns_stand_in_the_ledger_unless_ranges_are_given(tmp_path):
    table = tmp_path / "sites.csv"
    rows = [f"{site},{i % 7},{'uv'[i % 2]},{i % 3 % 2}" for site in "abc" for i in range(20)]
    table.write_text("\n".join(["site,x,kind,y", *rows]) + "\n")
    for columns in (None, {"x": (0.0, 10.0)}):
        study = Study(
            dataset=f"table(path={str(table)!r}, domain='site', label='y')", model="logistic",
            methods=("fedavg",), targets=("a",), seeds=1, rounds=1, training={"batch_size": 8},
            privacy={"columns": columns},
        )  # fmt: skip
        out = tmp_path / ("summed" if columns is None else "ranged")
        study.run(out)
        (path,) = out.rglob(record_lines.LEDGER)
        first = record_lines.read_lines(path.parent / record_lines.LEDGER)[0]
        if columns is None:
            left = {"slot": "statistics", "form": "plain", "bytes": [8 * 7] * 2}
            assert first == {
                "round": 0, "exchange": "statistics", "clients": ["b", "c"], "left": [left],
            }  # fmt: skip
            assert "| statistics | statistics | plain | 56 | 2 |" in card(path.parent)
        else:
            assert first["exchange"] == "train"


def small(**settings) -> Study:
    return Study(
        dataset="rotated-digits", model="mlp(widths=[8])", methods=("fedavg",), seeds=1, rounds=2,
        targets=("0",), **settings,
    )  # fmt: skip


def test_a_job_leaves_a_ledger_and_the_card_reads_it(tmp_path):
    small().run(tmp_path)
    folder = records.Job("fedavg", "0", 0).folder(tmp_path)
    lines = record_lines.read_lines(folder / record_lines.LEDGER)
    assert [line["exchange"] for line in lines] == ["train", "validate", "test"] * 2
    rounds = record_lines.read_lines(folder / "rounds.jsonl")
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
    found = summary(record_lines.read_lines(folder / record_lines.LEDGER))
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


class Away(InProcess):
    """Some clients give no answer."""

    gone: tuple[str, ...] = ()

    def map(self, exchange, inbox, clients, turn):
        replies = super().map(exchange, inbox, clients, turn)
        return [
            Reply(fault="no answer") if name in self.gone else reply
            for name, reply in zip(clients, replies, strict=True)
        ]


@pytest.mark.parametrize("gone", [(), ("site-b",), ("site-b", "site-c")])
def test_the_noise_of_a_sum_is_that_of_those_who_came(gone, tmp_path):
    """σ √(m − 1) / √K of it is left to one of m who came, when K were to come; sensitivity is 2."""
    clients, names = federation(3), ["site-a", "site-b", "site-c"]
    noise = Clients(1.0, 8.0, 1e-3, "sum")
    federated = private(method("fedavg(weights='uniform')", TRAINING), clients=noise, summed=True)
    model = Model(build("mlp(widths=[12])", (6,), 3, keyed("net")))
    backend = Away(model, clients)
    backend.gone = gone
    metered = Metered(backend, federated)
    play(federated, start(federated, model, names, 0), metered, names, 1, on_bad_reply="drop")
    (line,) = metered.lines()
    m = 3 - len(gone)
    expected = epsilon(8 / 2 * math.sqrt((m - 1) / 3), 1.0, 1, 1e-3, "rdp") if m > 1 else None
    so_far = line["epsilon"]["client"][0]
    assert so_far == (expected if expected is None else pytest.approx(expected, rel=1e-4))
    # A run that goes on counts the same from its ledger.
    (tmp_path / record_lines.LEDGER).write_text(json.dumps(line) + "\n")
    later = Metered(Away(model, clients), federated)
    later.resume(tmp_path, names)
    assert later.closing()[0]["guarantees"] == metered.closing()[0]["guarantees"]


@pytest.mark.parametrize("method", ["boost(trees=1)", "forest(trees=1)", "glm"])
def test_rows_that_are_added_as_clients_answer_stand_in_the_ledger(tmp_path, method):
    rows = [f"{site},{i % 7},{i % 3 % 2}" for site in "abc" for i in range(20)]
    (tmp_path / "sites.csv").write_text("\n".join(["site,x,y", *rows]) + "\n")
    study = Study(
        dataset="table(path='sites.csv', domain='site', label='y')", model="logistic",
        methods=(method,), targets=("a",), seeds=1, rounds=1, training={"batch_size": 8},
    )  # fmt: skip
    study.run(tmp_path / "out", data_dir=tmp_path)
    (folder,) = (path.parent for path in tmp_path.rglob(record_lines.LEDGER))
    lines = record_lines.read_lines(folder / record_lines.LEDGER)
    played = record_lines.read_lines(folder / "rounds.jsonl")
    trained = [line for line in lines if line["exchange"] not in ("statistics", "validate", "test")]
    models = ([x for x in line["left"] if x["slot"] == "model"] for line in trained)
    sent = [sum(sum(left["bytes"]) for left in each) for each in models]
    assert sent and 0 not in sent
    assert len(sent) == len([line for line in played if "exchange" in line])
