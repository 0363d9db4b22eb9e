"""The page: everything put into one HTML file that needs nothing else."""

from __future__ import annotations

import hashlib
import json
import re
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from unseen.report import plot, provenance, table_rows, theme
from unseen.report.figures import Figure, Section
from unseen.report.study_report import Omission, StudyReport
from unseen.results.comparison import LEVEL
from unseen.results.formats import LEGEND

#: Bytes that a page may have.
LIMIT = 2_900_000
#: Chapters whose method-by-method figures are left to their files first.
FIRST_OUT = ("updates", "weights", "curves")
#: Settings in which studies of one protocol may differ.
FREE = {"name", "title", "methods", "targets", "seeds", "selection", "metric", "reference"}


@dataclass(frozen=True)
class Chapters:
    """A study with its sections.

    Attributes:
        part: The study.
        sections: Its chapters, those with nothing to show too.
        id: What its places on the page begin with.
        prefix: What the names of its files begin with.
        drawings: Each figure's key -> its panels as SVG, but for those that only the files have.
    """

    part: StudyReport
    sections: tuple[Section, ...]
    id: str = "p1"
    prefix: str = ""
    drawings: Mapping[str, str] = field(default_factory=dict)

    @property
    def shown(self) -> list[Section]:
        """The sections with something to show."""
        return [section for section in self.sections if section]

    def name(self, figure: Figure) -> str:
        """Return the name of a figure's files."""
        return self.prefix + slug(figure.key)


def slug(text: str) -> str:
    """Return a file's name for a figure; a digest keeps different ones apart.

    Example:
        >>> slug("cost"), slug("curves-loss-ppdg(lam=0.2)")
        ('cost', 'curves-loss-ppdg_lam=0.2-cb9ec3')
    """
    safe = re.sub(r"[^A-Za-z0-9.=+_-]+", "_", text).strip("_.")[:80]
    return safe if safe == text else f"{safe}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def page(chapters: Sequence[Chapters], left: Sequence[Omission]) -> str:
    """Return the page, with as many figures as the limit allows.

    Args:
        chapters: One for each study.
        left: What could not be read, to be named at the top.
    """
    room = (LIMIT - len(_page(chapters, left).encode())) // len(chapters)
    return _page([_drawn(one, room) for one in chapters], left)


def _drawn(one: Chapters, room: int) -> Chapters:
    """Return a study with its drawings that fit into so many bytes: whole chapters leave them."""
    drawings: dict[str, dict[str, str]] = {}
    for section in one.shown:
        for figure in section.figures:
            chapter = section.key if figure.fold and section.key in FIRST_OUT else ""
            # With many targets, a panel per target and method would bury the rest.
            if not (chapter and one.part.main.many):
                panels = enumerate(figure.panels)
                svgs = (plot.panel_svg(panel, f"{one.name(figure)}/{i}") for i, panel in panels)
                drawings.setdefault(chapter, {})[figure.key] = "".join(svgs)
    for chapter in FIRST_OUT:
        if sum(len(svg.encode()) for drawn in drawings.values() for svg in drawn.values()) > room:
            drawings.pop(chapter, None)
    return replace(one, drawings=ChainMap(*drawings.values()))


def _page(chapters: Sequence[Chapters], left: Sequence[Omission]) -> str:
    from jinja2 import Environment, PackageLoader

    from unseen.version import __version__

    environment = Environment(
        loader=PackageLoader("unseen.report", ""),
        autoescape=True, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.globals |= {
        "plot": plot, "provenance": provenance, "table_rows": table_rows, "theme": theme,
        "legend": LEGEND, "level": LEVEL, "version": __version__,
    }  # fmt: skip
    return environment.get_template("template.html").render(
        chapters=chapters, left=left, differences=differences([one.part for one in chapters])
    )


def differences(parts: Sequence[StudyReport]) -> str:
    """Return the names of the settings in which protocols differ."""
    settings = [
        {**provenance.settings(part), "data": json.dumps(part.identity.get("data"))}
        for part in parts
    ]
    names = dict.fromkeys(name for one in settings for name in one if name not in FREE)
    differ = [name for name in names if len({one.get(name) for one in settings}) > 1]
    return ", ".join(differ) or "what they record"
