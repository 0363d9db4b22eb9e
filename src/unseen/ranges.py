"""Ranges as annotations, `lam: NotNegative = 1.0`, checked where a part or an option is set.

Also the options that have two names.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from numbers import Real
from types import NoneType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    get_args,
    get_origin,
    get_type_hints,
)

from unseen.errors import UnseenError, choice, number


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


#: Part -> another name of an option -> the option.
OTHER_NAMES = {"table": {"site": "domain"}}

#: How a range is written: on a logarithmic scale, evenly, whole numbers, or a list of values.
KINDS = ("log", "uniform", "whole", "one")
#: By how much a number that is tried may be off an end, of the larger end: it has four digits.
ROUNDED = 1e-3


@dataclass(frozen=True)
class Search:
    """What to try for an option when it is tuned; narrower than its `Range`.

    Attributes:
        kind: `log`, `uniform` and `whole` have two ends, which are inside; `one` lists values.
        values: The ends, or the values.

    Example:
        >>> print(log(0.001, 1), one("mean", "sum"))
        log(0.001, 1) one('mean', 'sum')
    """

    kind: str
    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if self.kind == "one":
            if all(value == self.values[0] for value in self.values):
                raise UnseenError(f"{self} needs two or more values that differ.")
            return
        for end in self.values:
            number(str(self), end, whole=self.kind == "whole")
        low, high = self.values if len(self.values) == 2 else (0, 0)
        if not low < high or (self.kind == "log" and low <= 0):
            above = " above 0" * (self.kind == "log")
            raise UnseenError(
                f"{self} is not a range.",
                remedy=f"Write {self.kind}(LOW, HIGH), two numbers{above}, the lower one first.",
            )

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(map(repr, self.values))})"

    def holds(self, value: object) -> bool:
        """Return whether a value is in the range, up to the digits with which numbers are tried."""
        if self.kind == "one":
            return value in self.values or (isinstance(value, list) and tuple(value) in self.values)
        if isinstance(value, bool) or not isinstance(value, int if self.kind == "whole" else Real):
            return False
        low, high = self.values
        slack = 0.0 if self.kind == "whole" else ROUNDED * max(abs(low), abs(high))
        return bool(low - slack <= value <= high + slack)


def log(low: float, high: float) -> Search:
    """Return the range from low to high, every factor as likely as any other."""
    return Search("log", (low, high))


def uniform(low: float, high: float) -> Search:
    """Return the range from low to high."""
    return Search("uniform", (low, high))


def whole(low: int, high: int) -> Search:
    """Return the whole numbers from low to high."""
    return Search("whole", (low, high))


def one(*values: Any) -> Search:
    """Return a choice among values."""
    return Search("one", values)


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
        check_all(type(self), vars(self), f"{self.named}({{}})")


@cache
def hints(part: object) -> Mapping[str, object]:
    """Return what a class says of its fields, or a function of its parameters.

    Of a part whose annotations cannot be read, such as a user's own, it is nothing.
    """
    try:
        return get_type_hints(part, include_extras=True)
    except (NameError, TypeError):
        return {}


def check_all(part: object, values: Mapping[str, object], form: str = "{}") -> None:
    """Refuse values that are not as the fields or parameters of these names are annotated.

    Args:
        part: The class or function.
        values: By name; those without an annotation pass.
        form: What messages call a value, with {} for its name.
    """
    for name, annotation in limits(part):
        if name in values:
            check(form.format(name), values[name], annotation)


@cache
def limits(part: object) -> tuple[tuple[str, object], ...]:
    """Return the fields or parameters whose annotations say what they may be, and those."""
    return tuple((name, kind) for name, kind in hints(part).items() if is_limit(kind))


def is_limit(annotation: object) -> bool:
    """Return whether `check` looks at values of this annotation."""
    origin, kinds = get_origin(annotation), get_args(annotation)
    optional = NoneType in kinds and len(kinds) == 2
    return origin in (Literal, Annotated) or (optional and any(map(is_limit, kinds)))


def check(name: str, value: object, annotation: object) -> None:
    """Refuse a value that is not in the `Range`, or one of the `Literal` names, annotated."""
    origin = get_origin(annotation)
    if origin is Literal:
        choice(name, value, get_args(annotation))
    elif origin is Annotated:
        kind, *about = get_args(annotation)
        for interval in about:
            if isinstance(interval, Range):
                low, high, open_low = interval
                number(name, value, low, high, whole=kind is int, open_low=open_low)
        if get_origin(kind) is Literal:
            choice(name, value, get_args(kind))
    elif NoneType in (kinds := get_args(annotation)) and len(kinds) == 2 and value is not None:
        check(name, value, next(kind for kind in kinds if kind is not NoneType))


def search_of(annotation: object) -> Search | None:
    """Return what an annotation says of how to tune its option, if it says so."""
    about = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
    return next((part for part in about if isinstance(part, Search)), None)


def with_one_name(part: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a part's options, each by the one name under which the part has it.

    Example:
        >>> with_one_name("table", {"site": "hospital", "label": "died"})
        {'domain': 'hospital', 'label': 'died'}
    """
    options = OTHER_NAMES.get(part, {})
    for other, option in options.items():
        if {other, option} <= arguments.keys():
            raise UnseenError(
                f"{other!r} and {option!r} are one option, which is set twice.",
                remedy=f"Leave out {option!r}.",
            )
    return {options.get(name, name): value for name, value in arguments.items()}
