"""Method expressions: a method, and what is added to it, as in `fedprox(mu=0.1)+ga(step=0.05)`."""

from __future__ import annotations

from dataclasses import replace

from unseen.errors import UnseenError
from unseen.exchange import Method
from unseen.expression import Call, parse, resolve, text
from unseen.methods import METHODS, MODIFIERS
from unseen.training import Training


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
    unseen.errors.UnseenError: unknown method 'fedprx'; did you mean 'fedprox'? Known: ...
    """
    first, *rest = parse(expression)
    built = checked(first, resolve("method", first, METHODS, (training or Training(),), own=True))
    for call in rest:
        built = checked(call, resolve("modifier", call, MODIFIERS, (built,), own=True))
    return replace(built, name=text((first, *rest)))


def checked(call: Call, made: object) -> Method:
    """What a part made, if it is a method."""
    if not isinstance(made, Method):
        raise UnseenError(
            f"{call.name!r} must return an unseen.exchange.Method; it returned "
            f"{type(made).__name__}."
        )
    return made
