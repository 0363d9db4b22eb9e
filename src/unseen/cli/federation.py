"""`unseen federation`: startup kits, and the processes of a real federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

federation = typer.Typer(
    name="federation",
    help="Real federations over Flower: kits for server and sites, and their processes.",
    no_args_is_help=True,
    suggest_commands=False,
    pretty_exceptions_enable=False,
)

Folder = Annotated[Path, typer.Argument(metavar="KIT", help="A folder that provision wrote.")]
ServerKit = Annotated[Path, typer.Option("--kit", help="The server's kit.")]
Out = Annotated[Path | None, typer.Option(help="Folder of the records and tables.")]
App = Annotated[Path | None, typer.Option(help="Another Flower app than unseen's own, a folder.")]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Plaintext, and anybody may take part: for trials.")
]


def say(text: str) -> None:
    """Print a line without delay, also into a pipe."""
    print(text, flush=True)


@federation.command()
def provision(
    file: Annotated[Path | None, typer.Argument(metavar="FILE.toml")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the kits.")] = Path("kits"),
    add: Annotated[str | None, typer.Option(help="Add this site to the kits in --out.")] = None,
    role: Annotated[str, typer.Option(help="Of the site to add: train or evaluate.")] = "train",
    renew: Annotated[str | None, typer.Option(help="New keys for: server, or a site.")] = None,
    days: Annotated[int | None, typer.Option(min=1, help="Validity of the renewed one.")] = None,
    ckks: Annotated[bool, typer.Option("--ckks", help="Keys for encrypted sums.")] = False,
    masks: Annotated[bool, typer.Option("--masks", help="Keys for masked sums.")] = False,
) -> None:
    """Make the kits of a federation: authority, server certificate, one key pair per site.

    FILE.toml names it: name, servers (names or addresses), port, days, and \\[sites] with a role
    each, train or evaluate.
    """
    from unseen.errors import UnseenError, choice
    from unseen.federation import provision
    from unseen.federation.kit_spec import Federation

    if sum(chosen is not None for chosen in (file, add, renew)) != 1:
        raise UnseenError("name one of: FILE.toml to begin, --add SITE, --renew NAME.")
    if add is not None:
        choice("--role", role, ("train", "evaluate"))
        wider = provision.add(out, add, "evaluate" if role == "evaluate" else "train")
        say(f"kit of {add}: {out / add}")
        say(f"to the server's kit: {out / 'server' / 'sites' / f'{add}.pub'}")
        if wider.masks:
            say("to every site: masks.public.json of its kit here, which is new")
        return
    if renew is not None:
        say(f"new keys of {renew}; carry over:")
        for path in provision.renew(out, renew, days):
            say(f"  {path}")
        return
    assert file is not None
    described = Federation.read(file)
    asked = {"ckks": described.ckks or ckks, "masks": described.masks or masks}
    for folder in provision.provision(described.model_copy(update=asked), out):
        say(str(folder))
    say(f"{out / 'ca'} signs certificates: keep it offline. Carry each kit to its machine alone.")


@federation.command()
def serve(folder: Folder, insecure: Insecure = False) -> None:
    """Run the server of a federation, in the foreground, until Ctrl-C or SIGTERM."""
    from unseen.federation.kit import Kit
    from unseen.federation.serve import serve

    raise typer.Exit(serve(Kit.read(folder, "server"), insecure, say))


@federation.command()
def join(
    folder: Folder,
    data: Annotated[Path, typer.Option(help="This site's data: a folder, or a csv file.")],
    allow: Annotated[
        list[str] | None, typer.Option(help="module:function of yours that a study may name here.")
    ] = None,
    app: App = None,
    insecure: Insecure = False,
) -> None:
    """Take part as a site, in the foreground, until Ctrl-C or SIGTERM.

    The site runs the training code that is installed there; a server that sends other code is
    refused. --app names another app to run instead.
    """
    from unseen.federation.kit import Kit
    from unseen.federation.serve import join

    raise typer.Exit(join(Kit.read(folder, "site"), data, app, allow or (), insecure, say))


@federation.command()
def run(
    study: Annotated[Path, typer.Argument(metavar="STUDY.toml")],
    kit: ServerKit = Path("kits/server"),
    out: Out = None,
    app: App = None,
    insecure: Insecure = False,
) -> None:
    """Run a study over the connected sites, on the server's machine, and print its table."""
    from unseen.federation.kit import Kit
    from unseen.federation.launch import run

    folder = out or Path("results") / study.stem
    try:
        run(Kit.read(kit, "server"), study, folder, app, insecure, say)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


@federation.command()
def status(
    kit: ServerKit = Path("kits/server"),
    out: Out = None,
    insecure: Insecure = False,
    stop: Annotated[bool, typer.Option("--stop", help="Stop the run that has not ended.")] = False,
) -> None:
    """Who is connected, which round is being played, and the last error."""
    from unseen.federation import launch as runs
    from unseen.federation.kit import Kit

    server = Kit.read(kit, "server")
    if stop:
        runs.stop(server, insecure, say)
        return
    runs.status(server, out, insecure, say)


@federation.command()
def sequence(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="Folder of one job's records.")],
    out: Annotated[Path, typer.Option(help="The diagram to write: FILE.mmd, or FILE.md.")],
    round: Annotated[int, typer.Option(min=1, help="Which round, from 1.")] = 1,
) -> None:
    """Draw the messages of a round as they went: who, in which exchange, and how many bytes.

    The diagram is Mermaid's, which GitHub draws; in a FILE.md it is fenced.
    """
    from unseen.federation.sequence import draw, read, with_rows

    method, task, seed = job.absolute().parts[-3:]
    exchanges = with_rows(read(job, round - 1), method)
    diagram = draw(exchanges, f"{method} on {task}, {seed}, round {round}: bytes per message")
    out.parent.mkdir(parents=True, exist_ok=True)
    text = f"```mermaid\n{diagram}```\n" if out.suffix == ".md" else diagram
    out.write_text(text, encoding="utf-8")
    say(str(out))


@federation.command()
def doctor(
    folder: Folder,
    study: Annotated[Path | None, typer.Option(help="Compare the site's data with it.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="The site's data, before the first join.")
    ] = None,
    insecure: Insecure = False,
) -> None:
    """Check a kit: clock, names, port, certificates, keys, versions, message size, data.

    Ends with code 1 if something is wrong. What needs the server is skipped where it is silent.
    """
    from unseen.federation.doctor import examine
    from unseen.federation.kit import Kit

    findings: Any = examine(Kit.read(folder), study, data, insecure)
    for finding in findings:
        say(finding.line())
    wrong = sum(f.state == "fault" for f in findings)
    say(f"{wrong} to put right" if wrong else "nothing is wrong")
    raise typer.Exit(1 if wrong else 0)
