"""Newton's method for generalised linear models: sites send derivatives, the server steps.

    β ← β − (Σ_k H_k + Λ)⁻¹ (Σ_k g_k + Λ β)

with g_k = ∇ℓ_k(β), H_k = ∇²ℓ_k(β) and Λ = λ diag(1, ..., 1, 0): intercepts are not penalised.
ℓ_k is the sum of the losses of site k's examples, so the sums are those of the pooled rows, and the
fit is that of the pooled rows, too. A step that makes the objective larger is halved.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.core import Client, Inbox, Memory, Model, Reply, RuleState, Turn, WithState
from unseen.core.parts import Part
from unseen.core.types import Table
from unseen.errors import Diverged, TooFewRows

Family = Literal["multinomial", "linear"]
#: Coefficients whose second derivatives still fit a message: their number grows with the square.
MOST_COEFFICIENTS = 4000
#: More classes than this may be numbers that were taken for classes.
MANY_CLASSES = 15
#: A coefficient of a standardised column beyond this says that the column separates the classes.
SEPARATED = 25.0
#: The least pivot beside the largest by which equations are solved as they are.
NEARLY = 1e-4


@dataclass(frozen=True)
class Shape:
    """The form of a linear model.

    Two classes have one free score, the difference of their outputs; every other number of
    outputs has as many scores.

    Attributes:
        outputs: C.
        inputs: d.
        family: "multinomial" for classes, "linear" for a number.
    """

    outputs: int
    inputs: int
    family: Family

    @property
    def scores(self) -> int:
        """The number of free scores."""
        return 1 if self.family == "multinomial" and self.outputs <= 2 else self.outputs

    @property
    def free(self) -> int:
        """The number of free coefficients q, intercepts included."""
        return self.scores * (self.inputs + 1)

    @property
    def row(self) -> int:
        """The numbers that a site sends: the loss, q first and q (q + 1) / 2 second derivatives."""
        return 1 + self.free + self.free * (self.free + 1) // 2

    def coefficients(self, vector: Tensor) -> Tensor:
        """Return the free coefficients [scores, d + 1], the intercept last, of a model's vector."""
        vector = vector.double()
        weight = vector[: self.outputs * self.inputs].view(self.outputs, self.inputs)
        full = torch.cat([weight, vector[self.outputs * self.inputs :, None]], dim=1)
        return full[1:] - full[:1] if self.scores < self.outputs else full

    def vector(self, coefficients: Tensor) -> Tensor:
        """Return the model's vector with these free coefficients; of two classes half each."""
        full = coefficients
        if self.scores < self.outputs:
            full = torch.cat([-coefficients / 2, coefficients / 2])
        return torch.cat([full[:, :-1].flatten(), full[:, -1]])


@dataclass(frozen=True)
class Derivatives(Part):
    """What a site sends: the loss, the gradient and the Hessian at the received coefficients.

    All are sums over the site's training examples, in float64.

    Attributes:
        shape: The form of the model.
        least: Rows that must contribute, effectively, see `effective_rows`; 0 asks for none.
    """

    sends_sums = True

    shape: Shape
    least: int = 0

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        """Return the row [loss, gradient [q], upper triangle of the Hessian]."""
        split = client.split("train")
        x, y = split.batch(slice(None))
        x = F.pad(x.flatten(1).double(), (0, 1), value=1.0)
        beta = self.shape.coefficients(model.vector)
        loss, slope, curvature = _derivatives(x @ beta.T, y, self.shape)
        self._check(slope, curvature, len(x))
        gradient = (slope.T @ x).flatten()
        hessian = _hessian(x, curvature)
        upper = hessian[torch.ones_like(hessian, dtype=torch.bool).triu()]
        row = torch.cat([loss[None], gradient, upper])
        scalars = {"examples": len(split), "steps": 1, "loss": float(loss) / max(1, len(split))}
        return Reply({"model": row}, scalars), memory

    def _check(self, slope: Tensor, curvature: Tensor, rows: int) -> None:
        """Refuse sums to which fewer rows contribute than are asked for.

        At coefficients that somebody chose, all rows but one can have a curvature of 0: the second
        derivatives are then that row's.
        """
        if not self.least:
            return
        by_score = [curvature.diagonal(dim1=1, dim2=2).expand(rows, -1), slope.abs()]
        counts = [effective_rows(own) for each in by_score for own in each.T]
        if (fewest := min(counts)) < self.least:
            raise TooFewRows(
                f"the derivatives at these coefficients are of {fewest:.1f} rows in effect, and "
                f"{self.least} are the least.",
                remedy="A larger ridge keeps coefficients small.",
            )


def effective_rows(weights: Tensor) -> float:
    """Return (Σ w)² / Σ w² of the weights [N] of rows in a sum; 0 where all are 0.

    Example:
        >>> effective_rows(torch.tensor([1.0, 1.0, 1.0])), effective_rows(torch.tensor([1.0, 1e-9]))
        (3.0, 1.0)
    """
    squares = float(weights.square().sum())
    return float(weights.sum()) ** 2 / squares if squares else 0.0


def _derivatives(scores: Tensor, y: Tensor, shape: Shape) -> tuple[Tensor, Tensor, Tensor]:
    """Return the summed loss, its slopes [N, S] and its curvatures [N, S, S] in the scores."""
    if shape.family == "linear":
        residual = scores - y.double()[:, None]
        return residual.square().sum() / 2, residual, torch.ones(1, 1, 1, dtype=scores.dtype)
    if shape.scores == 1:
        p = scores.sigmoid()
        loss = F.binary_cross_entropy_with_logits(scores[:, 0], y.double(), reduction="sum")
        return loss, p - y.double()[:, None], (p * (1 - p))[:, :, None]
    p = scores.softmax(-1)
    loss = F.cross_entropy(scores, y, reduction="sum")
    curvature = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    return loss, p - F.one_hot(y, shape.scores), curvature


def _hessian(x: Tensor, curvature: Tensor) -> Tensor:
    """Return Σ_i C_i ⊗ x_i x_iᵀ [q, q] for curvatures C [N or 1, S, S]."""
    S, d = curvature.shape[-1], x.shape[1]
    hessian = torch.empty(S, d, S, d, dtype=x.dtype)
    for a in range(S):
        for b in range(a, S):
            block = (x * curvature[:, a, b, None]).T @ x
            hessian[a, :, b] = block
            hessian[b, :, a] = block.T
    return hessian.reshape(S * d, S * d)


@dataclass(frozen=True)
class Newton:
    """The server's step: solves for the coefficients from the summed derivatives.

    Where the classes are separated, coefficients without a penalty grow for ever: then the penalty
    `fallback` comes in, and the state names the columns in `separated`.

    Attributes:
        shape: The form of the model.
        ridge: λ, the penalty λ/2 ‖W‖² on the sum of losses; scikit-learn's 1/C.
        fallback: λ where the classes turn out to be separated and `ridge` is 0.
    """

    at_sites = True

    shape: Shape
    ridge: float = 1.0
    fallback: float = 1e-2

    def __call__(self, old: Tensor, new: Tensor, state: RuleState, table: Table) -> WithState:
        q, new, state = self.shape.free, new.double().cpu(), dict(state)
        beta = self.shape.coefficients(old.cpu())
        penalised = torch.ones_like(beta)
        penalised[:, -1] = 0
        large = (beta.abs() > SEPARATED).any(0)[:-1]
        if self.ridge == 0 and self.shape.family == "multinomial" and bool(large.any()):
            if "separated" not in state:  # begin again, with a penalty
                return torch.zeros_like(old), {"separated": large}
            state["separated"] = state["separated"] | large
        weight = self.fallback if "separated" in state else self.ridge
        penalty = (weight * penalised).flatten()
        objective = new[0] + 0.5 * (penalty * beta.flatten().square()).sum()
        before = state.get("objective")
        if before is not None and float(objective - before) > 1e-6 * (1 + abs(float(before))):
            return self.shape.vector((state["beta"] + beta) / 2).to(old), state
        hessian = torch.zeros(q, q, dtype=new.dtype)
        hessian[torch.ones(q, q, dtype=torch.bool).triu()] = new[1 + q :]
        hessian = hessian + hessian.triu(1).T + penalty.diag()
        gradient = new[1 : 1 + q] + penalty * beta.flatten()
        step = solved(hessian, gradient)
        state |= {"objective": objective, "beta": beta}
        return self.shape.vector(beta - step.view_as(beta)).to(old), state


def solved(matrix: Tensor, right: Tensor) -> Tensor:
    """Return x with A x = b for A [q, q], positive semi-definite, of the smallest length.

    By Cholesky's factors where no pivot is far below the others, else by singular values.

    Raises:
        Diverged: A has no singular values, since a number of it is not finite.
    """
    factor, failed = torch.linalg.cholesky_ex(matrix)
    pivots = factor.diagonal()
    if not int(failed) and bool(pivots.min() > NEARLY * pivots.max()):
        exact: Tensor = torch.cholesky_solve(right[:, None], factor)[:, 0]
        return exact
    try:
        least: Tensor = torch.linalg.lstsq(matrix, right[:, None], driver="gelsd").solution[:, 0]
    except RuntimeError as error:
        raise Diverged(
            "glm's equations have no solution: a second derivative is not a finite number, or too "
            f"large ({str(error).partition(' (error')[0]}).",
            remedy="Look for columns with huge values, and for a number that is taken for classes; "
            "or set a larger ridge.",
        ) from None
    return least


def too_large(shape: Shape) -> str:
    """Return why the second derivatives of a model do not fit a message; "" where they do."""
    if shape.free <= MOST_COEFFICIENTS:
        return ""
    many = f" and {shape.outputs:,} classes" if shape.scores > 1 else ""
    numbers = ", and if the classes are numbers to predict, task='regression' in table(...)"
    return (
        f"solves for all its coefficients at once, at most {MOST_COEFFICIENTS:,}: these data need "
        f"{shape.free:,}, for {shape.inputs:,} inputs{many}; take fedavg with model = 'logistic'"
        + numbers
        * (shape.family == "multinomial" and shape.outputs > MANY_CLASSES)
    )
