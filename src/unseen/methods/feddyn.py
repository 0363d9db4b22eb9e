"""FedDyn: every client's objective is bent until its minimum is the federation's."""

from typing import Any

from unseen.core import Method
from unseen.methods.base import corrected
from unseen.methods.combine import Mean, Weights
from unseen.methods.gradient import Backprop
from unseen.methods.gradient.feddyn import Dynamic, WithGradient
from unseen.methods.local.train import Train
from unseen.methods.options import options_from
from unseen.methods.recipe import Training


@options_from(Dynamic)
def feddyn(training: Training, *, weights: Weights = "uniform", **options: Any) -> Method:
    """Bend each client's loss by a linear term, so that the federation's minimum is the client's.

        client:  w_k ← argmin F_k(w) − ⟨d_k, w⟩ + (α/2) ‖w − x‖²,   d_k ← d_k − α (w_k − x)
        server:  s ← s − (1/N) Σ_{k∈S} (w_k − x),   x ← Σ_{k∈S} p_k w_k − s

    d_k = 0 and s = 0 at first; S: those present of the roster of N. Nothing is sent but the model:
    s is made of updates. Where x stands still, so do all w_k = x, and Σ_k ∇F_k(x) = 0.

    Args:
        training: The recipe; the argmin is what its steps reach.
        weights: p; the paper's are uniform. With others, s is their mean of the movements times
            |S|/N.
        **options: The other options of the page.

    Note:
        x runs ahead of the mean of the models: from the same x each round moves it about twice as
        far as FedAvg at first. A rule such as `+ppdg` makes of the updates what is added, and s of
        that. Under weights that change (`+ga`, `+afl`, `+groupdro`) s keeps those of each round.
        BatchNorm statistics are averaged.

    Departs from:
        the released code, which divides α by n_k / n̄, adds weight decay, clips gradients, and plots
        the mean of all clients' last models, where here it is x that predicts.
    """
    dynamic = Dynamic(Backprop(training.loss), **options)
    local = WithGradient(Train(dynamic, training), dynamic.alpha)
    return corrected("feddyn", training, Mean(weights), "acar2021feddyn", local)
