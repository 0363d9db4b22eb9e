"""The report's files: the page that needs nothing else, tables, figures with data, citations."""

import hashlib
import json
import re
from collections import ChainMap, Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from unseen.core.atomic import write_atomically
from unseen.core.exchange import Method
from unseen.data import DATASETS
from unseen.data.standin import NO_RESULT
from unseen.errors import UnseenError
from unseen.expression import Call, parse
from unseen.methods.compose import method as compose
from unseen.studies.report import curves, outcome, plot, table_rows, theme
from unseen.studies.report.citations import bibtex
from unseen.studies.report.figures import Figure, Section
from unseen.studies.report.read import Choice, read
from unseen.studies.report.study_report import Omission, StudyReport
from unseen.studies.results.comparison import LEVEL
from unseen.studies.results.formats import LEGEND, comma_separated
from unseen.studies.results.study_file import flat

#: Bytes that a page may have.
LIMIT = 2_900_000
#: Chapters whose method-by-method figures are left to their files first.
FIRST_OUT = ("weights", "curves")
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
    def full(self) -> list[Section]:
        return [section for section in self.sections if section]

    def name(self, figure: Figure) -> str:
        return self.prefix + slug(figure.key)


def slug(text: str) -> str:
    """Return a file's name for a figure; a digest keeps different ones apart.

    Example:
        >>> slug("cost"), slug("curves-loss-ppdg(lam=0.2)")
        ('cost', 'curves-loss-ppdg_lam=0.2-cb9ec3')
    """
    safe = re.sub(r"[^A-Za-z0-9.=+_-]+", "_", text).strip("_.")[:80]
    return safe if safe == text else f"{safe}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def page(chapters: Sequence[Chapters], omissions: Sequence[Omission]) -> str:
    """Return the page, with as many figures as the limit allows.

    Args:
        chapters: One for each study.
        omissions: What could not be read, to be named at the top.
    """
    room = (LIMIT - len(_page(chapters, omissions).encode())) // len(chapters)
    return _page([_with_drawings(one, room) for one in chapters], omissions)


def _with_drawings(one: Chapters, room: int) -> Chapters:
    """Return a study with its drawings that fit into `room` bytes: whole chapters leave them."""
    drawings: dict[str, dict[str, str]] = {}
    for section in one.full:
        for figure in section.figures:
            chapter = section.key if figure.fold and section.key in FIRST_OUT else ""
            # With many targets, a panel per target and method would bury the rest.
            if not (chapter and one.part.main.many):
                panels = enumerate(figure.panels)
                svgs = (plot.panel_svg(panel, f"{one.name(figure)}/{i}") for i, panel in panels)
                drawings.setdefault(chapter, {})[figure.key] = "".join(svgs)
    for chapter in FIRST_OUT:
        if sum(len(svg.encode()) for svgs in drawings.values() for svg in svgs.values()) > room:
            drawings.pop(chapter, None)
    return replace(one, drawings=ChainMap(*drawings.values()))


def _page(chapters: Sequence[Chapters], omissions: Sequence[Omission]) -> str:
    from jinja2 import Environment, PackageLoader

    from unseen.version import __version__

    environment = Environment(
        loader=PackageLoader("unseen.studies.report", ""),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "plot": plot, "table_rows": table_rows, "theme": theme, "legend": LEGEND, "level": LEVEL,
        "version": __version__, "data_line": data_line, "run_lines": run_lines,
        "settings": settings, "composed": composed, "citations": citations,
    }  # fmt: skip
    return environment.get_template("template.html").render(
        chapters=chapters,
        omissions=omissions,
        differences=differences([one.part for one in chapters]),
    )


def differences(parts: Sequence[StudyReport]) -> str:
    """Return the names of the settings in which protocols differ."""
    ways = [{**settings(part), "data": json.dumps(part.identity.get("data"))} for part in parts]
    names = dict.fromkeys(name for one in ways for name in one if name not in FREE)
    differ = [name for name in names if len({one.get(name) for one in ways}) > 1]
    return ", ".join(differ) or "what they record"


Pairs = list[tuple[str, str]]


def _dataset(part: StudyReport) -> Call:
    try:
        return parse(part.study.dataset)[0]
    except UnseenError:
        return Call(part.study.dataset, {})


def data_line(part: StudyReport) -> str:
    """Return the data in a line: the file or folder with its columns, or the data set's name."""
    options = _dataset(part).arguments
    if "path" not in options:
        return part.study.dataset
    columns = [
        f"{n} column {x}" for n in ("label", "domain") if isinstance(x := options.get(n), str)
    ]
    return ", ".join([str(options["path"]), *columns])


def run_lines(part: StudyReport) -> Pairs:
    """Return the run in a few lines: jobs, data with its checksum, model, versions, commits."""
    able = [method for method in part.methods if method not in part.refused]
    expected = len(able) * len(part.tasks) * len(part.seeds)
    data = str(part.identity.get("data", "unknown"))
    info = None if part.stand_in else DATASETS.get(_dataset(part).name)
    marks = [one.raw.mark for one in part.runs]
    commits = dict.fromkeys(mark["commit"] for mark in marks if mark.get("commit"))
    counts = Counter(
        ", ".join(f"{name} {version}" for name, version in mark.get("versions", {}).items())
        for mark in marks
    )
    lines = {
        "study": part.title,
        "jobs": f"{len(part.runs)} finished of {expected} (method, target, seed)",
        "folders": ", ".join(folder.path.name for folder in part.folders),
        "data and checksum": f"{data}, {NO_RESULT}" if part.stand_in else data,
        "model": part.study.network(str(part.identity.get("model", "unknown"))),
        "initial weights": str(part.identity.get("weights", "")),
        "versions": "; ".join(
            text if len(counts) == 1 else f"{text} ({count} jobs)" for text, count in counts.items()
        ),
        # A + behind a commit marks changes since.
        "commit": ", ".join(commits),
        "source of the data": info.source if info else "",
        "its licence": info.licence if info else "",
    }
    return [(name, value) for name, value in lines.items() if value]


def settings(part: StudyReport) -> Mapping[str, str]:
    """Return every setting by its dotted name, as JSON."""
    values = flat(part.study.model_dump(mode="json", exclude={"published"}))
    return {name: json.dumps(value, ensure_ascii=False) for name, value in values}


def composed(part: StudyReport) -> Mapping[str, Method]:
    """Return the methods of the study that this version knows."""
    methods = {}
    for name in part.methods:
        with suppress(UnseenError):
            methods[name] = compose(name)
    return methods


def citations(part: StudyReport) -> str:
    """Return the BibTeX entries of this package and of the methods that ran."""
    ran = {one.method for one in part.runs}
    used = ((name, method) for name, method in composed(part).items() if name in ran)
    return bibtex((name, one) for name, method in used for one in method.references)


def report(
    folders: Sequence[str | Path],
    out: str | Path,
    choice: Choice | None = None,
    files: bool = True,
) -> Path:
    """Write the report of studies' folders into `out` and return the path of its page.

    Args:
        folders: What `--out` of each study was.
        out: The folder of the report.
        choice: Metric, selection and reference, if others than the study's.
        files: Whether to write the figures as files too, which takes half of the time.

    Raises:
        UnseenError: No folder has a finished job.
    """
    parts, omissions = read([Path(f) for f in folders], choice or Choice())
    chapters = [
        Chapters(part, sections(part), f"p{i}", f"{i}-" if len(parts) > 1 else "")
        for i, part in enumerate(parts, 1)
    ]
    target = Path(out)
    contents = [("report.html", page(chapters, omissions)), *texts(chapters, omissions)]
    for name, content in contents:
        write_atomically(target / name, content.encode())
    for one in chapters if files else ():
        for figure in (figure for section in one.sections for figure in section.figures):
            forms = zip(
                ("svg", "png", "csv"), (*plot.files(figure), figure.to_csv().encode()), strict=True
            )
            for ending, file in forms:
                write_atomically(target / "figures" / f"{one.name(figure)}.{ending}", file)
    return target / "report.html"


def sections(part: StudyReport) -> tuple[Section, ...]:
    """Return all chapters of a study."""
    return (
        outcome.overview(part),
        curves.section(part),
        curves.weight_curves(part),
        outcome.sensitivity(part),
        outcome.fair(part),
        outcome.cost(part),
        *outcome.disclosed(part),
    )


def texts(chapters: Sequence[Chapters], omissions: Sequence[Omission]) -> Iterator[tuple[str, str]]:
    """Yield each file with its text: tables, the runs, small tables, and the citations.

    Args:
        chapters: One for each study.
        omissions: What could not be read.
    """
    whole, tex = [], []
    for one in chapters:
        part, tables = one.part, f"tables/{one.prefix}"
        for metric, table in part.tables.items():
            yield f"{tables}{slug(metric)}.csv", table.to_csv()
            yield f"{tables}{slug(metric)}.notes.txt", table.to_notes()
            tex.append(table.to_latex())
            whole.append(table.to_markdown())
        runs = [
            [r.method, r.task, r.raw.job.seed, r.result.round]
            + [r.result.metrics.get(m) for m in part.metrics]  # what is undefined is empty
            for r in part.runs
        ]
        header = ("method", "task", "seed", "round", *part.metrics)
        yield f"{tables}runs.csv", comma_separated([header, *runs])
        for section in one.sections:
            for grid in section.grids:
                yield f"{tables}{section.key}.csv", grid.to_csv()
        run = "".join(f"- {name}: {value}\n" for name, value in run_lines(part))
        whole.append(f"What was run:\n\n{run}")
        yield f"{one.prefix}citations.bib", citations(part) + "\n"
    items = [*omissions, *(item for one in chapters for item in one.part.omissions)]
    omitted = "".join(f"- `{item.place}`: {item.reason}\n" for item in items)
    whole += [f"Left out or incomplete:\n\n{omitted}"] if omitted else []
    yield "report.md", "\n".join(whole)
    yield "report.tex", "\n".join(tex)
