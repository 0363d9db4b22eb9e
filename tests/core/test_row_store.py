"""Rows on disk give the bits of rows in memory; freed memory is kept; the allocator's settings."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from unseen import Client, InProcess, Model, Split, Training, method, play, start
from unseen.core.exchange import State
from unseen.core.optimiser import SGD
from unseen.core.row_store import RowMatrix, available, keep_freed_memory
from unseen.core.rows import gram
from unseen.core.turn import keyed
from unseen.errors import UnseenError


def clients() -> dict[str, Client]:
    found = {}
    for name in "abcde":
        generator = keyed(name)
        x = torch.randn(24, 6, generator=generator)
        found[name] = Client(name, Split(x, (x[:, 0] > 0).long()), None, 2)
    return found


def played(expression: str, limit: int | None) -> tuple[State, InProcess]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 2))
    model, roster = Model(net, shape=(6,)), clients()
    chosen = method(expression, Training(SGD(0.1, momentum=0.9), batch_size=8))
    backend = InProcess(model, roster, memory_limit=limit)
    state, _ = play(chosen, start(chosen, model, list(roster), 0), backend, list(roster), 3, 0.6)
    return state, backend


@pytest.mark.parametrize(
    "expression",
    [
        "fedavg",
        "ppdg(lam=0.2)+ga",
        "pcgrad",
        "geometric",
        "trimmed-mean",
        "krum",
        "agrsum",
        "scaffold",
    ],
)
def test_rows_in_a_file_give_the_same_bits(expression: str) -> None:
    (inside, memory), (outside, file) = played(expression, None), played(expression, 0)
    assert memory._rows.file is None and file._rows.file is not None
    assert state_bytes(inside.inbox) == state_bytes(outside.inbox)


def state_bytes(inbox: Mapping[str, Tensor]) -> dict[str, bytes]:
    return {name: entry.numpy().tobytes() for name, entry in inbox.items()}


def test_the_limit_decides_where_rows_lie() -> None:
    like = torch.zeros(20)  # 20 numbers take 32 places, for the rows' alignment
    assert RowMatrix(3, like, 3 * 32 * 4).file is None
    rows = RowMatrix(3, like, 3 * 32 * 4 - 1)
    assert rows.file is not None and rows.matrix.shape == (3, 20)
    assert all(row.data_ptr() % 64 == 0 for row in rows.matrix)
    rows.matrix.copy_(torch.arange(60.0).view(3, 20))
    rows.let_go()
    assert torch.equal(rows.matrix, torch.arange(60.0).view(3, 20))
    free = available()
    assert RowMatrix(1, like).file is None and (free is None or free > 0)


def test_a_disk_that_is_too_small_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(UnseenError, match=r"No space left on device\. Set TMPDIR"):
        RowMatrix(2, torch.zeros(8), 0)


def test_many_clients_have_their_inner_products_summed_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = torch.randint(-4, 5, (7, 50), generator=keyed("rows")).float()  # exact in any order
    monkeypatch.setattr("unseen.core.rows.GRAM_NUMBERS", 2 * 7 * 7)
    assert torch.equal(gram(rows, width=8), (rows @ rows.T).double())


def test_who_sets_the_allocator_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1000000")
    assert not keep_freed_memory.__wrapped__()
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_")
    monkeypatch.setattr("sys.platform", "darwin")
    assert not keep_freed_memory.__wrapped__()
    assert Path("/proc").exists() or available() is None
