"""The report's files: the page, the tables, every figure with its data, the citations."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from unseen.core.atomic import write_atomically
from unseen.report import (
    curves,
    disclosures,
    gaps,
    outcome,
    plot,
    provenance,
    rule_weights,
    sensitivity,
    updates,
)
from unseen.report.figures import Section, to_csv
from unseen.report.folders import Omission
from unseen.report.page import Chapters, page
from unseen.report.read import Choice, read
from unseen.report.study_report import StudyReport

#: What needs the saved models and the data.
SAVED = Section(
    "saved", "Saved models", "", needs="confusion matrices, accuracies per class, maps of features "
    'and loss surfaces (save = ["final", "locals"] in the study and --data-dir here)',
)  # fmt: skip
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
        chaptered(part, "" if len(parts) == 1 else f"{i}-", further)
        for i, part in enumerate(parts, 1)
    ]
    target = Path(out)
    write_atomically(target / "report.html", page(chapters, left).encode())
    for name, content in texts(chapters, left):
        write_atomically(target / name, content.encode())
    if files:
        for one in chapters:
            _figures(one, target / "figures")
    return target / "report.html"


def chaptered(part: StudyReport, prefix: str = "", further: Further | None = None) -> Chapters:
    """Return all sections of a study, with the names of its figures' files."""
    overview = (outcome.averages(part, part.main), *outcome.ranked(part, part.main))
    sections = (
        Section("overview", "Overview", "", overview), curves.section(part),
        rule_weights.section(part), gaps.section(part),
        updates.section(part), sensitivity.section(part), *(further(part) if further else [SAVED]),
        outcome.fair(part), outcome.cost(part), *disclosures.sections(part),
    )  # fmt: skip
    keys = [figure.key for section in sections for figure in section.figures]
    absent = [section.needs for section in sections if section.needs and not section]
    words = f"Not shown: {'; '.join(absent)}." if absent else ""
    return Chapters(part, sections, {key: prefix + slug(key) for key in keys}, words)


def slug(text: str) -> str:
    """Return a file's name for a figure; a digest keeps different ones apart.

    >>> slug("cost"), slug("curves-loss-ppdg(lam=0.2)")
    ('cost', 'curves-loss-ppdg_lam=0.2-cb9ec3')
    """
    safe = re.sub(r"[^A-Za-z0-9.=+_-]+", "_", text).strip("_.")[:80]
    return safe if safe == text else f"{safe}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def texts(chapters: Sequence[Chapters], left: Sequence[Omission]) -> Iterator[tuple[str, str]]:
    """Yield each file with its text: tables, the runs, small tables, and the citations."""
    whole, tex = [], []
    for i, one in enumerate(chapters, 1):
        part, prefix = one.part, "" if len(chapters) == 1 else f"{i}-"
        for metric, table in part.tables.items():
            yield f"tables/{prefix}{slug(metric)}.csv", table.to_csv()
            yield f"tables/{prefix}{slug(metric)}.notes.txt", table.to_notes()
            tex.append(table.to_latex())
            whole.append(table.to_markdown())
        yield f"tables/{prefix}runs.csv", _runs(part)
        for section in one.sections:
            for grid in section.grids:
                yield f"tables/{prefix}{section.key}.csv", grid.to_csv()
        whole.append(_provenance(part))
        yield f"{prefix}citations.bib", provenance.bibtex(part) + "\n"
    items = [*left, *(item for one in chapters for item in one.part.left)]
    omitted = "".join(f"- `{item.place}`: {item.reason}\n" for item in items)
    whole += [f"Left out or incomplete:\n\n{omitted}"] if omitted else []
    yield "report.md", "\n".join(whole)
    yield "report.tex", "\n".join(tex)


def _runs(part: StudyReport) -> str:
    """Return one row per finished job: its selected round and all its metrics there."""
    rows = [
        [r.method, r.task, r.raw.job.seed, r.chosen.round]
        + [r.chosen.metrics.get(m) for m in part.metrics]  # what is undefined is empty
        for r in part.runs
    ]
    return to_csv(("method", "task", "seed", "round", *part.metrics), rows)


def _provenance(part: StudyReport) -> str:
    """Return what was run, as Markdown."""
    lines = [f"- {name}: {value}" for name, value in provenance.run(part)]
    return "\n".join(["What was run:", "", *lines, ""])


def _figures(one: Chapters, folder: Path) -> None:
    for figure in one.figures:
        name = one.names[figure.key]
        svg, png = plot.files(figure)
        for ending, content in (("svg", svg), ("png", png), ("csv", figure.to_csv().encode())):
            write_atomically(folder / f"{name}.{ending}", content)
