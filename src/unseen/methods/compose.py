"""Method expressions: a method, and what is added to it, as in `fedprox(mu=0.1)+ga(step=0.05)`."""

from __future__ import annotations

from dataclasses import replace

from unseen.errors import UnseenError
from unseen.exchange import Method
from unseen.expression import Call, parse, resolve, takes, text
from unseen.methods import METHODS, MODIFIERS
from unseen.methods.base import with_weights
from unseen.training import Training


def method(expression: str, training: Training | None = None) -> Method:
    """The method that an expression names, with the training's recipe.

    The first part is a method, each further one a modifier, applied from left to right. Options
    are keywords; a wrong name or keyword is answered with the nearest right one. `module:function`
    stands for your own: (training, *, options) -> Method, or as a modifier (method, *, options)
    -> Method. The training's `weights` are those of every method that does not name its own.

    >>> method("fedprox(mu=0.5)+ga").name
    'fedprox(mu=0.5)+ga'
    >>> method("fedprx")
    Traceback (most recent call last):
    unseen.errors.UnseenError: unknown method 'fedprx'; did you mean 'fedprox'? Known: ...
    """
    first, *rest = parse(expression)
    built = base(first, training or Training())
    for call in rest:
        built = checked(call, resolve("modifier", call, MODIFIERS, (built,), own=True))
    return replace(built, name=text((first, *rest)))


def base(call: Call, training: Training) -> Method:
    """The method of one call, with the training's weights where the call names none."""
    weights = training.weights
    if weights == "method" or "weights" in call.arguments:
        return checked(call, resolve("method", call, METHODS, (training,), own=True))
    if takes("method", call.name, "weights", METHODS):
        call = replace(call, arguments={**call.arguments, "weights": weights})
    built = checked(call, resolve("method", call, METHODS, (training,), own=True))
    return with_weights(built, weights)


def checked(call: Call, made: object) -> Method:
    """What a part made, if it is a method."""
    if not isinstance(made, Method):
        raise UnseenError(
            f"{call.name!r} must return an unseen.exchange.Method; it returned "
            f"{type(made).__name__}."
        )
    return made
