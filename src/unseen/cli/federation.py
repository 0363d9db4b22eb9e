"""`unseen federation`: startup kits, and the processes of a real federation."""

from pathlib import Path
from typing import Annotated, Any

import typer

from unseen.cli.console import group, numbers
from unseen.sites.process import say

federation = group(
    "federation", "Real federations over Flower: kits for server and sites, and their processes."
)
Folder = Annotated[Path, typer.Argument(metavar="KIT")]


@federation.command()
def provision(
    file: Annotated[Path | None, typer.Argument(metavar="FILE.toml")] = None,
    out: Path = Path("kits"),
    add: str | None = None,
    role: str = "train",
    renew: str | None = None,
    revoke: str | None = None,
    ckks: bool = False,
    masks: bool = False,
) -> None:
    """Make the kits of a federation: authority, server certificate, one key pair per site.

    FILE.toml names it: name, servers (names or addresses), port, days, \\[sites] with a role each,
    train or evaluate, and \\[people]: coordinators, who sign studies.

    Args:
        file: What to make kits of.
        out: Folder of the kits.
        add: Add this site to the kits in --out.
        role: Of the site to add: train or evaluate.
        renew: New keys for: server, a site, a person, ckks or masks.
        revoke: No site believes these keys any more: server, a site, or a person.
        ckks: Keys for encrypted sums.
        masks: Keys for masked sums.
    """
    from unseen.errors import UnseenError, choice
    from unseen.sites.kits import provision
    from unseen.sites.kits.kit_spec import Federation

    if sum(way is not None for way in (file, add, renew, revoke)) != 1:
        ways = "FILE.toml to begin, --add SITE, --renew NAME, --revoke NAME"
        raise UnseenError(f"name one of: {ways}.")
    if add is not None:
        choice("--role", role, ("train", "evaluate"))
        wider = provision.add(out, add, "evaluate" if role == "evaluate" else "train")
        say(f"kit of {add}: {out / add}")
        say(f"to the server's kit: {out / 'server' / 'sites' / f'{add}.pub'}")
        if wider.masks:
            say("to every site: masks.public.json of its kit here, which is new")
        return
    if renew is not None or revoke is not None:
        if renew is not None:
            paths = provision.renew(out, renew)
            say(f"new keys of {renew}; carry over:")
        else:
            paths = provision.revoke(out, str(revoke))
            say(f"the keys of {revoke} are of no use once these are carried over:")
        for path in paths:
            say(f"  {path}")
        return
    assert file is not None
    described = Federation.read(file)
    channels = {"ckks": described.ckks or ckks, "masks": described.masks or masks}
    for folder in provision.provision(described.model_copy(update=channels), out):
        say(str(folder))
    say(f"{out / 'ca'} signs certificates: keep it offline. Carry each kit to its machine alone.")


@federation.command()
def serve(folder: Folder) -> None:
    """Run the server of a federation, in the foreground, until Ctrl-C or SIGTERM.

    Args:
        folder: A folder that provision wrote.
    """
    from unseen.sites.kits.kit import Kit
    from unseen.sites.serve import serve

    raise typer.Exit(serve(Kit.read(folder, "server")))


@federation.command()
def join(
    folder: Folder,
    data: Path | None = None,
    allow: list[str] | None = None,
    app: Path | None = None,
) -> None:
    """Take part as a site, in the foreground, until Ctrl-C or SIGTERM.

    The site runs the training code that is installed there; a server that sends other code is
    refused. --app names another app to run instead.

    Args:
        folder: A folder that provision wrote.
        data: This site's data: a folder, or a csv file; those of the last start, if left out.
        allow: module:function of yours that a study may name here.
        app: Another Flower app than unseen's own, a folder.
    """
    from unseen.sites.kits.kit import Kit
    from unseen.sites.serve import join

    raise typer.Exit(join(Kit.read(folder, "site"), data, app, allow or ()))


@federation.command()
def run(
    study: Annotated[Path, typer.Argument(metavar="STUDY.toml")],
    kit: Path = Path("kits/server"),
    out: Path | None = None,
    app: Path | None = None,
    sign: Path | None = None,
) -> None:
    """Run a study over the connected sites, on the server's machine, and print its table.

    Args:
        study: A study's file.
        kit: The server's kit.
        out: Folder of the records and tables.
        app: Another Flower app than unseen's own, a folder.
        sign: Kit of the coordinator that signs the study; by default STUDY.toml.sig is taken, else
            the kit `coordinator` next to the server's signs it.
    """
    from unseen.sites.kits.kit import Kit
    from unseen.sites.launch import run

    folder = out or Path("results") / study.stem
    try:
        run(Kit.read(kit, "server"), study, folder, app, sign)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


@federation.command()
def train(
    study: Annotated[Path, typer.Argument(metavar="STUDY.toml")],
    kit: Path = Path("kits/server"),
    out: Path | None = None,
    method: str | None = None,
    sign: Path | None = None,
) -> None:
    """Train one model over the connected sites: the directory of `unseen train`, at every site.

    STUDY.toml is read as `unseen train` reads it. Sites approve it as the study of a model: review
    and approve with --model, or by its digest. With a blind server the model is at the sites alone,
    in models/ of each kit. The same command resumes, and hands the model to sites that were away.

    Args:
        study: A study's file.
        kit: The server's kit.
        out: The model's directory (default: models/NAME).
        method: Such as "fedprox(mu=0.1)+ga".
        sign: Kit of the coordinator that signs the study; see run.
    """
    from unseen.sites.kits.kit import Kit
    from unseen.sites.launch import train

    folder = out or Path("models") / study.stem
    try:
        train(Kit.read(kit, "server"), study, folder, method, sign)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


@federation.command()
def choose(
    study: Annotated[Path, typer.Argument(metavar="STUDY.toml")],
    kit: Path = Path("kits/server"),
    out: Path | None = None,
    recipes: str | None = None,
    groups: Annotated[int, typer.Option(min=2)] = 5,
    rates: str = "0.2,1,5",
    seeds: Annotated[int, typer.Option(min=1)] = 1,
    sign: Path | None = None,
) -> None:
    """Say which recipe works at the next site, by the connected sites, as `unseen choose` does.

    Sites approve one study, OUT/choosing.toml: every recipe at every rate, without each group of
    sites in turn. What leaves them is what a study's training and evaluation send. Rows are not
    pooled, and no site's own model is tried elsewhere. OUT/recipe.toml is for `unseen federation
    train`. A study with a \\[tune] table is searched by `unseen federation run`.

    Args:
        study: A study's file, of which data, network, training and privacy are taken.
        kit: The server's kit.
        out: Folder of the answer (default: choices/NAME).
        recipes: Methods to choose among, such as "fedavg,glm,portfolio" (default: for the data).
        groups: Groups of sites that are left out in turn; each site by itself, if there are fewer.
        rates: Factors of the study's learning rate that are tried.
        seeds: How many.
        sign: Kit of the coordinator that signs the study; see run.
    """
    from unseen.cli.choosing import factors
    from unseen.sites.kits.kit import Kit
    from unseen.sites.launch import choose
    from unseen.studies.settings.named import split_list

    options = {"groups": groups, "rates": factors(numbers("--rates", rates))}
    folder = out or Path("choices") / study.stem
    server = Kit.read(kit, "server")
    try:
        choose(server, study, folder, split_list(recipes or ""), options, seeds, sign)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


@federation.command()
def status(
    kit: Path = Path("kits/server"),
    out: Path | None = None,
    stop: bool = False,
) -> None:
    """Who is connected, which round is being played, and the last error.

    Args:
        kit: The server's kit.
        out: What --out of run, train or choose was.
        stop: Stop the run that has not ended.
    """
    from unseen.sites import control
    from unseen.sites.kits.kit import Kit
    from unseen.sites.launch import stop as end

    server = Kit.read(kit, "server")
    if stop:
        end(server)
    else:
        control.status(server, out)


@federation.command()
def doctor(folder: Folder, study: Path | None = None, data: Path | None = None) -> None:
    """Check a kit: clock, names, port, certificates, keys, versions, message size, data.

    Ends with code 1 if something is wrong. What needs the server is skipped where it is silent.

    Args:
        folder: A folder that provision wrote.
        study: Compare the site's data with it.
        data: The site's data, before the first join.
    """
    from unseen.sites.doctor import examine
    from unseen.sites.kits.kit import Kit

    findings: Any = examine(Kit.read(folder), study, data)
    for finding in findings:
        say(finding.line())
    wrong = sum(f.state == "fault" for f in findings)
    say(f"{wrong} to put right" if wrong else "nothing is wrong")
    raise typer.Exit(1 if wrong else 0)
