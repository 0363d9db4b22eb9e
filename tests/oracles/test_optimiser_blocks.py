"""Adam in runs of columns is Adam on the whole, to the bit, moments included."""

import pytest
import torch

from unseen.core import optimiser
from unseen.core.optimiser import Adam
from unseen.core.turn import keyed


@pytest.mark.parametrize("size", [1, 63, 64, 128, 129, 1000])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_blocks_are_the_whole(size: int, decay: float, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    found = []
    for columns in (64, 10**6):
        monkeypatch.setattr(optimiser, "COLUMNS", columns)
        generator = keyed("gradients")
        w, moments = torch.linspace(-1, 1, size), {}
        for _ in range(5):
            g = (
                torch.randn(size, generator=generator)
                * 10 ** torch.randint(-20, 2, (size,), generator=generator).float()
            )
            moments = dict(Adam(0.01, weight_decay=decay).step(w, g, moments, 0.01))
        found.append([w, *moments.values()])
    for mine, whole in zip(*found, strict=True):
        assert mine.numpy().tobytes() == whole.numpy().tobytes()
