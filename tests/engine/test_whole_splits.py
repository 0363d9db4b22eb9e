"""One gradient of a whole split, its variances and Fishr's penalty: a batch gives what one does."""

from collections.abc import Sequence
from functools import partial

import pytest
import torch
from support.alone import blueprint, completed, played
from torch import nn

from unseen import Client, InProcess, Model, Split, Training, method, play, start
from unseen.core.losses import CrossEntropy, Loss, SquaredError
from unseen.core.optimiser import SGD
from unseen.core.parts import Wrapper
from unseen.core.turn import Turn, keyed
from unseen.data.networks import build
from unseen.engine.batch_plan import Answer, Examinee, Member
from unseen.engine.meeting import Meeting
from unseen.engine.model_batch import Trainer
from unseen.engine.stacked import Stacked, unstackable
from unseen.engine.whole_splits import together
from unseen.methods.gradient import Backprop, Fishr
from unseen.methods.gradient.fishr import VARIANCE, HeadCovariance
from unseen.methods.local.train import FullGradient, Measure, Penalised, Reports, received_loss

#: Largest difference, in units of the largest number: float32 has 6e-8 of each, and sums have up to
#: some forty terms, which cancel to a tenth.
TOLERANCE = 1e-5
LOSSES = [(CrossEntropy(), 3), (CrossEntropy(0.2), 3), (CrossEntropy(0.1), 1), (SquaredError(), 1)]


def clients(classes: int | None = 3, sizes: Sequence[int] = (20, 9, 13)) -> dict[str, Client]:
    found = {}
    for name, size in zip("abc", sizes, strict=True):
        x = torch.randn(size, 5, generator=keyed(name))
        y = x.sum(1) if classes is None else (x.sum(1) > 0).long() + (x[:, 0] > 1).long()
        found[name] = Client(name, Split(x, y if classes != 2 else y.clamp(max=1)), None, classes)
    return found


class Counted:
    """A trainer that keeps what it was brought."""

    def __init__(self) -> None:
        self.trainer, self.met = Trainer(), list[Member]()

    def __call__(self, members: Sequence[Member]) -> list[Answer]:
        self.met += members
        return self.trainer(members)


def apart(mine: torch.Tensor, expected: torch.Tensor) -> float:
    assert mine.dtype == expected.dtype and mine.shape == expected.shape
    return float((mine - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize(("loss", "outputs"), LOSSES)
@pytest.mark.parametrize("widths", [[], [7], [6, 4]])
def test_answers_are_those_of_one_client(loss: Loss, outputs: int, widths: list[int]) -> None:
    """Every local as it answers by itself, where splits are of three lengths."""
    numbers = isinstance(loss, SquaredError)
    roster = clients(None if numbers else 3 if outputs == 3 else 2)
    model = Model(build(f"mlp(widths={widths})", (5,), outputs, keyed("net")), shape=(5,))
    vector, statistic = model.vector.clone(), HeadCovariance(loss)
    mean = 0.01 * torch.rand(len(statistic.zeros(model)), generator=keyed("mean")).double()
    inbox = {"model": vector, "buffers": model.buffers, VARIANCE: mean}
    full = FullGradient(Backprop(loss))
    penalised = Penalised(full, Fishr(statistic, 3.0))
    for local, core, penalty in (
        (full, full, None), (Measure("c", statistic), Measure("c", statistic), None),
        (penalised, full, penalised),
    ):  # fmt: skip
        turns = [Turn(0, 2, 5, "train", name) for name in roster]
        asked = list(zip(roster.values(), turns, strict=True))
        members = [Examinee(model, c, inbox, {}, turn, core, penalty) for c, turn in asked]
        answers = Trainer()(members)
        for (client, turn), answer in zip(asked, answers, strict=True):
            model.bind(vector.clone(), model.buffers)
            reply, _ = local(model, inbox, client, {}, turn)
            assert answer.rows.keys() == reply.rows.keys() - {"buffers"}
            assert answer.scalars == pytest.approx(reply.scalars, rel=1e-5)
            for name, row in answer.rows.items():
                assert apart(row, reply.rows[name]) < TOLERANCE


@pytest.mark.parametrize(
    ("expression", "models"),
    [
        ("fedsgd", 12),
        ("geometric", 12),
        ("fishr(lam=0.7)", 24),
        ("fishr(lam=0.7, scale='released')", 24),
        ("fishr(lam=0.7, warmup=2)", 18),
        ("fedilc-inter(lam=0.7)", 24),
        ("fedsgd+fishr(lam=0.7)+ensemble(members=2)", 48),
    ],
)
def test_a_batch_takes_methods_of_one_gradient(expression: str, models: int) -> None:
    recipe, counted = Training(SGD(0.1, momentum=0.9)), Counted()
    one = played(expression, clients(), 4, 3, training=recipe)
    batched = played(
        expression, clients(), 4, 3, training=recipe, backend=partial(Stacked, trainer=counted)
    )
    assert len(counted.met) == models and all(isinstance(m, Examinee) for m in counted.met)
    assert apart(batched.state.inbox["model"], one.state.inbox["model"]) < TOLERANCE
    for mine, theirs in zip(batched.outcomes, one.outcomes, strict=True):
        assert mine.names == theirs.names and mine.table.keys() == theirs.table.keys()
        for name, values in theirs.table.items():
            torch.testing.assert_close(mine.table[name], values, rtol=1e-4, atol=1e-7)


def test_jobs_of_gradients_and_of_steps_meet() -> None:
    """Jobs whose rounds have one exchange and two, beside one that trains by steps."""
    texts = ["fedsgd", "fishr(lam=0.7)", "fedilc-inter(lam=0.5)", "fedavg"]

    def sweep(place) -> list:  # type: ignore[no-untyped-def, type-arg]
        runs = []
        for text in texts:
            roster = clients()
            chosen, own = completed(method(text, Training(SGD(0.1))), blueprint(roster, "mlp"))
            state = start(chosen, own, list(roster), 0)
            runs.append(partial(play, chosen, state, place(own, roster), list(roster), 3))
        return runs

    counted = Counted()
    meeting = Meeting(counted)
    expected = [run()[0].inbox["model"] for run in sweep(InProcess)]
    found = meeting.hold(sweep(partial(Stacked, trainer=meeting)))
    assert len(counted.met) == 3 * 3 * 6  # clients, rounds, exchanges
    for (state, _), theirs in zip(found, expected, strict=True):
        assert apart(state.inbox["model"], theirs) < TOLERANCE


def test_what_wraps_a_gradient_sees_the_received_model() -> None:
    roster, counted = clients(), Counted()
    model = Model(build("mlp(widths=[4])", (5,), 3, keyed("net")), shape=(5,))
    chosen = method("fedsgd", Training(SGD(0.1)))
    (exchange,) = (e for e in chosen.exchanges if e.slots)
    local = Reports(exchange.local, received_loss)
    assert isinstance(local, Wrapper)
    inbox = {"model": model.vector.clone(), "buffers": model.buffers}
    wrapped = type(exchange)(exchange.name, local, exchange.slots)
    for name, reply in zip(
        roster,
        Stacked(model, roster, trainer=counted).map(wrapped, inbox, list(roster), Turn(0, 0, 3)),
        strict=True,
    ):
        expected = received_loss(model, roster[name])["received_loss"]
        assert reply.scalars["received_loss"] == pytest.approx(expected)
        assert reply.scalars["loss"] == pytest.approx(expected)
    assert len(counted.met) == 3


def test_a_split_that_passes_in_parts_does_so_beside_a_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("unseen.engine.batch_reasons.LARGE", 70)  # 5 inputs, 9 to 20 examples
    counted = Counted()
    one = played("fishr(lam=0.7)", clients(), 2, 3)
    batched = played("fishr(lam=0.7)", clients(), 2, 3, backend=partial(Stacked, trainer=counted))
    assert {member.client.name for member in counted.met} == {"b", "c"}
    assert apart(batched.state.inbox["model"], one.state.inbox["model"]) < TOLERANCE


MLP = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
ENDS_IN_RELU = nn.Sequential(nn.Linear(5, 3), nn.ReLU())
DROPS = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Dropout(), nn.Linear(4, 3))
BALANCED = Training(loss=CrossEntropy(balanced=True))


@pytest.mark.parametrize(
    ("expression", "net", "training", "reason"),
    [
        ("fedsgd", MLP, Training(), ""),
        ("fishr", MLP, Training(), ""),
        ("fedilc-inter", MLP, Training(), ""),
        ("fishr(head='2')", MLP, Training(), ""),
        ("fishr(head='0')", MLP, Training(), "the head is not the last layer"),
        ("fishr", ENDS_IN_RELU, Training(), "the head is not the last layer"),
        ("fedsgd", ENDS_IN_RELU, Training(), ""),
        ("fedsgd(chunk=5)", MLP, Training(), "chunk is set"),
        ("fishr(chunk=5)", MLP, Training(), "chunk is set"),
        ("fishr(covariance='full')", MLP, Training(), "covariance is 'full'"),
        ("coral", MLP, Training(), "FeatureMoments is measured of one model at a time"),
        ("fedilc-intra-geo", MLP, Training(), "Environments reads or changes one model"),
        ("fedsgd+mixup", MLP, Training(), "Mixup changes steps of training"),
        ("fedsgd", MLP, BALANCED, "weighted by each client's own counts"),
        ("fishr", MLP, BALANCED, "weighted by each client's own counts"),
        ("fedsgd", nn.Sequential(nn.Linear(5, 3), nn.Tanh()), Training(), "no perceptron"),
        ("fedsgd", nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3)), Training(), "no perceptron"),
        ("fedsgd", DROPS, Training(), "no perceptron"),
    ],
)
def test_what_goes_one_by_one(
    expression: str, net: nn.Module, training: Training, reason: str
) -> None:
    found = unstackable(method(expression, training), Model(net, shape=(5,)), clients())
    assert reason in found and bool(found) == bool(reason)


@pytest.mark.parametrize("expression", ["fedsgd(chunk=5)", "coral", "fishr(covariance='full')"])
def test_one_by_one_is_the_same_to_the_bit(expression: str) -> None:
    counted = Counted()
    one = played(expression, clients(), 2, 3)
    other = played(expression, clients(), 2, 3, backend=partial(Stacked, trainer=counted))
    assert not counted.met
    assert torch.equal(one.state.inbox["model"], other.state.inbox["model"])


@pytest.mark.parametrize(
    ("lengths", "rows", "expected"),
    [
        ([3, 4, 4, 5], 12, [range(3), range(3, 4)]),
        ([3, 50], 12, [range(1), range(1, 2)]),
        ([50], 12, [range(1)]),
        ([2] * 7, 6, [range(3), range(3, 6), range(6, 7)]),
    ],
)
def test_batches_hold_no_more_rows(lengths: list[int], rows: int, expected: list[range]) -> None:
    assert together(lengths, rows) == expected
