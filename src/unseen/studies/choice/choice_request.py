"""What a choice is asked: of which data, among which recipes, at which rates."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from unseen.data.image_files import folder
from unseen.data.tables import delimited, table_files
from unseen.errors import UnseenError, choice
from unseen.studies.choice.playing import RATES, Candidates, portfolio_for
from unseen.studies.choice.refusals import served
from unseen.studies.execution.python_values import as_settings
from unseen.studies.settings.named import put_all
from unseen.studies.settings.study import StudySpec

#: What the label of a csv file may be.
TASKS = ("classification", "regression")


@dataclass(frozen=True)
class Question:
    """What a choice is asked.

    Attributes:
        data: A csv file, a folder of images, a study, a study's name or file, or a data frame.
        settings: Settings of the study, to be changed; of a table also its options.
        site, label, event, task: Of a csv file or a data frame; see `source_of`.
        recipes: Methods to choose among; None for those that fit the data.
        groups: Groups of sites that are left out in turn.
        rates: Factors of the study's learning rate.
        pool, alone: As `Candidates` has them.
        data_dir: Where data files are.
        budget: Seconds in which recipes are begun; None for a few recipes, all of them.
    """

    data: Any
    settings: Mapping[str, Any] = field(default_factory=dict)
    site: str | None = None
    label: str | None = None
    event: str | None = None
    task: str | None = None
    recipes: Sequence[str] | None = None
    groups: int = 5
    rates: Sequence[float] = RATES
    pool: bool = True
    alone: bool = True
    data_dir: Path | None = None
    budget: float | None = None

    @property
    def own_rounds(self) -> bool:
        """Whether the question says itself how long networks train."""
        own = isinstance(self.data, StudySpec) or str(self.data).endswith(".toml")
        return own or not {"rounds", "patience"}.isdisjoint(self.settings)

    def study(self) -> StudySpec:
        """Return the study that the data are tried with."""
        overrides = dict(self.settings)
        if isinstance(self.data, StudySpec):
            own = self.data.model_dump(exclude_defaults=True)
            put_all(own, overrides)
            return type(self.data)(**own)
        if not isinstance(self.data, str | Path):
            named = {"domain": self.site, "label": self.label, "event": self.event}
            named |= {"task": self.task}
            present = {key: value for key, value in named.items() if value is not None}
            values = as_settings({"dataset": self.data, **present, **overrides})
            return StudySpec.read("table", {"name": "frame", **values})
        name = str(self.data)
        reading = folder.OPTIONS if of_images(name) else delimited.OPTIONS
        own = {key: overrides.pop(key) for key in reading if key in overrides}
        own |= {"event": self.event} if self.event is not None else {}
        source, about = source_of(name, self.site, self.label, self.task, own)
        return StudySpec.read(source, about | overrides)

    def place(self) -> Path | None:
        """Return where data files are: a folder of images is its own place."""
        if not isinstance(self.data, str | Path) or not Path(self.data).is_dir():
            return self.data_dir
        if self.data_dir is not None:
            raise UnseenError(
                f"{self.data} is a folder of images, and --data-dir names another place.",
                remedy="Leave out --data-dir.",
            )
        return Path(self.data)


class Asked(NamedTuple):
    """A question, read: what is played, on data in which folder."""

    candidates: Candidates
    data_dir: Path | None


def asked(question: Question) -> Asked:
    """Return what a question comes to, without recipes that its settings rule out."""
    place, study = question.place(), question.study()
    named = question.recipes
    every = question.budget is not None
    recipes, further = (named, ()) if named is not None else portfolio_for(study, place, every)
    noisy = study.privacy.noised or study.privacy.metrics == "none"
    candidates = Candidates(
        study,
        recipes,
        question.groups,
        question.rates,
        question.pool,
        question.alone,
        flat=not question.own_rounds and not noisy and study.patience is None,
        wider=tuple(question.rates) == RATES,
        budget=question.budget,
        further=further,
    )
    return Asked(served(candidates, place), place)


def source_of(
    name: str,
    site: str | None,
    label: str | None,
    task: str | None,
    options: Mapping[str, Any],
) -> tuple[str, dict[str, str]]:
    """Return the study that data are tried with, and what it is to be told of them.

    Args:
        name: A csv file, a folder of images, or a study.
        site: The column of a csv file that names the site.
        label: The column that holds the label.
        task: What the label is, `classification` or `regression`; None to see it in the file.
        options: Further options of the table, such as `event` or `drop`, or of the images.
    """
    if name.lower().endswith((".csv", ".csv.gz", ".parquet")):
        if site is None or label is None:
            raise UnseenError(
                f"{name} is a table, and which columns name the site and hold the label is not "
                "said.",
                remedy=f"Write: unseen choose {name} --site COLUMN --label COLUMN. unseen data "
                f"check {name} lists the columns.",
            )
        if task is not None:
            choice("--task", task, TASKS)
        path = Path(name).resolve()
        if not path.is_file():
            raise UnseenError(f"there is no file {name}.")
        every = {"path": str(path), "domain": site, "label": label, **options}
        if "event" not in options and (task or task_of(path, site, label, options)) == "regression":
            every["task"] = "regression"
        listed = ", ".join(f"{key}={value!r}" for key, value in every.items())
        return "table", {"dataset": f"table({listed})", "name": path.name.split(".")[0]}
    images = of_images(name)
    if (options and not images) or not {site, label, task} <= {None}:
        named = ", ".join(dict.fromkeys(["--site", "--label", "--event", *options]))
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


def task_of(path: Path, site: str, label: str, options: Mapping[str, Any]) -> str:
    """Return whether a csv file's label is a class, or a number to predict, which is then said.

    It is a number where `unseen data check` says that so many numbers are hardly classes: more than
    15, or more than 10 that are not all whole.

    Args:
        path: The file.
        site: The column of the site.
        label: The column of the label.
        options: Those of the table, some of which say how the file is read.
    """
    reading = {name: options[name] for name in table_files.READING if name in options}
    sheet = table_files.sheet_of(None, path, [site, label], reading)
    values, _ = sheet.column(label).levels
    most = 10 if any("." in value for value in values) else 15
    if len(values) <= most or not sheet.column(label).all_numbers:
        return "classification"
    print(
        f"the label {label!r} is a number with {len(values):,} values, and is predicted as one; "
        "--task classification takes every value for a class",
        file=sys.stderr,
    )
    return "regression"
