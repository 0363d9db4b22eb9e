"""The page: everything put into one HTML file that needs nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from typing import Any

from unseen.report import draw, provenance, table_rows, theme, verdict
from unseen.report.figures import Dots, Figure, Grid, Line, Lines, Panel, Points, Section
from unseen.report.folders import Omission
from unseen.report.scene import Path, Scene
from unseen.report.study_report import Part

#: Bytes that a page may have, and how coarse curves become, in pixels, before figures are left to
#: their files.
LIMIT = 2_900_000
TOLERANCES = (0.4, 0.8, 1.5)
#: Chapters whose method-by-method figures leave the page first.
FIRST_OUT = ("updates", "weights", "curves")


@dataclass(frozen=True)
class Chapters:
    """A part with its sections. names: figure -> the name of its files."""

    part: Part
    sections: tuple[Section, ...]
    names: Mapping[str, str]


def page(chapters: Sequence[Chapters], left: Sequence[Omission]) -> str:
    """The page, as fine as it fits into the limit."""
    for tolerance in TOLERANCES:
        html = _page(chapters, left, tolerance, frozenset())
        if len(html.encode()) <= LIMIT:
            return html
    for n in range(1, len(FIRST_OUT) + 1):
        html = _page(chapters, left, TOLERANCES[-1], frozenset(FIRST_OUT[:n]))
        if len(html.encode()) <= LIMIT:
            break
    return html


def _page(
    chapters: Sequence[Chapters], left: Sequence[Omission], tolerance: float, out: frozenset[str]
) -> str:
    from jinja2 import Environment, PackageLoader

    from unseen.version import __version__

    loader = PackageLoader("unseen.report", "")
    environment = Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True
    )  # fmt: skip
    parts = [_part(i, one, tolerance, out) for i, one in enumerate(chapters, 1)]
    markup = _markup()
    return environment.get_template("template.html").render(
        title=parts[0]["title"] if len(parts) == 1 else "Results of several studies",
        parts=parts,
        left=left,
        differences=differences([one.part for one in chapters]),
        version=__version__,
        light=markup(theme.variables(0)),
        dark=markup(theme.variables(1)),
        css=markup(_file("style.css")),
        figure_css=markup(theme.FIGURE_CSS),
        js=markup(_file("script.js")),
    )


def _part(number: int, one: Chapters, tolerance: float, out: frozenset[str]) -> dict[str, Any]:
    part, id = one.part, f"p{number}"
    if part.main.many:  # a panel per target and method would bury the rest
        out = frozenset(FIRST_OUT)
    sections = [_section(s, one.names, tolerance, s.key in out) for s in one.sections if s]
    contents = [("results", "Results"), *((s["key"], s["title"]) for s in sections)]
    return {
        "id": id,
        "number": number,
        "title": part.title,
        "facts": facts(part),
        "left": part.left,
        "tables": [
            table_rows.shown(part, made, f"{id}-table-{i}")
            for i, made in enumerate(part.tables.values())
        ],
        "sections": sections,
        "contents": [*contents, ("run", "What was run")],
        "run": provenance.run(part),
        "settings": provenance.settings(part),
        "sources": provenance.sources(part),
        "bibtex": provenance.bibtex(part),
    }


def facts(part: Part) -> list[tuple[str, str]]:
    """The study at a glance."""
    counts = [
        f"{len(part.methods)} methods",
        f"{len(part.tasks)} {'targets' if len(part.tasks) > 1 else 'target'}",
        f"{'seeds' if len(part.seeds) > 1 else 'seed'} {', '.join(map(str, part.seeds))}",
    ]
    return [
        *verdict.cards(part.main),
        (str(len(part.runs)), f"finished runs: {', '.join(counts)}"),
        (part.selection, "selection of the round"),
    ]


def differences(parts: Sequence[Part]) -> str:
    """The settings in which protocols differ."""
    seen = [dict(provenance.settings(part)) | {"data": part.identity.get("data")} for part in parts]
    skipped = {"name", "title", "methods", "targets", "seeds", "selection", "metric", "reference"}
    names = dict.fromkeys(name for one in seen for name in one if name not in skipped)
    differ = [n for n in names if len({json.dumps(one.get(n)) for one in seen}) > 1]
    return ", ".join(differ) or "what they record"


def _section(
    section: Section, names: Mapping[str, str], tolerance: float, out: bool
) -> dict[str, Any]:
    markup = _markup()
    folds: dict[str, list[Any]] = {}
    for figure in section.figures:
        if figure.fold:
            html = _elsewhere(figure, names) if out else _figure(figure, names, tolerance)
            folds.setdefault(figure.fold, []).append(markup(html))
    return {
        "key": section.key,
        "title": section.title,
        "text": section.text,
        "figures": [
            markup(_figure(f, names, tolerance)) for f in section.figures if not f.fold
        ],
        "folds": list(folds.items()),
        "grids": [_grid(grid) for grid in section.grids],
    }  # fmt: skip


def _figure(figure: Figure, names: Mapping[str, str], tolerance: float) -> str:
    panels = "".join(draw.panel(p, tolerance).to_svg(spoken(p)) for p in figure.panels)
    legend = "".join(map(_swatch, figure.legend)) if len(figure.legend) > 1 else ""
    legend = f'<ul class="legend">{legend}</ul>' if legend else ""
    return (
        f"<figure><figcaption><b>{escape(figure.title)}</b>{escape(figure.caption)} "
        f'<span class="file">({escape(names[figure.key])})</span></figcaption>'
        f'{legend}<div class="panels">{panels}</div></figure>'
    )


def _elsewhere(figure: Figure, names: Mapping[str, str]) -> str:
    return (
        f"<p class=soft>{escape(figure.title)}: only in <code>figures/{escape(names[figure.key])}"
        ".svg</code> beside this page, to keep it readable and below 3 MB.</p>"
    )


def _swatch(line: Line) -> str:
    mark = Path(((0, 4), (26, 4)), draw.stroke(line))
    drawn = Scene(26, 8, (mark,)).to_svg("")
    drawn = drawn.replace('role="img" aria-label=""', 'aria-hidden="true"')
    return f"<li>{drawn}{escape(line.name)}</li>"


def spoken(panel: Panel) -> str:
    """A panel in words, for who cannot see it."""
    if isinstance(panel, Lines):
        scale, unit = (100, " percent") if panel.percent else (1, "")
        told = sorted(panel.lines, key=lambda line: line.kind != "strong")
        said = [
            f"{line.name} {line.y[0] * scale:.3g} to {line.y[-1] * scale:.3g}" for line in told[:6]
        ]
        rest = f" and {len(told) - 6} more" if len(told) > 6 else ""
        return f"{panel.title}: {panel.y_label}{unit} by {panel.x_label}; {', '.join(said)}{rest}"
    if isinstance(panel, Dots):
        said = [f"{row.name} {row.text}" for row in panel.rows]
        few = said if len(said) <= 6 else [*said[:3], "…", *said[-2:]]
        return f"{panel.title}, {panel.x_label}: {', '.join(few)}"
    if isinstance(panel, Points):
        return f"{panel.title}: map of {len(panel.x)} points in {len(panel.known)} groups"
    low, high = (f(min(r) if f is min else max(r) for r in panel.values) for f in (min, max))
    named = ", ".join(name for name, _, _ in panel.points)
    return f"{panel.title}: {panel.unit} from {low:.3g} to {high:.3g} around {named}"


def _grid(grid: Grid) -> dict[str, Any]:
    found = [
        [
            (text, value if isinstance(value, int | float) else None)
            for text, value in zip(grid.shown(i), row, strict=True)
        ]
        for i, row in enumerate(grid.rows)
    ]
    return {"title": grid.title, "header": grid.header, "rows": found, "notes": grid.notes}


def figures(chapters: Chapters) -> Iterator[Figure]:
    """All figures of a part."""
    for section in chapters.sections:
        yield from section.figures


def _markup() -> Any:
    from markupsafe import Markup

    return Markup


def _file(name: str) -> str:
    return (resources.files("unseen.report") / name).read_text("utf-8")
