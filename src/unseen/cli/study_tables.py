"""`unseen table`, and the studies that a command's words ask for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unseen.cli.console import Places, Settings, Study, console
from unseen.studies.settings.named import parse_override, split_list

if TYPE_CHECKING:
    from unseen.studies.results.tables import Table


@dataclass(frozen=True)
class Runs:
    """Which runs of a study.

    Attributes:
        methods: Methods, such as "fedavg,ppdg(lam=0.2)+ga".
        targets: Only these tasks, by target, comma-separated.
        seeds: How many seeds, or which: 5 or 0,3,7.
        weights: Initial weights, .pth or .safetensors.
    """

    methods: str | None = None
    targets: str | None = None
    seeds: str | None = None
    weights: Path | None = None

    def overrides(self) -> dict[str, Any]:
        """Return the settings of a study that these are."""
        seeds = self.seeds
        settings = {
            "methods": None if self.methods is None else split_list(self.methods),
            "targets": None if self.targets is None else split_list(self.targets),
            "seeds": None
            if seeds is None
            else (int(seeds) if seeds.isdigit() else split_list(seeds)),
            "weights": None if self.weights is None else str(self.weights),
        }
        return {name: value for name, value in settings.items() if value is not None}


@dataclass(frozen=True)
class TableOptions:
    """What a table shows.

    Attributes:
        metric: What to show.
        selection: Which round counts.
        form: text, markdown, latex or csv.
        test: wilcoxon or t, of the reference.
    """

    metric: str | None = None
    selection: str | None = None
    form: Annotated[str, typer.Option("--format")] = "text"
    test: str | None = None


def table(
    name: Study, runs: Runs, options: TableOptions, places: Places, settings: Settings = None
) -> None:
    """Print a table of what a study has finished; runs nothing and writes nothing.

    A folder that a study wrote says itself what ran, and needs no data: unseen table results/heart.
    Of a study by name the settings must be those of the run. Metric and selection may be others.

    Args:
        name: The study, or the folder that it wrote.
        runs: Which runs.
        options: What the table shows.
        places: Where data are, and the folder of records and tables.
        settings: Settings of the study's file, to be changed.
    """
    import warnings

    from unseen.errors import UnseenError, choice
    from unseen.studies.execution.plan import holds, prepare_study
    from unseen.studies.execution.runner import results_of
    from unseen.studies.report.read import results_in

    choice("--format", options.form, ("text", "markdown", "latex", "csv"))
    if options.test is not None:
        choice("--test", options.test, ("wilcoxon", "t"))
    if Path(name).is_dir() and (Path(name) / "study.json").exists():
        if runs != Runs() or places != Places() or settings:
            raise UnseenError(
                f"{name} is what a study wrote, and says itself what ran.",
                remedy="Give --metric, --selection, --format and --test alone.",
            )
        show(
            results_in(Path(name)).table(options.metric, options.selection, options.test),
            options.form,
        )
        return
    for study, folder, metrics in read_studies(name, settings, runs.overrides(), places.out):
        try:
            planned = prepare_study(study, folder, places.data_dir)
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
        for one in (options.metric,) if options.metric else results.among(metrics):
            show(results.table(one, options.selection, options.test), options.form)


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
    name: str, settings: list[str] | None, changes: dict[str, Any], out: Path | None
) -> Iterator[tuple[Any, Path, tuple[str, ...]]]:
    """Yield (study, output folder, metrics) for each study that the name refers to.

    Settings and changes are applied. Metrics are empty if the study's own apply.
    """
    from unseen.studies.execution import Study
    from unseen.studies.settings.named import members, metrics_of

    overrides = dict(map(parse_override, settings or [])) | changes
    names = members(name)
    for member in names:
        study = Study.read(member, overrides)
        folder = out or Path("results")
        folder = folder / study.name if out is None or len(names) > 1 else folder
        metrics = metrics_of(name)
        # A study that is a table of one metric shows its own metric, which may be overridden.
        yield study, folder, metrics if member != name or len(metrics) > 1 else ()
