"""Server optimisers as methods: FedAvgM, FedAdam and FedYogi."""

from dataclasses import replace
from typing import Annotated, Any

from unseen.core import Add, Descend, Method
from unseen.core.optimiser import SGD, FedOpt, Optimiser
from unseen.methods.base import citing, incompatible, model_rule, trained, with_exchange
from unseen.methods.options import options_from
from unseen.ranges import Positive, Share, log, uniform

Rate = Annotated[Positive, log(0.01, 3)]
Momentum = Annotated[Share, uniform(0, 0.99)]


def add_fedavgm(method: Method, *, lr: Rate = 1.0, momentum: Momentum = 0.9) -> Method:
    """Keep a momentum of the server's steps.

        v ← β v + Σ_i p_i u_i,   x ← x + η v

    u_i: the update of client i.

    Args:
        method: The method that is changed.
        lr: η; the paper's is 1.
        momentum: β; the paper tunes it. A steady update is taken 1/(1 − β) times as far in the end.

    Departs from:
        the paper's experiments, whose server steps are Nesterov's.
    """
    return stepped(method, "fedavgm", SGD(lr, momentum), "hsu2019measuring")


@options_from(FedOpt, without=("second",))
def add_fedadam(method: Method, **options: Any) -> Method:
    """Take Adam's steps at the server, on minus the combined update.

        m ← β₁ m + (1 − β₁) u,   v ← β₂ v + (1 − β₂) u²,   x ← x + η m / (√v + τ)

    u = Σ_i p_i u_i, of the clients' updates; m = 0 and v = τ² at first, and neither is corrected
    for that.

    Departs from:
        Algorithm 2 as printed, which averages the updates uniformly (`weights="uniform"`).
    """
    return stepped(method, "fedadam", FedOpt(second="adam", **options), "reddi2021adaptive")


@options_from(FedOpt, without=("second",))
def add_fedyogi(method: Method, **options: Any) -> Method:
    """Take Yogi's steps at the server: FedAdam with v ← v − (1 − β₂) u² sign(v − u²).

        m ← β₁ m + (1 − β₁) u,   x ← x + η m / (√v + τ),   u = Σ_i p_i u_i

    v shrinks no faster than by (1 − β₂) u², so that a few small updates do not make the next large.

    Departs from:
        Algorithm 2 as printed, which averages the updates uniformly (`weights="uniform"`).
    """
    return stepped(method, "fedyogi", FedOpt(second="yogi", **options), "reddi2021adaptive")


def stepped(method: Method, name: str, optimiser: Optimiser, *references: str) -> Method:
    """Return the method whose server takes an optimiser's step where it added the update.

    Raises:
        Incompatible: The server's step is not a plain one.
    """
    model_rule(method)  # refuses several federations
    exchange = trained(method)
    slot = exchange.slots["model"]
    if method.gather is not None:
        raise incompatible(method, name, "pools the data, so the server has no step to take.")
    if slot.apply != Add() or method.rounds is not None:
        why = f"takes a step of its own on the server, and so would {name}."
        remedy = f"Put {name} on a method whose server adds the update, as in fedavg+{name}."
        raise incompatible(method, name, why, remedy)
    changed = {**exchange.slots, "model": replace(slot, apply=Descend(optimiser))}
    return citing(with_exchange(method, replace(exchange, slots=changed)), *references)
