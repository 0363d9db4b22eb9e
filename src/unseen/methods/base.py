"""The parts that most methods share: one exchange, a rule for the model, one for the buffers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from unseen.combine import Combine, Mean, RosterMean, Weighted
from unseen.core.apply import Add, Apply
from unseen.core.exchange import Exchange, Local, Method, Reference, Slot
from unseen.core.metrics import plain
from unseen.core.parts import Wrapper, able, innermost, rewrapped
from unseen.errors import UnseenError
from unseen.gradient import Backprop, Gradient
from unseen.local.train import Descent, Train
from unseen.recipe import Training

#: The exchange in which the model is trained; modifiers look for it by this name.
TRAIN = "train"


def federated(
    name: str,
    training: Training,
    rule: Combine,
    reference: Reference,
    local: Local | None = None,
    apply: Apply | None = None,
) -> Method:
    """The method of one exchange: local training, one rule for the model."""
    exchange = Exchange(
        TRAIN,
        local or Train(Backprop(training.loss), training),
        slots(rule, apply or training.server, training),
    )
    return Method(name, (exchange,), (reference,), plain)


def slots(rule: Combine, apply: Apply, training: Training) -> dict[str, Slot]:
    """The model by its rule; BatchNorm statistics by the weights the rule starts from.

    Statistics are no gradients: rules that mix updates with negative weights could make a
    variance negative. So they are averaged with the rule's weights where those are a mean's, and
    with its prior's otherwise.
    """
    mean = mean_of(rule)
    buffers = Slot(like="model", apply=Add()) if mean is rule else Slot(mean, apply=Add())
    return {"model": Slot(rule, apply=apply), "buffers": buffers}


def mean_of(rule: Combine) -> Weighted:
    """The mean that a rule is, or else the one it starts from."""
    if isinstance(rule, Weighted) and rule.averages:
        return rule
    return rule.source or Mean("uniform")


def trained(method: Method) -> Exchange:
    """The exchange that trains the model."""
    for exchange in method.exchanges:
        if exchange.name == TRAIN:
            return exchange
    raise UnseenError(f"{method.name} has no exchange that trains the model.")


def model_rule(method: Method) -> Combine:
    """The server rule for the model."""
    rule = trained(method).slots["model"].combine
    assert rule is not None
    return rule


def local_training(method: Method) -> Local:
    """The innermost local part: what is left when all wrappers are taken off."""
    local: Local = innermost(trained(method).local)
    return local


def citing(method: Method, reference: Reference) -> Method:
    """The method with one more reference."""
    return replace(method, references=tuple(dict.fromkeys((*method.references, reference))))


def asking(method: Method, *what: str) -> Method:
    """The method with more that must be there."""
    return replace(method, asks=tuple(dict.fromkeys((*method.asks, *what))))


def with_exchange(method: Method, exchange: Exchange) -> Method:
    """The method with its training exchange replaced."""
    exchanges = tuple(exchange if e.name == exchange.name else e for e in method.exchanges)
    return replace(method, exchanges=exchanges)


def with_rule(method: Method, rule: Combine) -> Method:
    """The method with another server rule for the model, and to match it the rule of the buffers
    and of all that is averaged over the roster."""
    exchange, mean = trained(method), mean_of(rule)
    like = mean is rule
    changed = {
        name: replace(slot, combine=replace(slot.combine, prior=mean))
        if isinstance(slot.combine, RosterMean)
        else slot
        for name, slot in exchange.slots.items()
    }
    changed["model"] = replace(changed["model"], combine=rule)
    changed["buffers"] = replace(
        changed["buffers"], like="model" if like else None, combine=None if like else mean
    )
    return with_exchange(method, replace(exchange, slots=changed))


def with_weights(method: Method, weights: Literal["uniform", "examples"]) -> Method:
    """The method with this mean as the server's rule, or as the one that its rule starts from.

    Rules that set weights of their own (GA, ARFL, medians) stay as they are around it.
    """
    return with_rule(method, _starting(model_rule(method), Mean(weights)))


def sets_weights(method: Method) -> bool:
    """Whether the server's rule has no mean to start from that `with_weights` could set."""
    rule = model_rule(method)
    while rule.source is not None:
        rule = rule.source
    return not isinstance(rule, Mean)


def _starting(rule: Combine, mean: Mean) -> Combine:
    if isinstance(rule, Mean):
        return mean
    if rule.source is None:
        return rule
    changed: Combine = replace(rule, prior=_starting(rule.source, mean))  # type: ignore[type-var]
    return changed


def with_local(method: Method, wrap: Callable[[Local], Local]) -> Method:
    """The method with its local part wrapped.

    A local that puts the client's own part of the model in and takes it out again (`outermost`)
    stays outside: what is added must see the model as the client has it.
    """

    def around(local: Local) -> Local:
        if isinstance(local, Wrapper) and able(local, "outermost"):
            wrapped: Local = local.around(around(local.inner))
            return wrapped
        return wrap(local)

    exchange = trained(method)
    return with_exchange(method, replace(exchange, local=around(exchange.local)))


def with_gradient(method: Method, wrap: Callable[[Gradient], Gradient]) -> Method:
    """The method with the gradient of its local training wrapped."""

    def inside(local: Local) -> Local:
        if not isinstance(local, Descent):
            raise UnseenError(f"the local part of {method.name} does not descend a gradient.")
        changed: Local = replace(local, gradient=wrap(local.gradient))  # type: ignore[type-var]
        return changed

    return with_local(method, lambda local: rewrapped(local, inside))
