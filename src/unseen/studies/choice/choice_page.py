"""The answer as a page and as a paragraph."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from unseen.core.templates import render
from unseen.errors import UnseenError
from unseen.studies.choice.answer import Choice, Row
from unseen.studies.choice.constant import Constant, constant_text
from unseen.studies.choice.expectation import LEVEL, unknown_spread
from unseen.studies.choice.primary import shows
from unseen.studies.choice.texts import chance_text, figure_text, range_text, scale_words
from unseen.studies.choice.trials import ALONE, BASE, CONSTANT, POOLED, REFERENCES
from unseen.studies.results.comparison import LEVEL as ALPHA

#: What a server must see, in words.
SERVER = {"scalars": "sums", "products": "inner products", "updates": "every site's model"}


def paragraph(choice: Choice) -> str:
    """Return the answer in a few sentences."""
    row = choice.row(choice.recipe)
    expected = row.expected
    figure = partial(figure_text, metric=choice.metric, largest=abs(expected.high))
    sentences = [
        f"Recommended: {choice.recipe}. At a new site expect {choice.metric} "
        f"{figure(expected.mean)}, and with {LEVEL:.0%} chance between {figure(expected.low)} and "
        f"{figure(expected.high)}, judged by {expected.sites} sites that the model had not seen."
    ]
    names = {CONSTANT: "a constant answer"}
    chances = [
        f"than {names.get(n, n)} with {chance_text(chance)}" for n, chance in row.against.items()
    ]
    parts = [", ".join(chances[:-1]), *chances[-1:]]
    better = [f"It is better there {' and '.join(filter(None, parts))} chance."] if chances else []
    content = choice.to_json()
    sentences += [*whole_range(content), *check(content), *better, *against_constant(content)]
    compared = [*against_others(choice), *against_primary(choice), *against_references(choice)]
    return " ".join([*choice.doubts, *sentences, *compared])


def against_primary(choice: Choice) -> list[str]:
    """Return the comparison with one other recipe: its effect, interval and sites ahead."""
    if (one := choice.primary) is None:
        return []
    gap, low, high = (figure_text(x, choice.metric, gap=True) for x in (one.gap, one.low, one.high))
    return [
        f"Against {one.against} it is better by {gap} on average ({LEVEL:.0%} interval {low} to "
        f"{high}), ahead at {one.ahead} of {one.sites} sites."
    ]


def next_command(data: Path) -> str:
    """Return the command that trains the recommended recipe.

    Args:
        data: Where `choice.json` is.
    """
    return f"unseen train --recipe {data} --out model"


def whole_range(choice: Mapping[str, Any]) -> list[str]:
    """Return what is said where the recommended recipe has the same figure at all sites.

    Args:
        choice: The content of `choice.json`.
    """
    rows = {row["recipe"]: row["expected"] for row in choice["rows"]}
    return range_of_equals(rows[choice["recipe"]], choice["metric"])


def range_of_equals(expected: Mapping[str, float], metric: str) -> list[str]:
    """Return what is said of an interval where all sites have the same figure."""
    start = "All sites have the same figure, so that their spread is not known, and the interval is"
    return [f"{start} {range_text(metric)}."] if unknown_spread(expected) else []


def check(choice: Mapping[str, Any]) -> list[str]:
    """Return what the choice itself would have had, if there was anything to choose.

    Args:
        choice: The content of `choice.json`.
    """
    able = [row["recipe"] for row in choice["rows"] if row["recipe"] not in REFERENCES]
    mean = figure_text(choice["procedure"]["mean"], choice["metric"])
    start = "The choice itself, made for each group of sites by the figures of the others"
    return [f"{start}, would have had {mean}."] if len(able) > 1 else []


def against_constant(choice: Mapping[str, Any]) -> list[str]:
    """Return what is said where the sites cannot tell the recommended recipe from a constant.

    Args:
        choice: The content of `choice.json`; one that is older than this comparison has none.
    """
    if (fields := choice.get("constant")) is None:
        return []
    text = constant_text(Constant(**fields), choice["recipe"], choice["metric"])
    return [text] if text else []


def against_others(choice: Choice) -> list[str]:
    """Return what the test over sites says of the other recipes that could be recommended."""
    row, best = choice.row(choice.recipe), choice.row(choice.best)
    others = [other.recipe for other in choice.rows if other.p is not None]
    if not others:
        if any(name not in REFERENCES for name in choice.refused):
            return [f"No other recipe has figures: {choice.recipe} was compared with none."]
        return [f"No other recipe was tried: {choice.recipe} was compared with none."]
    if len(choice.tied) == 1:
        many = "every other recipe" if len(others) > 1 else others[0]
        return [f"It is ahead of {many} (p < {ALPHA}, Wilcoxon over sites, Holm)."]
    if choice.recipe == choice.best:
        names = ", ".join(name for name in choice.tied if name != choice.recipe)
        return [f"It has the best mean, but these sites do not rule out: {names}."]
    p = f" (p = {row.p:.2g})" if tells(choice) else ""
    return [
        f"{choice.best} has the best mean, {figure_text(best.expected.mean, choice.metric)}, but "
        f"these sites cannot tell the two apart{p}, and {choice.recipe} {costs_less(choice)}."
    ]


def costs_less(choice: Choice) -> str:
    """Return the cost in which the recommended recipe is below the one with the best mean."""
    row, best = choice.row(choice.recipe), choice.row(choice.best)
    if row.sees != best.sees:
        return f"needs {SERVER[row.sees]} at the server, and not {SERVER[best.sees]}"
    return f"sends {size(row.sent)} for {size(best.sent)}"


def tells(choice: Choice) -> bool:
    """Return whether these sites are enough for a p below 0.05 of any recipe."""
    compared = sum(row.p is not None for row in choice.rows)
    return shows(len(choice.rows_at), compared)


def against_references(choice: Choice) -> list[str]:
    """Return which rows for comparison have a better mean; the constant has its own sentence."""
    own, sign = choice.row(choice.recipe).expected.mean, -1 if choice.lower else 1
    ahead = [
        f"{row.recipe} ({figure_text(row.expected.mean, choice.metric)})"
        for row in choice.rows
        if row.recipe in (POOLED, ALONE) and round(sign * (row.expected.mean - own), 9) > 0
    ]
    if not ahead:
        return []
    many = "have better means" if len(ahead) > 1 else "has a better mean"
    return [f"For comparison only, never recommended: {' and '.join(ahead)} {many}."]


def page(choice: Choice, factors: Sequence[float]) -> str:
    """Return the answer as Markdown.

    Args:
        choice: The answer.
        factors: What learning rates were multiplied by.
    """
    bold = choice.recipe

    def mark(row: Row) -> str:
        name = row.recipe if row.recipe in (ALONE, CONSTANT) else f"`{row.recipe}`"
        return f"**{name}**" if row.recipe == bold else name

    def p(row: Row) -> str:
        if row.recipe == choice.best:
            return "best"
        return f"{row.p:.2g}" if row.p is not None and tells(choice) else ""

    def server(row: Row) -> str:
        return {ALONE: "", CONSTANT: "", POOLED: "all rows"}.get(row.recipe, SERVER[row.sees])

    groups = "; ".join(", ".join(sites) for sites in choice.groups.values())
    largest = max(abs(row.expected.high) for row in choice.rows)
    equal = [mark(row) for row in choice.rows if unknown_spread(asdict(row.expected))]
    alone = all(len(sites) == 1 for sites in choice.groups.values())
    return render(
        "unseen.studies.choice",
        "choice.md.jinja",
        choice=choice,
        paragraph=paragraph(choice),
        base=BASE,
        alone=ALONE,
        constant=CONSTANT,
        level=f"{LEVEL:.0%}",
        mark=mark,
        p=p,
        size=size,
        server=server,
        seconds=lambda row: "" if row.recipe == CONSTANT else f"{row.seconds:.1f}",
        figure=partial(figure_text, metric=choice.metric, largest=largest),
        percent=lambda chance: "" if chance is None else chance_text(chance),
        sites=choice.procedure.sites,
        rates=", ".join(f"{factor:g}" for factor in factors),
        pooled=POOLED if any(row.recipe == POOLED for row in choice.rows) else "",
        groups_shown="" if alone else groups,
        equal=equal,
        scale=scale_words(choice.metric),
        range=range_text(choice.metric),
        of_equals=range_of_equals(asdict(choice.procedure), choice.metric),
    )


def expectation(file: Path) -> dict[str, Any]:
    """Return what a card says of a new site, and the settings to train by, from `choice.json`.

    Args:
        file: What `write` wrote.

    Raises:
        UnseenError: If it is not such a file.
    """
    try:
        return expectation_of(json.loads(file.read_text("utf-8")))
    except (OSError, ValueError, KeyError, StopIteration, TypeError) as error:
        raise UnseenError(
            f"{file} is not an answer of `unseen choose` ({error}).",
            remedy="Name the choice.json in the folder that it wrote.",
        ) from None


def expectation_of(choice: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a card says of a new site, and the settings to train by.

    Args:
        choice: The content of `choice.json`.
    """
    row = next(row for row in choice["rows"] if row["recipe"] == choice["recipe"])
    expected = {name: row["expected"][name] for name in ("mean", "low", "high", "sites")}
    figure = partial(figure_text, metric=choice["metric"], largest=abs(expected["high"]))
    texts = {n: figure(expected[n]) for n in ("mean", "low", "high")}
    return {
        "texts": texts,
        "study": choice["study"],
        "recipe": choice["recipe"],
        "metric": choice["metric"],
        "level": LEVEL,
        "data": choice["data"],
        "judged by": sorted(site for group in choice["groups"].values() for site in group),
        "notes": [*whole_range(choice), *check(choice), *against_constant(choice)],
        **expected,
    }


def size(count: float) -> str:
    """Return bytes as people read them.

    Example:
        >>> size(1_234_000), size(980), size(0)
        ('1.2 MB', '980 B', '')
    """
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count:.0f} B" if count else ""
