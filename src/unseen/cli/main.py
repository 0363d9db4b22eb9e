"""The command line: a thin layer over `unseen.Study`."""

import errno
import sys
from dataclasses import dataclass
from functools import cache
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from typer.core import TyperGroup

from unseen import plugins
from unseen.cli import model_server, readers, serving
from unseen.cli.choosing import choose
from unseen.cli.console import Documented, Places, Settings, Study, console, flattened
from unseen.cli.data import data
from unseen.cli.federation_site import federation
from unseen.cli.open_page import open_
from unseen.cli.skeletons import new
from unseen.cli.study_tables import Runs, read_studies, table
from unseen.cli.tuning import tune
from unseen.studies.settings.named import parse_override

#: The commands in the order in which somebody new to them needs them.
ORDER = (
    *("choose", "open", "tune", "study", "table", "compare", "report", "train", "predict"),
    *("evaluate", "export", "serve", "list", "show", "new", "data", "federation"),
    *("audit", "cite"),
)


class InOrder(TyperGroup):
    """Commands as `ORDER` has them; any that it lacks come last, as those of other packages."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        place = {name: i for i, name in enumerate(ORDER)}
        every = [*super().list_commands(ctx), *plugins.names("unseen.commands")]
        return sorted(every, key=lambda name: place.get(name, len(place)))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if (own := super().get_command(ctx, cmd_name)) is not None:
            return own
        function = plugins.command(cmd_name)
        if function is None:
            return None
        alone = typer.Typer(add_completion=False)
        alone.command(cmd_name, cls=Documented)(function)
        return typer.main.get_command(alone)


app = typer.Typer(
    name="unseen",
    cls=InOrder,
    suggest_commands=False,  # click suggests the nearest command itself
    help="Federated domain generalization: one model from sites that share no data, for a site "
    "nobody has seen.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(data)
app.add_typer(federation)
for command in (
    choose,
    tune,
    table,
    *(serving.train, serving.predict, serving.evaluate, serving.export, model_server.serve),
    readers.report,
    new,
):
    app.command()(flattened(command))


@dataclass(frozen=True)
class Running:
    """How a study runs.

    Attributes:
        jobs: Processes.
        device: cpu or cuda.
        track: tensorboard, mlflow, or both with a comma.
        backend: Where clients run: in-process, flower-simulation.
    """

    jobs: Annotated[int, typer.Option(min=1)] = 1
    device: str | None = None
    track: str = ""
    backend: str = "in-process"


@app.command()
@flattened
def study(
    name: Study,
    runs: Runs,
    running: Running,
    places: Places,
    settings: Settings = None,
    dry_run: bool = False,
    show: bool = False,
) -> None:
    """Run a study, or what is missing of it, and print its table.

    NAME may also be a paper's table or figure, or a folder of studies: all of its studies run, one
    after the other. Settings are those of the study's file, such as rounds=40 or
    training.epochs=5. The command line wins over the file, the file over the defaults.

    Args:
        name: The study.
        runs: Which runs.
        running: How they run.
        places: Where data are, and the folder of records and tables.
        settings: Settings of the study's file, to be changed.
        dry_run: Check everything, run nothing.
        show: Print the study's file, source of each value included.
    """
    from unseen.studies.settings.named import texts
    from unseen.studies.tracking.trackers import listed

    if show:
        print("\n".join(texts(name)), end="")
        return
    device = {"device": running.device} if running.device is not None else {}
    trackers, data_dir = listed(running.track), places.data_dir
    changes = runs.overrides() | device
    for study, folder, metrics in read_studies(name, settings, changes, places.out):
        if dry_run:
            describe(study, folder, data_dir)
            continue
        if line := study.first_line:
            print(line, file=sys.stderr)
        try:
            results = study.run(folder, running.jobs, data_dir, True, trackers, running.backend)
        except KeyboardInterrupt:
            print("Stopped. Run the same command to resume.", file=sys.stderr)
            raise typer.Exit(130) from None
        for metric in results.among(metrics):
            console().print(results.table(metric).to_rich())
        print(f"records and tables (csv, md, tex): {folder}")


@dataclass(frozen=True)
class Attack:
    """What is attacked, and how hard.

    Attributes:
        method: The method to attack (default: the first).
        target: The task, by its target (default: the first).
        seed: The seed (default: the first).
        victims: Images to recover from updates.
        shadows: Models for the likelihood ratio; below 4, none.
        rounds: Rounds of each training.
    """

    method: str | None = None
    target: str | None = None
    seed: Annotated[int | None, typer.Option(min=0)] = None
    victims: Annotated[int, typer.Option(min=1, max=200)] = 12
    shadows: Annotated[int, typer.Option(min=0, max=256)] = 8
    rounds: Annotated[int | None, typer.Option(min=1)] = None


@app.command()
@flattened
def audit(
    name: Study,
    options: Attack,
    settings: Settings = None,
    data_dir: Path | None = None,
    out: Path = Path("results/audit"),
) -> None:
    """Attack what a study's clients send: images out of updates, membership, what extras tell.

    One task, one seed and one method are attacked. Models are trained for it; nothing that a study
    has recorded is read.

    Args:
        name: The study.
        options: What is attacked, and how hard.
        settings: Settings of the study's file, to be changed.
        data_dir: Where data files are (default: $UNSEEN_DATA).
        out: Folder of audit.md, audit.json and pictures.
    """
    from unseen.studies.audit.attacks import audit as attack
    from unseen.studies.audit.audit_page import write
    from unseen.studies.settings.study import StudySpec

    overrides = dict(map(parse_override, settings or []))
    overrides |= {"targets": [options.target]} if options.target is not None else {}
    overrides |= {"seeds": [options.seed]} if options.seed is not None else {}
    spec = StudySpec.read(name, overrides)
    findings, images = attack(
        spec, data_dir, options.method, options.victims, options.shadows, options.rounds
    )
    for path in write(findings, images, out):
        print(path)


def describe(study: Any, folder: Path, data_dir: Path | None) -> None:
    """Print what a study would do."""
    from unseen.core.templates import render
    from unseen.data.standin import NO_RESULT
    from unseen.studies.execution.plan import prepare_study
    from unseen.studies.execution.search import jobs_of
    from unseen.studies.settings.length import in_words

    planned = prepare_study(study, folder, data_dir)
    planned.check_code()
    values = {"name": study.name, "planned": planned, "no_result": NO_RESULT}
    values["trials"] = jobs_of(study, planned.methods, planned.tasks)
    values["length"] = in_words(study.rounds, study.patience)
    print(render("unseen.cli", "templates/study.txt.jinja", **values), end="")


app.command(name="open")(open_)


@app.command(name="list")
def list_(
    what: Annotated[str, typer.Argument(metavar="methods|compositions|datasets|studies|models")],
) -> None:
    """List what there is by name."""
    from rich.table import Table

    from unseen.cli.catalogue import CATALOGUES
    from unseen.errors import check_known

    check_known("list", CATALOGUES, what)
    header, rows = CATALOGUES[what]()
    table = Table(*header)
    for row in rows:
        table.add_row(*row)
    console().print(table, markup=False)


@app.command()
def show(method: str) -> None:
    """Show a method: equations, source, options with defaults, citation.

    Args:
        method: A method or modifier, such as ppdg or ga, or a recipe, such as "ppdg(lam=0.2)+ga".
    """
    from unseen.cli.catalogue import page

    print(page(method))


@app.command()
def cite() -> None:
    """Print the BibTeX entry of unseen; `report` adds those of the methods that ran."""
    from unseen.studies.report.citations import own_entry

    print(own_entry())


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Federated domain generalization."""
    if version:
        from unseen.version import __version__

        print(__version__)
        raise typer.Exit


for info in (i for typed in (app, data, federation) for i in typed.registered_commands):
    info.cls = Documented


def main() -> None:
    """Run the command line; errors of the user's input are one paragraph, not a traceback."""
    import warnings

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # letters that the encoding lacks
    once = cache(lambda text: print(f"warning: {text}", file=sys.stderr))
    warnings.showwarning = lambda message, *_: once(str(message))
    try:
        app(prog_name="unseen")
    except ValueError as error:
        from unseen.errors import UnseenError

        if not isinstance(error, UnseenError):
            raise
        print(" ".join((f"error: {error}", *getattr(error, "__notes__", ()))), file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if error.errno not in MACHINE:
            raise
        print(f"error: {named(error)}", file=sys.stderr)
        sys.exit(2)


#: Errors of the machine that are no defect of the program, and what to do about them.
MACHINE = {
    errno.ENOSPC: "Make room, and run the same command again: what was finished is kept.",
    errno.EDQUOT: "Make room, and run the same command again: what was finished is kept.",
    errno.EROFS: "Name a folder that can be written to.",
    errno.EACCES: "Name a path that this account may use, or change its rights.",
    errno.ENOTDIR: "A file stands where a folder is needed; name another path.",
    errno.EEXIST: "A file stands where a folder is needed; name another path.",
    errno.EISDIR: "A folder stands where a file is needed; name another path.",
}


def named(error: OSError) -> str:
    """Return the words for an error of `MACHINE`."""
    where = f": {error.filename}" if error.filename else ""
    return f"{error.strerror}{where}. {MACHINE[error.errno or 0]}"
