"""The report's files: the page that needs nothing else, tables, figures with data, citations."""

import json
from collections import ChainMap, Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from unseen.core.atomic import write_atomically
from unseen.core.exchange import Method
from unseen.data import datasets
from unseen.data.standin import NO_RESULT
from unseen.errors import UnseenError
from unseen.expression import Call, parse
from unseen.methods.compose import method as compose
from unseen.studies.report import curves, outcome, plot, table_rows, theme
from unseen.studies.report.citations import bibtex
from unseen.studies.report.figures import Section
from unseen.studies.report.read import Choice, read
from unseen.studies.report.study_report import StudyReport
from unseen.studies.results.comparison import LEVEL
from unseen.studies.results.formats import LEGEND, comma_separated
from unseen.studies.results.records import slug
from unseen.studies.results.study_file import flat
from unseen.version import __version__

#: Bytes that a page may have.
LIMIT = 2_900_000
#: Chapters whose method-by-method figures are left to their files first.
FIRST_OUT = ("weights", "curves")
#: Returns the name of a figure's or table's file.
named = partial(slug, longest=80)


@dataclass(frozen=True)
class Page:
    """A study with its chapters.

    Attributes:
        part: The study.
        sections: Its chapters, those with nothing to show too.
    """

    part: StudyReport
    sections: tuple[Section, ...]

    @property
    def full(self) -> list[Section]:
        """The chapters with something to show."""
        return [section for section in self.sections if section]

    def html(self) -> str:
        """Return the page, with as many figures as the limit allows: whole chapters leave it."""
        room = LIMIT - len(self.rendered({}).encode())
        drawings: dict[str, dict[str, str]] = {}
        for section in self.full:
            for figure in section.figures:
                chapter = section.key if figure.fold and section.key in FIRST_OUT else ""
                # With many targets, a panel per target and method would bury the rest.
                if not (chapter and self.part.main.many):
                    panels = enumerate(figure.panels)
                    svgs = (plot.panel_svg(p, f"{named(figure.key)}/{i}") for i, p in panels)
                    drawings.setdefault(chapter, {})[figure.key] = "".join(svgs)
        for chapter in FIRST_OUT:
            if sum(len(svg.encode()) for svgs in drawings.values() for svg in svgs.values()) > room:
                drawings.pop(chapter, None)
        return self.rendered(ChainMap(*drawings.values()))

    def rendered(self, drawings: Mapping[str, str]) -> str:
        """Return the page.

        Args:
            drawings: Each figure's key -> its panels as SVG; the others only the files have.
        """
        from jinja2 import Environment, PackageLoader

        environment = Environment(
            loader=PackageLoader("unseen.studies.report", ""),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        return environment.get_template("template.html").render(
            page=self,
            part=self.part,
            drawings=drawings,
            plot=plot,
            table_rows=table_rows,
            theme=theme,
            legend=LEGEND,
            level=LEVEL,
            version=__version__,
            data=data_line(self.part),
            run_lines=run_lines,
            settings=settings,
            composed=composed,
            citations=citations,
            named_file=named,
        )


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
    info = None if part.stand_in else datasets().get(_dataset(part).name)
    marks = [one.raw.mark for one in part.runs]
    commits = dict.fromkeys(mark["commit"] for mark in marks if mark.get("commit"))
    counts = Counter(
        ", ".join(f"{name} {version}" for name, version in mark.get("versions", {}).items())
        for mark in marks
    )
    lines = {
        "study": part.title,
        "jobs": f"{len(part.runs)} finished of {expected} (method, target, seed)",
        "folder": part.folder.path.name,
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
    folder: str | Path,
    out: str | Path,
    choice: Choice | None = None,
    files: bool = True,
) -> Path:
    """Write the report of a study's folder into `out` and return the path of its page.

    Args:
        folder: What `--out` of the study was.
        out: The folder of the report.
        choice: Metric, selection and reference, if others than the study's.
        files: Whether to write the figures as files too, which takes half of the time.

    Raises:
        UnseenError: The folder has no finished job.
    """
    part, target = read(Path(folder), choice or Choice()), Path(out)
    page = Page(part, sections(part))
    for name, content in [("report.html", page.html()), *texts(page)]:
        write_atomically(target / name, content.encode())
    for figure in (figure for section in page.sections for figure in section.figures if files):
        svg, png = plot.files(figure)
        contents = {"svg": svg, "png": png, "csv": figure.to_csv().encode()}
        for ending, file in contents.items():
            write_atomically(target / "figures" / f"{named(figure.key)}.{ending}", file)
    return target / "report.html"


def sections(part: StudyReport) -> tuple[Section, ...]:
    """Return all chapters of a study."""
    return (
        outcome.overview(part),
        curves.section(part),
        curves.weight_curves(part),
        outcome.fair(part),
        outcome.cost(part),
        *outcome.disclosed(part),
    )


def texts(page: Page) -> Iterator[tuple[str, str]]:
    """Yield each file with its text: tables, the runs, small tables, and the citations."""
    part = page.part
    for metric, table in part.tables.items():
        yield f"tables/{named(metric)}.csv", table.to_csv()
        yield f"tables/{named(metric)}.notes.txt", table.to_notes()
    runs = [
        [r.method, r.task, r.raw.job.seed, r.result.round]
        + [r.result.metrics.get(m) for m in part.metrics]  # what is undefined is empty
        for r in part.runs
    ]
    header = ("method", "task", "seed", "round", *part.metrics)
    yield "tables/runs.csv", comma_separated([header, *runs])
    for section in page.sections:
        for grid in section.grids:
            yield f"tables/{section.key}.csv", grid.to_csv()
    yield "citations.bib", citations(part) + "\n"
    whole = [table.to_markdown() for table in part.tables.values()]
    run = "".join(f"- {name}: {value}\n" for name, value in run_lines(part))
    whole.append(f"What was run:\n\n{run}")
    omitted = "".join(f"- `{item.place}`: {item.reason}\n" for item in part.omissions)
    whole += [f"Left out or incomplete:\n\n{omitted}"] if omitted else []
    yield "report.md", "\n".join(whole)
    yield "report.tex", "\n".join(table.to_latex() for table in part.tables.values())
