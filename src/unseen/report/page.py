"""The page: everything put into one HTML file that needs nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from typing import Any

from unseen.report import plot, provenance, table_rows, theme, verdict
from unseen.report.figures import Figure, Section
from unseen.report.folders import Omission
from unseen.report.study_report import StudyReport

#: Bytes that a page may have.
LIMIT = 2_900_000
#: Chapters whose method-by-method figures are left to their files first.
FIRST_OUT = ("updates", "weights", "curves")


@dataclass(frozen=True)
class Chapters:
    """A study with its sections.

    Attributes:
        names: Each figure's key -> the name of its files.
        absent: What the page does not show, and what it would need.
    """

    part: StudyReport
    sections: tuple[Section, ...]
    names: Mapping[str, str]
    absent: str = ""

    @cached_property
    def figures(self) -> tuple[Figure, ...]:
        """All figures of the study."""
        return tuple(figure for section in self.sections for figure in section.figures)

    @cached_property
    def drawings(self) -> Mapping[str, tuple[str, ...]]:
        """Each figure's key -> its panels as SVG, but for those that only the files have."""
        # With many targets, a panel per target and method would bury the rest.
        few = not self.part.main.many
        return {
            figure.key: tuple(
                plot.panel_svg(panel, f"{self.names[figure.key]}/{i}")
                for i, panel in enumerate(figure.panels)
            )
            for section in self.sections
            for figure in section.figures
            if few or not figure.fold or section.key not in FIRST_OUT
        }

    def within(self, size: int) -> dict[str, Any]:
        """Return the drawings that fit into `size` bytes: whole chapters leave the page."""
        drawings = dict(self.drawings)
        for key in FIRST_OUT:
            if sum(len(svg.encode()) for panels in drawings.values() for svg in panels) <= size:
                break
            for section in self.sections:
                for figure in section.figures if section.key == key else ():
                    if figure.fold:
                        drawings.pop(figure.key, None)
        return drawings


def page(chapters: Sequence[Chapters], left: Sequence[Omission]) -> str:
    """Return the page, with as many figures as the limit allows.

    Args:
        chapters: One for each study.
        left: What could not be read, to be named at the top.
    """
    frame = len(_page(chapters, left, [{} for _ in chapters]).encode())
    room = (LIMIT - frame) // len(chapters)
    return _page(chapters, left, [one.within(room) for one in chapters])


def _page(
    chapters: Sequence[Chapters], left: Sequence[Omission], drawings: Sequence[Mapping[str, Any]]
) -> str:
    from jinja2 import Environment, PackageLoader
    from markupsafe import Markup

    from unseen.version import __version__

    environment = Environment(
        loader=PackageLoader("unseen.report", ""),
        autoescape=True, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["svg"] = Markup
    environment.filters["swatch"] = lambda line: Markup(plot.swatch(line.colour, line.kind))
    parts = [_part(i, *pair) for i, pair in enumerate(zip(chapters, drawings, strict=True), 1)]
    return environment.get_template("template.html").render(
        title=parts[0]["title"] if len(parts) == 1 else "Results of several studies",
        parts=parts,
        left=left,
        differences=differences([one.part for one in chapters]),
        version=__version__,
        light=Markup(theme.variables(0)),
        dark=Markup(theme.variables(1)),
        css=Markup(_file("style.css")),
        js=Markup(_file("script.js")),
    )


def _part(number: int, one: Chapters, drawings: Mapping[str, Any]) -> dict[str, Any]:
    part, id = one.part, f"p{number}"
    sections = [section for section in one.sections if section]
    contents = [("results", "Results"), *((s.key, s.title) for s in sections)]
    return {
        "id": id,
        "number": number,
        "title": part.title,
        "data": provenance.data(part),
        "facts": facts(part),
        "left": part.left,
        "tables": [
            table_rows.page_table(part, table, f"{id}-table-{i}")
            for i, table in enumerate(part.tables.values())
        ],
        "sections": [(section, _folds(section)) for section in sections],
        "drawings": drawings,
        "names": one.names,
        "absent": one.absent,
        "contents": [*contents, ("run", "What was run")],
        "run": provenance.run(part),
        "settings": provenance.settings(part),
        "sources": provenance.sources(part),
        "bibtex": provenance.bibtex(part),
    }


def _folds(section: Section) -> list[tuple[str, list[Figure]]]:
    folds: dict[str, list[Figure]] = {}
    for figure in section.figures:
        if figure.fold:
            folds.setdefault(figure.fold, []).append(figure)
    return list(folds.items())


def facts(part: StudyReport) -> Iterator[tuple[str, str]]:
    """Yield the study at a glance: a figure or a name, and what it is."""
    yield from verdict.cards(part.main)
    many = [
        f"{len(part.methods)} method{'s' * (len(part.methods) > 1)}",
        f"{len(part.tasks)} target{'s' * (len(part.tasks) > 1)}",
        f"seed{'s' * (len(part.seeds) > 1)} {', '.join(map(str, part.seeds))}",
    ]
    yield str(len(part.runs)), f"finished runs: {', '.join(many)}"
    yield part.selection, "selection of the round"


def differences(parts: Sequence[StudyReport]) -> str:
    """Return the names of the settings in which protocols differ."""
    settings = [
        dict(provenance.settings(part)) | {"data": part.identity.get("data")} for part in parts
    ]
    skipped = {"name", "title", "methods", "targets", "seeds", "selection", "metric", "reference"}
    names = dict.fromkeys(name for one in settings for name in one if name not in skipped)
    differ = [n for n in names if len({json.dumps(one.get(n)) for one in settings}) > 1]
    return ", ".join(differ) or "what they record"


def _file(name: str) -> str:
    return (resources.files("unseen.report") / name).read_text("utf-8")
