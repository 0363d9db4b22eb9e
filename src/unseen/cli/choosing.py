"""`unseen choose`: which recipe for the next site."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from unseen.cli.console import Settings, Site, names


def choose(
    name: Annotated[str, typer.Argument(metavar="FILE.csv|FOLDER|NAME|FILE.toml")],
    settings: Settings = None,
    site: Site = None,
    label: str | None = None,
    event: str | None = None,
    task: str | None = None,
    recipes: str | None = None,
    groups: Annotated[int, typer.Option(min=2)] = 5,
    budget: str | None = None,
    rates: str = "0.2,1,5",
    seeds: Annotated[int, typer.Option(min=1)] = 1,
    no_pool: bool = False,
    no_alone: bool = False,
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
        name: Your csv file, with --site and --label; your folder of images, as
            SITE/CLASS/image.png; or a study, of which the data, the network and the training are
            taken.
        settings: Settings of the study's file, to be changed; of a csv file also options of its
            table, such as "drop=['id']", of a folder those of its images, such as size=28.
        site: The column of a csv file that names the site.
        label: The column of a csv file that holds the label.
        event: The column of a csv file that says whether the event was seen (1) or the row was
            censored (0), where the label is the time until it.
        task: classification or regression, of a csv file (default: regression where the label is a
            number with many values, which is said).
        recipes: Methods to choose among, such as "fedavg,glm,portfolio" (default: a few that fit
            the data and train fast).
        budget: A time such as 10min in which recipes are begun, cheap ones first, and costlier ones
            than by default as long as it lasts.
        groups: Groups of sites that are left out in turn; each site by itself, if there are fewer.
        rates: Factors of the study's learning rate that are tried.
        seeds: How many.
        no_pool: Do not pool rows, not even for a comparison.
        no_alone: Do not try every site's own model at the others.
        jobs: Processes.
        data_dir: Where data files are (default: $UNSEEN_DATA).
        out: Folder of page and records (default: choices/NAME).
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

    overrides = dict(map(parse_override, settings or [])) | {"seeds": seeds}
    factors = [factor(text) for text in names(rates)]
    question = Question(
        name, overrides, site, label, event, task,
        split_list(recipes) if recipes is not None else None,
        groups, factors, not no_pool, not no_alone, data_dir,
        None if budget is None else seconds_of(budget),
    )  # fmt: skip
    candidates, data_dir = asked(question)
    for line in filter(None, (candidates.study.first_line, candidates.why_metric)):
        print(line, file=sys.stderr)
    place = out or Path("choices") / candidates.study.name

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
    files = write(choice, factors, place)
    for recipe, why in choice.refused.items():
        say(f"not judged: {recipe}, which {why}")
    print("\n".join(answer_lines(choice, files.html, files.data)))


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
