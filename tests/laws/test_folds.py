"""A federation without one group of sites is its method on the others, bit for bit."""

from __future__ import annotations

import pytest
import torch
from support.alone import Played, played
from support.sites import federation

from unseen import Training
from unseen.core.client import Client
from unseen.core.optimiser import SGD
from unseen.core.turn import View
from unseen.engine.inprocess import InProcess
from unseen.engine.stacked import Stacked

NET = "mlp(widths=[7])"
RECIPE = Training(SGD(0.1), epochs=2, batch_size=16)
#: Methods whose rules count the clients, remember each of them, or take turns among them; and some
#: whose rules do not.
METHODS = (
    "fedavg", "fedprox", "scaffold", "scaffold(weights='uniform')", "feddyn(alpha=0.1)",
    "fedgloss", "mldg", "fedavg+ga(step=0.2)", "fedavg+afl(step=0.5)", "fedsgd+groupdro", "arfl",
    "krum", "fedcurv", "fedcsa", "coral",
)  # fmt: skip


def kept(clients: dict[str, Client], fold: int, groups: int) -> dict[str, Client]:
    names = sorted(clients)
    return {name: clients[name] for k, name in enumerate(names) if k % groups != fold}


def part(whole: Played, module: str) -> torch.Tensor:
    return whole.state.inbox["model"][slice(*whole.model.layout.span(module))]


@pytest.mark.parametrize("groups", [2, 3])
@pytest.mark.parametrize("expression", METHODS)
def test_a_fold_of_a_stack_is_the_method_alone(expression: str, groups: int) -> None:
    """The server counts, numbers and remembers those who take part, and nobody else."""
    clients = federation(6, n=24)
    members = f'["{expression}", "fedavg"]'
    whole = played(f"stack(members={members}, groups={groups})", clients, 4, 0, NET, RECIPE)
    for fold in range(groups):
        alone = played(expression, kept(clients, fold, groups), 4, 0, NET, RECIPE)
        # The folds of a member follow one another.
        assert torch.equal(part(whole, f"others.{fold}"), alone.state.inbox["model"])


@pytest.mark.parametrize(
    ("inner", "count"),
    [
        ("stack(members=['scaffold', 'fedavg'], groups=2)", 7),
        ("stack(members=['fedavg', 'glm(steps=2)'], groups=4)", 5),  # of three or four clients
        ("bag(of='boost(trees=2)', weights='uniform')", 5),
    ],
)
def test_folds_within_folds_leave_out_both_groups(inner: str, count: int) -> None:
    """The network of a fold is made for those who are left, too."""
    clients = federation(count, n=24)
    whole = played(f'stack(members=["{inner}", "fedavg"], groups=3)', clients, 4, 0, NET, RECIPE)
    for fold in range(3):
        alone = played(inner, kept(clients, fold, 3), 4, 0, NET, RECIPE)
        assert torch.equal(part(whole, f"others.{fold}"), alone.state.inbox["model"])


def test_places_among_those_who_are_left() -> None:
    """Against the roster written out."""
    roster = list(range(11))
    for folds in ((), ((0, 3),), ((2, 3),), ((1, 2), (0, 4)), ((4, 5), (1, 2), (0, 3))):
        left = roster
        for g, G in folds:
            left = [name for k, name in enumerate(left) if k % G != g]
        view = View("", "train", folds=folds)
        there, places = view.places(torch.tensor([*roster, -1], dtype=torch.float64))
        assert [name for name in roster if there[name]] == left
        assert places[:-1][there[:-1]].tolist() == [*range(len(left))]
        assert bool(there[-1]) and float(places[-1]) == -1 and view.size(11) == len(left)


def test_progress_is_that_of_the_method_alone() -> None:
    """r / R to the last bit, whenever the federation begins."""
    for rounds in range(2, 101):
        for begin in (0, rounds // 2, rounds, 3 * rounds):
            view = View("@m", "train", rounds=rounds, begin=begin)
            every = float(begin + rounds)
            for r in (0, rounds // 3, 2 * rounds // 5, rounds - 1):
                table = {
                    "progress": torch.tensor([(begin + r) / every], dtype=torch.float64),
                    "rounds": torch.tensor([every], dtype=torch.float64),
                }
                assert float(view.table(table)["progress"]) == r / rounds


@pytest.mark.parametrize(("fraction", "seed"), [(0.5, 0), (0.5, 3), (0.75, 1), (0.75, 4)])
def test_clients_with_and_without_memories_train_as_one_batch(fraction: float, seed: int) -> None:
    """FedDyn's first term is there for those who have taken part before, whoever is beside them."""
    clients, expression = federation(4, n=20), "feddyn(alpha=0.1)"
    one, batch = (
        played(expression, clients, 4, seed, NET, RECIPE, backend, fraction).state.inbox["model"]
        for backend in (InProcess, Stacked)
    )
    # Rounding of some forty steps of weights below 2.
    torch.testing.assert_close(one, batch, rtol=0, atol=2e-5)
