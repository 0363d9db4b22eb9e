"""Generalization Adjustment: aggregation weights that follow the generalization gaps."""

from dataclasses import fields, replace
from typing import Any

from unseen.core import Method
from unseen.errors import Incompatible
from unseen.methods.base import asking, citing, incompatible, model_rule, with_local
from unseen.methods.combine import (
    Agnostic,
    AutoWeighted,
    Combine,
    GeneralizationAdjustment,
    GroupDRO,
    Mean,
    Weighted,
)
from unseen.methods.local.train import GapProbe
from unseen.methods.new_rule import with_rule
from unseen.methods.options import options_from, picked


@options_from(GeneralizationAdjustment, GapProbe, without=("prior",))
def add_ga(method: Method, **options: Any) -> Method:
    """Move the aggregation weights of any method towards clients with large gaps.

        G_i = risk_i(x) − risk_i(y_i),   a_i ← a_i + d^r (G_i − μ) / max_j |G_j − μ|

    x: the received model; y_i: client i's own after its last local training; a_i: starts at 1/K,
    whatever weights the method has, and replaces p_i wherever the method's rule starts from p_i,
    which is how GA reaches PPDG and every other rule with a prior.

    Note:
        step=0 is the method with uniform weights, which in the paper's Table 3 (63.79) is already
        ahead of weights by examples (63.10).

        The paper prints Δθ in §3.3 with (1 − a_k) θ_k, where its sign requires (a_k − 1) θ_k, and
        calls the model of a gap θ_i^(r−1)′ in G and θ_i^r′ in Algorithm 1.

        For `variant` see `unseen.methods.combine.GeneralizationAdjustment`.

    Departs from:
        Eq. 3 in that the largest distance from μ is by absolute value, and that gaps which are all
        equal move nothing, where it divides by 0; and the released code, which neither centres the
        gaps by μ nor moves weights by d^r, but by d^r/3 · G_i / max_j |G_j|: it is
        `variant="reference"`, `gap="accuracy"`, `on="validation"` and `step=0.2` by its own
        default.
    """
    if method.gather is not None:
        why = "pools the data into one client, so there are no weights to adjust."
        raise incompatible(method, "ga", why)
    adjustment = GeneralizationAdjustment(**picked(GeneralizationAdjustment, options))
    rule = adjusted(model_rule(method), adjustment, method.name)
    changed = with_rule(method, rule)
    probed = with_local(changed, lambda local: GapProbe(local, **picked(GapProbe, options)))
    shares = (*method.shares, "one generalization gap per round")
    if options.get("gap") == "accuracy":
        probed = asking(probed, "classes")
    return citing(replace(probed, shares=shares), "zhang2023ga")


def adjusted(rule: Combine, ga: GeneralizationAdjustment, name: str) -> Combine:
    """Return the rule with GA in the place where it starts from a mean."""
    if isinstance(rule, Mean):
        return ga
    if isinstance(rule, GeneralizationAdjustment):
        raise Incompatible(f"{name}+ga", f"GA already sets the weights of {name}.")
    if isinstance(rule, AutoWeighted | Agnostic | GroupDRO):
        why = f"both own the weights of the clients; {name} sets them by their losses, GA would by "
        raise Incompatible(f"{name}+ga", f"{why}their gaps.")
    if not any(field.name == "prior" for field in fields(rule)):  # type: ignore[arg-type]
        why = f"the rule of {name} starts from no mean, whose weights GA would adjust."
        raise Incompatible(f"{name}+ga", why)
    prior = adjusted(rule.source or Mean("uniform"), ga, name)
    assert isinstance(prior, Weighted)
    return replace(rule, prior=prior)  # type: ignore[type-var]
