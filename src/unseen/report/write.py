"""The report's files: the page, the tables, every figure with its data, the citations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from unseen.core.atomic import write_atomically
from unseen.report import (
    curves,
    gaps,
    outcome,
    plot,
    provenance,
    sensitivity,
    updates,
)
from unseen.report.figures import Section
from unseen.report.page import Chapters, page, slug
from unseen.report.read import Choice, read
from unseen.report.study_report import Omission, StudyReport
from unseen.results.formats import comma_separated

#: Further sections of a part, such as those that need the data.
Further = Callable[[StudyReport], Sequence[Section]]


def report(
    folders: Sequence[str | Path],
    out: str | Path,
    choice: Choice | None = None,
    files: bool = True,
    further: Further | None = None,
) -> Path:
    """Write the report of studies' folders into `out` and return the path of its page.

    Args:
        folders: What `--out` of each study was.
        out: The folder of the report.
        choice: Metric, selection and reference, if others than the study's.
        files: Whether to write the figures as files too, which takes half of the time.
        further: Makes more sections, such as those that need the data.

    Raises:
        UnseenError: No folder has a finished job.
    """
    parts, left = read([Path(f) for f in folders], choice or Choice())
    chapters = [
        Chapters(part, sections(part, further), f"p{i}", f"{i}-" if len(parts) > 1 else "")
        for i, part in enumerate(parts, 1)
    ]
    target = Path(out)
    contents = [("report.html", page(chapters, left)), *texts(chapters, left)]
    for name, content in contents:
        write_atomically(target / name, content.encode())
    for one in chapters if files else ():
        for figure in (figure for section in one.sections for figure in section.figures):
            forms = zip(("svg", "png", "csv"), (*plot.files(figure), figure.to_csv().encode()),
                        strict=True)  # fmt: skip
            for ending, file in forms:
                write_atomically(target / "figures" / f"{one.name(figure)}.{ending}", file)
    return target / "report.html"


def sections(part: StudyReport, further: Further | None = None) -> tuple[Section, ...]:
    """Return all chapters of a study.

    Args:
        part: The study.
        further: Makes those that need the data.
    """
    return (
        outcome.overview(part), curves.section(part), curves.weight_curves(part),
        gaps.section(part), updates.section(part), sensitivity.section(part),
        *(further(part) if further else [Section("saved")]),
        outcome.fair(part), outcome.cost(part), *outcome.disclosed(part),
    )  # fmt: skip


def texts(chapters: Sequence[Chapters], left: Sequence[Omission]) -> Iterator[tuple[str, str]]:
    """Yield each file with its text: tables, the runs, small tables, and the citations.

    Args:
        chapters: One for each study.
        left: What could not be read.
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
            [r.method, r.task, r.raw.job.seed, r.chosen.round]
            + [r.chosen.metrics.get(m) for m in part.metrics]  # what is undefined is empty
            for r in part.runs
        ]
        header = ("method", "task", "seed", "round", *part.metrics)
        yield f"{tables}runs.csv", comma_separated([header, *runs])
        for section in one.sections:
            for grid in section.grids:
                yield f"{tables}{section.key}.csv", grid.to_csv()
        run = "".join(f"- {name}: {value}\n" for name, value in provenance.run(part))
        whole.append(f"What was run:\n\n{run}")
        yield f"{one.prefix}citations.bib", provenance.bibtex(part) + "\n"
    items = [*left, *(item for one in chapters for item in one.part.left)]
    omitted = "".join(f"- `{item.place}`: {item.reason}\n" for item in items)
    whole += [f"Left out or incomplete:\n\n{omitted}"] if omitted else []
    yield "report.md", "\n".join(whole)
    yield "report.tex", "\n".join(tex)
