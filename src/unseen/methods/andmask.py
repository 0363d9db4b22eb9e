"""AND-mask, and the geometric mean with absolute values: what FedILC argues against."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from unseen.combine import AbsoluteGeometricMean, AndMask, Mean, Weighted
from unseen.core.exchange import Method, Reference
from unseen.gradient import Backprop
from unseen.methods.base import federated
from unseen.methods.fedilc import gradients
from unseen.methods.surgery import replace_rule
from unseen.recipe import Training

REFERENCE = Reference(
    "Parascandolo, Neitz, Orvieto, Gresele, Schölkopf. Learning Explanations That Are Hard to "
    "Vary. ICLR 2021.",
    """@inproceedings{parascandolo2021learning,
  title     = {Learning explanations that are hard to vary},
  author    = {Parascandolo, Giambattista and Neitz, Alexander and Orvieto, Antonio and
               Gresele, Luigi and Sch{\\"o}lkopf, Bernhard},
  booktitle = {International Conference on Learning Representations},
  year      = {2021}
}""",
)


def andmask(
    training: Training,
    *,
    agreement: float = 0.5,
    rescale: bool = False,
    weights: Literal["uniform", "examples"] = "uniform",
) -> Method:
    """Keep the coordinates on whose sign enough clients agree, zero the others.

        x_d ← x_d + Σ_i p_i g_id  where |Σ_i p_i sign g_id| ≥ τ

    agreement: τ; 0.5 asks for three quarters of the weight, 1 for all of it (AgrSum), 0 for
    nothing (FedAvg); exact zeros count for neither side. DomainBed searches from 0.5 to 1; the
    authors' commands take 1 and 0.2; FedILC's objection, "dead zones" where no gradient passes, is
    to values near 1. rescale: divide each tensor by the share of coordinates kept, as those
    commands do.

    g_i: the update of client i after local training; the original has the environments' gradients
    at one model, which is `fedsgd+andmask`.
    """
    return federated("andmask", training, mask(agreement, rescale, Mean(weights)), REFERENCE)


def add_andmask(method: Method, *, agreement: float = 0.5, rescale: bool = False) -> Method:
    """AND-mask on the server of any method that averages; its weights become the prior."""
    return replace_rule(method, "andmask", REFERENCE, lambda prior: mask(agreement, rescale, prior))


def mask(agreement: float, rescale: bool, prior: Weighted) -> AndMask:
    """The rule, with tensors as blocks where it needs any."""
    return AndMask(agreement, rescale, prior, "tensor" if rescale else "whole")


def geometric_abs(
    training: Training,
    *,
    agreement: float = 0.0,
    zeros: Literal["paper", "released"] = "paper",
) -> Method:
    """FedSGD with the geometric mean of absolute values, and the sign of the arithmetic mean.

        sign(Σ_i g_i) (Π_i |g_i|)^{1/K}

    FedILC's `geometric` is made to replace this one, which overlooks that signs differ. Each
    client sends its full-batch gradient and the training's optimiser runs on the server, as
    there. agreement: the sign threshold τ, see `andmask`. zeros: `"paper"`, an exact zero makes
    the coordinate 0; `"released"` adds 1e-10 to every magnitude.
    """
    rule = AbsoluteGeometricMean(agreement, zeros)
    method = gradients("geometric-abs", training, rule, Backprop(training.loss))
    return replace(method, references=(REFERENCE,))


def add_geometric_abs(
    method: Method, *, agreement: float = 0.0, zeros: Literal["paper", "released"] = "paper"
) -> Method:
    """The geometric mean of absolute values on the server of any method that averages."""
    return replace_rule(
        method,
        "geometric-abs",
        REFERENCE,
        lambda prior: AbsoluteGeometricMean(agreement, zeros, prior),
    )
