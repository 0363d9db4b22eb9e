"""Ranges as annotations, `lam: NotNegative = 1.0`, checked where a part or an option is set."""

import math
from collections.abc import Mapping
from functools import cache
from types import NoneType
from typing import Annotated, ClassVar, Literal, NamedTuple, get_args, get_origin, get_type_hints

from unseen.errors import choice, number


class Range(NamedTuple):
    """The interval from `low` to `high`; its upper end is inside."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False


Share = Annotated[float, Range(0, 1)]
NotNegative = Annotated[float, Range(0)]
Positive = Annotated[float, Range(0, open_low=True)]
Natural = Annotated[int, Range(0)]
Count = Annotated[int, Range(1)]


class Checked:
    """Refuses fields outside of the range, or of the names, that their annotations give.

    Attributes:
        named: What messages call it, by default as its class.
    """

    named: ClassVar[str]

    def __init_subclass__(cls, named: str = "", **options: object) -> None:
        super().__init_subclass__(**options)
        cls.named = named or cls.__name__

    def __post_init__(self) -> None:
        for name, annotation in hints(type(self)).items():  # type: ignore[arg-type]
            check(f"{self.named}({name})", getattr(self, name), annotation)


@cache
def hints(part: object) -> Mapping[str, object]:
    """Return what a class says of its fields, or a function of its parameters.

    Of a part whose annotations cannot be read, such as a user's own, it is nothing.
    """
    try:
        return get_type_hints(part, include_extras=True)
    except (NameError, TypeError):
        return {}


def check(name: str, value: object, annotation: object) -> None:
    """Refuse a value that is not in the `Range`, or one of the `Literal` names, annotated."""
    origin = get_origin(annotation)
    if origin is Literal:
        choice(name, value, get_args(annotation))
    elif origin is Annotated:
        kind, interval, *_ = get_args(annotation)
        if isinstance(interval, Range):
            low, high, open_low = interval
            number(name, value, low, high, whole=kind is int, open_low=open_low)
    elif NoneType in (kinds := get_args(annotation)) and len(kinds) == 2 and value is not None:
        check(name, value, next(kind for kind in kinds if kind is not NoneType))
