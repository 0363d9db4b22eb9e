"""Writes docs/methods: a page for each method and modifier, and their index.

python tools/method_pages.py
"""

from __future__ import annotations

import re
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from unseen.cli.catalogue import added_references, alone, first_line, parts_of
from unseen.core.exchange import Reference
from unseen.methods import METHODS, MODIFIERS
from unseen.methods.compose import method

DOCS = Path(__file__).parents[1] / "docs" / "methods"
TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    undefined=StrictUndefined,
)
#: What Markdown would take for more than a sign.
SIGNS = re.compile(r"\*|<(?=\S)|(?<![\w\u0300-\u036f])_|_(?!\w)")
#: Section -> names, in the order of the page. A modifier without a method has its plus.
FAMILIES: dict[str, tuple[str, ...]] = {
    "The four papers": (
        "ppdg",
        "csac",
        "geometric",
        "fishr",
        "fedilc-inter",
        "fedilc-intra-arith",
        "fedilc-intra-geo",
        "+ga",
    ),
    "Base algorithms": (
        "deepall",
        "fedsgd",
        "fedavg",
        "fedprox",
        "scaffold",
        "fednova",
        "feddyn",
        "fedgloss",
        "fedsam",
        "fedcurv",
    ),
    "Server rules: weights": (
        "afl",
        "groupdro",
        "vrex",
        "eqrm",
        "qffl",
        "arfl",
        "fedcsa",
        "random-effects",
    ),
    "Server rules: directions": (
        "pcgrad",
        "agrsum",
        "agrrand",
        "graddrop",
        "andmask",
        "sand-mask",
        "fedgma",
        "geometric-abs",
        "fedomg",
        "fedgala",
        "mgda",
        "cagrad",
        "upgrad",
        "nash-mtl",
        "torchjd",
    ),
    "Server rules: robust": ("trimmed-mean", "median", "krum", "bounded"),
    "Server steps": ("fedavgm", "fedadam", "fedyogi", "exp", "+compress"),
    "Client parts: loss and gradient": (
        "irm",
        "sd",
        "mldg",
        "coral",
        "fediir",
        "+anchor",
        "+mixup",
    ),
    "Client parts: features": (
        "moon",
        "fpl",
        "fedadg",
        "fedsr",
        "rsc",
        "copa",
        "fedbn",
        "gperxan",
        "mixstyle",
        "+shift",
        "+intercepts",
    ),
    "Client parts: images": ("am", "feddg", "harmofl", "fedccrl", "randconv", "jigen"),
    "Averages, ensembles and exact fits": (
        "+tail",
        "+swad",
        "+ema",
        "+ensemble",
        "bag",
        "stack",
        "portfolio",
        "glm",
        "boost",
        "forest",
        "trees",
    ),
}


def pages() -> dict[str, str]:
    """Return file name -> Markdown: a page for each method and modifier, and their index."""
    names = list(dict.fromkeys((*METHODS, *MODIFIERS)))
    files = {f"{name}.md": _markdown(name) for name in names}
    lines = {title: list(map(_line, members)) for title, members in FAMILIES.items()}
    index = TEMPLATES.get_template("methods.md.jinja").render(families=lines)
    return {"README.md": index} | files


def _line(name: str) -> tuple[str, str, str]:
    """Return how a method or modifier is written, what it does, and its source in short."""
    path = name.removeprefix("+")
    part = METHODS[path] if path == name else MODIFIERS[path]
    references = method(path).references if path == name else added_references(alone(path))
    link = f"[{name}]({path}.md)"
    if path == name and path in MODIFIERS:
        link += f" (`+{path}`)"
    sources = references if len(references) == 2 else references[:1]
    return link, escaped(first_line(part)).rstrip("."), "; ".join(map(_short, sources))


def _short(reference: Reference) -> str:
    """Return the first author and the year of a reference."""
    first, *others = reference.text.partition(". ")[0].split(", ")
    year = re.findall(r"\b(?:19|20)\d\d\b", reference.text)[-1]
    joint = others or first.endswith(" et al")
    return f"{first.removesuffix(' et al')}{' et al.' if joint else ''} {year}"


def _markdown(name: str) -> str:
    """Return a method's page in Markdown, its modifier below it."""
    parts = parts_of(name)
    references = dict.fromkeys(r for part in parts for r in part["references"])
    return TEMPLATES.get_template("method.md.jinja").render(
        name=name, parts=parts, references=references, markdown=markdown, escaped=escaped
    )


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


def write_pages(folder: Path) -> None:
    """Write `pages` into a folder, and remove other pages from it."""
    texts = pages()
    for stale in set(folder.glob("*.md")) - {folder / name for name in texts}:
        stale.unlink()
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_pages(DOCS)
