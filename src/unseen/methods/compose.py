"""Method expressions: a method, and what is added to it, as in `fedprox(mu=0.1)+ga(step=0.05)`."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from unseen.core import Method
from unseen.core.survival import Cox, Hazards
from unseen.errors import Incompatible, UnseenError
from unseen.expression import Call, parse, resolve, takes, text
from unseen.methods import table
from unseen.methods.bag import bag_of
from unseen.methods.new_rule import check_outvoting, with_weights
from unseen.methods.portfolio import portfolio_of
from unseen.methods.recipe import Training
from unseen.methods.stack import stack_of
from unseen.methods.unfit import check_times

#: What a user's own part is called with in its place of an expression.
SIGNATURES = {
    "method": "A method is a function (training, *, options) -> Method and comes first; a "
    "modifier, (method, *, options) -> Method, follows a method and a plus.",
    "modifier": "A modifier is a function (method, *, options) -> Method; a method, "
    "(training, *, options) -> Method, comes first in an expression and cannot be added to "
    "another.",
}


def method(expression: str, training: Training | None = None) -> Method:
    """Return the method that an expression names, with the training's recipe.

    Args:
        expression: such as `fedprox(mu=0.1)+ga`. `module:function` is your own: (training, *,
            options) -> Method, or as a modifier (method, *, options) -> Method.
        training: the recipe, by default that of `Training()`.

    Raises:
        UnseenError: the expression cannot be read, or names something unknown.
        Incompatible: its parts do not go together.

    Note:
        The first part is a method, each further one a modifier, applied from left to right. Options
        are keywords; a wrong name or keyword is refused with the nearest right one. The training's
        `weights` are those of every method that does not name its own.

    Example:
        >>> method("fedprox(mu=0.5)+ga").name
        'fedprox(mu=0.5)+ga'
        >>> method("fedprx")
        Traceback (most recent call last):
        unseen.errors.UnseenError: unknown method 'fedprx'; did you mean 'fedprox'? Nearest of ...
    """
    first, *rest = parse(expression)
    if training is not None and isinstance(training.loss, Cox | Hazards):
        check_times(expression, training)
    if first.name in MODIFIERS and first.name not in METHODS:
        raise UnseenError(
            f"{first.name!r} is a modifier, not a method: write it behind one, as in "
            f"fedavg+{text((first,))}."
        )
    whole = replace(base(first, training or Training()), name=text((first,)))
    for place, call in enumerate(rest, 2):
        if call.name in METHODS and call.name not in MODIFIERS:
            raise UnseenError(
                f"{call.name!r} is a method, not a modifier: a method comes first, what it is "
                f"joined with behind it, as in {text((call,))}+ga. Found {expression!r}."
            )
        whole = _resolve("modifier", call, MODIFIERS, whole)
        whole = replace(whole, name=text((first, *rest)[:place]))
    if training is not None and whole.rounds is None:
        for call in added(training):
            whole = _resolve("modifier", call, MODIFIERS, whole)
    check_outvoting(whole, text((first, *rest)))
    return replace(whole, name=text((first, *rest)))


def added(training: Training) -> tuple[Call, ...]:
    """Return the modifiers that the training asks for, of every method that trains by rounds."""
    average = parse(training.average) if training.average else ()
    if len(average) > 1 or any(call.name not in ("tail", "ema") for call in average):
        raise UnseenError(
            f"training.average must be one average of models; found {training.average!r}.",
            remedy="Write tail(start=0.5) or ema(decay=0.9).",
        )
    several = (Call("ensemble", {"members": training.ensemble}),) if training.ensemble > 1 else ()
    return (*average, *several)


def base(call: Call, training: Training) -> Method:
    """Return the method of one call, with the training's weights where the call names none."""
    weights = training.weights
    if weights == "method" or "weights" in call.arguments:
        return _resolve("method", call, METHODS, training)
    if takes("method", call.name, "weights", METHODS):
        call = replace(call, arguments={**call.arguments, "weights": weights})
    return with_weights(_resolve("method", call, METHODS, training), weights)


def _resolve(
    kind: str, call: Call, table: Mapping[str, Callable[..., Method]], before: Training | Method
) -> Method:
    try:
        whole = resolve(kind, call, table, (before,), own=True)
    except Incompatible as error:
        if not isinstance(before, Method) or error.name != before.name:
            raise
        raise Incompatible(f"{before.name}+{call.name}", error.why) from error
    except AttributeError as error:
        # A user's part that was written for the other place reads what this one does not have.
        if error.obj is not before:
            raise
        raise UnseenError(
            f"{call.name!r} does not work as a {kind}: it reads {error.name!r} of what it is "
            f"given, and a {type(before).__name__} has none. {SIGNATURES[kind]}"
        ) from error
    if not isinstance(whole, Method):
        raise UnseenError(
            f"{call.name!r} must return an unseen.core.exchange.Method; it returned "
            f"{type(whole).__name__}."
        )
    return whole


#: (training, *, options) -> Method.
METHODS: dict[str, Callable[..., Method]] = {
    **table.METHODS,
    "bag": bag_of(method),
    "stack": stack_of(method),
    "portfolio": portfolio_of(method),
}
#: (method, *, options) -> Method, written `+name`.
MODIFIERS = table.MODIFIERS
