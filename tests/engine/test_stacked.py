"""A batch of models trains as its models do one by one, to rounding; the rest is refused."""

from dataclasses import replace

import pytest
import torch
from support.alone import played
from torch import nn

from unseen import Client, InProcess, Model, Split, Training, UnseenError, method, play, start
from unseen.core.exchange import Method
from unseen.core.losses import CrossEntropy
from unseen.core.optimiser import SGD, Adam
from unseen.core.turn import keyed
from unseen.engine.stacked import Run, Stacked, play_together, unstackable
from unseen.models import build

#: Largest difference of a parameter, in units of the largest one: rounding, over some twenty steps.
TOLERANCE = 2e-5
SHAPES = {"mlp(widths=[7])": (3, 4), "mnist-cnn(channels=[3, 5], hidden=6)": (1, 8, 8)}
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


def model(net: str, device: str = "cpu") -> Model:
    module = build(net, SHAPES[net], 3, keyed("net"))
    if len(SHAPES[net]) == 3:
        module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Model(module, device, SHAPES[net])


def close(mine: torch.Tensor, expected: torch.Tensor) -> bool:
    return float((mine.cpu() - expected).abs().max() / expected.abs().max()) < TOLERANCE


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("net", SHAPES)
@pytest.mark.parametrize(
    ("expression", "training"),
    [
        ("fedavg", Training(SGD(0.1, momentum=0.9, weight_decay=0.01), epochs=2, batch_size=4)),
        ("fedavg", Training(Adam(0.01), epochs=None, steps=5, batch_size=8)),
        ("fedprox(mu=0.5)", Training(SGD(0.1), epochs=1, batch_size=6, drop_last=True)),
        ("ppdg(lam=0.2)", Training(Adam(0.01, weight_decay=0.1), loss=CrossEntropy(0.1))),
    ],
)
def test_stacked_is_one_by_one(net: str, expression: str, training: Training, device: str) -> None:
    chosen, found = method(expression, training), []
    for kind, place in ((InProcess, "cpu"), (Stacked, device)):
        bound = model(net, place)
        roster = clients(SHAPES[net])
        state = start(chosen, bound, list(roster), 3)
        found.append(play(chosen, state, kind(bound, roster), list(roster), 3, 0.7))
    (one, outcomes), (together, stacked) = found
    assert close(together.inbox["model"], one.inbox["model"])
    for mine, expected in zip(stacked, outcomes, strict=True):
        assert mine.names == expected.names
        assert torch.equal(mine.table["steps"], expected.table["steps"])
        assert torch.equal(mine.table["examples"], expected.table["examples"])
        torch.testing.assert_close(mine.table["loss"], expected.table["loss"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "expression",
    ["fedavg+ensemble(members=3)", "fedprox(mu=0.5)+ppdg+ensemble(members=2)", "fedavg+tail"],
)
def test_federations_in_one_message_train_as_one_batch(expression: str) -> None:
    """Members of an ensemble, and a federation with its average, against one model at a time."""
    recipe = Training(SGD(0.1, momentum=0.9), epochs=2, batch_size=4)
    one, stacked = (
        played(expression, clients((3, 4)), 3, training=recipe, backend=kind)
        for kind in (InProcess, Stacked)
    )
    assert close(stacked.state.inbox["model"], one.state.inbox["model"])
    for mine, expected in zip(stacked.outcomes, one.outcomes, strict=True):
        assert mine.table.keys() == expected.table.keys()
        for name in mine.table:
            torch.testing.assert_close(mine.table[name], expected.table[name], rtol=1e-4, atol=1e-6)


def test_precision_is_that_of_the_model() -> None:
    """In bfloat16 both ways round products of layers, and differ by no more than that."""
    found = []
    for kind, precision in ((InProcess, "float32"), (InProcess, "bf16"), (Stacked, "bf16")):
        module = build("mlp(widths=[7])", (3, 4), 3, keyed("net"))
        bound = Model(module, "cpu", (3, 4), precision)  # type: ignore[arg-type]
        roster, chosen = clients((3, 4)), method("fedavg", Training(SGD(0.1), batch_size=4))
        state = start(chosen, bound, list(roster), 3)
        state, _ = play(chosen, state, kind(bound, roster), list(roster), 1)  # type: ignore[arg-type]
        found.append(state.inbox["model"])
    exact, one, together = found
    apart = float((one - exact).abs().max())
    assert 0 < apart < 0.01
    assert 0 < float((together - exact).abs().max()) < 3 * apart
    assert float((together - one).abs().max()) < 2 * apart


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


@pytest.mark.parametrize(
    ("expression", "net", "training", "reason"),
    [
        ("fedavg", nn.Linear(4, 2), Training(), ""),
        ("fedprox+ppdg", nn.Linear(4, 2), Training(), ""),
        ("scaffold", nn.Linear(4, 2), Training(), "send more than their model"),
        ("fedavg+ga", nn.Linear(4, 2), Training(), "GapProbe does more than train"),
        ("fedavg+ensemble(members=2)", nn.Linear(4, 2), Training(), ""),
        ("fedavg+ga+ensemble", nn.Linear(4, 2), Training(), "GapProbe does more than train"),
        ("fedavg+tail+ensemble", nn.Linear(4, 2), Training(), "changes the network"),
        ("stack(members=['fedavg', 'fedprox'])", nn.Linear(4, 2), Training(), "ends by itself"),
        ("stack(members=['glm', 'fedavg'])", nn.Linear(4, 2), Training(), "changes the network"),
        ("csac", nn.Linear(4, 2), Training(), "not have one training exchange in every round"),
        ("fedavg", nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)), Training(), "statistics"),
        ("fedavg", nn.Linear(4, 2).requires_grad_(False), Training(), "frozen weights"),
    ],
)
def test_what_a_study_trains_one_by_one(
    expression: str, net: nn.Module, training: Training, reason: str
) -> None:
    x = torch.randn(8, 4, generator=keyed("x"))
    roster = {"a": Client("a", Split(x, (x[:, 0] > 0).long()), None, 2)}
    found = unstackable(method(expression, training), Model(net, shape=(4,)), roster)
    assert reason in found and bool(found) == bool(reason)


def sweep(kind: type[InProcess] | type[Stacked], bound: Model) -> list[Run]:
    """Two seeds, two rates, two targets, and two methods."""
    runs = []
    vector = bound.vector.clone()
    for seed, lr in ((0, 0.1), (1, 0.02)):
        for target in "ac":
            chosen: Method = method(
                "fedprox(mu=0.1)" if target == "a" else "ppdg", Training(SGD(lr))
            )
            roster = {n: c for n, c in clients(SHAPES["mlp(widths=[7])"]).items() if n != target}
            state = start(chosen, bound, list(roster), seed)
            begun = vector + 0.01 * torch.randn(len(vector), generator=keyed(str(seed)))
            state = replace(state, inbox={**state.inbox, "model": begun})
            runs.append(Run(chosen, state, kind(bound, roster), list(roster)))  # type: ignore[arg-type]
    return runs


def test_a_sweep_is_its_runs_one_by_one() -> None:
    one_by_one = sweep(InProcess, model("mlp(widths=[7])"))
    expected = [play(run.method, run.state, run.backend, run.clients, 4) for run in one_by_one]
    runs = sweep(Stacked, model("mlp(widths=[7])"))
    outcomes = play_together(runs, 4)
    for run, mine, (state, theirs) in zip(runs, outcomes, expected, strict=True):
        assert run.state.round == 4 and len(mine) == len(theirs)
        assert close(run.state.inbox["model"], state.inbox["model"])


@pytest.mark.parametrize(
    ("expression", "net", "training", "reason"),
    [
        ("fedavg+ga", nn.Linear(4, 2), Training(), "GapProbe does more than train"),
        ("fedsam", nn.Linear(4, 2), Training(), "one model at a time"),
        ("fedavg", nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)), Training(), "BatchNorm"),
        ("fedavg", nn.Sequential(nn.Dropout(0.1), nn.Linear(4, 2)), Training(), "Dropout"),
        ("fedavg", nn.Linear(4, 2), Training(keep_optimiser=True), "keep_optimiser"),
        ("fedavg", nn.Linear(4, 2), Training(loss=CrossEntropy(balanced=True)), "weighted"),
    ],
)
def test_what_is_refused(expression: str, net: nn.Module, training: Training, reason: str) -> None:
    x = torch.randn(8, 4, generator=keyed("x"))
    roster = {"a": Client("a", Split(x, (x[:, 0] > 0).long()), None, 2)}
    bound, chosen = Model(net, shape=(4,)), method(expression, training)
    state = start(chosen, bound, ["a"], 0)
    with pytest.raises(UnseenError, match=f"cannot be trained as one batch: .*{reason}"):
        play(chosen, state, Stacked(bound, roster), ["a"], 1)
