"""Write docs/results/claims.md: the papers' claims, recomputed from the records and tested.

    python papers/tools/verdicts.py    # reads docs/results/claims.toml and the records next to it

claims.toml holds the claims, what papers print for them, and which records are compared how; every
figure, p and verdict is computed here. `--check` writes nothing and fails where the page differs.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pack import unpack
from scipy.stats import t as student

from unseen.core import record_lines
from unseen.core.atomic import write_atomically
from unseen.core.record_lines import Record
from unseen.errors import UnseenError, choice
from unseen.studies.results import records
from unseen.studies.results.comparison import agree, holm, t_test, wilcoxon
from unseen.studies.results.fairness import of_sources
from unseen.studies.results.formats import decimals, scale_of
from unseen.studies.results.records import Job
from unseen.studies.results.selection import selected
from unseen.studies.results.statistics import mean, standard_error

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
ALPHA = 0.05
#: Fewer units than these are tested over nothing.
TARGETS, SEEDS, WILCOXON = 3, 3, 6
#: How many of the last rounds a gap is the mean of.
LAST = 5
#: (task, seed) -> figure, None where it is undefined.
Figures = Mapping[tuple[str, int], float | None]


@dataclass(frozen=True)
class Ran:
    """What ran: a name for the tables, the folders below docs/results, the first the default.

    unit: what one target is. selection, by: the rule that chooses the round, and its metric.
    """

    name: str
    what: str
    folders: tuple[str, ...]
    unit: str
    metric: str = "accuracy"
    selection: str = "source-validation(ties='first')"
    by: str = "accuracy"


@dataclass(frozen=True)
class Comparison:
    """Method a minus method b on the records of `on`. An empty setting is that of `on`.

    b_records: where b lies, if elsewhere. b_metric: what is read of b, if not the metric. targets:
    those that count, all by default; b_targets: those of b, in their order, where they have other
    names. claim: `more` or `less` of the metric for a, or `equal`. label: what is compared, where
    the claim does not say it.
    """

    on: str
    a: str
    b: str
    records: str = ""
    b_records: str = ""
    metric: str = ""
    b_metric: str = ""
    selection: str = ""
    by: str = ""
    claim: str = "more"
    targets: tuple[str, ...] = ()
    b_targets: tuple[str, ...] = ()
    label: str = ""


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper, its figures, what is compared.

    fact: what replaces a verdict where figures decide nothing. remark: further facts.
    """

    text: str
    published: str
    comparisons: tuple[Comparison, ...] = ()
    fact: str = ""
    remark: str = ""


@dataclass(frozen=True)
class Section:
    """A paper's claims, with the lines above and below its table."""

    name: str
    intro: str
    claims: tuple[Claim, ...]
    outro: str = ""


@dataclass(frozen=True)
class Page:
    """All of claims.toml. head: with {tests}, {wilcoxon}, {t}, {none}, {alpha} to be filled in."""

    head: str
    ran: Mapping[str, Ran]
    sections: tuple[Section, ...]
    tail: str


@dataclass(frozen=True)
class Units:
    """Differences, one per unit: the mean over a `target`'s seeds, or over a `seed`'s targets.

    enough: whether there are as many as a test needs.
    """

    values: tuple[float, ...]
    over: str
    enough: bool
    targets: int
    seeds: int

    @property
    def half_width(self) -> float | None:
        """Of the 95 % interval of the mean by Student's t; None for one unit."""
        error = standard_error(self.values)
        n = len(self.values)
        return None if error is None else float(student.ppf(1 - ALPHA / 2, n - 1)) * error


def read(path: Path) -> Page:
    """The claims of a file."""
    found = tomllib.loads(path.read_text("utf-8"))
    ran = {one["name"]: _made(Ran, one) for one in found["ran"]}
    sections = []
    for one in found["section"]:
        claims = []
        for claim in one.pop("claim"):
            compared = tuple(_made(Comparison, c) for c in claim.pop("compare", ()))
            for c in compared:
                choice("claim", c.claim, ("more", "less", "equal"))
                choice("on", c.on, tuple(ran))
            claims.append(_made(Claim, claim | {"comparisons": compared}))
        sections.append(_made(Section, one | {"claims": tuple(claims)}))
    return Page(found["head"], ran, tuple(sections), found["tail"])


def _made(kind: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    lists = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    try:
        return kind(**lists)
    except TypeError as error:
        raise UnseenError(f"claims.toml: {error}; found {sorted(values)}.") from None


class Archive:
    """Folders of records, unpacked where they are packed."""

    def __init__(self, results: Path, scratch: Path) -> None:
        self.results, self.scratch = results, scratch
        self.figures = cache(self._figures)

    def folder(self, name: str) -> Path:
        """Where a folder's records lie, as files."""
        there, packed = self.results / name, self.results / name / "records.json.xz"
        if (there / "records").is_dir():
            return there
        unpacked = self.scratch / name
        if not unpacked.exists():
            if not packed.exists():
                raise UnseenError(f"expected records/ or {packed.name} in {there}; found neither.")
            unpack(packed, unpacked)
        return unpacked

    def _figures(self, name: str, method: str, metric: str, selection: str, by: str) -> Figures:
        folder = Job(method, "", 0).folder(self.folder(name)).parents[1]
        found: dict[tuple[str, int], float | None] = {}
        for place in sorted(folder.glob("*/seed-*")):
            if not (place / "done.json").exists():
                continue
            if not records.is_done(place):
                raise UnseenError(f"{place} is damaged: its records are not those of its mark.")
            seed = int(place.name.removeprefix("seed-"))
            found[place.parent.name, seed] = _figure(place, metric, selection, by)
        if not found:
            raise UnseenError(f"{name} has no finished job of {method!r}; correct claims.toml.")
        return found


def _figure(place: Path, metric: str, selection: str, by: str) -> float | None:
    """What a job reports of a metric; None where it is undefined or the job diverged."""
    if "diverged" in records.mark(place):
        return None
    if metric in GAPS:
        return _gap(record_lines.read_lines(place / "rounds.jsonl"), GAPS[metric])
    if metric in LOCALS:
        return LOCALS[metric](place)
    source = record_lines.read_lines(place / "source.jsonl")
    target = record_lines.read_lines(place / "target.jsonl")
    run = selected(source, target, selection, by)
    if metric not in run.metrics:
        _, (run,) = of_sources(metric, [(run, source)])
    return run.metrics[metric]


def _gap(rounds: Sequence[Record], summary: Callable[[Sequence[float]], float]) -> float:
    """A summary of the clients' gaps, the mean over the last rounds of training."""
    trained = [r["scalars"]["gap"] for r in rounds if r["exchange"] == "train"]
    return mean([summary(gaps) for gaps in trained[-LAST:]])


def _spread(values: Sequence[float]) -> float:
    centre = mean(values)
    return math.sqrt(mean([(x - centre) ** 2 for x in values]))


GAPS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "size of the mean gap": lambda gaps: abs(mean(gaps)),
    "spread of the gaps": _spread,
}


def _at_target(place: Path, name: str, last: bool, metric: str) -> list[float]:
    """A metric at the target in the first round or the last, of each local model or the global."""
    lines = [r for r in record_lines.read_lines(place / name) if r["role"] == "target"]
    found = (max if last else min)(r["round"] for r in lines)
    return [r[metric] for r in lines if r["round"] == found]


def _above_global(place: Path) -> float:
    """How much larger the local models' loss at the target is than the global one's, at the end."""
    local, model = (_at_target(place, n, True, "loss") for n in (records.CROSS, "target.jsonl"))
    return mean(local) - mean(model)


LOCALS: Mapping[str, Callable[[Path], float]] = {
    "loss of local models above the global one's": _above_global,
    "accuracy of the best local model before fusion": lambda place: max(
        _at_target(place, records.CROSS, False, "accuracy")
    ),
    "accuracy of local models before fusion": lambda place: mean(
        _at_target(place, records.CROSS, False, "accuracy")
    ),
}


def units(a: Figures, b: Figures, a_tasks: Sequence[str], b_tasks: Sequence[str]) -> Units:
    """The differences that a test goes over: by target where three have one, else by seed."""
    found: dict[str, dict[int, float]] = {}
    for first, second in zip(a_tasks, b_tasks, strict=True):
        for (task, seed), x in a.items():
            y = b.get((second, seed))
            if task == first and x is not None and y is not None:
                # Rounded, since equal shares may differ in their last bits, and ties matter.
                found.setdefault(task, {})[seed] = round(x - y, 12)
    seeds = sorted({s for row in found.values() for s in row})
    if len(found) >= TARGETS:
        means = tuple(mean(list(row.values())) for row in found.values())
        return Units(means, "target", True, len(found), len(seeds))
    whole = [s for s in seeds if all(s in row for row in found.values())]
    means = tuple(mean([row[s] for row in found.values()]) for s in whole)
    if not means:
        raise UnseenError("no (target, seed) has a figure of both methods; correct claims.toml.")
    return Units(means, "seed", len(whole) >= SEEDS, len(found), len(whole))


def chosen_test(found: Units, tests: int) -> str | None:
    """Which test decides, chosen by numbers of units and of tests alone."""
    if not found.enough:
        return None
    n = len(found.values)
    reachable = n >= WILCOXON and 2.0 ** (1 - n) * tests <= ALPHA
    return "wilcoxon" if found.over == "target" and reachable else "t"


def p_of(found: Units, test: str) -> float:
    """The two-sided p, uncorrected."""
    if test == "wilcoxon":
        return wilcoxon(found.values) if agree(found.values) else 1.0
    p = t_test(found.values)
    assert p is not None, "units are enough, so there are two"
    return p


def verdict(
    found: Units, claim: str, corrected: float | None, shown: Callable[[float], str]
) -> str:
    """No word stronger than its p."""
    if corrected is None:
        counted = f"{len(found.values)} {_plural(found.over, len(found.values))}"
        return f"cannot be decided with {counted}"
    note = "" if found.over == "target" else "; over seeds: says nothing of other sites"
    if corrected < ALPHA:
        if claim == "equal":
            return f"opposite: they differ{note}"
        agrees = (mean(found.values) > 0) == (claim == "more")
        return ("holds" if agrees else "opposite") + note
    width = found.half_width or 0.0
    return f"not decided: significant alone from {shown(width)}{note}"


def lines(page: Page, archive: Archive) -> list[str]:
    """The page, line by line."""
    every = [c for s in page.sections for claim in s.claims for c in claim.comparisons]
    found = {c: _units(page.ran[c.on], c, archive) for c in every}
    tests = sum(one.enough for one in found.values())
    chosen = {c: chosen_test(one, tests) for c, one in found.items()}
    raw = {c: p_of(found[c], test) for c, test in chosen.items() if test}
    corrected = dict(zip(raw, holm(list(raw.values())), strict=True))
    names = {"wilcoxon": sum(t == "wilcoxon" for t in chosen.values())}
    names["t"] = tests - names["wilcoxon"]
    out = _head(page, tests, names, len(found) - tests)
    for section in page.sections:
        out += ["", f"## {section.name}", "", section.intro, ""]
        out += ["| claim | published | on | a − b | p | Holm p | verdict | remark |"]
        out += ["|:--|:--|:--|:--|--:|--:|:--|:--|"]
        for claim in section.claims:
            out += _rows(claim, page.ran, found, raw, corrected)
        out += ["", section.outro.strip()] if section.outro else []
    return [*out, "", *page.tail.strip().splitlines()]


def _units(ran: Ran, c: Comparison, archive: Archive) -> Units:
    metric, rule = c.metric or ran.metric, (c.selection or ran.selection, c.by or ran.by)
    first = c.records or ran.folders[0]
    a = archive.figures(first, c.a, metric, *rule)
    b = archive.figures(c.b_records or first, c.b, c.b_metric or metric, *rule)
    tasks = c.targets or tuple(dict.fromkeys(task for task, _ in a))
    return units(a, b, tasks, c.b_targets or tasks)


def _rows(
    claim: Claim, ran: Mapping[str, Ran], found: Mapping[Comparison, Units],
    raw: Mapping[Comparison, float], corrected: Mapping[Comparison, float],
) -> list[str]:  # fmt: skip
    """A row per comparison, the claim itself in the first."""
    if not claim.comparisons:
        return [_row(claim.text, claim.published, "–", "–", "–", "–", claim.fact, claim.remark)]
    rows = []
    for i, c in enumerate(claim.comparisons):
        one, metric = found[c], c.metric or ran[c.on].metric
        shown = _shown(metric)
        centre, width = mean(one.values), one.half_width
        figure = f"{shown(centre, True)}" + ("" if width is None else f" ± {shown(width)}")
        counted = f"{one.targets} {_plural(ran[c.on].unit, one.targets)}"
        counted += f" × {one.seeds} {_plural('seed', one.seeds)}"
        p = (_p(raw[c]), _p(corrected[c])) if c in raw else ("–", "–")
        first = (claim.text, claim.published) if i == 0 else ("", "")
        remark = claim.remark if i == 0 else ""
        on = f"{c.on}{f', {c.label}' if c.label else ''} ({counted})"
        rows.append(
            _row(*first, on, figure, *p, verdict(one, c.claim, corrected.get(c), shown), remark)
        )
    return rows


def _shown(metric: str) -> Callable[..., str]:
    def shown(value: float, sign: bool = False) -> str:
        scaled, digits, plus = scale_of(metric) * value, decimals(metric), "+" if sign else ""
        if value and not float(f"{scaled:.{digits}f}"):  # its sign would be lost
            digits += 1
        if not float(f"{scaled:.{digits}f}"):  # there is no sign to show
            return f"{0:.{digits}f}"
        return f"{scaled:{plus}.{digits}f}".replace("-", "−")

    return shown


def _row(*fields: str) -> str:
    return f"| {' | '.join(' '.join(field.split()) for field in fields)} |"


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _plural(unit: str, n: int) -> str:
    return unit if n == 1 else f"{unit}s"


def _head(page: Page, tests: int, names: Mapping[str, int], none: int) -> list[str]:
    text = page.head.format(tests=tests, none=none, alpha=f"{ALPHA:g}", **names)
    out = [*text.strip().splitlines(), "", "| name below | what ran |", "|:--|:--|"]
    return out + [_row(one.name, one.what) for one in page.ran.values()]


def written(results: Path = RESULTS) -> str:
    """The page of the records in a folder."""
    with tempfile.TemporaryDirectory() as scratch:
        page = read(results / "claims.toml")
        return "\n".join(lines(page, Archive(results, Path(scratch)))) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, or with --check say whether it is up to date."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder of claims.toml")
    parser.add_argument("--check", action="store_true", help="write nothing, fail if it differs")
    asked = parser.parse_args(arguments)
    place = asked.results / "claims.md"
    try:
        text = written(asked.results)
    except UnseenError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if asked.check:
        same = place.exists() and place.read_text("utf-8") == text
        print(f"{place} is {'' if same else 'not '}what its records say")
        return 0 if same else 1
    write_atomically(place, text.encode())
    print(place)
    return 0


if __name__ == "__main__":
    sys.exit(main())
