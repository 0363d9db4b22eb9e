"""TorchJD's weightings on the server: MGDA, CAGrad, UPGrad and Nash-MTL."""

from dataclasses import replace
from typing import Any

from unseen.core import Method
from unseen.methods.base import cited, federated
from unseen.methods.combine import JacobianDescent
from unseen.methods.new_rule import replace_rule
from unseen.methods.options import options_from, picked
from unseen.methods.recipe import Training

TORCHJD = cited("quinton2024jacobian")
#: The sources of those weightings that are not TorchJD's own.
SOURCES = {
    "mgda": cited("desideri2012mgda"),
    "cagrad": cited("liu2021cagrad"),
    "nash-mtl": cited("navon2022nash"),
}


@options_from(JacobianDescent)
def torchjd(training: Training, **options: Any) -> Method:
    """Combine the updates by one of TorchJD's weightings (needs the extra `torchjd`).

        x ← x + Σ_i w_i u_i,   w from the inner products <u_i, u_j>

    Note:
        `mgda` and `upgrad` are as near as the library's solvers come, which is less near where
        updates differ in length: see their pages. PCGrad, Krum, the trimmed mean and GradDrop are
        methods of their own, without TorchJD.

    Departs from:
        TorchJD in the length of steps (not with `scale="torchjd"`); in that inner products are
        divided by their mean norm first, since it takes a matrix of norm below 0.01 for 0; and in
        that `nash-mtl` is computed without it. The papers of the weightings have gradients at one
        model, where u_i is an update of local training.
    """
    rule = JacobianDescent(**picked(JacobianDescent, options))
    return federated("torchjd", training, rule, TORCHJD)


@options_from(JacobianDescent, without=("prior",))
def add_torchjd(method: Method, **options: Any) -> Method:
    """Put a weighting of TorchJD on the server of any method that averages (needs the extra).

    Note:
        The method's weights become those of the clients' objectives.
    """
    source = SOURCES.get(options["weighting"], TORCHJD)
    return replace_rule(method, "torchjd", source, JacobianDescent, options)


@options_from(JacobianDescent, without=("weighting", "c", "scale", "blocks"))
def mgda(training: Training, **options: Any) -> Method:
    """Step to the point of the hull of the clients' updates nearest to 0 (needs `torchjd`).

        x ← x + Σ_i w_i u_i,   w = argmin over the simplex of ‖Σ_i w_i u_i‖²

    Args:
        training: The recipe.
        weights: the K p_i that scale the updates; the original has none.
        **options: The other options of the page.

    Note:
        By TorchJD's Frank-Wolfe (Sener and Koltun 2018, Algorithm 2): at most 100 steps, until one
        measures less than 1e-3. That is not exact. Against a quadratic program on random updates,
        360 sets of three to ten for each spread, the result was off by 1 % of the exact one's
        length in the median, 8 % in one case of ten and 19 % at worst where updates are about
        equally long; by 2 to 3 %, 11 to 14 % and 24 % where the logarithms of lengths have a
        standard deviation of 0.5 to 1, and once by 93 %. More clients make it worse: of ten
        independent ones, 8 to 14 % in the median.

        The smallest update counts most, and the exact step is never longer than it.

    Departs from:
        the paper, whose point is the exact one, here TorchJD's approximation, and which has
        gradients at one model, where u_i is an update of local training.
    """
    return _named("mgda", training, options)


@options_from(JacobianDescent, without=("weighting", "blocks"))
def cagrad(training: Training, **options: Any) -> Method:
    """Step where the worst-served client gains most, near the mean update (needs `torchjd`).

        d = argmax min_i <u_i, d>  among ‖d − ū‖ ≤ c ‖ū‖,   x ← x + d / (1 + c)

    Args:
        training: The recipe.
        c: how far from the mean; the paper tunes it between 0.1 and 0.9.
        scale: `"torchjd"` leaves out the division.
        **options: The other options of the page.

    Note:
        `fedomg` is the same direction divided by 1 + c² and times its η, with another solver.

    Departs from:
        the paper in that d is divided by 1 + c (not with `scale="torchjd"`), and that u_i is an
        update of local training, where it has gradients at one model.
    """
    return _named("cagrad", training, options)


@options_from(JacobianDescent, without=("weighting", "c", "scale", "blocks"))
def upgrad(training: Training, **options: Any) -> Method:
    """Project each update on the dual cone of all, then average (needs the extra `torchjd`).

        x ← x + Σ_i p_i π(u_i),   π(u) the nearest d with <u_j, d> ≥ 0 for all j

    Note:
        Against exact projections, 360 random sets of three to ten updates for each spread, the step
        was off by at most 0.2 % where lengths are alike, 1 % where their logarithms have a standard
        deviation of 0.5, and 21 % at 1 (1.4 % in one case of ten); there one step in 40 opposed a
        client by a cosine below -0.01, at worst -0.19.

        Along the projections' mean no client's loss grows, to first order.

    Departs from:
        the paper, whose projections are exact: TorchJD adds 1e-4 to the diagonal of the inner
        products, whose trace it makes 1, so that small updates count less than they should. There
        rows are gradients at one model, where u_i is an update of local training.
    """
    return _named("upgrad", training, options)


@options_from(JacobianDescent, without=("weighting", "c", "blocks", "prior"))
def nash_mtl(training: Training, **options: Any) -> Method:
    """Step by the Nash bargain between the clients' updates (without TorchJD).

        x ← x + Σ_i α_i u_i,   Σ_j <u_i, u_j> α_j = 1/α_i

    Args:
        training: The recipe.
        scale: `"mean"` divides by K, so that equal updates give that update.
        **options: The other options of the page.

    Note:
        The direction does not depend on how long single updates are. <u_i, u_j> is divided by its
        Frobenius norm first. α minimises ½ Σ_ij α_i α_j <u_i, u_j> − Σ_i log α_i, by Newton's
        method to rounding. Where some mean of the updates vanishes no bargain exists: that round
        takes the plain mean, and the table counts such rounds.

    Departs from:
        TorchJD's class and the released code, which solve a sequence of linearised problems from
        the last weights and bound ‖Σ α u‖ by 1: here every round is solved by itself, unbounded.
        Their solver fails where the sum of the updates conflicts with one of them.
    """
    return _named("nash-mtl", training, options)


def _named(name: str, training: Training, options: dict[str, Any]) -> Method:
    method = torchjd(training, weighting=name, **options)
    return replace(method, name=name, references=(TORCHJD, SOURCES.get(name, TORCHJD)))
