"""What tables say of the recipe that all methods share, and of those that do without."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from unseen.core import Method
from unseen.errors import UnseenError
from unseen.expression import parse
from unseen.methods.base import sets_weights
from unseen.methods.compose import method as compose

#: training.weights -> the weights of the clients in the methods' means.
WEIGHTS = {
    "uniform": "1/K in every method's mean",
    "examples": "n_i/n, by examples, in every method's mean",
    "method": "each method's own default, so that rows may differ in them and not in the method "
    "alone",
}


def composed(methods: Iterable[str]) -> dict[str, Method]:
    """Return the methods of these expressions; not those with a user's part that is gone."""
    found = {}
    for text in methods:
        with suppress(UnseenError):
            found[text] = compose(text)
    return found


def own_rounds(methods: Sequence[str]) -> str:
    """Return what to say of methods that end by themselves, whatever the study's rounds."""
    names = [text for text, method in composed(methods).items() if method.rounds is not None]
    return f"; {', '.join(names)}: as many rounds as the method takes" if names else ""


def weighting(weights: str, methods: Iterable[str]) -> str:
    """Return the weights of the clients in the methods' means, in words.

    Args:
        weights: The study's setting, a name in `WEIGHTS`.
        methods: The study's methods.
    """
    words = WEIGHTS[weights]
    if weights == "method":
        return words
    own = [text for text in methods if "weights" in parse(text)[0].arguments]
    by_rule = [t for t, m in composed(methods).items() if t not in own and sets_weights(m)]
    words += f"; as written in {', '.join(own)}" if own else ""
    return words + (f"; {', '.join(by_rule)}: by a rule of their own" if by_rule else "")


def taking_part(participation: float | int) -> str:
    """Return who takes part in a round, in words."""
    if isinstance(participation, int):
        return f"{counted(participation, 'client')} per round"
    return "all clients" if participation == 1 else f"{participation:.0%} of the clients per round"


def counted(number: int, unit: str) -> str:
    """Return a number with its unit.

    Example:
        >>> counted(1, "epoch"), counted(5, "epoch")
        ('1 epoch', '5 epochs')
    """
    return f"{number} {unit}{'s' if number > 1 else ''}"


def separation(method: str, columns: Iterable[str]) -> str:
    """Return what is said of columns that separate the classes."""
    names = ", ".join(sorted(columns))
    return f"{method}: classes are separated by {names}; a small penalty keeps coefficients finite"
