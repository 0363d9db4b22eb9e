"""COPA: the body is averaged, the heads are collected and all of them travel."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.core import (
    ONE_LABEL,
    Client,
    Inbox,
    Local,
    Memory,
    Method,
    Model,
    Put,
    Reply,
    Slot,
    Turn,
)
from unseen.core.losses import Loss, LossFunction, SquaredError
from unseen.core.parts import Wrapper
from unseen.methods.base import changed, federated, trained, with_exchange
from unseen.methods.combine import Collect, Mean, Weights
from unseen.methods.gradient import Backprop
from unseen.methods.gradient.heads import Head, loss_of
from unseen.methods.images.norms import halves, hybrid
from unseen.methods.local.train import Train
from unseen.methods.recipe import Training
from unseen.ranges import Checked

#: The slot and inbox entry of all heads [N, Ph], one row per client of the roster.
HEADS = "heads"


def first_head(name: str | None, model: Model) -> Tensor:
    """Return one client's row before round 0: the head that the model starts with."""
    return model.vector[Head.of(model, name).part].clone()


@dataclass(frozen=True)
class Collaboration(Checked, named="copa"):
    """ℓ(h_j(f), y) over all N heads, f = F(x): the others' heads h_j as received, frozen.

    Attributes:
        loss: ℓ.
        scale: `"mean"`, the body F descends (1/N) Σ_j ℓ(h_j(f), y) and the own head h_k its own
            loss, so that both take steps as long as those of a single loss; `"sum"`, all descend
            Σ_j ℓ(h_j(f), y), which is N times the rate for the body. The value is the mean or the
            sum.
        head: the layer's name.
    """

    loss: Loss
    scale: Literal["mean", "sum"] = "mean"
    head: str | None = None

    def open(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> LossFunction:
        inner = self.loss.open(model, inbox, client, memory, turn)
        head, rows = Head.of(model, self.head), inbox[HEADS]
        others = rows[torch.arange(len(rows), device=rows.device) != turn.index]
        M = len(others)

        def loss(model: Model, x: Tensor, y: Tensor) -> Tensor:
            features, outputs = head.run(model, x)
            value = loss_of(inner, outputs, x, y)
            if not M:
                return value
            # A mean over all pairs of an example and a head is the mean of the heads' losses.
            stacked = head.apply(others, features).flatten(0, 1)
            shared = loss_of(inner, stacked, x, y.repeat_interleave(M))
            if self.scale == "sum":
                return value + M * shared
            # Takes from the body, and not from the own head, what makes its share 1 / (M + 1).
            frozen = loss_of(inner, head.frozen(features), x, y)
            return value + M / (M + 1) * (shared - frozen)

        return loss


@dataclass(frozen=True)
class OwnHead(Wrapper):
    """Another local that works with the client's own head, which it sends as a separate row.

    Note:
        In the vector the head is put back as received: the model's update is 0 there. A client that
        is not on the roster has none.

        What the other local finds in the inbox as `model` is the received body under the client's
        own head, so that a proximal term holds each client near its own.
    """

    outermost: ClassVar[bool] = True

    inner: Local
    head: str | None = None

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        part = Head.of(model, self.head).part
        if turn.index >= 0:
            model.vector[part] = inbox[HEADS][turn.index]
        received = {**inbox, "model": model.vector.clone()}
        reply, memory = self.inner(model, received, client, memory, turn)
        row = model.vector[part].clone()
        model.vector[part] = inbox["model"][part]
        return Reply({**reply.rows, HEADS: row}, reply.scalars), memory


@dataclass(frozen=True)
class Ensemble(Checked, named="copa"):
    """The prediction of all heads on the shared features, as outputs that any loss can read.

    Attributes:
        of: `"probabilities"`, log (1/N) Σ_j softmax(h_j(f)), or for one logit the log-odds of the
            mean probability; or `"logits"`, (1/N) Σ_j h_j(f).
        numbers: regression, where it is the latter.
        head: the layer's name.
    """

    of: Literal["probabilities", "logits"] = "probabilities"
    numbers: bool = False
    head: str | None = None

    def __call__(self, model: Model, inbox: Inbox, x: Tensor) -> Tensor:
        head = Head.of(model, self.head)
        features, _ = head.run(model, x)
        z = head.apply(inbox[HEADS], features)
        if self.numbers or self.of == "logits":
            return z.mean(1)
        if z.shape[-1] == 1:
            return F.logsigmoid(z).logsumexp(1) - F.logsigmoid(-z).logsumexp(1)
        return z.log_softmax(-1).logsumexp(1) - math.log(z.shape[1])


ADAPT = {"hybrid": changed(hybrid), "half": changed(halves)}


def copa(
    training: Training,
    *,
    scale: Literal["mean", "sum"] = "mean",
    ensemble: Literal["probabilities", "logits"] = "probabilities",
    norm: Literal["as-is", "hybrid", "half"] = "as-is",
    weights: Weights = "examples",
    head: str | None = None,
) -> Method:
    """Average the body, keep every client's head, and train each body under all of them.

        client k:   min over F of c Σ_j ℓ(h_j(F(x)), y),   min over h_k of ℓ(h_k(F(x)), y)
        server:     F ← Σ_k p_k F_k,   heads ← (h_1, ..., h_N)
        prediction: (1/N) Σ_j softmax(h_j(F(x))),  for numbers (1/N) Σ_j h_j(F(x))

    F: the body, all but the head; h_j: the head of client j as last sent, frozen at the others.

    Args:
        training: The recipe.
        scale: c = 1/N (`"mean"`), so that body and head take steps of FedAvg's length, or 1
            (`"sum"`), which multiplies the learning rate of the body by up to N under SGD (exactly
            N in round 0, where all heads are equal) and wants one about N times smaller.
        ensemble: the mean of probabilities, or of logits before the softmax.
        norm: `"hybrid"` puts `unseen.methods.images.norms.Hybrid`, BN and IN mixed by a learnt gate
            for each channel, instead of BatchNorm; `"half"` IN for half the channels, as in
            IBN-Net.
        weights: p_k.
        head: the layer, by default the last linear one.

    Note:
        No released code was found, and of the paper only the abstract was available: feature
        extractors are averaged, classifiers assembled into an ensemble, "hybrid batch-instance
        normalization" and "collaboration of frozen classifiers". The rest is our reading: the mean
        over heads, where the one reimplementation that we know (in MarsFL, which averages no
        predictions) has the sum; probabilities, the usual ensemble, since the heads' logits need
        not be of one scale.

        A rule put on COPA, as in `copa+ppdg`, is on the body; with `copa+ga` a gap is the risk of
        the averaged body less that of the client's own, both under the client's own head. Such an
        addition finds the received body under the client's head wherever it looks at the received
        model.

        All heads start as one and go to every client, so traffic grows with N; with a sample of the
        clients those who stay away keep their head, also one that was never trained. One client
        alone is plain local training. The loss that is reported is the mean over heads, or the sum.

    Departs from:
        the abstract in that normalisation stays as it is by default, since PPDG's rows of COPA do
        not say, and since every method then trains the same network; `norm="hybrid"` has both
        kinds.
    """
    loss = Collaboration(training.loss, scale, head)
    local = OwnHead(Train(Backprop(loss), training), head)
    method = federated("copa", training, Mean(weights), "wu2021copa", local)
    exchange = trained(method)
    heads = Slot(Collect(), apply=Put(), sends="value", start=partial(first_head, head))
    return replace(
        with_exchange(method, replace(exchange, slots={**exchange.slots, HEADS: heads})),
        predict=Ensemble(ensemble, isinstance(training.loss, SquaredError), head),
        adapt=ADAPT.get(norm),
        shares=("every client's own head, with all other clients",),
        asks=("batchnorm", ONE_LABEL) if norm in ADAPT else (ONE_LABEL,),
    )
