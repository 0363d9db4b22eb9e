"""A batch of models trains as its models do one by one, to rounding; the rest is refused."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from support.alone import blueprint, completed, played
from torch import nn

from unseen import Client, InProcess, Model, Split, Training, UnseenError, method, play, start
from unseen.core.exchange import Outcome
from unseen.core.losses import CrossEntropy
from unseen.core.optimiser import SGD, Adam
from unseen.core.turn import Turn, keyed
from unseen.data.networks import build
from unseen.data.networks.stages import cut
from unseen.engine.batch_plan import Answer, Member
from unseen.engine.meeting import Meeting
from unseen.engine.model_batch import Trainer
from unseen.engine.stacked import Stacked, unstackable
from unseen.methods.local.batches import batch_grid, batches

#: Largest difference of a parameter, in units of the largest one: rounding, over some twenty steps.
TOLERANCE = 2e-5
NET, SHAPE = "mlp(widths=[7])", (3, 4)
DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
    ),
]


def clients(shape: tuple[int, ...], sizes: tuple[int, ...] = (20, 9, 13)) -> dict[str, Client]:
    found = {}
    for name, size in zip("abc", sizes, strict=True):
        x = torch.randint(0, 256, (size, *shape), generator=keyed(name), dtype=torch.uint8)
        found[name] = Client(name, Split(x, x.flatten(1).long().sum(1) % 3), None, 3)
    return found


def model() -> Model:
    return Model(build(NET, SHAPE, 3, keyed("net")), shape=SHAPE)


def close(mine: torch.Tensor, expected: torch.Tensor) -> bool:
    return apart(mine, expected) < TOLERANCE


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("expression", "training"),
    [
        ("fedavg", Training(SGD(0.1, momentum=0.9, weight_decay=0.01), epochs=2, batch_size=4)),
        # Adam divides by the gradient: a small eps would make steps of what is rounding alone.
        ("fedavg", Training(Adam(0.01, eps=1e-3), epochs=None, steps=5, batch_size=8)),
        ("fedprox(mu=0.5)", Training(SGD(0.1), epochs=1, batch_size=6, drop_last=True)),
        ("ppdg(lam=0.2)", Training(Adam(0.01, eps=1e-3, weight_decay=0.1), loss=CrossEntropy(0.1))),
        ("scaffold", Training(SGD(0.1, momentum=0.5), epochs=2, batch_size=6)),
        ("fedprox(mu=0.1)+ga", Training(SGD(0.1, momentum=0.5), epochs=1, batch_size=6)),
        ("fedavg+shift(alpha=0.7)", Training(SGD(0.1), epochs=2, batch_size=6)),
    ],
)
def test_stacked_is_one_by_one(expression: str, training: Training, device: str) -> None:
    one, together = (
        played(expression, clients(SHAPE), 3, 3, NET, training, kind, fraction=0.7, device=place)
        for kind, place in ((InProcess, "cpu"), (Stacked, device))
    )
    assert close(together.state.inbox["model"], one.state.inbox["model"])
    same_tables(together.outcomes, one.outcomes)


def apart(mine: torch.Tensor, expected: torch.Tensor) -> float:
    return float((mine.cpu() - expected).abs().max() / expected.abs().max())


def same_tables(outcomes: Sequence[Outcome], expected: Sequence[Outcome]) -> None:
    for mine, theirs in zip(outcomes, expected, strict=True):
        assert mine.names == theirs.names and mine.table.keys() == theirs.table.keys()
        for name in mine.table:
            torch.testing.assert_close(mine.table[name], theirs.table[name], rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize(
    "expression",
    [
        "fedavg+ensemble(members=3)",
        "fedprox(mu=0.5)+ppdg+ensemble(members=2)",
        "fedavg+tail",
        "scaffold+ensemble(members=2)",
        "stack(members=['glm', 'fedavg+shift+ensemble(members=2)', 'fedavg'], groups=3)",
    ],
)
def test_federations_in_one_message_train_as_one_batch(expression: str) -> None:
    """Members of ensembles and of a stack, and folds, against one model at a time."""
    recipe = Training(SGD(0.1, momentum=0.9), epochs=2, batch_size=4)
    roster = {name: floats(client) for name, client in clients((5,)).items()}
    one, stacked = (
        played(expression, roster, 3, training=recipe, backend=kind)
        for kind in (InProcess, Stacked)
    )
    assert close(stacked.state.inbox["model"], one.state.inbox["model"])
    same_tables(stacked.outcomes, one.outcomes)


def floats(client: Client, scale: float = 1) -> Client:
    """The client with real numbers for bytes."""
    split = client.split("train")
    assert isinstance(split.x, torch.Tensor)
    return replace(client, train=Split(split.x.float() * (scale / 255), split.y))


@pytest.mark.parametrize(
    "expression", ["copa", "fishr", "fedilc-inter", "fedilc-intra-geo", "scaffold", "fedprox+ga"]
)
def test_methods_that_look_into_the_net_do_so_in_bfloat16(expression: str) -> None:
    found = []
    for precision in ("float32", "bf16"):
        module = build("mlp(widths=[7])", (3, 4), 3, keyed("net"))
        bound = Model(module, "cpu", (3, 4), precision)  # type: ignore[arg-type]
        roster, chosen = clients((3, 4)), method(expression, Training(SGD(0.01), batch_size=4))
        state, _ = play(chosen, start(chosen, bound, list(roster), 3), InProcess(bound, roster),
                        list(roster), 1)  # fmt: skip
        found.append(state.inbox["model"])
    exact, rounded = found
    assert 0 < float((rounded - exact).abs().max()) < 0.05


def behind(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 2), layer)


@pytest.mark.parametrize(
    ("expression", "net", "training", "reason"),
    [
        ("fedavg", nn.Linear(4, 2), Training(), ""),
        ("fedprox+ppdg", nn.Linear(4, 2), Training(), ""),
        ("scaffold", nn.Linear(4, 2), Training(), ""),
        ("fedavg+ga", nn.Linear(4, 2), Training(), ""),
        ("glm", nn.Linear(4, 2), Training(), "do not train by steps"),
        ("fedavg+ensemble(members=2)", nn.Linear(4, 2), Training(), ""),
        ("fedavg+ga+ensemble", nn.Linear(4, 2), Training(), ""),
        ("stack(members=['glm', 'fedavg'])", nn.Linear(4, 2), Training(), ""),
        ("fedavg", nn.Linear(4, 2).requires_grad_(False), Training(), "frozen weights"),
        ("fedsam", nn.Linear(4, 2), Training(), "one model at a time"),
        ("fedavg+mixup", nn.Linear(4, 2), Training(), "one model at a time"),
        ("fedsgd", nn.Linear(4, 2), Training(), "does not train by steps"),
        ("fedavg", behind(nn.BatchNorm1d(2)), Training(), "not a perceptron"),
        ("fedavg", behind(nn.Dropout()), Training(), "not a perceptron"),
        ("fedavg", nn.Linear(4, 2), Training(augment=lambda x, generator: x), "training.augment"),
        ("fedavg", nn.Linear(4, 2), Training(keep_optimiser=True), "keep_optimiser"),
        ("fedavg", nn.Linear(4, 2), Training(loss=CrossEntropy(balanced=True)), "weighted"),
    ],
)
def test_what_a_study_trains_one_by_one(
    expression: str, net: nn.Module, training: Training, reason: str
) -> None:
    x = torch.randn(8, 4, generator=keyed("x"))
    roster = {"a": Client("a", Split(x, (x[:, 0] > 0).long()), None, 2)}
    found = unstackable(method(expression, training), Model(net, shape=(4,)), roster)
    assert reason in found and bool(found) == bool(reason)


def sweep(place: Callable[..., Any]) -> list[Callable[[], Any]]:
    """Two seeds, two rates, two targets, and two methods, one of which has two more exchanges."""
    runs = []
    for seed, lr in ((0, 0.1), (1, 0.02)):
        for target in "ac":
            text = "fedprox(mu=0.1)" if target == "a" else "fedavg+shift"
            roster = {n: floats(c) for n, c in clients((5,)).items() if n != target}
            chosen, own = completed(method(text, Training(SGD(lr))), blueprint(roster, "mlp"))
            state = start(chosen, own, list(roster), seed)
            runs.append(partial(play, chosen, state, place(own, roster), list(roster), 4))
    return runs


def test_a_sweep_is_its_runs_one_by_one() -> None:
    expected = [run() for run in sweep(InProcess)]
    sizes, trainer = list[int](), Trainer()

    def counted(members: Sequence[Member]) -> list[Answer]:
        sizes.append(len(members))
        return trainer(members)

    meeting = Meeting(counted)
    outcomes = meeting.hold(sweep(partial(Stacked, trainer=meeting)))
    for (mine, more), (theirs, others) in zip(outcomes, expected, strict=True):
        assert close(mine.inbox["model"], theirs.inbox["model"])
        same_tables(more, others)
    assert sizes == [8, 8, 8, 8]


def test_a_job_that_fails_ends_the_meeting() -> None:
    meeting = Meeting(Trainer())
    runs = sweep(partial(Stacked, trainer=meeting))

    def fails() -> None:
        raise UnseenError("this job fails.")

    with pytest.raises(UnseenError, match="this job fails"):
        meeting.hold([*runs, fails])


def test_a_job_of_other_networks_trains_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks, losses and optimisers differ from job to job: a batch of each kind."""
    monkeypatch.setattr("unseen.engine.model_batch.TOGETHER", 2)
    texts = [("mlp(widths=[7])", SGD(0.1)), ("mlp(widths=[4, 3])", SGD(0.1)), ("mlp", Adam(0.01))]
    meeting = Meeting(Trainer())

    def run(net: str, optimiser: Any, place: Callable[..., Any]) -> Any:
        recipe = Training(optimiser, batch_size=4)
        return played("fedavg", clients((5,)), 2, 1, net, recipe, place).state.inbox["model"]

    one = [run(net, optimiser, InProcess) for net, optimiser in texts]
    place = partial(Stacked, trainer=meeting)
    together = meeting.hold([partial(run, net, optimiser, place) for net, optimiser in texts])
    assert all(map(close, together, one))


def test_a_head_behind_a_frozen_trunk_trains_in_batches_on_a_cpu() -> None:
    """The same parameters as one by one; behind blocks that train it is not alone."""
    roster, chosen = clients((512,)), method("fedavg+ga", Training(SGD(0.1, momentum=0.9)))
    found = []
    for kind in (InProcess, Stacked):
        _, head = cut(build("resnet18", (3, 32, 32), 3, keyed("net")), "trunk")
        own = Model(head, "cpu", (512,))
        assert unstackable(chosen, own, roster) == ""
        state = start(chosen, own, list(roster), 0)
        before = state.inbox["model"].clone()
        state, _ = play(chosen, state, kind(own, roster), list(roster), 2)
        assert not close(state.inbox["model"], before)
        found.append(state.inbox["model"])
    assert close(found[1], found[0])
    _, rest = cut(build("resnet18", (3, 32, 32), 3, keyed("net")), "blocks[:7]")
    assert "not a perceptron" in unstackable(chosen, Model(rest, "cpu", (256, 2, 2)), roster)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("steps", [None, 1, 7])
@pytest.mark.parametrize("examples", [8, 12, 17])
def test_a_grid_of_batches_holds_the_batches(
    examples: int, steps: int | None, drop_last: bool
) -> None:
    epochs = 3 if steps is None else None
    recipe = Training(epochs=epochs, steps=steps, batch_size=8, drop_last=drop_last)
    turn = Turn(0, 2, 5, "train", "site")
    split = Split(torch.zeros(examples, 1), torch.zeros(examples, dtype=torch.long))
    grid = batch_grid(examples, recipe, turn)
    rows = [row[row >= 0].tolist() for row in grid]
    assert rows == [index.tolist() for index in batches(split, recipe, turn)]
    assert all((row[: len(own)] >= 0).all() for row, own in zip(grid, rows, strict=True))


def test_no_pass_has_a_whole_batch() -> None:
    recipe = Training(epochs=2, batch_size=8, drop_last=True)
    with pytest.raises(UnseenError, match="'site' would take no step: its 5 training examples"):
        batch_grid(5, recipe, Turn(0, 0, 1, "train", "site"))
