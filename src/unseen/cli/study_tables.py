"""`unseen table`, and the studies that a command's words ask for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unseen.cli.console import Settings, Study, console
from unseen.studies.settings.named import parse_override, split_list

if TYPE_CHECKING:
    from unseen.studies.results.tables import Table


def table(
    name: Study,
    settings: Settings = None,
    metric: str | None = None,
    selection: str | None = None,
    form: Annotated[str, typer.Option("--format")] = "text",
    test: str | None = None,
    methods: str | None = None,
    targets: str | None = None,
    seeds: str | None = None,
    weights: Path | None = None,
    data_dir: Path | None = None,
    out: Path | None = None,
) -> None:
    """Print a table of what a study has finished; runs nothing and writes nothing.

    A folder that a study wrote says itself what ran, and needs no data: unseen table results/heart.
    Of a study by name the settings must be those of the run. Metric and selection may be others.

    Args:
        name: The study, or the folder that it wrote.
        settings: Settings of the study's file, to be changed.
        metric: What to show.
        selection: Which round counts.
        form: text, markdown, latex or csv.
        test: wilcoxon or t, of the reference.
        methods: Methods, such as "fedavg,ppdg(lam=0.2)+ga".
        targets: Only these tasks, by target, comma-separated.
        seeds: How many seeds, or which: 5 or 0,3,7.
        weights: Initial weights, .pth or .safetensors.
        data_dir: Where data files are (default: $UNSEEN_DATA).
        out: Folder of the records and tables.
    """
    import warnings

    from unseen.errors import UnseenError, choice
    from unseen.studies.execution.plan import holds, prepare_study
    from unseen.studies.execution.runner import results_of
    from unseen.studies.report.read import results_in

    choice("--format", form, ("text", "markdown", "latex", "csv"))
    if test is not None:
        choice("--test", test, ("wilcoxon", "t"))
    more = {"weights": str(weights) if weights is not None else None}
    if Path(name).is_dir() and (Path(name) / "study.json").exists():
        changes = settings, methods, targets, seeds, weights, data_dir, out
        if any(change is not None for change in changes):
            raise UnseenError(
                f"{name} is what a study wrote, and says itself what ran.",
                remedy="Give --metric, --selection, --format and --test alone.",
            )
        show(results_in(Path(name)).table(metric, selection, test), form)
        return
    for study, folder, metrics in read_studies(name, settings, methods, targets, seeds, more, out):
        try:
            planned = prepare_study(study, folder, data_dir)
        except UnseenError:
            if not holds(folder, study):
                raise
            results = results_in(folder)  # the data are elsewhere, and the records say all
        else:
            try:
                planned.check_code()
            except UnseenError as error:  # this only shows what is there
                warnings.warn(str(error), stacklevel=1)
            results = results_of(planned)
        for one in (metric,) if metric else results.among(metrics):
            show(results.table(one, selection, test), form)


def show(table: Table, form: str) -> None:
    """Print a table in a form; of csv the notes go to standard error."""
    if form == "text":
        console().print(table.to_rich())
        return
    forms = {"markdown": table.to_markdown, "latex": table.to_latex, "csv": table.to_csv}
    print(forms[form](), end="")
    if form == "csv":
        print(table.to_notes(), end="", file=sys.stderr)


def read_studies(
    name: str,
    settings: list[str] | None,
    methods: str | None,
    targets: str | None,
    seeds: str | None,
    more: dict[str, Any],
    out: Path | None,
) -> Iterator[tuple[Any, Path, tuple[str, ...]]]:
    """Yield (study, output folder, metrics) for each study that the name refers to.

    Command-line overrides are applied. Metrics are empty if the study's own apply.
    """
    from unseen.studies.execution import Study
    from unseen.studies.settings.named import members, metrics_of

    options = {
        "methods": None if methods is None else split_list(methods),
        "targets": None if targets is None else split_list(targets),
        "seeds": None if seeds is None else int(seeds) if seeds.isdigit() else split_list(seeds),
    }
    overrides = dict(map(parse_override, settings or []))
    overrides |= {key: value for key, value in (options | more).items() if value is not None}
    names = members(name)
    for member in names:
        study = Study.read(member, overrides)
        folder = out or Path("results")
        folder = folder / study.name if out is None or len(names) > 1 else folder
        metrics = metrics_of(name)
        # A study that is a table of one metric shows its own metric, which may be overridden.
        yield study, folder, metrics if member != name or len(metrics) > 1 else ()
