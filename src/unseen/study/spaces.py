"""What is searched for a method: the study's ranges, and those that the method declares."""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from unseen.core.optimiser import SGD, Adam
from unseen.expression import Call, options, own_part, parse
from unseen.methods.compose import METHODS, MODIFIERS
from unseen.methods.compose import method as compose
from unseen.recipe import Training
from unseen.spec.search_plan import Tune
from unseen.spec.search_space import Space, of_method
from unseen.spec.study import StudySpec


def spaces_of(study: StudySpec, method: str) -> tuple[Space, ...]:
    """Return what is searched for a method.

    How clients train is not searched for a method that does not ask for it, such as an exact fit.
    """
    tune = study.tune or Tune()
    names = {*METHODS, *MODIFIERS}
    changes = {k: v for k, v in tune.space.items() if k.rpartition(".")[0] in names}
    trains = reads_training(compose(method, study.training.build(regression=False)))
    spaces = [
        Space.read(key, form)
        for key, form in tune.space.items()
        if key not in changes and (trains or key.partition(".")[0] not in ("training", "rounds"))
    ]
    if tune.options or changes:
        declared = of_method(method, part if tune.options else nothing, changes)
        spaces += [declared] if declared is not None else []
    return tuple(spaces)


def part(place: int, call: Call) -> Callable[..., object] | None:
    """Return the method or modifier at a place of an expression."""
    if ":" in call.name:
        return own_part("method", call.name)
    return (MODIFIERS if place else METHODS).get(call.name)


def nothing(place: int, call: Call) -> None:
    """Return no part: what it declares is not searched."""


def defaults(method: str, space: Space) -> dict[str, Any]:
    """Return the options' values where the expression does not set them."""
    values = dict[str, Any]()
    for i, call in enumerate(parse(method)):
        if (own := part(i, call)) is not None:
            for option, parameter in options(own, 1).items():
                for name in (f"{call.name}.{option}", f"{i}.{call.name}.{option}"):
                    if name in space.ranges:
                        values[name] = parameter.default
    return values


def reads_training(thing: object) -> bool:
    """Return whether a method, or what it is made of, holds the recipe of local training."""
    if isinstance(thing, Training | SGD | Adam):
        return True
    if is_dataclass(thing) and not isinstance(thing, type):
        return any(reads_training(getattr(thing, f.name)) for f in fields(thing))
    if isinstance(thing, Mapping):
        return any(map(reads_training, thing.values()))
    return isinstance(thing, tuple | list) and any(map(reads_training, thing))
