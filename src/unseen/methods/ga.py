"""Generalization Adjustment: aggregation weights that follow the generalization gaps."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Literal

from unseen.combine import AutoWeighted, Combine, GeneralizationAdjustment, Mean, Weighted
from unseen.core.exchange import Method, Reference
from unseen.errors import Incompatible
from unseen.local.train import GapProbe
from unseen.methods.base import citing, model_rule, with_local, with_rule
from unseen.methods.scaffold import renewing

REFERENCE = Reference(
    "Zhang, Xu, Yao, Zhang, Tian, Wang. Federated Domain Generalization with Generalization "
    "Adjustment. CVPR 2023. Eq. 3, Algorithm 1.",
    """@inproceedings{zhang2023ga,
  title     = {Federated Domain Generalization with Generalization Adjustment},
  author    = {Zhang, Ruipeng and Xu, Qinwei and Yao, Jiangchao and Zhang, Ya and Tian, Qi and
               Wang, Yanfeng},
  booktitle = {Conference on Computer Vision and Pattern Recognition},
  year      = {2023}
}""",
)


def add_ga(
    method: Method,
    *,
    step: float = 0.05,
    variant: Literal["centred", "paper", "reference"] = "centred",
    decay: bool = True,
    gap: Literal["loss", "accuracy"] = "loss",
    on: Literal["train", "validation"] = "train",
) -> Method:
    """Move the aggregation weights of any method towards clients with large gaps.

        G_i = risk_i(x) − risk_i(y_i),   a_i ← a_i + d^r (G_i − μ) / max_j |G_j − μ|

    x: the received model; y_i: client i's own after its last local training; a_i: starts at 1/K
    and stands wherever the method's rule starts from p_i, which is how GA reaches PPDG and every
    other rule with a prior. step: d, with d^r = (1 − r/R) d if `decay`. variant: see
    `unseen.combine.GeneralizationAdjustment`. gap, on: what risk on which split; the paper takes
    the training loss, its released code the validation accuracy.

    step=0 is the method with uniform weights, which in the paper's Table 3 (63.79) is already
    ahead of weights by examples (63.10).
    """
    if method.gather is not None:
        raise Incompatible(
            f"{method.name}+ga",
            f"{method.name} pools the data into one client, so there are no weights to adjust.",
        )
    rule = adjusted(model_rule(method), GeneralizationAdjustment(step, variant, decay), method.name)
    changed = renewing(with_rule(method, rule))
    probed = with_local(changed, lambda local: GapProbe(local, gap, on))
    shares = (*method.shares, "one generalization gap per round")
    return citing(replace(probed, shares=shares), REFERENCE)


def adjusted(rule: Combine, ga: GeneralizationAdjustment, name: str) -> Combine:
    """The rule with GA in the place where it starts from a mean."""
    if isinstance(rule, Mean):
        return ga
    if isinstance(rule, GeneralizationAdjustment):
        raise Incompatible(f"{name}+ga", f"GA already sets the weights of {name}.")
    if isinstance(rule, AutoWeighted):
        raise Incompatible(
            f"{name}+ga",
            f"both own the weights of the clients; {name} sets them by their "
            "losses, GA would by their gaps.",
        )
    if not any(field.name == "prior" for field in fields(rule)):  # type: ignore[arg-type]
        raise Incompatible(
            f"{name}+ga", f"the rule of {name} has no aggregation weights to adjust."
        )
    prior = adjusted(rule.source or Mean("uniform"), ga, name)
    assert isinstance(prior, Weighted)
    return replace(rule, prior=prior)  # type: ignore[type-var]
