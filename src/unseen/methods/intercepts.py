"""Site-specific intercepts: stratified biases, and a chosen one for the new site."""

from dataclasses import replace
from functools import partial

from unseen.core import ONE_LABEL, Local, Method, Model
from unseen.core.exchange import Blueprint
from unseen.core.parts import Wrapper, layers
from unseen.errors import Incompatible
from unseen.methods.base import (
    alone,
    asking,
    cited,
    citing,
    incompatible,
    local_training,
    trained,
    with_exchange,
    with_local,
)
from unseen.methods.combine import Apart, Gram
from unseen.methods.gradient.ahead import Ahead
from unseen.methods.gradient.fedcurv import WithFisher
from unseen.methods.local.intercepts import OwnIntercepts, bias_of
from unseen.methods.local.scaffold import CONTROL
from unseen.methods.local.train import Train


def add_intercepts(method: Method, *, head: str | None = None) -> Method:
    """Give every site its own bias in the last layer; a new site has the mean of them.

        f_k(x) = W h(x) + b_k,   b = Σ_k p_k b_k

    Where an outcome is more frequent at one site than at another for reasons that the inputs do
    not tell, shared weights need not explain it. Each site keeps its b_k and sends it as part of
    its model, so that the server's bias is the mean, by the weights of the method's rule. What
    differs because it is each site's own is not a disagreement: the biases are left out of the
    spread that the rules `exp` and `random-effects` measure, and of the curvature that holds the
    sites of `fedcurv` near each other.

    Args:
        method: The method that is changed.
        head: the last layer's name, by default the last linear one.

    Note:
        A server's own step (`fedavgm`, `fedadam`, `fedomg`) moves the bias as it moves the model,
        so that it follows the sites' mean and is not always there.

    Departs from:
        the paper, which fits a regression to all sites' rows at once, and has further ways to
        choose the bias of a new site than the mean.
    """
    if cited("debray2013framework") in method.references:
        raise incompatible(method, "intercepts", "has its own already.")
    exchange = alone(method)
    if method.rounds is not None:
        why = "does not train a network of its own."
        raise incompatible(method, "intercepts", why, "Put the modifier on its members.")
    if any(isinstance(part, Ahead) for part in layers(exchange.local)):
        why = "begins uphill of the server's model, which does not include a site's own bias."
        raise incompatible(method, "intercepts", why, "Take feddyn+intercepts.")
    if not isinstance(local_training(method), Train):
        raise Incompatible(
            f"{method.name}+intercepts",
            f"a site of {method.name} does not train the model, so no bias of its own would move.",
            remedy="Put the modifier on a method whose sites train, as in fedavg+intercepts.",
        )
    if CONTROL in exchange.slots:
        raise Incompatible(
            f"{method.name}+intercepts",
            f"the corrections of {method.name} make all sites follow one gradient, and so their "
            "biases too.",
        )

    if (code := exchange.slots["model"].code) is not None and code.share < 1:
        why = "sends a part of each update, and a bias of a site's own is not an update."
        raise incompatible(method, "intercepts", why, "Take +compress(share=1).")

    def sized(whole: Method, model: Model, blueprint: Blueprint) -> Method:
        if method.sized is not None:
            whole = method.sized(whole, model, blueprint)
        own = bias_of(model, head)
        return without_spread(whole, (own.start, own.stop))

    changed = with_local(method, lambda local: OwnIntercepts(without_curvature(local, head), head))
    sized_later = asking(replace(changed, sized=sized), ONE_LABEL)
    return citing(sized_later, "debray2013framework")


def without_curvature(local: Local, head: str | None) -> Local:
    """Return the local with no curvature of the sites' own biases, if it sends any."""
    if isinstance(local, WithFisher):
        return replace(local, own=partial(bias_of, name=head))
    if isinstance(local, Wrapper):
        inside: Local = local.around(without_curvature(local.inner, head))
        return inside
    return local


def without_spread(method: Method, columns: tuple[int, int]) -> Method:
    """Return the method whose rule, if it measures how updates differ, does without columns."""
    exchange = trained(method)
    slot = exchange.slots["model"]
    if not isinstance(slot.combine, Gram) or not slot.combine.spread:
        return method
    rule = Apart(slot.combine, columns)
    slots = {**exchange.slots, "model": replace(slot, combine=rule)}
    return with_exchange(method, replace(exchange, slots=slots))
