"""Method expressions: a method, and what is added to it, as in `fedprox(mu=0.1)+ga(step=0.05)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from unseen.errors import UnseenError
from unseen.exchange import Method
from unseen.expression import Call, parse, resolve, text
from unseen.methods import METHODS, MODIFIERS
from unseen.training import Training

#: What a user's own part is called with in its place of an expression.
SIGNATURES = {
    "method": "A method is a function (training, *, options) -> Method and stands first; a "
    "modifier, (method, *, options) -> Method, stands behind a method and a plus.",
    "modifier": "A modifier is a function (method, *, options) -> Method; a method, "
    "(training, *, options) -> Method, stands first in an expression and cannot be added to "
    "another.",
}


def method(expression: str, training: Training | None = None) -> Method:
    """The method that an expression names, with the training's recipe.

    The first part is a method, each further one a modifier, applied from left to right. Options
    are keywords; a wrong name or keyword is answered with the nearest right one. `module:function`
    stands for your own: (training, *, options) -> Method, or as a modifier (method, *, options)
    -> Method.

    >>> method("fedprox(mu=0.5)+ga").name
    'fedprox(mu=0.5)+ga'
    >>> method("fedprx")
    Traceback (most recent call last):
    unseen.errors.UnseenError: unknown method 'fedprx'; did you mean 'fedprox'? Nearest of ...
    """
    first, *rest = parse(expression)
    if first.name in MODIFIERS and first.name not in METHODS:
        raise UnseenError(
            f"{first.name!r} is a modifier, not a method: write it behind one, as in "
            f"fedavg+{text((first,))}."
        )
    built = _made("method", first, METHODS, training or Training())
    for call in rest:
        if call.name in METHODS and call.name not in MODIFIERS:
            raise UnseenError(
                f"{call.name!r} is a method, not a modifier: a method stands first, what it is "
                f"joined with behind it, as in {text((call,))}+ga. Found {expression!r}."
            )
        built = _made("modifier", call, MODIFIERS, built)
    return replace(built, name=text((first, *rest)))


def _made(
    kind: str, call: Call, table: Mapping[str, Callable[..., Method]], given: Training | Method
) -> Method:
    """The method that a part makes of what stands before it."""
    try:
        return checked(call, resolve(kind, call, table, (given,), own=True))
    except AttributeError as error:
        # A user's part that was written for the other place reads what this one does not have.
        if error.obj is not given:
            raise
        raise UnseenError(
            f"{call.name!r} does not work as a {kind}: it reads {error.name!r} of what it is "
            f"given, and a {type(given).__name__} has none. {SIGNATURES[kind]}"
        ) from error


def checked(call: Call, made: object) -> Method:
    """What a part made, if it is a method."""
    if not isinstance(made, Method):
        raise UnseenError(
            f"{call.name!r} must return an unseen.exchange.Method; it returned "
            f"{type(made).__name__}."
        )
    return made
