"""StableFDG's styles on a method: an exchange in which clients send theirs, and what uses them."""

from dataclasses import replace
from functools import partial
from typing import Any

from unseen.combine import Collect
from unseen.core import Exchange, Local, Method, Put, Slot
from unseen.core.parts import layers
from unseen.gradient import Environments, Normalised
from unseen.gradient.style_exploration import STYLES, StyleExplored, StyleStatistics, first_style
from unseen.methods.base import asking, incompatible, local_training, trained, with_gradient

SOURCE = "park2023stablefdg"
SHARES = "mean and spread of feature maps' statistics on the training data, to every client"


def in_styles(method: Method, name: str, options: dict[str, Any]) -> Method:
    """Return the method whose clients train on feature maps in other styles.

    Args:
        method: Any method whose clients descend a gradient.
        name: Of the modifier that asks, for the message.
        options: Those of `StyleExplored`.

    Raises:
        Incompatible: It does so already, or passes batches in parts.
    """
    if STYLES in (e.name for e in method.exchanges):
        raise incompatible(method, name, "exchanges styles already.", "Set its own p and share.")
    gradient = getattr(local_training(method), "gradient", None)
    if any(isinstance(part, Environments) for part in layers(gradient)):
        why = "passes a batch in parts, and styles are chosen over all of it."
        raise incompatible(method, name, why)
    changed = with_gradient(method, lambda g: StyleExplored(g, **options), SOURCE)
    exchange, places = trained(changed), options["layers"]
    start = partial(first_style, places)
    slot = Slot(Collect(), apply=Put(), sends="value", start=start)
    measured: Local = StyleStatistics(places)
    for part in layers(exchange.local):
        if isinstance(part, Normalised):  # of the images as the network gets them
            measured = part.around(measured)
    first = Exchange(STYLES, measured, {STYLES: slot})
    first = replace(first, rounds=exchange.rounds, who=exchange.who, until=exchange.until)
    at = changed.exchanges.index(exchange)
    exchanges = (*changed.exchanges[:at], first, *changed.exchanges[at:])
    changed = replace(changed, exchanges=exchanges, shares=(*changed.shares, SHARES))
    return asking(changed, "images", "convolutions", "classes")
