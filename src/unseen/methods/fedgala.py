"""FedGaLA: alignment of gradients, locally with the last global update, globally with the mean."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from torch import Tensor

from unseen.core import Client, Inbox, Local, Memory, Method, Model, Reply, Turn
from unseen.core.parts import Wrapper
from unseen.core.vector import Blocks
from unseen.methods.base import federated
from unseen.methods.combine import GlobalAlignment
from unseen.methods.gradient import Backprop
from unseen.methods.gradient.backprop import Around, Gradient, Step
from unseen.methods.local.train import Train
from unseen.methods.new_rule import replace_rule
from unseen.methods.options import options_from, picked
from unseen.methods.recipe import Training
from unseen.ranges import Range, uniform

#: The model that this client received when it last took part.
RECEIVED = "fedgala.received"


@dataclass(frozen=True)
class LocalAlignment(Around, named="fedgala"):
    """g_l ← 0 for each layer l with cos(−g_l, Δ_l) < threshold, Δ what the global model moved.

    Δ: the received model minus the one that this client received when it last took part, which it
    remembers (`Remember`): with a sample of the clients, the sum of all rounds between.

    Attributes:
        inner: the gradient of which layers are dropped.
        threshold: 0 in the authors' command, −0.1 in an earlier one.
        compare: `"descent"` as above, the direction in which the step would be; `"released"`,
            cos(g_l, Δ_l), as the code has it, where a gradient that agrees with the global update
            is the one to be dropped, since Δ points downhill and g uphill.
        blocks: what a layer is.

    Note:
        Nothing is dropped the first time, nor where Δ_l or g_l is 0.

    Source:
        Pourpanah et al. 2025, "Federated Unsupervised Domain Generalization using Global and Local
        Alignment of Gradients", local alignment.

    Departs from:
        the released code, whose optimiser skips a dropped tensor; here momentum and weight decay go
        on.
    """

    clips_per_example = True

    inner: Gradient
    threshold: Annotated[float, Range(-1, 1), uniform(-0.5, 0.5)] = 0.0
    compare: Literal["descent", "released"] = "descent"
    blocks: Blocks = "tensor"

    def changed(
        self, inner: Step, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> Step:
        if RECEIVED not in memory or self.threshold == -1:  # then nothing falls below
            return inner
        delta = inbox["model"] - memory[RECEIVED]
        if self.compare == "descent":
            delta = -delta
        blocks = model.layout.blocks(self.blocks)
        parts = [(model.gradient[b], delta[b], delta[b].norm()) for b in blocks]

        def step(x: Tensor, y: Tensor) -> Tensor:
            value = inner(x, y)
            for g, d, length in parts:
                bound = self.threshold * g.norm() * length
                g.mul_((g.dot(d) >= bound) | (length == 0))
            return value

        return step


@dataclass(frozen=True)
class Remember(Wrapper):
    """Another local, after which the client keeps the model that it had received."""

    clips_per_example = True

    inner: Local

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        reply, memory = self.inner(model, inbox, client, memory, turn)
        return reply, {**memory, RECEIVED: inbox["model"].clone()}


@options_from(LocalAlignment, GlobalAlignment)
def fedgala(training: Training, **options: Any) -> Method:
    """Drop local gradients that would undo the last global update; weigh updates by agreement.

        client:  g_l ← 0 where cos(−g_l, Δ_l) < threshold,   for each layer l
        server:  x_l ← x_l + Σ_i a_il u_il,   a_il ∝ p_i (1 + cos(u_il, Σ_j a_jl u_jl))/2

    Δ: what the global model moved since this client last took part; it costs no message, since
    the client remembers what it received.

    Departs from:
        the paper, which is unsupervised: its clients learn features without labels (SimCLR, BYOL,
        ...) and a linear layer follows on labelled data of the target; here clients minimise the
        training's loss on their labels, so its numbers do not compare.
    """
    aligned = LocalAlignment(Backprop(training.loss), **picked(LocalAlignment, options))
    rule = GlobalAlignment(**picked(GlobalAlignment, options))
    return federated(
        "fedgala", training, rule, "pourpanah2025fedgala", Remember(Train(aligned, training))
    )


@options_from(GlobalAlignment, without=("prior",))
def add_fedgala(method: Method, **options: Any) -> Method:
    """Put FedGaLA's server on any method that averages: layer by layer, weights by agreement.

    Note:
        The clients stay as they are; the method's weights become the prior.
    """
    return replace_rule(method, "fedgala", "pourpanah2025fedgala", GlobalAlignment, options)
