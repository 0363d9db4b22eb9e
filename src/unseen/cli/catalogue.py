"""Lists of what is there by name, and the pages of methods."""

import inspect
import re
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
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
#: What Markdown would take for more than a sign.
SIGNS = re.compile(r"\*|<(?=\S)|(?<![\w\u0300-\u036f])_|_(?!\w)")


def list_methods() -> Rows:
    """Return methods and modifiers, each with its first line and its source."""
    rows: Cells = [(n, _first(part), _source(method(n).references)) for n, part in METHODS.items()]
    rows += [(f"+{n}", _first(part), _source(_added(_alone(n)))) for n, part in MODIFIERS.items()]
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
        rows.append((name, _first(factory), defaults))
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
        return "\n\n".join([composed.name, *(_section(_parts(n)[0]) for n in names)])
    return "\n\n".join(map(_section, _parts(name)))


def _parts(name: str) -> list[dict[str, Any]]:
    """Return what is to be said of a method, of its modifier, or of both."""
    add, path = name.startswith("+"), name.removeprefix("+")
    if ":" in name:
        part: Callable[..., Any] = own_part("method", path)
        example = part(method("fedavg")) if add else method(path)
        return [_facts(name, part, example, _added(example) if add else example.references)]
    key, parts = fold(path), []
    if key not in METHODS and key not in MODIFIERS:
        raise nearest("method", name, {**METHODS, **MODIFIERS})
    if key in METHODS and not add:
        example = method(key)
        parts.append(_facts(key, METHODS[key], example, example.references))
    if key in MODIFIERS:
        example = _alone(key)
        parts.append(_facts(f"+{key}", MODIFIERS[key], example, _added(example)))
    return parts


def pages() -> dict[str, str]:
    """Return file name -> Markdown: a page for each method and modifier, and their index."""
    names = list(dict.fromkeys((*METHODS, *MODIFIERS)))
    files = {f"{name}.md": _markdown(name) for name in names}
    lines = {title: list(map(_line, members)) for title, members in FAMILIES.items()}
    index = render("unseen.cli", "templates/methods.md.jinja", families=lines)
    return {"README.md": index} | files


def _line(name: str) -> tuple[str, str, str]:
    """Return how a method or modifier is written, what it does, and its source in short."""
    path = name.removeprefix("+")
    part = METHODS[path] if path == name else MODIFIERS[path]
    references = method(path).references if path == name else _added(_alone(path))
    link = f"[{name}]({path}.md)"
    if path == name and path in MODIFIERS:
        link += f" (`+{path}`)"
    sources = references if len(references) == 2 else references[:1]
    return link, escaped(_first(part)).rstrip("."), "; ".join(map(_short, sources))


def _short(reference: Reference) -> str:
    """Return the first author and the year of a reference."""
    first, *others = reference.text.partition(". ")[0].split(", ")
    year = re.findall(r"\b(?:19|20)\d\d\b", reference.text)[-1]
    joint = others or first.endswith(" et al")
    return f"{first.removesuffix(' et al')}{' et al.' if joint else ''} {year}"


def _markdown(name: str) -> str:
    """Return a method's page in Markdown, its modifier below it."""
    parts = _parts(name)
    references = dict.fromkeys(r for part in parts for r in part["references"])
    return render(
        "unseen.cli", "templates/method.md.jinja", name=name, parts=parts,
        references=references, markdown=markdown, escaped=escaped,
    )  # fmt: skip


def markdown(text: str) -> str:
    """Return a docstring's text as Markdown, its indented equations as blocks of code."""
    blocks = text.split("\n\n")
    return "\n\n".join(b if b.startswith("    ") else escaped(b) for b in blocks)


def escaped(text: str) -> str:
    """Return prose whose signs Markdown shows as they are; code in backticks is left alone."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(p if i % 2 else SIGNS.sub(_escape, p) for i, p in enumerate(parts))


def _escape(sign: re.Match[str]) -> str:
    return "&lt;" if sign[0] == "<" else f"\\{sign[0]}"


def write_pages(folder: str | Path) -> None:
    """Write `pages` into a folder, and remove other pages from it."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    texts = pages()
    for stale in set(folder.glob("*.md")) - {folder / name for name in texts}:
        stale.unlink()
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


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


def _alone(modifier: str) -> Method:
    add = MODIFIERS[modifier]
    try:
        return add(METHODS["fedavg"](Training()))
    except UnseenError:
        return add(METHODS["fedsgd"](Training()))


def _first(part: Callable[..., object]) -> str:
    paragraph = " ".join((inspect.getdoc(part) or "").split("\n\n")[0].split())
    sentence, stop, _ = paragraph.partition(". ")
    return sentence + stop.strip()


def _added(example: Method) -> tuple[Reference, ...]:
    """Return what a modifier cites: all that its plain base does not, or what it repeats of it."""
    base = method(fold(parse(example.name)[0].name)).references
    return tuple(r for r in example.references if r not in base) or example.references[-1:]


def _source(references: Sequence[Reference]) -> str:
    first, *others = (reference.text for reference in references)
    return " ".join([first, *others]) if len(others) < 2 else f"{first} And {len(others)} more."


"""Methods and modifiers in the sections of their index: the four papers, then five families."""

#: Section -> names, in the order of the page. A modifier without a method has its plus.
FAMILIES: dict[str, tuple[str, ...]] = {
    "The four papers": (
        "ppdg", "csac", "geometric", "fishr", "fedilc-inter", "fedilc-intra-arith",
        "fedilc-intra-geo", "+ga",
    ),
    "Base algorithms": (
        "deepall", "fedsgd", "fedavg", "fedprox", "scaffold", "fednova", "feddyn", "fedgloss",
        "fedsam", "fedcurv",
    ),
    "Server rules: weights": (
        "afl", "groupdro", "vrex", "eqrm", "qffl", "arfl", "fedcsa", "random-effects",
    ),
    "Server rules: directions": (
        "pcgrad", "agrsum", "agrrand", "graddrop", "andmask", "sand-mask", "fedgma",
        "geometric-abs", "fedomg", "fedgala", "mgda", "cagrad", "upgrad", "nash-mtl", "torchjd",
    ),
    "Server rules: robust": ("trimmed-mean", "median", "krum", "bounded"),
    "Server steps": ("fedavgm", "fedadam", "fedyogi", "exp", "+compress"),
    "Client parts: loss and gradient": (
        "irm", "sd", "mldg", "coral", "fediir", "+anchor", "+mixup",
    ),
    "Client parts: features": (
        "moon", "fpl", "fedadg", "fedsr", "rsc", "copa", "fedbn", "gperxan", "mixstyle",
        "+shift", "+intercepts",
    ),
    "Client parts: images": ("am", "feddg", "harmofl", "fedccrl", "randconv", "jigen"),
    "Averages, ensembles and exact fits": (
        "+tail", "+swad", "+ema", "+ensemble", "bag", "stack", "portfolio", "glm", "boost",
        "forest", "trees",
    ),
}  # fmt: skip
