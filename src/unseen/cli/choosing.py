"""`unseen choose`: which recipe for the next site."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from unseen.cli.console import Columns, Places, Settings


@dataclass(frozen=True)
class Trials:
    """Which recipes are tried, and how.

    Attributes:
        recipes: Methods to choose among, such as "fedavg,glm,portfolio" (default: a few that fit
            the data and train fast).
        groups: Groups of sites that are left out in turn; each site by itself, if there are fewer.
        budget: A time such as 10min in which recipes are begun, cheap ones first, and costlier ones
            than by default as long as it lasts.
        rates: Factors of the study's learning rate that are tried (default: 0.2,1,5).
        seeds: How many.
        no_pool: Do not pool rows, not even for a comparison.
        no_alone: Do not try every site's own model at the others.
    """

    recipes: str | None = None
    groups: Annotated[int, typer.Option(min=2)] = 5
    budget: str | None = None
    rates: tuple[float, ...] = ()
    seeds: Annotated[int, typer.Option(min=1)] = 1
    no_pool: bool = False
    no_alone: bool = False


def choose(
    name: Annotated[str, typer.Argument(metavar="FILE.csv|FOLDER|NAME|FILE.toml")],
    columns: Columns,
    tried: Trials,
    places: Places,
    settings: Settings = None,
    jobs: Annotated[int, typer.Option(min=1)] = 1,
    backend: str = "in-process",
    dry_run: bool = False,
) -> None:
    """Say which recipe works at the next site, how well and how surely, by the sites that are here.

    A portfolio of recipes is trained without each group of sites in turn and judged at them. The
    page has every recipe's expected figure at a new site with an interval, the chance that it is
    better than FedAvg and than one site's own model, what would change the answer, what was
    disclosed and what it cost. `unseen train --recipe DIR/choice.json` takes the answer.

    Args:
        name: Your csv file, with --site and --label; your folder of images, as
            SITE/CLASS/image.png; or a study, of which the data, the network and the training are
            taken.
        settings: Settings of the study's file, to be changed; of a csv file also options of its
            table, such as "drop=['id']", of a folder those of its images, such as size=28.
        columns: The columns of a csv file.
        tried: Which recipes are tried, and how.
        places: Where data are, and the folder of page and records.
        jobs: Processes.
        backend: Where clients run: in-process, flower-simulation.
        dry_run: Check everything, say how many trainings there are; train nothing.
    """
    from unseen.studies.choice import choose as answer
    from unseen.studies.choice import play
    from unseen.studies.choice.budget import seconds_of
    from unseen.studies.choice.choice_html import write
    from unseen.studies.choice.choice_request import Question, asked
    from unseen.studies.choice.forecast import forecast, plans
    from unseen.studies.choice.terminal_answer import answer_lines
    from unseen.studies.settings.named import parse_override, split_list

    rates = factors(tried.rates)
    question = Question(
        name,
        dict(map(parse_override, settings or [])) | {"seeds": tried.seeds},
        **vars(columns),
        recipes=split_list(tried.recipes) if tried.recipes is not None else None,
        groups=tried.groups,
        rates=rates,
        pool=not tried.no_pool,
        alone=not tried.no_alone,
        data_dir=places.data_dir,
        budget=None if tried.budget is None else seconds_of(tried.budget),
    )
    candidates, data_dir = asked(question)
    for line in filter(None, (candidates.study.first_line, candidates.why_metric)):
        print(line, file=sys.stderr)
    place = places.out or Path("choices") / candidates.study.name

    def say(line: str) -> None:
        print(line, file=sys.stderr)

    if dry_run:
        planned = plans(candidates, place / "records", data_dir)
        print("\n".join(forecast(planned, candidates.refused)))
        return
    try:
        trials = play(
            candidates, place / "records", jobs=jobs, data_dir=data_dir, backend=backend, say=say
        )
    except KeyboardInterrupt:
        say("Stopped. Run the same command to resume.")
        raise typer.Exit(130) from None
    choice = answer(trials)
    files = write(choice, rates, place)
    for recipe, why in choice.refused.items():
        say(f"not judged: {recipe}, which {why}")
    print("\n".join(answer_lines(choice, files.html, files.data)))


def factors(rates: Sequence[float]) -> list[float]:
    """Return the factors of the learning rate that are tried; refuse those that are not above 0."""
    from unseen.errors import number

    for rate in rates:
        number("--rates", rate, 0, open_low=True)
    return [*rates] or [0.2, 1.0, 5.0]
