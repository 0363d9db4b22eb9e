"""`unseen federation` for those who answer for a site: what it approves, and what left it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unseen.cli.federation import Folder, federation
from unseen.sites.process import say

if TYPE_CHECKING:
    from unseen.sites.flower.site import Site
    from unseen.sites.policy.approvals import Approvals, Request
    from unseen.studies.settings.study import StudySpec

__all__ = ["federation"]
Study = Annotated[str, typer.Argument(metavar="[STUDY]")]


@federation.command()
def sign(
    study: Annotated[Path, typer.Argument(metavar="STUDY.toml")],
    kit: Path = Path("kits/coordinator"),
    model: bool = False,
) -> None:
    """Sign a study as a coordinator: sites run what is signed only. Writes STUDY.toml.sig.

    Args:
        study: A study's file.
        kit: The coordinator's kit.
        model: As the study of one model, for `unseen federation train`.
    """
    import json

    from unseen.sites.kits.certificates import write
    from unseen.sites.kits.signatures import SUFFIX, sign_study
    from unseen.sites.policy.approvals import SHORT, Proposal

    digest = Proposal(_asked(study, model)).digest
    signature = sign_study(kit.expanduser().absolute(), digest)
    out = study.with_name(study.name + SUFFIX)
    write(out, json.dumps(signature, indent=1).encode())
    say(f"{out}: study {study.stem}, digest {digest[:SHORT]}, signed")


@federation.command()
def review(folder: Folder, study: Study = "", model: bool = False) -> None:
    """What a study would read at this site and send from it, before it runs.

    Without STUDY it lists the studies that this site was asked to take part in.

    Args:
        folder: The site's kit.
        study: The beginning of a study's digest, or a study's file.
        model: Read the file as the study of one model, for `unseen federation train`.
    """
    from unseen.sites.policy.approvals import SHORT
    from unseen.sites.policy.study_review import review
    from unseen.visible import visible

    approvals, site = _account(folder)
    if study:
        say("\n".join(review(site, _request(folder, study, model).proposal)))
        return
    for request in approvals.every():
        how = "approved {time} by {by}".format_map(request.approval) if request.approval else ""
        name = visible(request.settings.get("name"))
        say(f"{request.digest[:SHORT]}  {name}, asked {request.since}: {how or 'waits'}")
    if not approvals.every():
        say("no study was asked for yet")


@federation.command()
def approve(folder: Folder, study: Study = "", withdraw: bool = False, model: bool = False) -> None:
    """Let a study begin at this site. A study that is changed needs a new approval.

    Args:
        folder: The site's kit.
        study: The beginning of a study's digest, or a study's file; may be left out if one waits.
        withdraw: Take the approval back: the site answers nothing more of the study.
        model: Read the file as the study of one model, for `unseen federation train`.
    """
    from unseen.errors import UnseenError
    from unseen.sites.policy.approvals import SHORT
    from unseen.sites.policy.site_ledger import SiteLedger
    from unseen.visible import visible

    approvals, site = _account(folder)
    waiting = [r for r in approvals.every() if bool(r.approval) == withdraw]
    if not study and len(waiting) != 1:
        what = f"{len(waiting)} studies {'are approved' if withdraw else 'wait'}: name one."
        raise UnseenError(what, remedy=f"unseen federation review {folder} lists them.")
    request = _request(folder, study, model) if study else waiting[0]
    if not withdraw:
        _check(site, request.proposal.study)
    ledger = SiteLedger(site.account)
    with ledger.lock():
        after = approvals.withdraw(request) if withdraw else approvals.approve(request)
        kind = "withdrawal" if withdraw else "approval"
        ledger.append(kind=kind, study=after.digest, name=after.settings.get("name"), left=[])
    name = visible(after.settings.get("name"))
    say(f"{kind} of study {name}, digest {after.digest[:SHORT]}")


@federation.command()
def ledger(
    folder: Folder,
    verify: bool = False,
    server: list[Path] | None = None,
    last: Annotated[int, typer.Option(min=1)] = 20,
) -> None:
    """What left this site: when, for which study, in which form.

    Args:
        folder: The site's kit.
        verify: Check the chain of hashes; code 1 if it is broken.
        server: Compare with the records of a run: what --out of run, train or choose was. Give it
            once for each run, so that all answers are accounted for.
        last: How many lines are shown.
    """
    from unseen.sites.policy import ledger_check, site_ledger
    from unseen.visible import visible

    _, site = _account(folder)
    own = site_ledger.SiteLedger(site.account)
    lines = own.lines()
    for line in lines[-last:] if not verify else ():
        say(visible(_line(line)))
    if own.unfinished():
        say("the last line is unfinished, as after a power cut: it is set aside before the next")
    faults = site_ledger.check_chain(lines)
    for fault in faults:
        say(f"broken: {fault}")
    if lines and not faults:
        say(f"{len(lines)} lines, each follows from the one before; the last: {lines[-1]['hash']}")
    if server:
        differences, extra = ledger_check.against(lines, site.name, *server)
        for text in extra:
            say(f"left, and not in the server's records: {visible(text)}")
        for text in differences:
            say(f"differs: {visible(text)}")
        if not differences:
            say("the server's records say nothing of this site that is not here")
        if not extra:
            say("the server's records account for every answer that left")
        faults += differences
    if faults:
        raise typer.Exit(1)


def _line(line: object) -> str:
    """One line of a ledger as people read it."""
    assert isinstance(line, dict)
    left = ", ".join(f"{i['slot']} {i['form']} {i['bytes']:,} B" for i in line["left"])
    what = line["exchange"] if "exchange" in line else line["kind"]
    where = f" round {line['round'] + 1}" if "round" in line else ""
    rule = f" (refused by {line['rule']})" if "rule" in line else ""
    return f"{line['n']:5}  {line['time']}  {line.get('name', '')} {what}{where}: {left}{rule}"


def _account(folder: Path) -> tuple[Approvals, Site]:
    """The approvals of a site's kit, and the site."""
    from unseen.sites.flower.site import Site
    from unseen.sites.kits.kit import Kit
    from unseen.sites.policy.approvals import Approvals

    site = Site.read(Kit.read(folder, "site").folder)
    return Approvals(site.account), site


def _check(site: Site, study: StudySpec) -> None:
    """Refuse to approve what this site would refuse; say which figures would not leave."""
    from unseen.errors import UnseenError
    from unseen.sites.policy import preflight
    from unseen.visible import visible

    refusals, _ = preflight.refusals(site, study)
    if stops := [str(refusal) for refusal in refusals if refusal.trains]:
        what = f"this site would refuse the study: {visible('; '.join(stops))}."
        raise UnseenError(what, remedy=f"unseen federation review {site.kit} says all of it.")
    for refusal in refusals:
        say(f"stays here: {visible(str(refusal))}")


def _asked(study: Path, model: bool) -> StudySpec:
    """A study's file as sites are asked for it."""
    from unseen.sites.asked_studies import model_study
    from unseen.sites.policy.approvals import federated
    from unseen.studies.settings.study import StudySpec

    return model_study(study) if model else federated(StudySpec.read(study))


def _request(folder: Path, study: str, model: bool = False) -> Request:
    """The request of a digest's beginning, or of a study's file before anybody asked for it."""
    from unseen.sites.kits.signatures import SUFFIX, read
    from unseen.sites.policy.approvals import Proposal

    approvals, _ = _account(folder)
    path = Path(study)
    if path.suffix != ".toml":
        return approvals.find(study)
    beside = path.with_name(path.name + SUFFIX)
    signature = read(beside) if beside.is_file() else {}
    return approvals.ask(Proposal(_asked(path, model), signature))
