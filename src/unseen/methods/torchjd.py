"""TorchJD's weightings on the server: MGDA, CAGrad, UPGrad, Nash-MTL and others."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from unseen.combine import JacobianDescent, Mean
from unseen.core.exchange import Method, Reference
from unseen.methods.base import federated
from unseen.methods.surgery import replace_rule
from unseen.recipe import Training

TORCHJD = Reference(
    "Quinton, Rey. Jacobian Descent for Multi-Objective Optimization. 2024. UPGrad, and the "
    "library TorchJD.",
    """@article{quinton2024jacobian,
  title   = {Jacobian Descent For Multi-Objective Optimization},
  author  = {Quinton, Pierre and Rey, Val{\\'e}rian},
  journal = {arXiv preprint arXiv:2406.16232},
  year    = {2024}
}""",
)
MGDA = Reference(
    "Désidéri. Multiple-Gradient Descent Algorithm (MGDA) for Multiobjective Optimization. "
    "Comptes Rendus Mathématique 2012.",
    """@article{desideri2012mgda,
  title   = {Multiple-gradient descent algorithm ({MGDA}) for multiobjective optimization},
  author  = {D{\\'e}sid{\\'e}ri, Jean-Antoine},
  journal = {Comptes Rendus Math{\\'e}matique},
  volume  = {350},
  pages   = {313--318},
  year    = {2012}
}""",
)
CAGRAD = Reference(
    "Liu, Liu, Jin, Stone, Liu. Conflict-Averse Gradient Descent for Multi-task Learning. "
    "NeurIPS 2021. Algorithm 1.",
    """@inproceedings{liu2021cagrad,
  title     = {Conflict-Averse Gradient Descent for Multi-task Learning},
  author    = {Liu, Bo and Liu, Xingchao and Jin, Xiaojie and Stone, Peter and Liu, Qiang},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2021}
}""",
)
NASH = Reference(
    "Navon, Shamsian, Achituve, Maron, Kawaguchi, Chechik, Fetaya. Multi-Task Learning as a "
    "Bargaining Game. ICML 2022. Algorithm 1.",
    """@inproceedings{navon2022nash,
  title     = {Multi-Task Learning as a Bargaining Game},
  author    = {Navon, Aviv and Shamsian, Aviv and Achituve, Idan and Maron, Haggai and
               Kawaguchi, Kenji and Chechik, Gal and Fetaya, Ethan},
  booktitle = {International Conference on Machine Learning},
  year      = {2022}
}""",
)


def torchjd(
    training: Training,
    *,
    weighting: Literal[
        "upgrad", "mgda", "cagrad", "nash-mtl", "dualproj", "imtl-g", "aligned-mtl"
    ] = "upgrad",
    c: float = 0.5,
    scale: Literal["mean", "torchjd"] = "mean",
    weights: Literal["uniform", "examples"] = "uniform",
) -> Method:
    """Combine the updates by one of TorchJD's weightings (needs the extra `torchjd`).

        x ← x + Σ_i w_i u_i,   w from the inner products <u_i, u_j>

    weighting: by name, see `unseen.combine.JacobianDescent`; c: of `cagrad`. scale: `"mean"`, K
    equal updates give that update, for a step as long as the other rows'; `"torchjd"`, as the
    library has it. weights: of the clients' objectives.

    `mgda`, `upgrad` and `dualproj` are as near as the library's solvers come, which is less near
    where updates differ in length: see the pages of the first two. `dualproj` regularises as
    `upgrad` does. Against exact projections of the mean, 360 random sets of three to ten updates
    for each spread of lengths, it was off by at most 0.1 % of the exact step where lengths were
    alike, 0.7 % where their logarithms had a standard deviation of 0.5, and up to 22 % at 1, where
    one step in 13 opposed a client by a cosine below -0.01, at worst -0.20.
    """
    rule = JacobianDescent(weighting, c, scale, Mean(weights))
    return federated("torchjd", training, rule, TORCHJD)


def mgda(training: Training, *, weights: Literal["uniform", "examples"] = "uniform") -> Method:
    """The update nearest to 0 in the hull of the clients' updates (needs the extra `torchjd`).

        x ← x + Σ_i w_i u_i,   w = argmin over the simplex of ‖Σ_i w_i u_i‖²

    The smallest update counts most, and the exact step is never longer than it. weights: the K p_i
    that scale the updates; the original has none.

    By TorchJD's Frank-Wolfe (Sener and Koltun 2018, Algorithm 2): at most 100 steps, until one
    measures less than 1e-3. That is not exact. Against a quadratic program on random updates, 360
    sets of three to ten for each spread, the result was off by 1 % of the exact one's length in the
    median, 8 % in one case of ten and 19 % at worst where updates are about equally long; by 2 to
    3 %, 11 to 14 % and 24 % where the logarithms of lengths have a standard deviation of 0.5 to 1,
    and once by 93 %. More clients make it worse: of ten independent ones, 8 to 14 % in the median.
    """
    return named("mgda", torchjd(training, weighting="mgda", weights=weights), MGDA)


def cagrad(
    training: Training,
    *,
    c: float = 0.5,
    scale: Literal["mean", "torchjd"] = "mean",
    weights: Literal["uniform", "examples"] = "uniform",
) -> Method:
    """The best step for the worst-served client near the mean update (needs the extra `torchjd`).

        d = argmax min_i <u_i, d>  among ‖d − ū‖ ≤ c ‖ū‖,   x ← x + d / (1 + c)

    c: 0.5; the paper tunes it between 0.1 and 0.9. scale: `"torchjd"` leaves out the division.
    `fedomg` is the same direction divided by 1 + c² and times its η, with a solver of its own.
    """
    method = torchjd(training, weighting="cagrad", c=c, scale=scale, weights=weights)
    return named("cagrad", method, CAGRAD)


def upgrad(training: Training, *, weights: Literal["uniform", "examples"] = "uniform") -> Method:
    """Project each update on the dual cone of all, then average (needs the extra `torchjd`).

        x ← x + Σ_i p_i π(u_i),   π(u) the nearest d with <u_j, d> ≥ 0 for all j

    Of the projections' mean no client's loss grows, to first order. weights: p.

    TorchJD adds 1e-4 to the diagonal of the inner products, whose trace it makes 1, so that small
    updates count less than they should. Against exact projections, 360 random sets of three to ten
    updates for each spread, the step was off by at most 0.2 % where lengths are alike, 1 % where
    their logarithms have a standard deviation of 0.5, and 21 % at 1 (1.4 % in one case of ten);
    there one step in 40 opposed a client by a cosine below -0.01, at worst -0.19.
    """
    return named("upgrad", torchjd(training, weighting="upgrad", weights=weights), TORCHJD)


def nash_mtl(training: Training, *, scale: Literal["mean", "torchjd"] = "mean") -> Method:
    """The Nash bargain between the clients' updates (needs the extra `torchjd`).

        x ← x + Σ_i α_i u_i,   Σ_j <u_i, u_j> α_j = 1/α_i

    The direction does not depend on how long single updates are. <u_i, u_j> is divided by its
    Frobenius norm first. scale: `"mean"` divides by K, so that equal updates give that update.
    α minimises ½ Σ_ij α_i α_j <u_i, u_j> − Σ_i log α_i, by Newton's method to rounding. Where some
    mean of the updates vanishes no bargain exists: that round takes the plain mean, and the table
    counts such rounds.
    Departs from TorchJD's class and the released code, which solve a sequence of linearised
    problems from the last weights and bound ‖Σ α u‖ by 1: here every round is solved by itself,
    unbounded. Their solver fails where the sum of the updates conflicts with one of them.
    """
    return named("nash-mtl", torchjd(training, weighting="nash-mtl", scale=scale), NASH)


def add_torchjd(
    method: Method,
    *,
    weighting: Literal[
        "upgrad", "mgda", "cagrad", "nash-mtl", "dualproj", "imtl-g", "aligned-mtl"
    ] = "upgrad",
    c: float = 0.5,
    scale: Literal["mean", "torchjd"] = "mean",
) -> Method:
    """One of TorchJD's weightings on the server of any method that averages (needs the extra).

    The method's weights become those of the clients' objectives. The options: see `torchjd`.
    """
    source = {"mgda": MGDA, "cagrad": CAGRAD, "nash-mtl": NASH}.get(weighting, TORCHJD)
    return replace_rule(
        method, "torchjd", source, lambda prior: JacobianDescent(weighting, c, scale, prior)
    )


def named(name: str, method: Method, reference: Reference) -> Method:
    """The method under a name of its own, with the source of its weighting."""
    return replace(method, name=name, references=(TORCHJD, reference))
