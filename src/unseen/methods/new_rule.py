"""Another rule on a method's server, and what of the method follows it."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from unseen.core import Method, Reference
from unseen.core.parts import layers
from unseen.errors import Incompatible
from unseen.methods.base import (
    citing,
    incompatible,
    mean_of,
    model_rule,
    several,
    trained,
    with_buffers,
    with_exchange,
)
from unseen.methods.combine import Combine, Gram, Mean, RosterMean, Weighted, Weights
from unseen.methods.gradient.gperxan import OwnNorms
from unseen.methods.local.scaffold import CONTROL, RENEWED


def with_rule(method: Method, rule: Combine) -> Method:
    """Return the method with another rule for the model, and the rules that follow it to match.

    Note:
        These are the rule of the buffers, and of all that is averaged over the roster. SCAFFOLD's
        controls are c ← (1 − |S|/N) c + (|S|/N) Σ a_i c_i⁺ under weights a that change.
    """
    exchange, mean = trained(method), mean_of(rule)
    changed = {
        name: replace(slot, combine=replace(slot.combine, prior=mean))
        if isinstance(slot.combine, RosterMean)
        else slot
        for name, slot in exchange.slots.items()
    }
    if mean.adapts and CONTROL in changed:
        changed[RENEWED] = replace(changed.pop(CONTROL), to=CONTROL)
    changed["model"] = replace(changed["model"], combine=rule)
    changed["buffers"] = with_buffers(changed["buffers"], rule)
    return with_exchange(method, replace(exchange, slots=changed))


def replace_rule(
    method: Method,
    name: str,
    reference: Reference | str,
    kind: type[Combine],
    options: Mapping[str, Any],
) -> Method:
    """Return the method with another rule on its server; the average it had becomes the prior.

    Args:
        method: a method that averages.
        name: the modifier that asks, for the message.
        reference: the source of the rule, which is added to the method's.
        kind: the rule's class.
        options: its fields but for the prior, if it has one.

    Raises:
        Incompatible: the method pools the data, or its rule is not an average.
    """
    old = model_rule(method)
    if method.gather is not None:
        why = "pools the data into one client, so the server has nothing to combine."
        raise incompatible(method, name, why)
    if not isinstance(old, Weighted) or not old.averages:
        why = f"already decides how updates are combined, and so would {name}."
        remedy = f"Put {name} on a method that averages, as in fedavg+{name}."
        raise incompatible(method, name, why, remedy)
    spread = issubclass(kind, Gram) and kind.spread
    if spread and any(isinstance(p, OwnNorms) for p in layers(trained(method).local)):
        why = "keeps BatchNorm at every client, which is not a disagreement between updates, and "
        why += f"{name} would take it for one."
        raise incompatible(method, name, why, f"Take fedavg+{name}.")
    if any(field.name == "prior" for field in fields(kind)):  # type: ignore[arg-type]
        options = {**options, "prior": old}
    return citing(with_rule(method, kind(**options)), reference)


def check_outvoting(method: Method, name: str) -> None:
    """Refuse a rule that outvotes wrong clients where a plain mean or sum lets them in again.

    Args:
        method: Any method.
        name: What it is called in the message.
    """
    rows = [pair for exchange in method.exchanges for pair in exchange.row_slots.items()]
    of_model = [one.combine for row, one in rows if row == "model" and one.combine is not None]
    beside = [one.combine for row, one in rows if row not in ("model", "buffers")]
    outvotes = any(rule.outvotes for rule in of_model)
    if outvotes and any(isinstance(rule, Weighted) for rule in beside):
        raise Incompatible(
            name,
            "wrong clients, whom the rule outvotes, would get in again by what is averaged beside "
            "the models.",
            remedy="Take the rule on a method that averages models alone, such as fedavg.",
        )


def with_weights(method: Method, weights: Weights) -> Method:
    """Return the method with this mean as the server's rule, or as the one its rule starts from.

    Note:
        Rules that set their own weights (GA, ARFL, medians) stay as they are around it.
    """
    if several(method) or not isinstance(_chain(model_rule(method))[-1], Mean):
        return method  # several federations took the weights each for itself
    return with_rule(method, _starting(model_rule(method), Mean(weights)))


def sets_weights(method: Method) -> bool:
    """Return whether a rule weighs models by itself: by no mean, or by one that adapts."""
    slots = [pair for exchange in method.exchanges for pair in exchange.row_slots.items()]
    rules = [slot.combine for row, slot in slots if row.partition("@")[0] == "model"]
    chains = [_chain(rule) for rule in rules if rule is not None]
    return any(not isinstance(c[-1], Mean) or any(r.adapts for r in c) for c in chains)


def _chain(rule: Combine) -> list[Combine]:
    """Return the rule, the one that it starts from, and so on."""
    return [rule, *(_chain(rule.source) if rule.source is not None else [])]


def _starting(rule: Combine, mean: Mean) -> Combine:
    if isinstance(rule, Mean):
        return mean
    if rule.source is None:
        return rule
    changed: Combine = replace(rule, prior=_starting(rule.source, mean))  # type: ignore[type-var]
    return changed
