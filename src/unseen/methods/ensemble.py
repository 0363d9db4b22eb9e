"""Ensembles: several federations of other seeds, whose predictions are averaged."""

from dataclasses import replace

from torch import nn

from unseen.core import Method, Model
from unseen.core.exchange import Blueprint
from unseen.data.networks.mixture import Mixture
from unseen.methods.base import citing
from unseen.methods.together import Federation, check_member, check_repeats, together
from unseen.ranges import Count


def add_ensemble(method: Method, *, members: Count = 5) -> Method:
    """Train M federations that differ in their draws, and predict by the mean of probabilities.

        p(x) = (1/M) Σ_m p_m(x)

    They share nothing but the messages they travel in: first weights, batches and every other draw
    are those of other seeds, the first of them the job's own. In log loss and in Brier score the
    mean is never worse than its members are on average. All modifiers of the method come before.

    Args:
        method: The method that is changed.
        members: M; 1 is the method itself.

    Departs from:
        the paper in that there is no adversarial training, and that numbers are predicted by the
        members' mean alone, without a variance.
    """
    if members == 1:
        return method
    check_member(method, f"{method.name}+ensemble")
    check_repeats(method, "ensemble")
    first = tuple(Federation(method, f"members.{m}", m) for m in range(members))

    def network(blueprint: Blueprint) -> nn.Module:
        return Mixture([f.network(blueprint) for f in first], blueprint.classes is None)

    def sized(whole: Method, model: Model, blueprint: Blueprint) -> Method:
        federations = [f.sized(model, blueprint) for f in first]
        own = federations[0].method
        return replace(
            whole, exchanges=together(federations, model), rounds=own.rounds, cycle=own.cycle
        )

    return citing(
        replace(method, exchanges=together(first), adapt=network, sized=sized),
        "lakshminarayanan2017ensembles",
    )
