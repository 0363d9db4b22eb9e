"""What was run: settings, versions, data, where the methods come from and how to cite them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress

from unseen.core.exchange import Method
from unseen.datasets import DATASETS
from unseen.datasets.standin import NO_RESULT
from unseen.errors import UnseenError
from unseen.expression import Call, parse
from unseen.methods.compose import method as compose
from unseen.report.study_report import StudyReport
from unseen.results.study_file import flat

Pairs = list[tuple[str, str]]


def _dataset(part: StudyReport) -> Call:
    try:
        return parse(part.study.dataset)[0]
    except UnseenError:
        return Call(part.study.dataset, {})


def data(part: StudyReport) -> str:
    """Return the data in a line: the file or folder with its columns, or the data set's name."""
    options = _dataset(part).arguments
    if "path" not in options:
        return part.study.dataset
    columns = [
        f"{n} column {x}" for n in ("label", "domain") if isinstance(x := options.get(n), str)
    ]
    return ", ".join([str(options["path"]), *columns])


def run(part: StudyReport) -> Pairs:
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
        "model": str(part.identity.get("model", "unknown")),
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


def bibtex(part: StudyReport) -> str:
    """Return the BibTeX entries of the methods that ran, once each."""
    ran = {one.method for one in part.runs}
    references = [r for n, method in composed(part).items() if n in ran for r in method.references]
    return "\n\n".join(dict.fromkeys(r.bibtex for r in references if r.bibtex))
