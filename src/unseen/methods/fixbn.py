"""FixBN: BatchNorm that stops following each client's batches."""

from typing import Any

from unseen.combine import Mean, Weights
from unseen.core import Method
from unseen.gradient.fixed_statistics import FixedStatistics
from unseen.methods.base import asking, cited, federated, incompatible, with_gradient
from unseen.methods.options import options_from
from unseen.recipe import Training


@options_from(FixedStatistics)
def fixbn(training: Training, *, weights: Weights = "examples", **options: Any) -> Method:
    """Run FedAvg whose BatchNorm takes the batch's statistics first, and the global ones after.

        r < start · R:  (z − mean of the batch) / deviation of the batch
        r ≥ start · R:  (z − μ) / σ by the received statistics, which no longer change

    In the second stage clients train with the normalisation that the model predicts with, and their
    gradients do not depend on who else is in a batch.

    Args:
        training: The recipe.
        weights: see `fedavg`.
        **options: The other options of the page.

    Note:
        The policy of the statistics must be `training.buffers = "average"`.

    Departs from:
        the paper in that its further part, SGD's momentum that outlives a round, is left to
        `training.keep_optimiser` for clients and to `fixbn+fedavgm` for the server.
    """
    return fixed(federated("fixbn", training, Mean(weights), "zhong2023fixbn"), options)


@options_from(FixedStatistics)
def add_fixbn(method: Method, **options: Any) -> Method:
    """Train any method's BatchNorm under the received statistics in its later rounds."""
    if cited("zhong2023fixbn") in method.references:
        raise incompatible(method, "fixbn", "fixes its statistics already.", "Set its start.")
    return fixed(method, options)


def fixed(method: Method, options: dict[str, Any]) -> Method:
    """Return the method whose BatchNorm has two stages."""
    changed = with_gradient(method, lambda g: FixedStatistics(g, **options), "zhong2023fixbn")
    return asking(changed, "batchnorm")
