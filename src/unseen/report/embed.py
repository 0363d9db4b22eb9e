"""Maps of features (CSAC, Figure 3 right): what a net sees, coloured by class and by domain."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from unseen.errors import UnseenError
from unseen.images.features import tapped
from unseen.report.figures import Points

#: Seed and size of the neighbourhoods of t-SNE.
SEED, PERPLEXITY = 0, 30


def features(module: nn.Module, x: Tensor) -> Tensor:
    """Return what enters the last linear layer [N, D], in evaluation mode.

    Args:
        module: The net.
        x: Inputs [N, ...].

    Raises:
        UnseenError: The net has no linear layer.
    """
    linear = [name for name, part in module.named_modules() if isinstance(part, nn.Linear)]
    if not linear:
        raise UnseenError("features are what enters the last linear layer; the model has none.")
    seen: list[Tensor] = []

    def keep(entering: Tensor) -> Tensor:
        seen.append(entering.detach().flatten(1))
        return entering

    mode = module.training
    module.eval()
    try:
        with torch.no_grad(), tapped(module, linear[-1], "input") as tap:
            tap.change = keep
            module(x)
    finally:
        module.train(mode)
    return seen[-1]


def embedding(rows: Tensor) -> Tensor:
    """Return t-SNE of rows [N, D] to [N, 2] by openTSNE, from a fixed seed.

    Raises:
        UnseenError: openTSNE is not installed, or there are fewer than ten rows.
    """
    try:
        from openTSNE import TSNE
    except ImportError:
        raise UnseenError(
            "t-SNE needs openTSNE: pip install 'unseen[report]', or leave out --data-dir."
        ) from None
    if len(rows) < 10:
        raise UnseenError(f"t-SNE needs ten examples or more; found {len(rows)}.")
    perplexity = min(PERPLEXITY, (len(rows) - 1) // 3)
    tsne = TSNE(perplexity=perplexity, random_state=SEED, n_jobs=1)
    return torch.as_tensor(tsne.fit(rows.double().numpy()), dtype=torch.float64)


def maps(places: Tensor, classes: Sequence[str], domains: Sequence[str]) -> tuple[Points, Points]:
    """Return the same places [N, 2] twice: coloured by class, and by domain."""
    x, y = (tuple(round(v, 3) for v in column.tolist()) for column in places.T)
    return (
        Points("by class", x, y, tuple(classes), tuple(sorted(set(classes)))),
        Points("by domain", x, y, tuple(domains), tuple(sorted(set(domains)))),
    )
