"""Options of methods and modifiers: the fields of the parts they set, declared and described once.

A part is a frozen dataclass: a server rule, a gradient or a local. Its fields with a default are
options; the section `Attributes:` of its docstring describes them. A rule's field `prior` is the
option `weights`: by what the mean that it starts from weighs.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from functools import wraps
from textwrap import indent
from typing import Any, get_type_hints

from unseen.core import Method
from unseen.methods.combine import Mean, Weights

_HEADING = re.compile(
    r"^(Args|Attributes|Returns|Raises|Source|Departs from|Example|Note):$", re.MULTILINE
)
_ENTRY = re.compile(r"(\w+(?:, \w+)*): (.*)", re.DOTALL)


def options_from(
    *parts: type, without: Iterable[str] = ()
) -> Callable[[Callable[..., Method]], Callable[..., Method]]:
    """Make the fields of parts options of a function, instead of its `**options`.

    Args:
        parts: frozen dataclasses; of fields that share a name the first counts.
        without: names of fields that are not options.

    Note:
        The function receives every option, with its default where the call does not set it. An
        option that the function declares itself hides the field of that name; what its docstring
        does not describe is described by the parts.
    """

    def decorate(function: Callable[..., Method]) -> Callable[..., Method]:
        declared = inspect.signature(function)
        parameters = {
            name: p for name, p in declared.parameters.items() if p.kind is not p.VAR_KEYWORD
        }
        described = dict(option_help(inspect.getdoc(function) or ""))
        for part in parts:
            about = option_help(inspect.getdoc(part) or "")
            for parameter in part_options(part, without):
                parameters.setdefault(parameter.name, parameter)
            described = about | described
        signature = declared.replace(parameters=list(parameters.values()))

        @wraps(function)
        def with_options(*args: Any, **options: Any) -> Method:
            call = signature.bind(*args, **options)
            call.apply_defaults()
            return function(*call.args, **call.kwargs)

        options = {name: described[name] for name in list(parameters)[1:] if name in described}
        with_options.__signature__ = signature  # type: ignore[attr-defined]
        with_options.__doc__ = documented(inspect.getdoc(function) or "", options)
        return with_options

    return decorate


def part_options(part: type, without: Iterable[str] = ()) -> list[inspect.Parameter]:
    """Return the fields of a part that have a plain default, as keyword-only parameters."""
    types = get_type_hints(part, include_extras=True) | {"weights": Weights}
    defaults = {f.name: f.default for f in fields(part) if f.name not in without}
    if isinstance(prior := defaults.pop("prior", None), Mean):
        defaults["weights"] = prior.by
    return [
        inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=types[n])
        for n, value in defaults.items()
        if value is not MISSING
    ]


def picked(part: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the options that are fields of the part, `weights` as its prior."""
    own = {f.name: options[f.name] for f in fields(part) if f.name in options}
    if "weights" in options and any(f.name == "prior" for f in fields(part)):
        own["prior"] = Mean(options["weights"])
    return own


def sections(docstring: str) -> dict[str, str]:
    """Split a docstring, its indentation removed, at the headings of its Google sections.

    Returns:
        The text of each section by its heading; of what precedes the first one by "".
    """
    first, *rest = _HEADING.split(docstring)
    return {
        name: inspect.cleandoc(text)
        for name, text in zip(["", *rest[::2]], [first, *rest[1::2]], strict=True)
    }


def option_help(docstring: str) -> dict[str, str]:
    """Return what a docstring says of each option, on one line, by the option's name."""
    parts = sections(docstring)
    entries = re.split(r"\n(?=\S)", parts.get("Attributes", "") + "\n" + parts.get("Args", ""))
    about: dict[str, str] = {}
    for entry in entries:
        if match := _ENTRY.fullmatch(entry.strip()):
            about |= dict.fromkeys(match[1].split(", "), " ".join(match[2].split()))
    return {"weights": about["prior"]} | about if "prior" in about else about


def documented(docstring: str, options: Mapping[str, str]) -> str:
    """Return a docstring whose options are described in one section `Args:`."""
    rest = {k: v for k, v in sections(docstring).items() if k not in ("Args", "Attributes")}
    about = "\n".join(f"{name}: {text}" for name, text in options.items())
    texts = {"": rest.pop(""), "Args": about, **rest}
    parts = [f"{name}:\n{indent(text, '    ')}" if name else text for name, text in texts.items()]
    return "\n\n".join(part for part, text in zip(parts, texts.values(), strict=True) if text)
