"""Ranges inside settings, as in `sgd(lr=log(0.001, 1))`: what a search varies."""

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from unseen.errors import UnseenError
from unseen.expression import Call, options, parse, text
from unseen.ranges import KINDS, Search, hints, idle, search_of
from unseen.studies.settings.named import parse_override

#: `NAME=` in front of a range, and the range; texts in quotes may hold brackets.
_RANGE = re.compile(
    rf"""(?:(?P<option>\w+)\s*=\s*)?\b(?P<kind>{"|".join(KINDS)})"""
    r"""\((?P<values>(?:'[^']*'|"[^"]*"|[^()'"])*)\)"""
)
#: The significant digits with which numbers are tried and written.
DIGITS = 4


@dataclass(frozen=True)
class Space:
    """One setting that is searched, or one method's options.

    Attributes:
        setting: The dotted name of the setting; the method's expression for its options.
        pieces: The text around the ranges, one more than there are ranges.
        ranges: Name -> range, in the order of the text.
    """

    setting: str
    pieces: tuple[str, ...]
    ranges: Mapping[str, Search]

    @classmethod
    def read(cls, setting: str, value: object) -> "Space":
        """Return the space of a setting's text.

        Args:
            setting: The dotted name of the setting.
            value: Its text, with `log(LOW, HIGH)`, `uniform(LOW, HIGH)`, `whole(LOW, HIGH)` or
                `one(VALUE, ...)` instead of values; a list is one of its values.

        Example:
            >>> Space.read("training.optimiser", "sgd(lr=log(0.001, 1), momentum=0.9)").ranges
            {'training.optimiser.lr': Search(kind='log', values=(0.001, 1))}
        """
        if isinstance(value, list | tuple):
            return cls(setting, ("", ""), {setting: Search("one", tuple(value))})
        form, pieces, ranges, end = str(value), list[str](), dict[str, Search](), 0
        for match in _RANGE.finditer(form):
            option = match["option"]
            name = f"{setting}.{option}" if option else setting
            if name in ranges:
                raise UnseenError(f"the space of {setting} has two ranges for {name}.")
            ranges[name] = Search(match["kind"], _values(match, form))
            pieces.append(form[end : match.start("kind")])
            end = match.end()
        if not ranges:
            raise UnseenError(
                f"the space of {setting} has no range; found {form!r}.",
                remedy=f"Write, for example, {setting}=log(0.001, 1), or leave it out: what is not "
                "searched is a setting of the study.",
            )
        return cls(setting, (*pieces, form[end:]), ranges)

    def filled(self, values: Mapping[str, Any]) -> Any:
        """Return the setting's value with these values instead of its ranges.

        Args:
            values: Name of a range -> value.

        Example:
            >>> space = Space.read("training.optimiser", "sgd(lr=log(0.001, 1))")
            >>> space.filled({"training.optimiser.lr": 0.05})
            'sgd(lr=0.05)'
        """
        if self.pieces == ("", ""):
            (name,) = self.ranges
            return values[name]
        texts = [repr(values[name]) for name in self.ranges]
        joined = "".join(a + b for a, b in zip(self.pieces, (*texts, ""), strict=True))
        return parse_override(f"value={joined}")[1]

    def values_in(self, value: object) -> dict[str, Any] | None:
        """Return what a setting as it is has instead of the ranges; None if it differs more.

        Args:
            value: The setting's value.
        """
        if self.pieces == ("", ""):
            return dict.fromkeys(self.ranges, value)
        form = "(.+?)".join(re.escape(re.sub(r"\s", "", piece)) for piece in self.pieces)
        match = re.fullmatch(form, re.sub(r"\s", "", str(value)))
        try:
            values = [ast.literal_eval(part) for part in match.groups()] if match else None
        except (ValueError, SyntaxError):
            return None
        return None if values is None else dict(zip(self.ranges, values, strict=True))


def _values(match: re.Match[str], form: str) -> tuple[Any, ...]:
    try:
        return tuple(ast.literal_eval(f"({match['values']},)"))
    except (ValueError, SyntaxError):
        raise UnseenError(
            f"cannot read the range {match[0]!r} in {form!r}.",
            remedy="Ends and values are numbers, or texts in quotes.",
        ) from None


def _alone(key: str, value: object) -> Search:
    """Return the range of a method's option, which is searched as a whole."""
    space = Space.read(key, value)
    if space.pieces != ("", "") or key not in space.ranges:
        raise UnseenError(
            f"the space of {key} is a range and nothing else; found {value!r}.",
            remedy=f"Write, for example, {key}=log(0.001, 1).",
        )
    return space.ranges[key]


def declared(part: Callable[..., object]) -> dict[str, Search]:
    """Return the ranges that a method or modifier declares for its options."""
    types = hints(part)
    ranges = {
        name: search_of(parameter.annotation) or search_of(types.get(name))
        for name, parameter in options(part, 1, own=True).items()
    }
    return {name: search for name, search in ranges.items() if search is not None}


def of_method(
    expression: str,
    parts: Callable[[int, Call], Callable[..., object] | None],
    changes: Mapping[str, object],
) -> Space | None:
    """Return the space of a method's options; None where nothing is left open.

    Options that the expression sets stay; of the others those are searched that have a range and
    that no other option switches off.

    Args:
        expression: The method's.
        parts: (place, call) -> the method or modifier, None for a user's own.
        changes: `NAME.OPTION` -> another range than the declared one, or one where none is.
    """
    calls, ranges = parse(expression), dict[str, Search]()
    pieces, before = list[str](), ""
    for place, call in enumerate(calls):
        part = parts(place, call)
        off = idle(part, call.arguments) if part is not None else {}
        every = declared(part) if part is not None else {}
        own = {option: search for option, search in every.items() if option not in off}
        for key, value in changes.items():
            name, _, option = key.rpartition(".")
            if name == call.name:
                own |= {option: _alone(key, value)}
        free = {o: r for o, r in own.items() if o not in call.arguments}
        form = text((call,))
        inside = form.removesuffix(")") + ", " if call.arguments else f"{call.name}("
        before += "+" * bool(place) + (inside if free else form)
        for i, (option, search) in enumerate(free.items()):
            name = f"{call.name}.{option}"
            if name in ranges:
                name = f"{place}.{name}"
            ranges[name] = search
            pieces.append(f"{before}{', ' * bool(i)}{option}=")
            before = ""
        before += ")" * bool(free)
    return Space(expression, (*pieces, before), ranges) if ranges else None
