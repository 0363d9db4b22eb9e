"""One call of a server rule on plain rows, and how close it must come to a transcription."""

from __future__ import annotations

import numpy as np
import torch

from support import literal


def play(rule, rows, generator=None, examples=None, dtype=torch.float64, layout=None):
    """One call of a rule on plain rows; the vector as an array, and the weights, if it has any."""
    rows = np.asarray(rows, dtype=float)
    count, size = rows.shape
    counts = np.ones(count) if examples is None else examples
    table = {"examples": torch.tensor(counts, dtype=torch.float64)}
    state = rule.init(count, size, layout)
    vector, _, weights = rule(torch.tensor(rows, dtype=dtype), table, state, generator)
    return vector.double().numpy(), None if weights is None else weights.numpy()


def play_elementwise(rule, rows, generator=None, examples=None, dtype=torch.float64, layout=None):
    """The vector of a rule that sees coordinates and has no weights."""
    vector, weights = play(rule, rows, generator, examples, dtype, layout)
    assert weights is None
    return vector


def close(found, hats, p=None, tolerance=1e-10):
    """The aggregate of the modified gradients, to a tolerance relative to the longest of them."""
    longest = max(np.linalg.norm(hat) for hat in hats)
    error = np.linalg.norm(found - literal.average(hats, p))
    assert error <= tolerance * longest, f"off by {error / longest:.3g} of the longest gradient"
