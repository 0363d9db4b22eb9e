"""The parts that most methods share: one exchange, a rule for the model, one for the buffers."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from importlib import resources

import torch
from torch import Tensor, nn

from unseen.core import Add, Apply, Client, Descend, Exchange, Local, Method, Model, Reference, Slot
from unseen.core.client import pooled
from unseen.core.exchange import Blueprint
from unseen.core.metrics.evaluation import plain
from unseen.core.parts import Wrapper, able, innermost, rewrapped
from unseen.errors import Incompatible, UnseenError
from unseen.methods.combine import Combine, Mean, Weighted
from unseen.methods.gradient import Backprop, Gradient
from unseen.methods.gradient.feddyn import Corrected
from unseen.methods.local.train import Descent, FullGradient, Reports, Train, received_loss
from unseen.methods.recipe import Training

#: The exchange in which the model is trained; modifiers look for it by this name.
TRAIN = "train"
#: Columns whose histograms still fit a message.
MOST_BINNED = 4096


def federated(
    name: str,
    training: Training,
    rule: Combine,
    reference: Reference | str,
    local: Local | None = None,
    apply: Apply | None = None,
) -> Method:
    """Return the method of one exchange: local training, and one rule for the model.

    Args:
        name: the method's.
        training: the study's recipe.
        rule: combines the models.
        reference: where the method comes from, or its key in `references.bib`.
        local: by default the training of the recipe's loss.
        apply: how the combined update enters the model, by default as the recipe says.
    """
    exchange = Exchange(
        TRAIN,
        local or Train(Backprop(training.loss), training),
        slots(rule, apply or training.server),
    )
    return Method(name, (exchange,), (cited(reference),), plain)


def corrected(name: str, training: Training, rule: Combine, reference: str, local: Local) -> Method:
    """Return the method whose server takes FedDyn's step; see `federated`.

    Raises:
        UnseenError: The training sets another step of the server.
    """
    if training.server != Add():
        raise UnseenError(
            f"{name} has a step of its own on the server, and the training sets another.",
            remedy="Leave training.server as it is.",
        )
    method = federated(name, training, rule, reference, local, apply=Corrected())
    return replace(method, sized=_counted)


def _counted(method: Method, model: Model, blueprint: Blueprint) -> Method:
    """Return the method whose server knows the size of the roster."""
    exchange = trained(method)
    slot = replace(exchange.slots["model"], apply=Corrected(blueprint.clients))
    slots = {**exchange.slots, "model": slot}
    return replace(with_exchange(method, replace(exchange, slots=slots)), sized=None)


def gradient_method(
    name: str,
    training: Training,
    rule: Combine,
    reference: Reference | str,
    gradient: Gradient | None = None,
    chunk: int | None = None,
) -> Method:
    """Return the method whose clients send one gradient each, and whose server takes the step.

    Note:
        The step is that of the training's optimiser, unless the training sets a server optimiser.
        At most `chunk` examples pass at a time; see `unseen.methods.local.in_parts`.
    """
    apply = Descend(training.optimiser) if training.server == Add() else training.server
    local = FullGradient(gradient or Backprop(training.loss), chunk)
    return federated(name, training, rule, reference, local, apply)


def slots(rule: Combine, apply: Apply) -> dict[str, Slot]:
    """Return the slots of the model, combined by its rule, and of BatchNorm's statistics."""
    return {"model": Slot(rule, apply=apply), "buffers": with_buffers(Slot(apply=Add()), rule)}


def with_buffers(slot: Slot, rule: Combine) -> Slot:
    """Return the slot with BatchNorm's statistics combined to match the model's rule.

    Note:
        Statistics are not gradients: rules that mix updates with negative weights could make a
        variance negative. So they are averaged with the rule's weights where those are a mean's,
        and with its prior's otherwise. Where the rule outvotes wrong clients, a mean of all would
        let them in again: it is applied to the statistics too, or gives them its weights.
    """
    if rule.outvotes and rule.sees == "updates":
        return replace(slot, like=None, combine=rule)
    if rule.outvotes or mean_of(rule) is rule:
        return replace(slot, like="model", combine=None)
    return replace(slot, like=None, combine=mean_of(rule))


def mean_of(rule: Combine) -> Weighted:
    """Return the mean that a rule is, or else the one it starts from."""
    if isinstance(rule, Weighted) and rule.averages:
        return rule
    return rule.source or Mean("uniform")


def trained(method: Method) -> Exchange:
    """Return the exchange that trains the model."""
    for exchange in method.exchanges:
        if exchange.name == TRAIN:
            return exchange
    raise UnseenError(f"{method.name} has no exchange that trains the model.")


def several(method: Method) -> bool:
    """Return whether the method is several federations that train beside each other."""
    return "model" not in trained(method).slots


def alone(method: Method) -> Exchange:
    """Return the exchange that trains the model, of one federation.

    Raises:
        Incompatible: The method is several federations.
    """
    if several(method):
        raise Incompatible(
            method.name,
            f"{method.name} holds several models, and this changes how one of them is made.",
            remedy="Put it before what holds them, as in fedavg+ga+ema, or on the members.",
        )
    return trained(method)


def model_rule(method: Method) -> Combine:
    """Return the server rule for the model."""
    rule = alone(method).slots["model"].combine
    assert rule is not None
    return rule


def local_training(method: Method) -> Local:
    """Return the innermost local part of one federation, without its wrappers."""
    local: Local = innermost(alone(method).local)
    return local


def citing(method: Method, *references: Reference | str) -> Method:
    """Return the method with more references."""
    every = (*method.references, *map(cited, references))
    return replace(method, references=tuple(dict.fromkeys(every)))


def asking(method: Method, *what: str) -> Method:
    """Return the method with more that must be there, such as "images"."""
    return replace(method, asks=tuple(dict.fromkeys((*method.asks, *what))))


def with_exchange(method: Method, exchange: Exchange) -> Method:
    """Return the method with its training exchange replaced."""
    exchanges = tuple(exchange if e.name == exchange.name else e for e in method.exchanges)
    return replace(method, exchanges=exchanges)


def with_local(method: Method, wrap: Callable[[Local], Local]) -> Method:
    """Return the method with its local part wrapped.

    Note:
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


def with_gradient(
    method: Method, wrap: Callable[[Gradient], Gradient], *references: Reference | str
) -> Method:
    """Return the method with the gradient of its local training wrapped, citing where from.

    Note:
        So is that of every other exchange that descends the same one, as MLDG's first does.
    """

    def inside(local: Local) -> Local:
        if not isinstance(local, Descent):
            raise Incompatible(
                method.name,
                f"{method.name} does not descend a gradient that could be changed.",
                remedy="Put the modifier on a method that trains a network, or on the members.",
            )
        changed: Local = replace(local, gradient=wrap(local.gradient))  # type: ignore[type-var]
        return changed

    own = local_training(method)
    exchanges = tuple(
        replace(e, local=rewrapped(e.local, inside)) if innermost(e.local) == own else e
        for e in method.exchanges
    )
    return citing(replace(method, exchanges=exchanges), *references)


def reporting(method: Method) -> Method:
    """Return the method whose clients send their loss of the received model as well."""
    shares = (*method.shares, "the loss of the received model on its training data")
    probed = with_local(method, lambda local: Reports(local, received_loss))
    return replace(probed, shares=tuple(dict.fromkeys(shares)))


def changed(change: Callable[[nn.Module], nn.Module]) -> Callable[[Blueprint], nn.Module]:
    """Return what makes a method's network by changing the study's."""
    return lambda blueprint: change(blueprint.network)


def changed_further(method: Method, change: Callable[[nn.Module], nn.Module]) -> Method:
    """Return the method whose network is changed once more, after what it does to it by itself."""
    before = method.adapt or changed(lambda network: network)
    return replace(method, adapt=lambda blueprint: change(before(blueprint)))


def incompatible(method: Method, modifier: str, why: str, remedy: str = "") -> Incompatible:
    """Return the error for a modifier that does not go with a method.

    Args:
        method: The method.
        modifier: The modifier's name.
        why: The reason, as a sentence that begins with the method's name, which is left out here.
        remedy: What to do, as sentences.
    """
    name = method.name
    return Incompatible(f"{name}+{modifier}", f"{name} {why}", remedy=remedy)


def zeros(model: Model) -> Tensor:
    """Return an inbox entry [P] of zeros, before round 0."""
    return torch.zeros_like(model.vector)


def zeros_of(size: int, model: Model) -> Tensor:
    """Return an inbox entry [size] of zeros, before round 0."""
    return model.vector.new_zeros(size)


@cache
def cited(key: Reference | str) -> Reference:
    """Return the reference with this BibTeX key, or the reference itself.

    Note:
        `references.bib` has each entry under the line that lists and pages show; an empty line ends
        it. BibTeX ignores text between entries.
    """
    if isinstance(key, Reference):
        return key
    text = (resources.files("unseen.methods") / "references.bib").read_text("utf-8")
    for block in text.split("\n\n"):
        line, _, entry = block.strip().partition("\n")
        if f"{{{key}," in entry:
            return Reference(line, entry)
    raise UnseenError(f"references.bib has no entry {key!r}.", remedy="Add it, or correct the key.")


def binned(blueprint: Blueprint) -> str:
    """Return why a method that counts rows in bins cannot serve data; "" where it can."""
    inputs = math.prod(blueprint.shape)
    if inputs <= MOST_BINNED:
        return ""
    return (
        f"counts rows in bins of every column, of at most {MOST_BINNED:,} columns: these data have "
        f"{inputs:,}; take a network, as in fedavg"
    )


def gather(clients: Mapping[str, Client]) -> Mapping[str, Client]:
    """Return the roster of pooled training: one client."""
    return {"pooled": pooled(clients)}
