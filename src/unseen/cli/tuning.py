"""`unseen tune`: settings and options of methods, searched on the sources alone."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unseen.cli.console import Places, Settings, Study, console

if TYPE_CHECKING:
    from unseen.studies.results.search_records import SearchRecord
    from unseen.studies.settings.study import StudySpec


@dataclass(frozen=True)
class Search:
    """How settings and options are searched.

    Attributes:
        trials: For each method (default: 12).
        criterion: lodo(groups=5), trained without a group of sources and scored there, or
            source-validation.
        metric: What is scored (default: the study's).
        sampler: tpe, random, or grid: all combinations of one(...).
        prune: Stop trials that are worse than the best with a p below this; 0 stops none.
        no_options: Search none of the ranges that methods declare.
    """

    trials: Annotated[int | None, typer.Option(min=1)] = None
    criterion: str | None = None
    metric: str | None = None
    sampler: str | None = None
    prune: Annotated[float | None, typer.Option(min=0, max=0.99)] = None
    no_options: bool = False

    def in_table(self) -> dict[str, Any]:
        """Return what a study's \\[tune] table says instead; nothing of what is left out."""
        table = {name: value for name, value in vars(self).items() if value is not None}
        return table | ({"options": False} if table.pop("no_options") else {})


def tune(
    name: Study,
    options: Search,
    places: Places,
    settings: Settings = None,
    methods: str | None = None,
    space: Annotated[list[str] | None, typer.Option(metavar="FILE.toml|KEY=RANGES")] = None,
    jobs: Annotated[int, typer.Option(min=1)] = 1,
) -> None:
    """Search settings and options of methods; what is scored are sources, never a target.

    Every method has the same number of trials, of which the first is the study's own setting. All
    domains are sources but those that the study's file, or holdout=..., keeps away. A repeated
    command resumes. For each method a file is written that `unseen train` takes. A \\[tune] table
    in a study makes the search part of every method and target of its table.

    Args:
        name: The study.
        options: How settings and options are searched.
        places: Where data are, and the folder of trials and files.
        settings: Settings of the study's file, to be changed.
        methods: Methods, such as "fedavg,fedprox"; options that are written are not searched.
        space: A setting with ranges, such as "training.optimiser=sgd(lr=log(0.001,1))", several
            times, or a file of such lines. Ranges: log(LOW, HIGH), uniform(LOW, HIGH), whole(LOW,
            HIGH), one(VALUE, ...). METHOD.OPTION=... stands for the range that `unseen show METHOD`
            prints. Where no setting is searched, it is the study's learning rate, from a tenth to
            ten times.
        jobs: Processes.
    """
    from unseen.studies.choice.rates import around
    from unseen.studies.execution import Study as Runnable
    from unseen.studies.results.search_records import as_csv
    from unseen.studies.settings.named import parse_override, put, settings_of, split_list

    overrides = dict(map(parse_override, settings or []))
    overrides |= {"methods": split_list(methods)} if methods is not None else {}
    keys = {key.partition(".")[0] for key in (*settings_of(name)[0], *overrides)}
    if not keys & {"holdout", "targets"}:
        overrides["holdout"] = "none"
    study = Runnable.read(name, overrides)
    search: dict[str, Any] = study.tune.model_dump() if study.tune is not None else {}
    search |= options.in_table()
    search["space"] = {**search.get("space", {}), **spaces(space or [])}
    if not search["space"]:
        search["space"] = {"training.optimiser": around(study.training.optimiser)}
    values = study.model_dump(exclude_defaults=True)
    put(values, "tune", search)
    study = Runnable(**values)
    folder = places.out or Path("tunings") / study.name
    try:
        records = study.search(folder, jobs, places.data_dir, progress=True)
    except KeyboardInterrupt:
        print("Stopped. Run the same command to resume.", file=sys.stderr)
        raise typer.Exit(130) from None
    (folder / "tuned.csv").write_text(as_csv(records), encoding="utf-8")
    show(records)
    for record in records:
        if record.best.value is None:
            print(f"{record.method}: no trial came to its end, so there is nothing to train.")
        else:
            print(f"unseen train {write(study, record, folder)}")


def spaces(texts: list[str]) -> dict[str, Any]:
    """Return setting -> its text with ranges, of texts and files."""
    import tomllib

    from unseen.errors import UnseenError
    from unseen.studies.results.study_file import flat

    ranges: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if equals:
            ranges[key.strip()] = value.strip()
            continue
        try:
            ranges |= dict(flat(tomllib.loads(Path(text).read_text("utf-8"))))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise UnseenError(
                f"--space {text!r} is neither KEY=RANGES nor a TOML file ({error}).",
                remedy='Write, for example, --space "training.optimiser=sgd(lr=log(0.001,1))".',
            ) from None
    return ranges


def show(records: tuple[SearchRecord, ...]) -> None:
    """Print what was found for each method."""
    from rich.table import Table

    from unseen.studies.results.formats import UNITS, scale_of
    from unseen.studies.results.search_records import all_ranges, endings

    table = Table("method", "own setting", "best", "chosen", "trials", "rounds", "steps")
    for r in records:
        settings = [f"{key}={value}" for key, value in r.best.settings.items()]
        scale = scale_of(r.metric)
        texts = ("diverged" if x is None else f"{scale * x:.4g}" for x in (r.own, r.best.value))
        counts = (sum(t.rounds for t in r.trials), sum(t.steps for t in r.trials))
        trials = f"{len(r.trials)}{endings([r])}"
        table.add_row(
            r.method if len({x.task for x in records}) == 1 else f"{r.method} · {r.task}",
            *texts,
            "\n".join([r.best.method, *settings]),
            trials,
            *map(str, counts),
        )
    console().print(table, markup=False)
    first = records[0]
    searched = ", ".join(f"{n} {text}" for n, text in all_ranges(records).items()) or "nothing"
    several = any(len(record.trials) > 1 for record in records)
    warning = " The best is one of several trials, so expect less at a new site." * several
    print(
        f"{first.metric}{UNITS[scale_of(first.metric)]} by {first.criterion}: the mean over "
        f"sites.{warning}\nsearched: {searched}"
    )


def write(study: StudySpec, record: SearchRecord, folder: Path) -> Path:
    """Write the study of a method as its search chose it, and return the file."""
    from unseen.studies.results.records import Job
    from unseen.studies.settings.named import put, toml

    values = study.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
    for key in ("tune", "reference", "published"):
        values.pop(key, None)
    for key, value in record.best.settings.items():
        put(values, key, value)
    values["methods"] = [record.best.method]
    if study.holdout == "leave-one-domain-out":
        values["targets"] = [record.task]
    named = Job(record.method, record.task, 0).folder(Path()).parts
    name = named[1] if record.task == "all" else f"{named[1]}-{named[2]}"
    file = folder / f"{name}.toml"
    file.write_text(toml(values), encoding="utf-8")
    return file
