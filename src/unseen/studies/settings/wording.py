"""Settings that a person writes, and error messages in words when they cannot work."""

from __future__ import annotations

import difflib
import types
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticUndefined

from unseen.errors import UnseenError
from unseen.visible import hidden

#: How limits of a number are said, by the attribute that pydantic keeps them in.
LIMITS = {"gt": "greater than {}", "ge": "of at least {}", "lt": "less than {}", "le": "at most {}"}
#: One value of a type and several of them, in words.
SINGLE = {bool: "true or false", int: "an integer", float: "a number", str: "a text"}
MANY = {bool: "true or false", int: "integers", float: "numbers", str: "texts"}


class Fault(NamedTuple):
    """What is wrong with one setting: its place, and the words that follow it."""

    place: str
    words: str
    exists: bool = True

    def __str__(self) -> str:
        return f"{self.place if self.exists else f'unknown setting {self.place!r}'}{self.words}"

    def below(self, table: str) -> Fault:
        """Return the same fault of the table's setting, or of the table as a whole."""
        if self.place:
            return self._replace(place=f"{table}.{self.place}")
        return Fault(table, f": {self.words}")


class WrongSettings(UnseenError):
    """Settings that cannot work.

    Attributes:
        faults: What is wrong with each.
    """

    def __init__(self, text: str, faults: Sequence[Fault] = ()) -> None:
        super().__init__(text)
        self.faults = tuple(faults)


class Settings(BaseModel):
    """A frozen record of settings whose mistakes are all named in one message, in our own words.

    Attributes:
        about: What the settings are of, for the message.
        advice: Field -> what to write there.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    about: ClassVar[str] = "the settings cannot work"
    advice: ClassVar[Mapping[str, str]] = {}

    def __init__(self, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            wrong = faults(type(self), error, settings)
            raise WrongSettings(f"{self.about}: {sentences(wrong)}", wrong) from None


def sentences(faults: Sequence[Fault]) -> str:
    """Return all faults in one paragraph."""
    return " ".join(text if text.endswith("?") else f"{text}." for text in map(str, faults))


def faults(
    kind: type[Settings], error: ValidationError, settings: Mapping[str, Any]
) -> list[Fault]:
    """Return what is wrong with each setting, and with those of the tables among them."""
    outer: dict[str, Fault] = {}
    inner: list[Fault] = []
    for problem in error.errors():
        name = str(problem["loc"][0]) if problem["loc"] else ""
        cause = problem.get("ctx", {}).get("error")
        if isinstance(cause, WrongSettings) and cause.faults:
            inner += [fault.below(name) for fault in cause.faults]
        elif problem["type"] == "extra_forbidden":
            close = difflib.get_close_matches(name, kind.model_fields, n=1)
            outer[name] = Fault(name, f"; did you mean {close[0]!r}?" if close else "", False)
        elif name not in outer:
            outer[name] = Fault(name, _words(kind, name, problem, settings))
    return [*outer.values(), *inner]


def _words(
    kind: type[Settings], name: str, problem: ErrorDetails, settings: Mapping[str, Any]
) -> str:
    value, reason = settings.get(name), problem.get("ctx", {}).get("error")
    if problem["type"] == "value_error" and reason is not None:
        text = f"{': ' if name else ''}{str(reason).rstrip('.')}"
        whole = isinstance(value, Mapping) or isinstance(reason, UnseenError) or not name
        return text if whole else f"{text}; found {short(value)}"
    rule = expected(kind.model_fields[name])
    if problem["type"] == "missing" and len(problem["loc"]) == 1:
        return f" is missing: it must be {rule}"
    where = next((part for part in problem["loc"][1:] if isinstance(part, int)), None)
    value_text = short(value)
    if where is not None and isinstance(value, Sequence) and len(value) > 1:
        value_text = f"{short(value[where])} at its position {where + 1}"
    advice = f". {kind.advice[name]}" if name in kind.advice else ""
    return f" must be {rule}; found {value_text}{advice}"


def short(value: object) -> str:
    """Return a value on one line, cut short; where it has no short form, its type."""
    plain = value is None or isinstance(value, str | int | float | list | tuple | Mapping)
    text = " ".join(repr(value).split()) if plain else type(value).__name__
    return text if len(text) <= 60 else f"{text[:57]}..."


def expected(field: FieldInfo) -> str:
    """Return what a field takes, in words, with its default as an example.

    Example:
        >>> from unseen.studies.settings.study import StudySpec
        >>> expected(StudySpec.model_fields["rounds"])
        'an integer of at least 1, such as 20'
    """
    words = field.description or _phrase(field.annotation, field.metadata)
    default = list(field.default) if isinstance(field.default, tuple) else field.default
    silent = isinstance(default, bool | BaseModel) or default in (PydanticUndefined, None, "", [])
    return words if silent or repr(default) in words else f"{words}, such as {default!r}"


def _phrase(annotation: Any, notes: Sequence[Any] = (), many: bool = False) -> str:
    annotation, limits = _bare(annotation, notes)
    origin, inside = get_origin(annotation), get_args(annotation)
    one, these = ("lists", "tables") if many else ("a list", "a table")
    if origin in (Union, types.UnionType):
        parts = [_phrase(part, many=many) for part in inside if part is not types.NoneType]
        return " or ".join(dict.fromkeys(parts))
    if origin is Literal:
        return either([repr(choice) for choice in inside])
    if origin is tuple:
        count = len(inside) if Ellipsis not in inside else "one or more"
        count_text = f"{count} " if Ellipsis not in inside or "min_length" in limits else ""
        return f"{one} of {count_text}{_phrase(inside[0], many=True)}"
    if origin is not None:  # a mapping
        return f"{these} of {_phrase(inside[1], many=True)} by name"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"{these} of {either(list(annotation.model_fields), 'and')}"
    text = (MANY if many else SINGLE).get(annotation, "a value")
    if "ge" in limits and "le" in limits:
        return f"{text} from {limits['ge']:g} to {limits['le']:g}"
    bounds = [form.format(f"{limits[key]:g}") for key, form in LIMITS.items() if key in limits]
    return f"{text} {' and '.join(bounds)}" if bounds else text


def _bare(annotation: Any, notes: Sequence[Any]) -> tuple[Any, dict[str, Any]]:
    """Return a type without its annotations, and the limits that they set."""
    notes = list(notes)
    while get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        for note in more:
            notes += note.metadata if isinstance(note, FieldInfo) else [note]
    keys = (*LIMITS, "min_length")
    return annotation, {k: getattr(n, k) for n in notes for k in keys if hasattr(n, k)}


def either(names: Sequence[str], word: str = "or") -> str:
    """Return the names as a list in a sentence."""
    *most, last = names
    return f"{', '.join(most)} {word} {last}" if most else last


REMEDY = "Leave it out; a quoted text within an expression may have it as an escape, such as \\n."


def _checked(text: str, but: str) -> str:
    if steering := hidden(text, but):
        first = steering[0]
        where = f"U+{ord(first):04X} at place {text.index(first) + 1} of {short(text)}"
        what = f"it must be one line without hidden characters; found {where}."
        raise UnseenError(what, remedy=REMEDY, found=where)
    return text


def _name(text: str) -> str:
    return _checked(text, "")


def _expression(text: str) -> str:
    return _checked(text, "\t")  # which separates the cells of some tables


#: A name or title, and an expression, that show all that they are.
Line = Annotated[str, AfterValidator(_name)]
Expression = Annotated[str, AfterValidator(_expression)]
