"""The answer as a terminal shows it: at most eight lines, one thing a line."""

from functools import partial
from pathlib import Path

from unseen.studies.choice.answer import Choice
from unseen.studies.choice.choice_page import (
    against_constant,
    costs_less,
    next_command,
    whole_range,
)
from unseen.studies.choice.expectation import LEVEL
from unseen.studies.choice.primary import halving
from unseen.studies.choice.texts import chance_text, figure_text
from unseen.studies.choice.trials import CONSTANT, REFERENCES

#: What a comparison is called in a sentence.
NAMES = {CONSTANT: "a constant answer"}
#: The time that is suggested for recipes that were left out.
MORE_TIME = "10min"


def answer_lines(choice: Choice, page: Path, data: Path) -> list[str]:
    """Return the answer as lines; details stand on the page.

    Args:
        choice: The answer.
        page: Where its page is.
        data: Where `choice.json` is.
    """
    expected = choice.row(choice.recipe).expected
    figure = partial(figure_text, metric=choice.metric, largest=abs(expected.high))
    lines = [
        ("Mind:", " ".join(minded(choice))),
        ("Recommended:", choice.recipe),
        (
            "At a new site:",
            f"{choice.metric} {figure(expected.mean)}; {LEVEL:.0%} of new sites between "
            f"{figure(expected.low)} and {figure(expected.high)} (from {expected.sites} sites)",
        ),
        ("Better than:", better_than(choice)),
        ("Why this one:", why(choice)),
        ("To know more:", "; ".join(to_know_more(choice))),
        ("Details:", str(page)),
        ("Next:", next_command(data)),
    ]
    return [f"{label:<15}{text}" for label, text in lines if text]


def minded(choice: Choice) -> list[str]:
    """Return the warnings that come before the figure: data, figures, unfinished training."""
    content = choice.to_json()
    open_ends = [
        f"{name}: {why}." for name, why in choice.unfinished.items() if counts(choice, name)
    ]
    return [*choice.doubts, *whole_range(content), *against_constant(content), *open_ends]


def counts(choice: Choice, recipe: str) -> bool:
    """Return whether a recipe has a part in the answer: it, the best, or what it is set against."""
    other = choice.primary.against if choice.primary is not None else ""
    return recipe in (choice.recipe, choice.best, other)


def better_than(choice: Choice) -> str:
    """Return what the recipe is compared with: how surely it is better, by how much, and where.

    Without such a comparison, what else it is better than, each with its chance.
    """
    one, against = choice.primary, choice.row(choice.recipe).against
    if one is None:
        return ", ".join(f"{NAMES.get(n, n)} ({chance_text(c)})" for n, c in against.items())
    ends = [figure_text(x, choice.metric, gap=True) for x in (one.gap, one.low, one.high)]
    gap, low, high = ends[0], ends[1].removesuffix(" points"), ends[2].removesuffix(" points")
    chance = f"{chance_text(against[one.against])} chance, " if one.against in against else ""
    where = f"ahead at {one.ahead} of {one.sites} sites"
    return f"{one.against} ({chance}by {gap}, {low} to {high}; {where})"


def why(choice: Choice) -> str:
    """Return why this recipe is recommended, and not another one."""
    if choice.recipe != choice.best:
        mean = figure_text(choice.row(choice.best).expected.mean, choice.metric)
        return (
            f"{choice.best} has the best mean, {mean}, but these sites cannot tell the two apart, "
            f"and {choice.recipe} {costs_less(choice)}"
        )
    others = [row.recipe for row in choice.rows if row.recipe not in REFERENCES]
    tied = len(choice.tied) - 1
    if len(others) == 1:
        return "no other recipe has figures"
    if not tied:
        return f"best mean, and shown to be ahead of all {len(others) - 1} others"
    many = "one other recipe" if tied == 1 else f"{tied} other recipes"
    return f"best mean of {len(others)} recipes, but these sites do not rule out {many}"


def to_know_more(choice: Choice) -> list[str]:
    """Return what would change the answer: more sites, and recipes that were not tried."""
    expected = choice.row(choice.recipe).expected
    figure = partial(figure_text, metric=choice.metric, largest=abs(expected.high))
    parts = []
    if expected.mean_low < expected.mean_high:
        span = f"{figure(expected.mean_low)} to {figure(expected.mean_high)}"
        parts.append(
            f"{halving(expected.sites)} sites would halve the interval of the mean ({span})"
        )
    if left := [name for name in choice.not_tried if name not in REFERENCES]:
        many = "recipe" if len(left) == 1 else "recipes"
        parts.append(f"{len(left)} costlier {many} not tried (--budget {MORE_TIME})")
    return parts
