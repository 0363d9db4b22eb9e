"""`unseen choose`: which recipe for the next site."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from unseen.cli.console import Settings, names

#: What the label of a csv file may be.
TASKS = ("classification", "regression")


def choose(
    name: Annotated[str, typer.Argument(metavar="FILE.csv|FOLDER|NAME|FILE.toml")],
    settings: Settings = None,
    domain: str | None = None,
    label: str | None = None,
    event: str | None = None,
    task: str | None = None,
    recipes: str | None = None,
    groups: Annotated[int, typer.Option(min=2)] = 5,
    rates: str = "0.2,1,5",
    seeds: Annotated[int, typer.Option(min=1)] = 1,
    no_pool: bool = False,
    no_alone: bool = False,
    nested: bool = False,
    jobs: Annotated[int, typer.Option(min=1)] = 1,
    data_dir: Path | None = None,
    out: Path | None = None,
    backend: str = "in-process",
    dry_run: bool = False,
) -> None:
    """Say which recipe works at the next site, how well and how surely, by the sites that are here.

    A portfolio of recipes is trained without each group of sites in turn and judged at them. The
    page has every recipe's expected figure at a new site with an interval, the chance that it is
    better than FedAvg and than one site's own model, what would change the answer, what was
    disclosed and what it cost. `unseen train --recipe DIR/choice.json` takes the answer.

    Args:
        name: Your csv file, with --domain and --label; your folder of images, as
            SITE/CLASS/image.png; or a study, of which the data, the network and the training are
            taken.
        settings: Settings of the study's file, to be changed; of a csv file also options of its
            table, such as "drop=['id']", of a folder those of its images, such as size=28.
        domain: The column of a csv file that names the site.
        label: The column of a csv file that holds the label.
        event: The column of a csv file that says whether the event was seen (1) or the row was
            censored (0), where the label is the time until it.
        task: classification or regression, of a csv file (default: regression where the label is a
            number with many values, which is said).
        recipes: Methods to choose among, such as "fedavg,glm,portfolio" (default: for the data).
        groups: Groups of sites that are left out in turn; each site by itself, if there are fewer.
        rates: Factors of the study's learning rate that are tried.
        seeds: How many.
        no_pool: Do not pool rows, not even for a comparison.
        no_alone: Do not try every site's own model at the others.
        nested: Leave every two groups out, too, to say without their rows what the choice is worth:
            (G + 1)/2 times the trainings.
        jobs: Processes.
        data_dir: Where data files are (default: $UNSEEN_DATA).
        out: Folder of page and records (default: choices/NAME).
        backend: Where clients run: in-process, flower-simulation.
        dry_run: Check everything, say how many trainings there are and what they take; train
            nothing.
    """
    from unseen.choice import Candidates, play
    from unseen.choice import choose as answer
    from unseen.choice.choice_page import answer_lines, not_judged, write
    from unseen.choice.forecast import forecast, plans
    from unseen.choice.playing import portfolio_for
    from unseen.choice.refusals import served
    from unseen.datasets.image_files import folder
    from unseen.datasets.tables import delimited
    from unseen.errors import UnseenError
    from unseen.spec.named import parse_override, split_list
    from unseen.spec.study import StudySpec

    overrides = dict(map(parse_override, settings or [])) | {"seeds": seeds}
    reading = folder.OPTIONS if of_images(name) else delimited.OPTIONS
    own = {key: overrides.pop(key) for key in reading if key in overrides}
    own |= {"event": event} if event is not None else {}
    source, about = source_of(name, domain, label, task, own)
    if Path(name).is_dir():
        if data_dir is not None:
            raise UnseenError(
                f"{name} is a folder of images, and --data-dir names another place.",
                remedy="Leave out --data-dir.",
            )
        data_dir = Path(name)
    study = StudySpec.read(source, about | overrides)
    if line := study.first_line:
        print(line, file=sys.stderr)
    factors = [factor(text) for text in names(rates)]
    portfolio = split_list(recipes) if recipes is not None else portfolio_for(study, data_dir)
    place = out or Path("choices") / study.name
    candidates = served(
        Candidates(study, portfolio, groups, factors, not no_pool, not no_alone, nested), data_dir
    )

    def say(line: str) -> None:
        print(line, file=sys.stderr)

    if dry_run:
        print(
            "\n".join(
                forecast(plans(candidates, place / "records", data_dir), jobs, candidates.refused)
            )
        )
        return
    try:
        trials = play(
            candidates, place / "records", jobs=jobs, data_dir=data_dir, backend=backend, say=say
        )
    except KeyboardInterrupt:
        say("Stopped. Run the same command to resume.")
        raise typer.Exit(130) from None
    choice = answer(trials)
    page, data = write(choice, factors, place)
    print("\n".join((*answer_lines(choice, page, data), *not_judged(choice))))


def source_of(
    name: str,
    domain: str | None,
    label: str | None,
    task: str | None,
    options: Mapping[str, Any],
) -> tuple[str, dict[str, str]]:
    """Return the study that data are tried with, and what it is to be told of them.

    Args:
        name: A csv file, a folder of images, or a study.
        domain: The column of a csv file that names the site.
        label: The column that holds the label.
        task: What the label is, `classification` or `regression`; None to see it in the file.
        options: Further options of the table, such as `event` or `drop`, or of the images.
    """
    from unseen.errors import UnseenError, choice

    if name.lower().endswith((".csv", ".csv.gz")):
        if domain is None or label is None:
            raise UnseenError(
                f"{name} is a table, and which columns name the site and hold the label is not "
                "said.",
                remedy=f"Write: unseen choose {name} --domain COLUMN --label COLUMN. unseen data "
                f"check {name} lists the columns.",
            )
        if task is not None:
            choice("--task", task, TASKS)
        path = Path(name).resolve()
        if not path.is_file():
            raise UnseenError(f"there is no file {name}.")
        every = {"path": str(path), "domain": domain, "label": label, **options}
        if (
            "event" not in options
            and (task or task_of(path, domain, label, options)) == "regression"
        ):
            every["task"] = "regression"
        listed = ", ".join(f"{key}={value!r}" for key, value in every.items())
        return "table", {"dataset": f"table({listed})", "name": path.name.split(".")[0]}
    images = of_images(name)
    if (options and not images) or not {domain, label, task} <= {None}:
        named = ", ".join(dict.fromkeys(["--domain", "--label", "--event", *options]))
        raise UnseenError(
            f"{named} and --task are of a csv file; the study says its own.",
            remedy="Leave them out, or give a csv file.",
        )
    if images:
        listed = ", ".join(f"{key}={value!r}" for key, value in options.items())
        dataset = f"folder({listed})" if listed else "folder"
        return "images", {"dataset": dataset, "name": Path(name).resolve().name}
    return name, {}


def of_images(name: str) -> bool:
    """Return whether the data are a folder of images, and not one of studies."""
    return Path(name).is_dir() and not any(Path(name).glob("*.toml"))


def task_of(path: Path, domain: str, label: str, options: Mapping[str, Any]) -> str:
    """Return whether a csv file's label is a class, or a number to predict, which is then said.

    It is a number where `unseen data check` says that so many numbers are hardly classes: more than
    15, or more than 10 that are not all whole.

    Args:
        path: The file.
        domain: The column of the site.
        label: The column of the label.
        options: Those of the table, some of which say how the file is read.
    """
    from unseen.datasets.tables.delimited import READING
    from unseen.datasets.tables.sheet import coded, read

    reading = {name: options[name] for name in READING if name in options}
    sheet = read(path, [domain, label], **reading)
    values, _ = coded(sheet.plain(label))
    most = 10 if any("." in value for value in values) else 15
    if len(values) <= most or any(sheet.number(cell) is None for cell in sheet.present(label)):
        return "classification"
    print(
        f"the label {label!r} is a number with {len(values):,} values, and is predicted as one; "
        "--task classification takes every value for a class",
        file=sys.stderr,
    )
    return "regression"


def factor(text: str) -> float:
    """Return a factor of the learning rate from its text."""
    from unseen.errors import UnseenError

    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise UnseenError(
            f"--rates needs numbers above 0, with commas; found {text!r}.",
            remedy="Write, for example, --rates 0.2,1,5.",
        )
    return value
