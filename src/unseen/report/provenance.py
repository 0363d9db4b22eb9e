"""What was run: settings, versions, data, where the methods come from and how to cite them."""

from __future__ import annotations

import json
from collections.abc import Iterator

from unseen.core.exchange import Method
from unseen.datasets.standin import NO_RESULT
from unseen.errors import UnseenError
from unseen.expression import parse
from unseen.methods.compose import method as compose
from unseen.report.study_report import StudyReport

Pairs = list[tuple[str, str]]


def data(part: StudyReport) -> str:
    """Return the data in a line: the file or folder with its columns, or the data set's name."""
    try:
        options = dict(parse(part.study.dataset)[0].arguments)
    except UnseenError:
        options = {}
    path = options.pop("path", None)
    if path is None:
        return part.study.dataset
    columns = {name: x for name in ("label", "domain") if isinstance(x := options.get(name), str)}
    return ", ".join([str(path), *(f"{name} column {column}" for name, column in columns.items())])


def run(part: StudyReport) -> Pairs:
    """Return the run in a few lines: jobs, data with its checksum, model, versions, commits."""
    expected = len(part.methods) * len(part.tasks) * len(part.seeds)
    data = str(part.identity.get("data", "unknown"))
    lines = [
        ("study", part.title),
        ("jobs", f"{len(part.runs)} finished of {expected} (method, target, seed)"),
        ("folders", ", ".join(folder.path.name for folder in part.folders)),
        ("data and checksum", f"{data}, {NO_RESULT}" if part.stand_in else data),
        ("model", str(part.identity.get("model", "unknown"))),
        ("initial weights", str(part.identity.get("weights", ""))),
        ("versions", "; ".join(_versions(part))),
        ("commit", ", ".join(commits(part))),
    ]
    return [(name, value) for name, value in (*lines, *_licence(part)) if value]


def _versions(part: StudyReport) -> Iterator[str]:
    """Yield each set of versions with the number of jobs that ran with it."""
    counts: dict[str, int] = {}
    for one in part.runs:
        versions = one.raw.mark.get("versions", {})
        text = ", ".join(f"{name} {version}" for name, version in versions.items())
        counts[text] = counts.get(text, 0) + 1
    for text, count in counts.items():
        yield text if len(counts) == 1 else f"{text} ({count} jobs)"


def commits(part: StudyReport) -> list[str]:
    """Return the commits that the jobs ran at; a + marks changes since."""
    return list(dict.fromkeys(c for r in part.runs if (c := r.raw.mark.get("commit"))))


def _licence(part: StudyReport) -> Pairs:
    from unseen.datasets import DATASETS

    if part.stand_in:
        return []
    try:
        info = DATASETS.get(parse(part.study.dataset)[0].name)
    except UnseenError:
        return []
    return [("source of the data", info.source), ("its licence", info.licence)] if info else []


def settings(part: StudyReport) -> Pairs:
    """Return every setting, dotted."""
    return list(_flat(part.study.model_dump(mode="json", exclude={"published"}), ""))


def _flat(values: dict[str, object], prefix: str) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", json.dumps(value, ensure_ascii=False)


def composed(part: StudyReport) -> dict[str, Method]:
    """Return the methods of the study that this version knows."""
    methods = {}
    for name in part.methods:
        try:
            methods[name] = compose(name)
        except UnseenError:
            continue
    return methods


def sources(part: StudyReport) -> list[tuple[str, str, str]]:
    """Return each method with where it comes from and what leaves a client."""
    return [
        (name, " ".join(r.text for r in method.references), ", ".join(method.shares) or "nothing")
        for name, method in composed(part).items()
    ]


def bibtex(part: StudyReport) -> str:
    """Return the BibTeX entries of the methods that ran, once each."""
    ran = {one.method for one in part.runs}
    methods = (m for name, m in composed(part).items() if name in ran)
    entries = dict.fromkeys(r.bibtex for m in methods for r in m.references if r.bibtex)
    return "\n\n".join(entries)
