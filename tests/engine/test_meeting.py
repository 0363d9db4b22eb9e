"""What every job of a meeting takes, of the time in which all of them run."""

from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from support.alone import played

from unseen import Client, Split, Training
from unseen.core.optimiser import SGD
from unseen.core.turn import keyed
from unseen.engine import meeting
from unseen.engine.batch_plan import Answer, Member
from unseen.engine.meeting import Meeting
from unseen.engine.model_batch import Trainer
from unseen.engine.stacked import Stacked


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that pass where a test says so, and nowhere else."""
    seconds = [100.0]
    monkeypatch.setattr(meeting, "time", SimpleNamespace(monotonic=lambda: seconds[0]))
    return seconds


def clients(count: int) -> dict[str, Client]:
    found = {}
    for name in "abcde"[:count]:
        x = torch.rand((8, 4), generator=keyed(name))
        found[name] = Client(name, Split(x, (3 * x[:, 0]).long()), None, 3)
    return found


def test_a_job_counts_its_turns_and_its_share_of_batches(now: list[float]) -> None:
    """A batch of 1 and 3 models takes four seconds: one of the first job, three of the other."""
    trainer = Trainer()

    def slow(members: Sequence[Member]) -> list[Answer]:
        now[0] += len(members)
        return trainer(members)

    together = Meeting(slow)
    place = partial(Stacked, trainer=together)

    def job(count: int, own: float, rounds: int) -> float:
        start = together.seconds()
        now[0] += own
        recipe = Training(SGD(0.1), batch_size=4)
        played("fedavg", clients(count), rounds, 1, "mlp(widths=[4])", recipe, place)
        return together.seconds() - start

    jobs: list[Callable[[], float]] = [partial(job, 1, 10.0, 2), partial(job, 3, 20.0, 3)]
    # Two rounds of both, and a third of the second job alone.
    assert together.hold(jobs) == [10.0 + 2 * 1, 20.0 + 3 * 3]
    assert now[0] == 100.0 + 30.0 + 2 * 4 + 3
