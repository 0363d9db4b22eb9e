"""Calibrated logits from sums over sites: temperature and Platt scaling by Newton's method.

    u = a z + b,   (a, b) = argmin Σ_k w_k Σ_{i ∈ k} −log softmax(a z_i + b)_{y_i} + P(a, b)

with P(a, b) = ½ (log a)² + ½ |b|², worth about one example whatever the outputs' unit, so that
outputs which separate the classes have a finite scale, too. It is not convex in a: of outputs that
differ by hundredths the fit may stop nearer to a = 1 than the best scale. b = 0 is temperature
scaling, with the temperature 1/a. A site sends the loss, its gradient and its second derivatives at
the (a, b) that it receives; the fit is that of the pooled rows.

Source:
    Platt 1999, "Probabilistic Outputs for Support Vector Machines"; Guo et al. 2017, "On
    Calibration of Modern Neural Networks", Section 4.2.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from unseen.core.record_lines import Record

Kind = Literal["temperature", "platt"]
#: Steps of Newton's method at most, and the change below which they end.
STEPS, NEAR = 30, 1e-8
#: The least scale: a negative one would turn the classes round.
LEAST = 1e-4


@dataclass(frozen=True)
class Calibration:
    """Calibrated outputs, a z + b.

    Attributes:
        kind: Whether b is fitted.
        scale: a.
        shift: b, a number for each column of the outputs.
    """

    kind: Kind
    scale: float
    shift: tuple[float, ...]

    def __call__(self, outputs: Tensor) -> Tensor:
        """Return calibrated outputs [N, C].

        Example:
            >>> Calibration("temperature", 0.5, (0.0, 0.0))(torch.tensor([[0.0, 4.0]])).tolist()
            [[0.0, 2.0]]
        """
        return outputs * self.scale + outputs.new_tensor(self.shift)

    def to_json(self) -> Record:
        return {"kind": self.kind, "scale": self.scale, "shift": list(self.shift)}

    @classmethod
    def of_json(cls, content: Record) -> Self:
        return cls(content["kind"], content["scale"], tuple(content["shift"]))


def derivatives(theta: Tensor, outputs: Tensor, y: Tensor) -> Tensor:
    """Return what a site sends: loss, gradient [q] and Hessian [q, q], all of them sums, in a row.

    Args:
        theta: (a) or (a, b_2, ..., b_C) [q]: the first class's b is 0.
        outputs: The model's outputs [N, C] at the site's rows.
        y: Their classes [N].
    """
    z = logits(outputs)
    N, C = z.shape
    basis = torch.zeros(N, C, len(theta), dtype=torch.float64)
    basis[:, :, 0] = z
    if len(theta) > 1:
        basis[:, 1:, 1:] = torch.eye(C - 1, dtype=torch.float64)
    scores = basis @ theta
    p = scores.softmax(1)
    loss = -scores.log_softmax(1).gather(1, y[:, None]).sum()
    gradient = torch.einsum("nc,ncq->q", p - one_hot(y, C), basis)
    mean = torch.einsum("nc,ncq->nq", p, basis)
    hessian = torch.einsum("nc,ncq,ncr->qr", p, basis, basis) - mean.T @ mean
    return torch.cat([loss[None], gradient, hessian.flatten()])


def logits(outputs: Tensor) -> Tensor:
    """Return outputs [N, C] in float64; of one column the logits 0 and z of two classes."""
    z = outputs.double()
    return torch.cat([torch.zeros_like(z), z], 1) if z.shape[1] == 1 else z


def minimise(sums: Callable[[Tensor], Tensor], start: Tensor) -> tuple[Tensor, int]:
    """Return the minimum of the summed loss and the penalty, and how often sites were asked.

        ½ (log a − log a_0)² + ½ |b − b_0|²,   θ = (a, b), start = (a_0, b_0)

    Args:
        sums: θ [q] -> Σ_k w_k `derivatives` of site k; what is summed over sites.
        start: The first θ, to which the penalty draws.
    """
    q = len(start)
    theta, step, best, asked = start, torch.zeros(q), torch.inf, 0
    candidate, rate = theta, 1.0
    while asked < STEPS:
        row, apart, slope = sums(candidate), candidate - start, torch.ones(q, dtype=torch.float64)
        apart[0], slope[0] = (candidate[0] / start[0]).log(), 1 / candidate[0]
        asked += 1
        value = float(row[0] + apart.square().sum() / 2)
        if not value <= best + 1e-12 * abs(best):
            rate /= 2  # the step went too far
        else:
            theta, best, rate = candidate, value, 1.0
            gradient = row[1 : 1 + q] + apart * slope
            hessian = row[1 + q :].view(q, q) + slope.square().diag()
            step = torch.linalg.solve(hessian, gradient)
        candidate = theta - rate * step
        candidate[0] = candidate[0].clamp(min=LEAST)
        if float((candidate - theta).abs().max()) <= NEAR:
            break
    return theta, asked


def fit_calibration(
    kind: Kind, outputs: Mapping[str, Tensor], y: Mapping[str, Tensor], uniform: bool = True
) -> tuple[Calibration, int]:
    """Fit a calibration to the sites' outputs, by what each of them would send.

    Args:
        kind: `temperature` or `platt`.
        outputs: Site -> outputs [N, C] at rows that the model was not trained on.
        y: Site -> their classes [N].
        uniform: Whether sites count alike, w_k = N/(K n_k), or rows, w_k = 1.

    Returns:
        The calibration, and after how many exchanges.
    """
    columns = next(iter(outputs.values())).shape[1]
    classes, total = max(2, columns), sum(map(len, y.values()))
    weight = {name: total / (len(y) * len(y[name])) if uniform else 1.0 for name in y}

    def sums(theta: Tensor) -> Tensor:
        rows = (weight[n] * derivatives(theta, outputs[n], y[n]) for n in y)
        return torch.stack(list(rows)).sum(0)

    start = torch.zeros(classes if kind == "platt" else 1, dtype=torch.float64)
    start[0] = 1.0
    theta, asked = minimise(sums, start)
    shift = theta[1:].tolist() if kind == "platt" else [0.0] * (classes - 1)
    shift = shift if columns == 1 else [0.0, *shift]
    return Calibration(kind, float(theta[0]), tuple(shift)), asked
