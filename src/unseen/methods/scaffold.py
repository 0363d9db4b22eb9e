"""SCAFFOLD: control variates against the drift of local training."""

from dataclasses import replace
from typing import Literal

from unseen.core import Add, Method, Slot
from unseen.core.optimiser import SGD
from unseen.errors import UnseenError
from unseen.methods.base import federated, trained, with_exchange, zeros
from unseen.methods.combine import Mean, RosterMean, Weights
from unseen.methods.gradient import Backprop
from unseen.methods.local.accumulation import check_sgd
from unseen.methods.local.scaffold import CONTROL, Controlled, Controls
from unseen.methods.local.train import Train
from unseen.methods.recipe import Training


def scaffold(
    training: Training,
    *,
    option: Literal[1, 2] = 2,
    momentum: Literal["correct", "refuse"] = "correct",
    weights: Weights = "examples",
) -> Method:
    """Correct every local step by how the client's gradients differ from those of all.

        y_i ← y_i − η (g_i(y_i) − c_i + c)
        c_i⁺ = ∇F_i(x)  (option 1)   or   c_i − c + (x − y_i) / (Kη)  (option 2)
        x ← x + Σ_i p_i (y_i − x),   c ← c + (|S|/N) Σ_{i∈S} p_i (c_i⁺ − c_i)

    y_i: client i's model, from x, after K steps at the rate η of this round's schedule; c_i, c: the
    client's control and the server's, 0 at first, so that round 0 is FedAvg; S: those present of
    the roster of N.

    Args:
        training: The recipe.
        option: 2 is the paper's choice and needs no pass over the data; 1 takes one, over the
            whole training split.
        momentum: the paper has plain SGD. With client momentum m the model moves further than Kη
            times the mean gradient, 10 times as far for m = 0.9, and controls by the printed
            formula would be as much too large. `"correct"` divides by ηA instead,
            A = Σ_{k=1}^K (1 − m^k) / (1 − m), after taking off what a momentum kept from the round
            before has moved; m = 0 is the printed formula. `+fedprox` is accounted for in the same
            way: see `unseen.methods.local.accumulation`. `"refuse"` admits plain SGD alone.
        weights: p_i; the paper's are uniform, with which c is always the mean of the N controls.
            With FedAvg's weights by examples c is Σ_i p_i c_i where all take part, and roughly
            that where S is a sample.

    Note:
        `scaffold+ga`: c ← c + (|S|/N) Σ_{i∈S} a_i (c_i⁺ − c), which with all present is Σ_i a_i
        c_i⁺, our reading, since GA's paper leaves it open, and what its released code does. The sum
        of changes would keep weights that have since moved. So it is under `+afl`, `+groupdro` and
        whatever else changes its weights.

        A rule such as `+ppdg` combines the models, while the controls keep their mean. The server's
        rate η_g is that of the training's server optimiser. Adam is admitted with option 1 only.
        Weight decay counts as part of the gradient. BatchNorm statistics are averaged as the model
        is.

    Departs from:
        GA's released code, whose controls lack 1/η and so are a thousand times too small at its
        rate.
    """
    if option == 2:
        check_sgd("scaffold", training, "Take sgd, or scaffold(option=1).")
    if momentum == "refuse" and training.optimiser != SGD(training.optimiser.lr):
        raise UnseenError(
            "scaffold(momentum='refuse') is for plain sgd, with neither momentum nor weight decay; "
            f"found {training.optimiser}.",
            remedy="Set those to 0, or take momentum='correct'.",
        )
    local = Controls(Train(Controlled(Backprop(training.loss)), training), option)
    method = federated("scaffold", training, Mean(weights), "karimireddy2020scaffold", local)
    exchange = trained(method)
    control = Slot(RosterMean(Mean(weights)), apply=Add(), sends="value", start=zeros)
    changed = replace(exchange, slots={**exchange.slots, CONTROL: control})
    shares = ("the change of its control variate, a mean of its gradients",)
    return replace(with_exchange(method, changed), shares=shares)
