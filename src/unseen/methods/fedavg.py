"""FedAvg and its two limits: one gradient per round (FedSGD) and pooled data (DeepAll)."""

from dataclasses import replace

from unseen.core import Method
from unseen.methods.base import federated, gather, gradient_method
from unseen.methods.combine import Mean, Weights
from unseen.methods.recipe import Training
from unseen.ranges import Count


def fedavg(training: Training, *, weights: Weights = "examples") -> Method:
    """Average what the clients' local training made of the model.

        x ← Σ_i p_i y_i,   p_i = n_i / Σ_j n_j

    y_i: the model after client i's local training from x; n_i: examples of its training split.

    Args:
        training: The recipe.
        weights: `"uniform"` takes p_i = 1/K. Which of the two a paper's FedAvg row used is often
            unsaid; in GA's Table 3 uniform weights are ahead by 0.7 points.
    """
    return federated("fedavg", training, Mean(weights), "mcmahan2017fedavg")


def fedsgd(
    training: Training, *, weights: Weights = "uniform", chunk: Count | None = None
) -> Method:
    """Take one gradient over each client's whole training split per round; the server steps.

        x ← optimiser(x, Σ_i p_i ∇F_i(x))

    Args:
        training: The recipe.
        weights: `"uniform"`, as FedILC's tables use it, or `"examples"`.
        chunk: the most examples that pass the network at a time, for a client whose split does not
            fit in memory: a gradient is the sum of its parts', so that only rounding differs. None
            takes as many as hold half a million numbers, on a GPU four million. Where BatchNorm
            would normalise each part by itself, or a loss is not a mean over examples, the split
            passes whole.

    Note:
        The training's optimiser and learning rate run on the server, unless a server optimiser is
        set; epochs and batch size have no effect.

    Departs from:
        the paper, which weighs gradients by examples (`weights="examples"`) and steps by plain SGD.
    """
    rule = Mean(weights)
    return gradient_method("fedsgd", training, rule, "mcmahan2017fedavg", chunk=chunk)


def deepall(training: Training) -> Method:
    """Train on all source data in one place: the pooled baseline that federation does without.

    One client holds the union of the training splits and trains as FedAvg's clients do; validation
    stays per source domain.

    Note:
        There is nothing to combine, so nothing composes with it on the server. The name is that of
        Li et al. 2017; PPDG and CSAC print it.
    """
    method = federated("deepall", training, Mean("uniform"), "li2017deeper")
    return replace(method, gather=gather)
