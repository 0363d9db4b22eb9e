"""Server rules from multi-task learning and gradient surgery: PCGrad, AgrSum, AgrRand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from unseen.combine import AgrRand, AgrSum, Combine, Mean, PCGrad, Weighted
from unseen.core.exchange import Method, Reference
from unseen.errors import Incompatible
from unseen.methods.base import citing, federated, model_rule, with_rule
from unseen.recipe import Training

PCGRAD = Reference(
    "Yu, Kumar, Gupta, Levine, Hausman, Finn. Gradient Surgery for Multi-Task Learning. NeurIPS "
    "2020. Algorithm 1.",
    """@inproceedings{yu2020pcgrad,
  title     = {Gradient Surgery for Multi-Task Learning},
  author    = {Yu, Tianhe and Kumar, Saurabh and Gupta, Abhishek and Levine, Sergey and
               Hausman, Karol and Finn, Chelsea},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2020}
}""",
)
AGREEMENT = Reference(
    "Mansilla, Echeveste, Milone, Ferrante. Domain Generalization via Gradient Surgery. ICCV 2021.",
    """@inproceedings{mansilla2021surgery,
  title     = {Domain Generalization via Gradient Surgery},
  author    = {Mansilla, Lucas and Echeveste, Rodrigo and Milone, Diego H. and Ferrante, Enzo},
  booktitle = {International Conference on Computer Vision},
  year      = {2021}
}""",
)


def pcgrad(
    training: Training,
    *,
    order: Literal["random", "fixed"] = "random",
    weights: Literal["uniform", "examples"] = "uniform",
) -> Method:
    """Project each update off those it conflicts with, then average.

        if <ĝ_i, g_j> < 0:  ĝ_i ← ĝ_i − (<ĝ_i, g_j> / ‖g_j‖²) g_j      x ← x + (1/K) Σ_i ĝ_i

    g_i: the update of client i after local training, as in PPDG's experiments (the original
    takes gradients of tasks). order: of i and j. weights: of the final average; the released
    code sums instead, which would make the server's step K times longer.
    """
    return federated("pcgrad", training, PCGrad(order, Mean(weights)), PCGRAD)


def agrsum(training: Training, *, reduction: Literal["mean", "sum"] = "mean") -> Method:
    """Keep the coordinates on whose sign all clients agree, zero the others.

        x_d ← x_d + mean_i g_id  where |Σ_i sign g_id| = K

    reduction: `"sum"` as released and in the name, K times longer where signs agree; the default
    keeps the step comparable with the other rows. PPDG does not say which it used.
    """
    return federated("agrsum", training, AgrSum(reduction), AGREEMENT)


def agrrand(training: Training, *, reduction: Literal["mean", "sum"] = "mean") -> Method:
    """As AgrSum, with Gaussian noise of the agreeing coordinates' mean size elsewhere.

    reduction: as for AgrSum. No agreeing coordinate leaves the model as it is; the released code
    would make it NaN.
    """
    return federated("agrrand", training, AgrRand(reduction), AGREEMENT)


def replace_rule(
    method: Method, name: str, reference: Reference, rule: Callable[[Weighted], Combine]
) -> Method:
    """The method with `rule(prior)` on its server, the prior being the average it had."""
    old = model_rule(method)
    if method.gather is not None:
        raise Incompatible(
            f"{method.name}+{name}",
            f"{method.name} pools the data into one client, so the server has nothing to combine.",
        )
    if not isinstance(old, Weighted) or not old.averages:
        raise Incompatible(
            f"{method.name}+{name}",
            f"{method.name} already decides how updates "
            f"are combined, and so would {name}. Put {name} on a method that averages, as in "
            f"fedavg+{name}.",
        )
    return citing(with_rule(method, rule(old)), reference)


def add_pcgrad(method: Method, *, order: Literal["random", "fixed"] = "random") -> Method:
    """PCGrad on the server of any method that averages; its weights become the prior."""
    return replace_rule(method, "pcgrad", PCGRAD, lambda prior: PCGrad(order, prior))


def add_agrsum(method: Method, *, reduction: Literal["mean", "sum"] = "mean") -> Method:
    """AgrSum on the server of any method that averages; its weights become the prior."""
    return replace_rule(method, "agrsum", AGREEMENT, lambda prior: AgrSum(reduction, prior))


def add_agrrand(method: Method, *, reduction: Literal["mean", "sum"] = "mean") -> Method:
    """AgrRand on the server of any method that averages; its weights become the prior."""
    return replace_rule(method, "agrrand", AGREEMENT, lambda prior: AgrRand(reduction, prior))
