"""HarmoFL: one amplitude for all images, and weights that are perturbed while they train."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal

import torch
from torch import Tensor

from unseen.core import Client, Exchange, Inbox, Memory, Method, Model, Replace, Reply, Slot, Turn
from unseen.methods.base import asking, changed, federated
from unseen.methods.combine import Mean
from unseen.methods.gradient import Backprop
from unseen.methods.gradient.amplitude import AMPLITUDE, Normalised
from unseen.methods.gradient.perturbation import Perturbed
from unseen.methods.images.bank import Bank
from unseen.methods.images.frequency import Window, mixed
from unseen.methods.images.norms import statistics_of_batches
from unseen.methods.local.batches import batches
from unseen.methods.local.train import Train
from unseen.methods.recipe import Training
from unseen.ranges import Acts, NotNegative, Range, Share, log, uniform

LOW = Acts("window='low'", lambda options: options["window"] == "low")


def harmofl(
    training: Training,
    *,
    alpha: Annotated[NotNegative, log(0.005, 0.5)] = 0.05,
    window: Literal["dc", "low", "all", "none"] = "dc",
    L: Annotated[float, Range(0, 0.5), uniform(0.01, 0.3), LOW] = 0.1,
    momentum: Share = 0.1,
    norm: Literal["as-is", "batch"] = "as-is",
) -> Method:
    """Give all images the clients' mean amplitude; step by the gradient at perturbed weights.

        x̃ = F⁻¹[Ā e^{i arg F(x)}] inside the window,   Ā = (1/K) Σ_i Ā_i
        Ā_i ← (1 − v) Ā_i + v mean_batch |F(x)|,        w ← w − η ∇F(w + α ∇F(w) / ‖∇F(w)‖; x̃)

    Ā is what the target's images get too.

    Args:
        training: The recipe.
        alpha: α; 0 means no perturbation.
        window: the frequencies whose amplitude is replaced: `"dc"`, the mean of each channel alone,
            which is what the released code's L = 0 comes to, and so the default; `"low"`, those
            of at most ⌊L · min(H, W)⌋; `"all"`; or `"none"`, no normalisation.
        L: of the window `"low"`, a share of the image's side; refused beside another window.
        momentum: v, over the batches of one local training, the first of which sets Ā_i; v = 0 is
            its first batch alone, to which the released code's 0.1 is truncated.
        norm: of BatchNorm over images: `"as-is"`, the study's network, or `"batch"`, the released
            networks' policy: no scales and shifts, and every batch is normalised by itself, also
            where it is predicted, so that a prediction depends on what else is predicted.

    Note:
        alpha=0, window="none" is `fedavg(weights="uniform")`. With `+ga` the a_i replace 1/K in the
        mean of the models, and Ā stays uniform: our reading, since GA's paper leaves it open.

        Clients weigh equally, as released. Images of all clients must be of one size.

    Departs from:
        the released code, whose clients train round 0 with their own Ā_i and average them after it:
        here the average, of all clients, is there from the first step on, so that gaps and metrics
        are of one network. It stays fixed then, as released. The released networks'
        BatchNorm is norm="batch", and not the default: rows of a table train one network.
    """
    local = Train(Perturbed(Backprop(training.loss), alpha), training)
    if window == "none":
        return normed(
            federated("harmofl", training, Mean("uniform"), "jiang2022harmofl", local), norm
        )
    frequencies = Window({"dc": 0.0, "low": L, "all": None}[window])
    inside = Normalised(local, frequencies)
    method = federated("harmofl", training, Mean("uniform"), "jiang2022harmofl", inside)
    row = Bank("harmofl", frequencies, 1).start
    slot = Slot(Mean("uniform"), apply=Replace(), sends="value", start=row)
    measure = MeanAmplitude(training, frequencies, momentum)
    first = Exchange(AMPLITUDE, measure, {AMPLITUDE: slot}, rounds=(0, 0), who="all")
    method = replace(
        method,
        exchanges=(first, *method.exchanges),
        predict=partial(predict, frequencies),
        shares=("the mean amplitude spectrum of the training images in the window, once",),
    )
    return normed(asking(method, "images"), norm)


def normed(method: Method, norm: str) -> Method:
    """Return the method with this policy of BatchNorm."""
    if norm == "as-is":
        return method
    return asking(replace(method, adapt=changed(statistics_of_batches)), "batchnorm")


@dataclass(frozen=True)
class MeanAmplitude:
    """Sends the running mean over batches of the amplitudes in a window."""

    training: Training
    window: Window
    momentum: float

    def __call__(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> tuple[Reply, Memory]:
        split, running = client.split("train"), torch.zeros(0)
        for index in batches(split, self.training, turn):
            x, _ = split.batch(index.to(model.device))
            mean = self.window(x).mean(0).flatten()
            empty = not running.numel()
            running = mean if empty else (1 - self.momentum) * running + self.momentum * mean
            if not self.momentum:
                break
        return Reply({AMPLITUDE: running}, {"examples": len(split)}), memory


def predict(window: Window, model: Model, inbox: Inbox, x: Tensor) -> Tensor:
    """Return the model's outputs for images with the amplitude that the inbox holds."""
    return model(mixed(x, inbox[AMPLITUDE], 1, window))
