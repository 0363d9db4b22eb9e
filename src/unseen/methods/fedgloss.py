"""FedGloSS: flat minima of the federation, by one step uphill on the server."""

from dataclasses import replace
from typing import Annotated, Any

from unseen.core import Method, Model, Replace, Slot
from unseen.methods.base import corrected, trained, with_exchange
from unseen.methods.combine import Mean, Weights
from unseen.methods.gradient import Backprop
from unseen.methods.gradient.ahead import BEFORE, Ahead
from unseen.methods.gradient.feddyn import Dynamic, WithGradient
from unseen.methods.local.train import Train
from unseen.methods.options import options_from
from unseen.methods.recipe import Training
from unseen.ranges import NotNegative, log


@options_from(Dynamic)
def fedgloss(
    training: Training,
    *,
    radius: Annotated[NotNegative, log(0.001, 0.3)] = 0.05,
    weights: Weights = "uniform",
    **options: Any,
) -> Method:
    """Run FedDyn whose clients begin a step uphill, where the last round's movement points back.

        x̃ = x + ρ (x₋ − x) / ‖x₋ − x‖,   w_k: FedDyn's training from x̃,   u_k = w_k − x̃
        s ← s − (1/N) Σ_{k∈S} u_k,   x₋ ← x,   x ← x + Σ_{k∈S} p_k u_k − s

    So the movement is that of the federation's sharpness-aware minimisation, with the movement of
    the round before for its gradient, and costs one pass. ρ = 0 is `feddyn`, and so is round 0.

    Args:
        training: The recipe.
        radius: ρ; the released commands take 0.15 and 0.01, after a rise over many rounds.
        weights: p; see `feddyn`.
        **options: The other options of the page; the paper's 1/β, which is 10 or 100, is alpha.

    Note:
        The server sends x₋ with x; nothing more comes back. It is x that predicts.
        `fedgloss+fedsam` has SAM on the clients as well, which the released commands have.

    Departs from:
        the released code in that x₋ − x is all of the last movement, s included; in s, whose sum it
        divides by |S| once more; and in ρ, which is the same in all rounds.
    """
    dynamic = Dynamic(Backprop(training.loss), **options)
    local = Ahead(WithGradient(Train(dynamic, training), dynamic.alpha), radius)
    method = corrected("fedgloss", training, Mean(weights), "caldarola2025fedgloss", local)
    exchange = trained(method)
    # First, so that it takes the model as it is before this round changes it.
    before = Slot(follows="model", apply=Replace(), start=current)
    slots = {BEFORE: before, **exchange.slots}
    return with_exchange(method, replace(exchange, slots=slots))


def current(model: Model) -> Any:
    """Return the inbox entry before round 0."""
    return model.vector.clone()
