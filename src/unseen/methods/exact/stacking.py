"""Weights of models, from predictions that each site makes of rows that no model has seen.

Site k has, for its own rows, the predictions P_k [n_k C, M] of M models that were trained without
it, and the one-hot labels y_k [n_k C]. It sends

    A_k = P_kᵀ P_k / n_k,   b_k = P_kᵀ y_k / n_k,   c_k = y_kᵀ y_k / n_k

so that wᵀA w − 2 bᵀw + c, summed over sites, is K times the mean Brier score of Σ_m w_m p_m: each
site counts alike, since the unseen one is a draw from the sites. The weights minimise it on the
simplex. Each site then compares the weights that the other sites' sums give with equal ones on its
own rows, and they are used where they are better by a standard error over sites: weights judged on
the rows that they were made of would nearly always be.

Source:
    Wolpert 1992, "Stacked Generalization"; Breiman 1996, "Stacked Regressions"; van der Laan,
    Polley and Hubbard 2007, "Super Learner".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unseen.core import Client, Inbox, Memory, Model, Reply, RuleState, Split, Turn, WithState
from unseen.core.metrics.evaluation import EVALUATION_BATCH
from unseen.core.parts import Part
from unseen.core.types import Table
from unseen.data.networks.mixture import Mixture, probabilities

Array = npt.NDArray[np.float64]
#: What a site remembers of its row until the sum has come, and what the sum is called.
ROW, SUMS = "stack.row", "stack.sums"


def simplex(A: Array, b: Array, c: float, shrink: float = 0.0) -> Array:
    """Return w ≥ 0, Σ w = 1, that minimises wᵀA w − 2 bᵀw + c + λ ‖w − u‖², u = 1/M.

    On the simplex it is wᵀE w with the products of errors E = A − b1ᵀ − 1bᵀ + c + λ (I − 1/M), and
    the minimum of wᵀE w + (1ᵀw − 1)² over w ≥ 0 is a multiple of the one on the simplex.

    Args:
        A: [M, M].
        b: [M].
        c: A number.
        shrink: λ, by which weights are drawn towards equal ones.

    Example:
        >>> simplex(np.eye(2), np.array([1.0, 0.0]), 1.0).round(6).tolist()
        [1.0, 0.0]
        >>> simplex(np.ones((2, 2)), np.ones(2), 1.0, shrink=0.05).round(6).tolist()
        [0.5, 0.5]
    """
    from scipy.optimize import nnls  # a third of a second of every process that needs it not

    M = len(b)
    errors = (A + A.T) / 2 - b[:, None] - b + c + shrink * (np.eye(M) - 1 / M)
    values, vectors = np.linalg.eigh(errors / max(float(np.abs(errors).max()), 1e-300))
    root = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T
    weights, _ = nnls(np.vstack([root, np.ones(M)]), np.append(np.zeros(M), 1.0))
    total = float(weights.sum())
    return weights / total if total > 0 else np.full(M, 1 / M)


def products(predictions: Tensor, y: Tensor) -> Tensor:
    """Return the row [A, b, c] of a site, flat.

    Args:
        predictions: Probabilities [M, N, C], or numbers [M, N, 1]. Where a model gives none, it is
            scored as one that guesses: the same for every class, or 0.
        y: Classes [N], or numbers [N].
    """
    M, n, C = predictions.shape
    guess = 0.0 if y.is_floating_point() else 1 / C
    P = predictions.double().nan_to_num(guess, guess, guess).reshape(M, -1)
    labels = (y.double() if y.is_floating_point() else F.one_hot(y, C).double()).flatten()
    n = max(1, n)
    A, b, c = P @ P.T / n, P @ labels / n, labels @ labels / n
    return torch.cat([A.flatten(), b, c[None]])


def parts(row: Tensor, M: int) -> tuple[Array, Array, float]:
    """Return A, b and c of a row, or of a sum of rows."""
    numbers = row.double().cpu().numpy()
    return numbers[: M * M].reshape(M, M), numbers[M * M : M * M + M], float(numbers[-1])


def members(row: Tensor) -> int:
    """Return M of a row [A, b, c] of M² + M + 1 numbers."""
    return math.isqrt(len(row))


def brier(row: Tensor, weights: Tensor) -> Tensor:
    """Return wᵀA w − 2 bᵀw + c of a row for weights [M]."""
    M = len(weights)
    w, row = weights.double(), row.double()
    return w @ row[: M * M].view(M, M) @ w - 2 * row[M * M : -1] @ w + row[-1]


@dataclass(frozen=True)
class LeftOut(Part):
    """What a site sends: the products of predictions by the models trained without it.

    Attributes:
        members: M.
        groups: G; the site at place i of the roster belongs to group i mod G.
    """

    sends_sums = True

    members: int
    groups: int

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        """Return the row [A, b, c, 1], and remember it."""
        split, module = client.split("train"), model.module
        assert isinstance(module, Mixture)
        nets = [
            module.others[m * self.groups + turn.index % self.groups] for m in range(self.members)
        ]
        row = left_out_products(module, nets, split)
        row = torch.cat([row, row.new_ones(1)])
        return Reply({SUMS: row}, {"examples": len(split)}), {**memory, ROW: row}


def gain(row: Tensor, others: Tensor, shrink: float) -> Tensor:
    """Return by how much the other sites' weights are better than equal ones at a site.

        d_k = B_k(1/M) − B_k(w_k),   w_k: the weights of Σ_{j≠k} (A_j, b_j, c_j)

    Args:
        row: [A, b, c] of the site, flat.
        others: The sum of the others' rows, and last how many they are; of none nothing is better.
        shrink: λ of `simplex`.
    """
    M = members(row)
    if others[-1].round() < 1:
        return row.new_zeros(())
    equal = torch.full((M,), 1 / M, dtype=torch.float64)
    A, b, c = parts(others[:-1] / others[-1], M)
    return brier(row, equal) - brier(row, torch.from_numpy(simplex(A, b, c, shrink)))


@dataclass(frozen=True)
class Judged(Part):
    """What a site sends next: how much better the weights of the other sites are than equal ones.

    Attributes:
        left_out: What it sent before; a site that was away makes it now.
        shrink: λ of `simplex`.
    """

    sends_sums = True

    left_out: LeftOut
    shrink: float

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        """Return the row [d, d², 1]."""
        others = inbox[SUMS].double().cpu()
        if ROW in memory:
            row = memory[ROW].cpu()
            others = others - row
        else:
            row = self.left_out(model, inbox, client, memory, turn)[1][ROW]
        d = gain(row[:-1], others, self.shrink)
        rest = {name: value for name, value in memory.items() if name != ROW}
        return Reply({"judged": torch.stack([d, d * d, torch.ones_like(d)])}), rest


def left_out_products(module: Mixture, nets: Sequence[nn.Module], split: Split) -> Tensor:
    """Return the row [A, b, c] of a site for some of the networks that train with a mixture."""
    module.eval()
    batches = range(0, len(split), EVALUATION_BATCH)
    with torch.no_grad():
        outputs = [
            torch.cat([net(split.batch(slice(i, i + EVALUATION_BATCH))[0]) for i in batches])
            for net in nets
        ]
    return products(predicted(torch.stack(outputs), module.numbers), split.y)


def predicted(outputs: Tensor, numbers: bool) -> Tensor:
    """Return probabilities [M, N, C] of outputs, or numbers [M, N, 1]; NaN stays NaN."""
    if numbers:
        return outputs
    p = probabilities(outputs)
    return p if outputs.shape[-1] > 1 else torch.cat([1 - p, p], dim=-1)


@dataclass(frozen=True)
class Weigh:
    """The server's step that sets the weights [M] from the sums of A, b and c.

    Attributes:
        shrink: λ of `simplex`, for the mean over sites.
    """

    at_sites = True

    shrink: float

    def __call__(self, old: Tensor, new: Tensor, state: RuleState, table: Table) -> WithState:
        """Return the weights; the last number of the row is how many sites are in the sum."""
        A, b, c = parts(new[:-1] / new[-1], len(old))
        return torch.from_numpy(simplex(A, b, c, self.shrink)).to(old), state


@dataclass(frozen=True)
class Judge:
    """The server's step that goes back to equal weights, unless these are clearly better.

    The row is (Σ_k d_k, Σ_k d_k², K), d_k as in `gain`: the mean must be more than its standard
    error.
    """

    at_sites = True

    def __call__(self, old: Tensor, new: Tensor, state: RuleState, table: Table) -> WithState:
        total, squares, K = new.double().tolist()
        K = max(2.0, round(K))
        mean = total / K
        error = np.sqrt(max(0.0, squares / K - mean**2) / (K - 1))
        return (old if mean > error else torch.full_like(old, 1 / len(old))), state
