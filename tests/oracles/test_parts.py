"""FedSGD and Fishr over large splits: sums over parts are the whole's, and no part is larger."""

from __future__ import annotations

import pytest
import torch
from support.alone import RECIPE, played
from support.sites import federation, images

from unseen import Client, Split, Training, UnseenError, method
from unseen.core.losses import CrossEntropy, SquaredError
from unseen.core.optimiser import SGD
from unseen.methods.local import in_parts


def parts_of(rows: int, monkeypatch: pytest.MonkeyPatch, columns: int = 6) -> None:
    monkeypatch.setattr(in_parts, "LARGE_ON_CPU", rows * columns)


def largest(expression: str, clients: dict[str, Client], monkeypatch, **options) -> list[int]:
    """How many examples the network saw at a time."""
    sizes: list[int] = []
    forward = torch.nn.Linear.forward

    def counted(self: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
        sizes.append(len(x))
        return forward(self, x)

    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.Linear, "forward", counted)
        played(expression, clients, 1, **options)
    return sizes


@pytest.mark.parametrize("rows", [1, 7, 16])
@pytest.mark.parametrize(
    "expression",
    ["fedsgd", "fishr(lam=3.0)", "fishr(lam=3.0, covariance='full')", "fedilc-inter(lam=2.0)"],
)
def test_parts_sum_up_to_the_whole(expression: str, rows: int, monkeypatch) -> None:
    clients = federation(3)
    whole = played(expression, clients, 2).state.inbox["model"]
    assert max(largest(expression, clients, monkeypatch)) == max(
        len(c.train) for c in clients.values()
    )
    parts_of(rows, monkeypatch)
    assert max(largest(expression, clients, monkeypatch)) == rows
    found = played(expression, clients, 2).state.inbox["model"]
    start = played(expression, clients, 0).state.inbox["model"]
    moved = float((whole - start).norm())
    torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-4 * moved)


@pytest.mark.parametrize("rows", [1, 7, 40])
@pytest.mark.parametrize(
    "expression",
    ["fedsgd(chunk={})", "fishr(lam=3.0, chunk={})", "fedsgd(chunk={0})+fishr(chunk={0})"],
)
def test_a_chunk_is_what_is_asked_for_and_changes_rounding_alone(
    expression: str, rows: int, monkeypatch
) -> None:
    clients = federation(3)  # up to 46 examples
    whole = played(expression.format("None"), clients, 2).state.inbox["model"]
    assert max(largest(expression.format("None"), clients, monkeypatch)) == 46
    assert max(largest(expression.format(rows), clients, monkeypatch)) == rows
    found = played(expression.format(rows), clients, 2).state.inbox["model"]
    start = played("fedsgd", clients, 0).state.inbox["model"]
    torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-4 * float((whole - start).norm()))


def test_a_chunk_of_none_is_refused_as_a_number() -> None:
    with pytest.raises(UnseenError, match="chunk"):
        method("fedsgd(chunk=0)")


def test_dropout_draws_the_same_in_both_passes(monkeypatch) -> None:
    """With one client the covariance is its own mean: the penalty is 0 if both see one network."""
    parts_of(7, monkeypatch)
    run = played("fishr(lam=100.0)", federation(1), 2, net="mlp(widths=[8], dropout=0.4)")
    assert all(float(o.table["penalty"]) == 0 for o in run.outcomes if "penalty" in o.table)
    assert any("penalty" in o.table for o in run.outcomes)


def test_a_squared_error_too(monkeypatch) -> None:
    training = Training(SGD(0.05), batch_size=8, loss=SquaredError())
    clients = {
        name: Client(name, Split(c.train.x, c.train.y.float()), None, None)
        for name, c in federation(3).items()
    }
    whole = played("fedsgd", clients, 2, training=training).state.inbox["model"]
    parts_of(5, monkeypatch)
    found = played("fedsgd", clients, 2, training=training).state.inbox["model"]
    torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-6)


def test_what_is_no_sum_over_parts_is_taken_whole(monkeypatch) -> None:
    clients = federation(3)
    most = max(len(c.train) for c in clients.values())
    parts_of(5, monkeypatch)
    balanced = Training(RECIPE.optimiser, batch_size=8, loss=CrossEntropy(balanced=True))
    assert max(largest("fedsgd", clients, monkeypatch, training=balanced)) == most
    assert max(largest("fedsgd+irm", clients, monkeypatch)) == most
    pictures = images(3)
    sizes = largest("fedsgd", pictures, monkeypatch, net="bn-cnn")
    assert max(sizes) == max(len(c.train) for c in pictures.values())
