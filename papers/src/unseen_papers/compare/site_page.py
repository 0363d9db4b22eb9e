"""The page of a comparison by site: tables in markdown, and every figure as csv."""

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unseen.core.metrics.evaluation import IN_UNITS
from unseen.core.templates import render
from unseen.studies.results.comparison import LEVEL, agree
from unseen.studies.results.formats import counted, scale_of
from unseen.studies.results.metric_name import MetricName
from unseen.studies.results.statistics import interval, mean
from unseen_papers.compare.by_site import ENOUGH, Across, Effect, Row, Sites
from unseen_papers.compare.paired import MARGIN

#: The metric's unit on the page: percent of a share, or the number itself.
PERCENT = 100
WITHIN = "within ±: p of two one-sided t-tests that the means are as good as equal; "


def page(
    every: Sequence[Sites],
    method: str,
    effects: Sequence[Sequence[Effect]],
    over_sets: Across | None = None,
    columns: Sequence[Sequence[str]] = (),
    candidates: Sequence[str] = (),
    larger: Sequence[str] = (),
) -> str:
    """Return the page.

    Args:
        every: The data sets.
        method: The method that is compared with others.
        effects: For each data set, the method against each of the others.
        over_sets: The comparison over data sets, if there is one.
        columns: Of the table that the page begins with; of several methods the best at a set.
        candidates: Methods to choose among for each site by the others.
        larger: Methods whose budget is not the study's rounds of one network.
    """
    sets = [section(sites, own, candidates) for sites, own in zip(every, effects, strict=True)]
    top = overview(every, method, effects, columns) if columns else None
    across = None if over_sets is None else section_across(over_sets)
    return render(
        "unseen_papers.compare", "by_site.md.jinja", sets=sets, method=f"`{method}`",
        across=across, top=top, differ=differences(every, larger),
    )  # fmt: skip


def differences(every: Sequence[Sites], larger: Sequence[str] = ()) -> str:
    """Return in what the rows of a table differ beyond their methods, or "".

    Args:
        every: The data sets.
        larger: Methods whose budget is not the study's rounds of one network.
    """
    unlike = [sites for sites in every if len(set(sites.budgets.values())) > 1]
    names_of: dict[str, dict[str, None]] = {}
    for name, text in (pair for sites in unlike for pair in sites.budgets.items()):
        names_of.setdefault(text, {})[f"*{name}*"] = None
    texts = "; ".join(f"{', '.join(names)}: {text}" for text, names in names_of.items())
    if texts:
        return f"Rows differ in search, rounds or recipe: {texts}. A method may add its own."
    names = ", ".join(f"`{method}`" for method in larger)
    return names and (
        f"Rows differ in budget: rounds of their own, or several networks at a time, have {names}."
    )


def overview(
    every: Sequence[Sites],
    method: str,
    effects: Sequence[Sequence[Effect]],
    columns: Sequence[Sequence[str]],
) -> dict[str, object]:
    """Return the table of data sets × columns, each cell a mean with its interval over sites.

    A cell is marked where `method` is ahead of it or behind by the corrected test.
    """
    rows = []
    for sites, own in zip(every, effects, strict=True):
        against = {effect.other: effect for effect in own}
        cell = [top_cell(sites, column, against) for column in columns]
        count = max(len(figures) for figures in sites.figures.values())
        rows.append(" | ".join([sites.name, str(count), sites.metric, *cell]))
    names = [
        "best of " + ", ".join(f"`{m}`" for m in c) if len(c) > 1 else f"`{c[0]}`" for c in columns
    ]
    note = "means over sites [95 % over sites]"
    if any(effects):
        note += (
            f"; ▼ where `{method}` is ahead of the row's method, ▲ where it is behind: p < {LEVEL} "
            "by Wilcoxon's test over sites after Holm's correction over the data set's "
            f"comparisons, of {ENOUGH} sites or more"
        )
    return {"columns": names, "rows": rows, "note": note}


def top_cell(sites: Sites, column: Sequence[str], against: Mapping[str, Effect]) -> str:
    """Return a cell of the overview: the best of the column's methods on these sites."""
    there = [m for m in column if m in sites.figures]
    if not there:
        return ""
    choose = min if sites.lower else max
    best = choose(there, key=lambda m: sites.row(m).mean)
    effect, mark = against.get(best), ""
    enough = effect is not None and len(effect.differences) >= ENOUGH
    if effect and enough and effect.corrected < LEVEL and agree([*effect.differences.values()]):
        mark = " ▼" if effect.mean > 0 else " ▲"
    row = sites.row(best)
    figure = f"{number(row.mean, sites.metric)} {between(row.interval, sites.metric)}".rstrip()
    return f"{figure}{mark}" + (f" `{best}`" if len(column) > 1 else "")


def section(
    sites: Sites, effects: Sequence[Effect], candidates: Sequence[str] = ()
) -> dict[str, object]:
    """Return what the page says of a data set."""
    ordered = sorted(sites.figures, key=lambda m: sites.row(m).mean, reverse=not sites.lower)
    count = max(sites.row(m).sites for m in ordered)
    notes = [
        f"means over {counted(sites.seeds, 'seed')} first, so that the site is the unit; "
        f"{'lower' if sites.lower else 'higher'} is better",
        *sites.lines,
    ]
    if effects:
        notes += [
            "p: Wilcoxon's signed-rank test over sites, two-sided, exact; Holm: corrected for the "
            f"{effects[0].declared} comparisons{absent(effects)}; p of signs: of the mean when "
            f"signs are permuted; {WITHIN if has_margin(sites) else ''}"
            "shown 4 times in 5: the effect that these sites with this spread show with "
            "a power of 0.8 in a t-test at the level 0.05, alone; corrected it is larger",
            together(sites),
        ]
    if effects and count < ENOUGH:
        notes.append(f"{count} sites are too few for a claim: p is shown, and decides nothing")
    rows = [" | ".join([f"`{m}`", *cells(sites.row(m), sites.metric)]) for m in ordered]
    compared = [" | ".join(cells_of(effect, sites)) for effect in effects]
    return {
        "name": sites.name, "metric": sites.metric, "sites": count, "rows": rows,
        "effects": compared, "notes": notes, "choice": choice_of(sites, candidates),
        "margin": number(MARGIN, sites.metric) if has_margin(sites) else "",
    }  # fmt: skip


def has_margin(sites: Sites) -> bool:
    """Return whether a number can say which differences of a metric are as good as none."""
    metric = MetricName.parse(sites.metric).metric
    return metric not in IN_UNITS and (sites.classes or metric != "loss")


def together(sites: Sites) -> str:
    """Return how sites were left out, and which models they share."""
    if sites.alone and sites.alone >= sites.figures.keys():
        return "each model is judged at all sites but its own, so that sites share their models"
    count = sum(len(group) > 1 for group in sites.groups)
    if count:
        return (
            f"sites were left out in {len(sites.groups)} groups: those of one group were judged by "
            "the same models, and models of different groups share most of their sources"
        )
    return "models of sites left out one after the other share most of their sources"


def absent(effects: Sequence[Effect]) -> str:
    """Return what is said of the declared comparisons that have not run."""
    missing = effects[0].declared - len(effects)
    return f" that were declared, of which {missing} did not run here" if missing else ""


def choice_of(sites: Sites, candidates: Sequence[str]) -> dict[str, object] | None:
    """Return what the page says of choosing for each site by the others, if it can be done."""
    there = [m for m in candidates if m in sites.figures and m not in sites.alone]
    if (choice := by_others(sites, there)) is None:
        return None
    counts = Counter(choice.choices.values()).most_common()
    times = [f"`{m}` {counted(n, 'time')}" for m, n in counts]
    average = number(mean(list(choice.figures.values())), sites.metric)
    apart = {
        "pooled rows": [m for m in sites.figures if m not in candidates and m not in sites.alone],
        "means over several models": [m for m in sites.figures if m in sites.alone],
    }
    texts = [
        f"without {', '.join(f'`{m}`' for m in own)}: {why}" for why, own in apart.items() if own
    ]
    without = f" ({'; '.join(texts)})" if texts else ""
    text = (
        f"{sites.metric} would have been {average}: the best of these {len(there)} "
        f"methods{without} at "
        f"{choice.best} of {len(choice.choices)} sites, "
        f"{number(choice.regret, sites.metric)} behind the best at each on average. "
        f"Chosen: {', '.join(times)}. The models "
        "by which the others judge have seen the site's rows."
    )
    ordered = sorted(choice.over.items(), key=lambda pair: pair[1][0])
    rows = [
        f"`{m}` | {number(gain, sites.metric, '+')} {between(ends, sites.metric, '+')}".rstrip()
        for m, (gain, ends) in ordered
    ]
    return {"text": text, "rows": rows}


def section_across(over_sets: Across) -> dict[str, object]:
    """Return what the page says over data sets."""
    ordered = sorted(over_sets.ranks.items(), key=lambda pair: pair[1])
    rows = [f"`{m}` | {rank:.2f} | {p_text(over_sets.corrected.get(m))}" for m, rank in ordered]
    few = "two methods" if len(over_sets.ranks) < 3 else "one data set"
    friedman = p_text(over_sets.friedman) or f"not defined for {few}"
    note = "Friedman's test that all methods are alike, by its χ²: p "
    note += f"{friedman}; p: "
    note += "Wilcoxon's over data sets, corrected by Holm"
    if over_sets.tested < over_sets.sets:
        note += f", of the {counted(over_sets.tested, 'set')} whose figures have one unit"
    return {"sets": over_sets.sets, "rows": rows, "note": note}


def cells(row: Row, metric: str) -> list[str]:
    """Return a method's cells."""
    return [
        f"{number(row.mean, metric)} {between(row.interval, metric)}".rstrip(),
        number(row.worst, metric),
        number(row.tail, metric),
    ]


def cells_of(effect: Effect, sites: Sites) -> list[str]:
    """Return the cells of a comparison."""
    metric = sites.metric
    detectable = "" if effect.detectable is None else number(effect.detectable, metric)
    return [
        f"`{effect.other}`",
        f"{number(effect.mean, metric, '+')} {between(effect.interval, metric, '+')}".rstrip(),
        f"{effect.wins} of {len(effect.differences)}",
        p_text(effect.p), p_text(effect.corrected), p_text(effect.signs),
        *[p_text(effect.equivalent)] * has_margin(sites), detectable,
    ]  # fmt: skip


def between(ends: tuple[float, float] | None, metric: str, sign: str = "") -> str:
    """Return an interval as it is written."""
    return "" if ends is None else f"[{', '.join(number(end, metric, sign) for end in ends)}]"


def number(x: float, metric: str, sign: str = "") -> str:
    """Return a figure as it is written."""
    times = scale_of(metric)
    return f"{x * times:{sign}.{1 if times == PERCENT else 3}f}"


def p_text(p: float | None) -> str:
    """Return a p as it is written."""
    return "" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def table(every: Sequence[Sites]) -> str:
    """Return all figures as csv: data set, metric, method, site, value."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["data", "metric", "method", "site", "value"])
    for sites in every:
        for method, own in sites.figures.items():
            for site, figure in sorted(own.items()):
                writer.writerow([sites.name, sites.metric, method, site, repr(figure)])
    return text.getvalue()


@dataclass(frozen=True)
class ByOthers:
    """The method with the best mean at all other sites, for each site.

    Attributes:
        choices: Site -> the method that the others chose.
        figures: Site -> its figure.
        best: How many sites had no better method among the candidates.
        regret: The mean of (the best candidate's figure at the site) − (that of the choice), ≥ 0.
        over: Method -> the mean gain over taking that method everywhere, and its bootstrap interval
            over sites.
    """

    choices: Mapping[str, str]
    figures: Mapping[str, float]
    best: int
    regret: float
    over: Mapping[str, tuple[float, tuple[float, float] | None]]


def by_others(sites: Sites, candidates: Sequence[str]) -> ByOthers | None:
    """Choose for each site by the others; None for fewer than two sites or candidates.

    Args:
        sites: The figures. Sites that were left out together have no say in each other's choice.
        candidates: The methods to choose among, at the sites where all of them have a figure.

    Note:
        The models at the other sites were trained on the site's own rows, so that this checks the
        choice and not the training.
    """
    there = sites.among(candidates) if len(candidates) > 1 else ()
    sign = -1 if sites.lower else 1

    def best_elsewhere(site: str) -> str | None:
        together = {site}.union(*(group for group in sites.groups if site in group))
        rest = [s for s in there if s not in together]
        if not rest:
            return None
        means = {m: sign * mean([sites.figures[m][s] for s in rest]) for m in candidates}
        return max(candidates, key=means.__getitem__)

    choices = {site: method for site in there if (method := best_elsewhere(site))}
    if len(choices) < 2:
        return None
    figures = {site: sites.figures[method][site] for site, method in choices.items()}
    short = [
        max(sign * sites.figures[m][s] for m in candidates) - sign * figures[s] for s in choices
    ]
    gains = {
        m: [round(sign * (figures[s] - sites.figures[m][s]), 12) for s in choices]
        for m in candidates
    }
    over = {m: (mean(gain), interval(gain)) for m, gain in gains.items()}
    return ByOthers(choices, figures, sum(x <= 1e-12 for x in short), mean(short), over)
