"""`unseen.choose`: the command as a function, which prints nothing."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, overload

from unseen.errors import check_known
from unseen.studies.choice import choose as answer
from unseen.studies.choice import play
from unseen.studies.choice.budget import seconds_of
from unseen.studies.choice.choice_html import write
from unseen.studies.choice.choice_request import Question, asked
from unseen.studies.choice.forecast import forecast, plans
from unseen.studies.choice.shown_answer import Answer
from unseen.studies.settings.named import split_list
from unseen.studies.settings.study import StudySpec

Folder = str | Path


class Options(TypedDict, total=False):
    """Options of `choose`, those of the command.

    Attributes:
        site, label: The columns of a data frame or csv file that hold the site and the label.
        event: The column that says whether the event was seen, where the label is a time.
        task: `classification` or `regression`; by default as the label looks.
        settings: Settings of the study, and options of the table, such as `{"rounds": 20}`.
        recipes: Methods to choose among, a list or a text such as "fedavg,glm"; by default those
            that fit the data.
        groups: Groups of sites that are left out in turn.
        budget: A time such as "10min", or seconds, in which recipes are begun, cheap ones first.
        rates: Factors of the study's learning rate that are tried.
        seeds: How many.
        no_pool: Do not pool rows, not even for a comparison.
        no_alone: Do not try every site's own model at the others.
        jobs: Processes.
        data_dir: Where data files are.
        backend: Where clients run, `in-process` or `flower-simulation`.
    """

    site: str
    label: str
    event: str
    task: str
    settings: Mapping[str, Any]
    recipes: str | Sequence[str] | None
    groups: int
    budget: str | float | None
    rates: Sequence[float]
    seeds: int
    no_pool: bool
    no_alone: bool
    jobs: int
    data_dir: Folder | None
    backend: str


@overload
def choose(
    data: Any,
    out: Folder | None = None,
    *,
    dry_run: Literal[False] = False,
    **options: Unpack[Options],
) -> Answer: ...


@overload
def choose(
    data: Any, out: Folder | None = None, *, dry_run: Literal[True], **options: Unpack[Options]
) -> list[str]: ...


def choose(
    data: Any, out: Folder | None = None, *, dry_run: bool = False, **options: Unpack[Options]
) -> Answer | list[str]:
    """Return which recipe works at the next site, how well and how surely, as `unseen choose` does.

    Args:
        data: A data frame or a csv file, with `site` and `label`; a folder of images; or a study,
            its name or its file.
        out: The folder of page and records; None for choices/NAME.
        dry_run: Whether to train nothing, and return how many trainings a choice takes, as lines.
        options: See `Options`.
    """
    check_known("option of unseen.choose", Options.__annotations__, *options)
    settings = dict(options.get("settings", {}))
    if "seeds" in options or not isinstance(data, StudySpec):
        settings.setdefault("seeds", options.get("seeds", 1))
    recipes, folder = options.get("recipes"), options.get("data_dir")
    budget = options.get("budget")
    named = ("site", "label", "event", "task", "groups", "rates")
    question = Question(
        data,
        settings,
        recipes=split_list(recipes) if isinstance(recipes, str) else recipes and [*recipes],
        pool=not options.get("no_pool", False),
        alone=not options.get("no_alone", False),
        data_dir=Path(folder) if folder is not None else None,
        budget=seconds_of(budget) if isinstance(budget, str) else budget,
        **{name: value for name, value in options.items() if name in named},  # type: ignore[arg-type]
    )
    candidates, place = asked(question)
    folder_of = Path(out) if out is not None else Path("choices") / candidates.study.name
    records, jobs = folder_of / "records", options.get("jobs", 1)
    if dry_run:
        return forecast(plans(candidates, records, place), candidates.refused)
    backend = options.get("backend", "in-process")
    choice = answer(play(candidates, records, jobs=jobs, data_dir=place, backend=backend))
    write(choice, candidates.rates, folder_of)
    return Answer(**vars(choice))
