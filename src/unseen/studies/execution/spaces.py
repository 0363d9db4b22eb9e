"""What is searched for a method: the study's ranges, and those that the method declares."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from unseen.core.optimiser import SGD, Adam
from unseen.errors import UnseenError, check_known
from unseen.expression import Call, options, own_part, parse
from unseen.methods.compose import METHODS, MODIFIERS
from unseen.methods.compose import method as compose
from unseen.methods.recipe import Training
from unseen.studies.execution.sampler import plain
from unseen.studies.settings.named import put
from unseen.studies.settings.search_plan import Tune
from unseen.studies.settings.search_space import Space, of_method
from unseen.studies.settings.study import StudySpec
from unseen.studies.settings.wording import either

#: Settings that say how a model is trained. The others say at which sites, how often, what is
#: scored, and what is disclosed: a search over these would make its own task easier.
SEARCHED = ("model", "participation", "rounds", "training")


def check_space(study: StudySpec) -> list[str]:
    """Refuse ranges of what cannot be searched, and of options that no method has.

    Returns:
        What deserves a warning: ranges for methods that the study lacks, and methods whose
        training is searched nowhere.
    """
    space = study.tune.space if study.tune is not None else {}
    names = {call.name for method in study.methods for call in parse(method)}
    warnings = []
    for key in space:
        setting, (name, _, option) = key.partition(".")[0], key.rpartition(".")
        if setting in SEARCHED:
            continue
        if setting in StudySpec.model_fields:
            raise UnseenError(
                f"tune.space has {key}, and {setting} is the same in all trials.",
                remedy=f"Searched are {either(SEARCHED, 'and')} with what is inside of them, and "
                "METHOD.OPTION.",
            )
        if ":" not in name:
            check_known("setting or METHOD.OPTION to search", {*METHODS, *MODIFIERS}, name or key)
        parts = [part(i, Call(name)) for i in (0, 1)]
        offered = {o for p in parts if p is not None for o in options(p, 1, ":" in name)}
        check_known(f"option of {name}", offered, option)
        if name not in names:
            warnings.append(f"tune.space has {key}, and no method of this study is {name}.")
    if study.tune is not None and not any(key.partition(".")[0] in SEARCHED for key in space):
        warnings.append(
            "tune.space has no range of the training: every method keeps its learning rate, and "
            "one without options of its own has a single trial."
        )
    return warnings


def spaces_of(study: StudySpec, method: str) -> tuple[Space, ...]:
    """Return what is searched for a method.

    How clients train is not searched for a method that does not ask for it, such as an exact fit.
    """
    tune = study.tune or Tune()
    changes = {k: v for k, v in tune.space.items() if k.partition(".")[0] not in SEARCHED}
    trains = reads_training(compose(method, study.training.build("classes")))
    spaces = [
        Space.read(key, form)
        for key, form in tune.space.items()
        if key not in changes and (trains or key.partition(".")[0] not in ("training", "rounds"))
    ]
    if tune.options or changes:
        declared = of_method(method, part if tune.options else nothing, changes)
        spaces += [declared] if declared is not None else []
    return tuple(spaces)


def filled(
    method: str, spaces: Sequence[Space], values: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Return the expression of a method and the settings with these values; as they are of none."""
    expression, settings = method, dict[str, Any]()
    for space in spaces if values else ():
        if space.setting == method:
            expression = str(space.filled(values))
        else:
            settings[space.setting] = space.filled(values)
    return expression, settings


def with_values(study: StudySpec, settings: Mapping[str, Any]) -> StudySpec:
    """Return the study with other values of its settings, and without a search."""
    values = study.model_dump(exclude_defaults=True)
    values.pop("tune", None)
    for key, new in settings.items():
        put(values, key, new)
    return type(study)(**values)


def as_tried(
    study: StudySpec, method: str, values: Mapping[str, Any], searching: bool = False
) -> tuple[StudySpec, str]:
    """Return a study as one of its trials plays it, and the method's expression there.

    Args:
        study: The study, with its search.
        method: One of its methods.
        values: Name of a range -> value; empty for the study's own setting.
        searching: Whether it trains as long as a trial does, or as the study does.

    Raises:
        UnseenError: The study does not search these values.
    """
    spaces = spaces_of(study, method)
    ranges = {name: r for space in spaces for name, r in space.ranges.items()}
    if values and values.keys() != ranges.keys():
        names = ", ".join(ranges) or "nothing"
        raise UnseenError(f"a trial sets {', '.join(values)}; the study searches {names}.")
    for name, value in values.items():
        if not ranges[name].holds(value):
            raise UnseenError(f"a trial sets {name} = {value!r}; searched is {ranges[name]}.")
    expression, settings = filled(method, spaces, values)
    trains = study.tune.length if searching and study.tune is not None else {}
    return with_values(study, {**settings, **trains}), expression


def extremes(study: StudySpec, method: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield expressions and settings of a method's trials: its own, and the ends of all ranges.

    Of a list these are all of its values, and of numbers with fractions also one between the ends.
    """
    spaces = spaces_of(study, method)
    ends = {
        name: between(*r.values) if r.kind in ("log", "uniform") else r.values
        for space in spaces
        for name, r in space.ranges.items()
    }
    yield method, {}
    for i in range(max(map(len, ends.values()), default=0)):
        yield filled(
            method, spaces, {n: values[min(i, len(values) - 1)] for n, values in ends.items()}
        )


def between(low: float, high: float) -> tuple[float, ...]:
    """Return the ends of a range, and a number inside that is hardly ever whole."""
    return low, plain(low + (high - low) / math.e), high


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
            for option, parameter in options(own, 1, ":" in call.name).items():
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
