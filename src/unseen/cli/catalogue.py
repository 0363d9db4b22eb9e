"""Lists of what is there by name, and what `unseen show` prints of a method."""

import inspect
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from unseen.core.exchange import Method, Reference
from unseen.core.templates import render
from unseen.errors import Incompatible, UnseenError, nearest
from unseen.expression import fold, options, own_part, parse
from unseen.methods import METHODS, MODIFIERS
from unseen.methods.compose import method
from unseen.methods.options import option_help, sections
from unseen.methods.recipe import Training
from unseen.studies.settings.search_space import declared

Cells = list[tuple[str, ...]]
Rows = tuple[tuple[str, ...], Cells]


def list_methods() -> Rows:
    """Return methods and modifiers, each with its first line and its source."""
    rows: Cells = [
        (n, first_line(part), _source(method(n).references)) for n, part in METHODS.items()
    ]
    rows += [
        (f"+{n}", first_line(part), _source(added_references(alone(n))))
        for n, part in MODIFIERS.items()
    ]
    return ("method", "what it does", "source"), rows


def list_datasets() -> Rows:
    """Return data sets, where their files come from and on what terms."""
    from unseen.data import datasets

    rows: Cells = [(n, i.description, i.source, i.licence) for n, i in datasets().items()]
    return ("data set", "domains", "files", "licence"), rows


def list_models() -> Rows:
    """Return models and their options."""
    from unseen.data.networks import MODELS

    rows: Cells = []
    for name, factory in MODELS.items():
        defaults = ", ".join(f"{o}={p.default!r}" for o, p in options(factory).items())
        rows.append((name, first_line(factory), defaults))
    return ("model", "what it is", "options"), rows


def list_studies() -> Rows:
    """Return the studies that are installed, and the tables and figures of papers."""
    from unseen.studies.settings.named import named_studies, settings_of
    from unseen.studies.settings.published import exhibits

    studies = {name: settings_of(name)[0] for name in named_studies()}
    times = durations()
    rows = [
        (name, facts.get("title", ""), facts.get("dataset", ""), times.get(name, ""))
        for name, facts in studies.items()
    ]
    rows += [
        (name, exhibit.caption, f"= {', '.join(exhibit.studies)}", "")
        for name, exhibit in exhibits().items()
        if exhibit.studies and name not in studies
    ]
    return ("study", "title", "data set", "on two cores"), sorted(rows)


def durations() -> dict[str, str]:
    """Return study -> how long it takes on two cores; what was not run but estimated has a ~."""
    from unseen.studies.settings.named import minutes

    each = minutes()
    times = {name: f"~{clock(60 * value)}" for name, value in each["estimated"].items()}
    return times | {name: clock(60 * value) for name, value in each["ran"].items()}


def clock(seconds: float) -> str:
    """Return a span of time in the largest unit that fits.

    Example:
        >>> clock(0.4), clock(75), clock(4000), clock(200000)
        ('0.4 s', '1.2 min', '1.1 h', '2.3 days')
    """
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def compositions() -> dict[tuple[str, str], str | None]:
    """Return (method, modifier) -> None where they compose, or the reason why not."""
    reasons: dict[tuple[str, str], str | None] = {}
    for name in METHODS:
        for modifier in MODIFIERS:
            try:
                method(f"{name}+{modifier}")
                reasons[name, modifier] = None
            except Incompatible as error:
                reasons[name, modifier] = error.why
    return reasons


def list_compositions() -> Rows:
    """Return methods and what they cannot be joined with."""
    reasons = compositions()
    rows: Cells = []
    for name in METHODS:
        takes, refuses = (
            " ".join(m for m in MODIFIERS if (reasons[name, m] is None) == fits)
            for fits in (True, False)
        )
        rows.append((name, takes, refuses))
    return ("method", "+", "cannot be"), rows


CATALOGUES: dict[str, Callable[[], Rows]] = {
    "methods": list_methods,
    "compositions": list_compositions,
    "datasets": list_datasets,
    "models": list_models,
    "studies": list_studies,
}


def page(name: str) -> str:
    """Return a method's page: equations, options with defaults, what it shares, source, BibTeX.

    Args:
        name: A method, a modifier, or a recipe of several parts, whose pages follow each other.
    """
    name = name.strip()
    add, path = name.startswith("+"), name.removeprefix("+")
    if "+" in path or "(" in path:
        composed = method(f"fedavg+{path}" if add else path)
        names = [f"{'+' * (add or i > 0)}{call.name}" for i, call in enumerate(parse(path))]
        return "\n\n".join([composed.name, *(_section(parts_of(n)[0]) for n in names)])
    return "\n\n".join(map(_section, parts_of(name)))


def parts_of(name: str) -> list[dict[str, Any]]:
    """Return what is to be said of a method, of its modifier, or of both."""
    add, path = name.startswith("+"), name.removeprefix("+")
    if ":" in name:
        part: Callable[..., Any] = own_part("method", path)
        example = part(method("fedavg")) if add else method(path)
        return [
            _facts(name, part, example, added_references(example) if add else example.references)
        ]
    key, parts = fold(path), []
    if key not in METHODS and key not in MODIFIERS:
        raise nearest("method", name, {**METHODS, **MODIFIERS})
    if key in METHODS and not add:
        example = method(key)
        parts.append(_facts(key, METHODS[key], example, example.references))
    if key in MODIFIERS:
        example = alone(key)
        parts.append(_facts(f"+{key}", MODIFIERS[key], example, added_references(example)))
    return parts


def _section(facts: dict[str, Any]) -> str:
    return render("unseen.cli", "templates/method.txt.jinja", **facts).removesuffix("\n")


def _facts(
    title: str, part: Callable[..., Method], example: Method, references: Sequence[Reference]
) -> dict[str, Any]:
    """Return the title, options, texts of the docstring, what it shares, and references."""
    docstring = inspect.getdoc(part) or ""
    about = option_help(docstring)
    wrap = partial(textwrap.wrap, width=90, break_on_hyphens=False)
    ranges = declared(part)
    described = [
        (option, repr(p.default), _kind_of(p), wrap(about.get(option, "")), ranges.get(option, ""))
        for option, p in options(part, 1, own=":" in title).items()
    ]
    return {
        "title": title,
        "options": described,
        "texts": {"Note": "", "Departs from": "", **sections(docstring)},
        "shares": example.shares,
        "references": references,
    }


def _kind_of(parameter: inspect.Parameter) -> str:
    kind = parameter.annotation
    if kind is parameter.empty:
        return "any"
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    union = get_origin(kind) in (Union, UnionType)
    members = get_args(kind) if union else (kind,)
    plain = (get_args(m)[0] if get_origin(m) is Annotated else m for m in members)
    text = kind if isinstance(kind, str) else " | ".join(map(inspect.formatannotation, plain))
    for name, words in (("NoneType", "None"), ("Literal", "one of "), ("collections.abc.", "")):
        text = text.replace(name, words)
    return text


def alone(modifier: str) -> Method:
    """Return a modifier on fedavg, or on fedsgd where it refuses fedavg."""
    add = MODIFIERS[modifier]
    try:
        return add(METHODS["fedavg"](Training()))
    except UnseenError:
        return add(METHODS["fedsgd"](Training()))


def first_line(part: Callable[..., object]) -> str:
    """Return the first sentence of a docstring."""
    paragraph = " ".join((inspect.getdoc(part) or "").split("\n\n")[0].split())
    sentence, stop, _ = paragraph.partition(". ")
    return sentence + stop.strip()


def added_references(example: Method) -> tuple[Reference, ...]:
    """Return what a modifier cites: all that its plain base does not, or what it repeats of it."""
    base = method(fold(parse(example.name)[0].name)).references
    return tuple(r for r in example.references if r not in base) or example.references[-1:]


def _source(references: Sequence[Reference]) -> str:
    first, *others = (reference.text for reference in references)
    return " ".join([first, *others]) if len(others) < 2 else f"{first} And {len(others)} more."
