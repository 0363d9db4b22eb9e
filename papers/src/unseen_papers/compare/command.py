"""`unseen compare`: methods of finished studies, with the site as the unit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from unseen_papers.compare.by_site import Across, Effect, Sites

#: What leaves the tests out.
NO_TESTS = "none"


def compare(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...")],
    method: str = "portfolio",
    against: str | None = None,
    metric: str | None = None,
    selection: str | None = None,
    columns: str | None = None,
    out: Path | None = None,
) -> None:
    """Compare methods of finished studies by site: means over seeds first, then tests over sites.

    Runs of the same data are put together, as those of a search and of a method without one. Over
    several data sets every set is one figure more.

    Args:
        runs: What studies wrote (their --out), as FOLDER or LABEL=FOLDER: methods of a folder with
            a label are called "LABEL: METHOD", so that the same method may stand in several.
        method: The method that is compared with the others.
        against: The other methods, comma-separated, all of one declaration (default: all); those
            that have not run count in the correction. `none` leaves all tests out.
        metric: What to compare (default: each study's own).
        selection: The rule that chooses each job's round (default: each study's own).
        columns: Methods of a table of all data sets that the page begins with, comma-separated;
            of a|b|c the best at each data set.
        out: Folder for the page (compare.md), its figures (compare.csv) and the forest plot
            (forest.svg); without it the page is printed.
    """
    from unseen.core.atomic import write_atomically
    from unseen.errors import check_known
    from unseen.studies.settings.named import split_list
    from unseen_papers.compare.site_page import page, table
    from unseen_papers.compare.sites_of_studies import Run, figures

    named = [Run.read(text) for text in runs]
    every = figures(named, metric, selection)
    ran = tuple(dict.fromkeys(m for sites in every for m in sites.figures))
    columns_of = [[m.strip() for m in one.split("|")] for one in split_list(columns or "")]
    for column in columns_of:
        if not {*column} & {*ran}:
            check_known("method of a column", ran, "|".join(column))
    rows: Sequence[Sequence[Effect]] = [()] * len(every)
    over_sets = None
    if against != NO_TESTS:
        asked = split_list(against) if against else ()
        check_declared(method, asked, ran, [run.label for run in named])
        rows, over_sets = tests(every, method, asked)
    expressions = {m: text for sites in every for m, text in sites.expressions.items()}
    candidates = [m for m in ran if not pools(expressions[m])] if against != NO_TESTS else []
    larger = [m for m in ran if grows(expressions[m])]
    text = page(every, method, rows, over_sets, columns_of, candidates, larger)
    if out is None:
        typer.echo(text)
        return
    from unseen_papers.compare.forest_plot import forest

    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "compare.md", text.encode())
    write_atomically(out / "compare.csv", table(every).encode())
    plots = [(s.name, s.metric, own[0]) for s, own in zip(every, rows, strict=True) if own]
    if plots:
        write_atomically(out / "forest.svg", forest(plots))
    typer.echo(f"{out / 'compare.md'}")


def check_declared(
    method: str, against: Sequence[str], ran: Sequence[str], labels: Sequence[str]
) -> None:
    """Refuse methods to compare that are mistyped, and a comparison with none that has run."""
    from unseen.errors import UnseenError, check_known
    from unseen.methods.compose import method as compose
    from unseen_papers.compare.sites_of_studies import LABEL, MARK

    check_known("method (--method)", ran, method)
    if method in against:
        raise UnseenError(
            f"{method} would be compared with itself.",
            remedy="Leave it out of --against: --method is compared with each of the others.",
        )
    for one in against:
        if one in ran:
            continue
        label, mark, expression = one.partition(MARK)
        if labelled := bool(mark and LABEL.fullmatch(label)):
            check_known("label", labels, label)
        compose(expression if labelled else one)  # a declared one that has not run may be missing
    if against and not {*ran} & {*against}:
        raise UnseenError(
            f"none of the methods to compare {method} with has run: {','.join(against)}.",
            remedy=f"Name some of these: {', '.join(m for m in ran if m != method)}.",
        )


def tests(
    every: Sequence[Sites], method: str, against: Sequence[str]
) -> tuple[list[tuple[Effect, ...]], Across | None]:
    """Return one method against the others at each data set, and over those that have it."""
    from unseen_papers.compare.by_site import across, effects

    rows: list[tuple[Effect, ...]] = []
    for sites in every:
        others = [m for m in against or sites.figures if m != method]
        rows.append(effects(sites, method, others) if method in sites.figures else ())
    having = [sites for sites in every if method in sites.figures]
    shared = [m for m in against or having[0].figures if m != method]
    common = [m for m in shared if all(m in sites.figures for sites in having)]
    several = len(having) > 1 and common
    return rows, across(having, method, common, len(shared)) if several else None


def grows(method: str) -> bool:
    """Return whether a method's budget is not the study's rounds of one network."""
    from unseen.engine.stacked import models_of
    from unseen.errors import UnseenError
    from unseen.methods.compose import method as compose

    try:
        composed = compose(method)
    except UnseenError:
        return False
    return composed.rounds is not None or models_of(composed) > 1


def pools(method: str) -> bool:
    """Return whether a method trains on the rows of all sites in one place; unknown ones do not."""
    from unseen.errors import UnseenError
    from unseen.methods.compose import method as compose

    try:
        return compose(method).gather is not None
    except UnseenError:
        return False
