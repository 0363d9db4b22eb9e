"""`run`, `choose` and `train`: start a study over the sites that are connected, and follow it."""

from __future__ import annotations

import functools
import itertools
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unseen.core.atomic import write_atomically
from unseen.errors import UnseenError
from unseen.sites.control import (
    SIGNATURE,
    STANDING,
    Control,
    Run,
    control,
    progress,
    remarks,
    standing,
)
from unseen.sites.flower import bundle
from unseen.sites.kits.closed import closed
from unseen.sites.kits.kit import Kit
from unseen.sites.process import say, until_told

if TYPE_CHECKING:
    from unseen.studies.settings.study import StudySpec

#: The study of a choice, which sites approve.
CHOOSING = "choosing.toml"
#: Seconds between looks at the file, and how many of them to one question to the server.
LOOK, RARELY = 0.5, 6
#: Seconds after which it is worth saying whom a run waits for.
LONG = 20.0
#: Seconds for which a server may answer that it failed.
FAILING = 60.0
#: Seconds within which the server notices that a run is gone whose process was killed.
GONE = 120.0


def run(
    kit: Kit, study: Path, out: Path, app: Path | None = None, person: Path | None = None
) -> None:
    """Start a study at the server of this kit and follow it to its end.

    What `out` already has is not run again: the same command resumes.
    """
    from unseen.sites.policy.approvals import federated
    from unseen.studies.settings.study import StudySpec

    path, target = file_of(study), out.expanduser().absolute()
    if app is None:
        leave_signature(kit, path, federated(StudySpec.read(path)), person, target)
    config = {"study": str(path), "out": str(target)}
    carry_out(kit, config, target, app)
    if (table := target / "table.txt").is_file():
        say(table.read_text(encoding="utf-8").rstrip())
    say(f"records: {target}")


def train(
    kit: Kit, study: Path, out: Path, method: str | None = None, person: Path | None = None
) -> None:
    """Train a study's one model over the connected sites, and hand it to all of them.

    The same command goes on where the last one ended.
    """
    from unseen.serving.directory import SPEC
    from unseen.serving.one_model import RECORDS
    from unseen.sites.asked_studies import model_study

    path, target = file_of(study), out.expanduser().absolute()
    spec, records = model_study(path, method), target / RECORDS
    leave_signature(kit, path, spec, person, records)
    config = {"study": str(path), "out": str(records), "model": str(target)}
    carry_out(kit, {**config, "method": method or ""}, records)
    say((target / "sites.txt").read_text(encoding="utf-8").rstrip())
    if (target / SPEC).is_file():
        say(f"model, card and report: {target}; every site has them, too")
    else:
        say(f"card and report: {target}; the model is at the sites alone, in models/ of each kit")


def choose(
    kit: Kit, study: Path, out: Path, recipes: Sequence[str], options: Mapping[str, Any],
    seeds: int = 1, person: Path | None = None,
) -> None:  # fmt: skip
    """Choose among recipes by the connected sites.

    `options` are groups and rates. The same command goes on where the last one ended.
    """
    from unseen.sites.asked_studies import choosing_study
    from unseen.studies.settings.named import toml

    target = out.expanduser().absolute()
    groups, rates = options["groups"], options["rates"]
    spec = choosing_study(file_of(study), recipes, groups, rates, seeds)
    records = target / "records"
    records.mkdir(parents=True, exist_ok=True)
    file = target / CHOOSING
    values = spec.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
    write_atomically(file, toml(values).encode())
    say(f"what the sites approve: {file}")
    leave_signature(kit, file, spec, person, records)
    config = {"study": str(file), "out": str(target), "choose": json.dumps(dict(options))}
    carry_out(kit, config, records)
    say((records / "table.txt").read_text(encoding="utf-8").rstrip())
    say(f"page: {target / 'choice.md'}; for unseen federation train: {target / 'recipe.toml'}")


def file_of(study: Path) -> Path:
    """Return a study's file, absolute."""
    path = study.expanduser().absolute()
    if not path.is_file():
        remedy = 'For a study by name, write a TOML file that says base = "NAME".'
        raise UnseenError(f"{study} is not a file.", remedy=remedy)
    return path


def leave_signature(
    kit: Kit, study: Path, spec: StudySpec, person: Path | None, records: Path
) -> None:
    """Put a coordinator's signature, if there is one, among a run's records; see `signature_of`."""
    records.mkdir(parents=True, exist_ok=True)
    (records / SIGNATURE).unlink(missing_ok=True)
    if (signature := signature_of(kit, study, spec, person)) is not None:
        write_atomically(records / SIGNATURE, json.dumps(signature, indent=1).encode())


def carry_out(kit: Kit, config: Mapping[str, str], target: Path, app: Path | None = None) -> None:
    """Start a run at the server and follow it to its end."""
    target.mkdir(parents=True, exist_ok=True)
    with control(kit) as link:
        await_turn(link)
        say(f"connected: {', '.join(sorted(link.online())) or 'nobody yet'}")
        (target / STANDING).unlink(missing_ok=True)
        with closed():
            folder = app.absolute() if app is not None else bundle.write(kit.state / "app")
        number = link.start(folder, config)
        say(f"run {number} of {Path(config['study']).name}; records: {target}")
        try:
            with until_told():
                ended = follow(link, number, target)
        except KeyboardInterrupt:
            link.stop(number)
            say("Stopped. Run the same command to resume from the last finished round.")
            raise
    if not ended.state.endswith("completed"):
        error = str(standing(target).get("error") or ended.details or "see the server's log")
        what = f"the run ended as {ended.state}: {error.rstrip('.')}. Log: {kit.log}."
        again = "run the same command to resume from the last finished round"
        raise UnseenError(what, remedy=f"When the cause is gone, {again}.")


def signature_of(
    kit: Kit, study: Path, spec: StudySpec, person: Path | None
) -> Mapping[str, Any] | None:
    """Return a coordinator's signature under a study, without which sites do not run it.

    `person` is the kit of the coordinator that signs it now; by default that of the name
    `coordinator` next to the server's, if it is on this machine and no signature lies beside the
    file.
    """
    from unseen.sites.kits.signatures import SUFFIX, check_study, read, sign_study
    from unseen.sites.policy.approvals import Proposal

    digest = Proposal(spec).digest
    beside = kit.folder.parent / "coordinator"
    if person is None and not (file := study.with_name(study.name + SUFFIX)).is_file():
        if not (beside / "person.key").is_file():
            say("no coordinator has signed this study: sites whose rules ask for it refuse it.")
            return None
        person = beside
    if person is not None:
        return sign_study(person.expanduser().absolute(), digest)
    signature = read(file)
    try:
        check_study(kit.folder, signature, digest, kit.federation)
    except UnseenError as error:
        again = f"Sign it again: unseen federation sign {study} --kit KIT"
        raise UnseenError(f"{file}: {error.what}", remedy=again) from None
    return signature


def await_turn(link: Control) -> None:
    """Wait until the SuperLink lists no active run.

    After a crash it keeps listing the old run until the run's heartbeat times out.
    """
    end, once = time.monotonic() + GONE, functools.cache(say)
    while busy := link.running():
        if time.monotonic() > end:
            remedy = "`unseen federation status` shows it; --stop ends it."
            raise UnseenError(f"run {busy[0]} has not ended: one at a time.", remedy=remedy)
        once(f"run {busy[0]} has not ended; if it was killed the server finds out in a minute")
        time.sleep(LOOK)


def follow(link: Control, number: int, out: Path) -> Run:
    """Say what changes until a run ends, and return how it ended."""
    last, before, since = "", "", time.monotonic()
    noted: list[str] = []
    for look in itertools.count():
        news = standing(out)
        ended = {"error": ""} if news.get("ended") else {}  # which is said with the run's end
        line, waiting = progress({**news, **ended}), str(news.get("waiting", ""))
        if line and line != last:
            say(line)
            last = line
        for remark in (marks := remarks(news)):
            if remark not in noted:
                say(remark)
        noted = marks
        if waiting != before:
            before, since = waiting, time.monotonic()
        elif waiting and time.monotonic() - since > LONG:
            say(f"waiting {waiting}")
            since = float("inf")
        if look % RARELY == 0 and (state := stands(link, number)).over:
            break
        time.sleep(LOOK)
    return state


def stands(link: Control, number: int) -> Run:
    """Return how a run stands; a server that fails to say so is asked again, for a run is long."""
    import httpx

    end = time.monotonic() + FAILING
    while True:
        try:
            return link.run(number)
        except httpx.HTTPStatusError as error:
            if error.response.status_code < 500 or time.monotonic() > end:
                raise
            time.sleep(LOOK)


def stop(kit: Kit) -> None:
    """Stop the run that has not ended."""
    with control(kit) as link:
        for number in (busy := link.running()):
            link.stop(number)
            say(f"run {number} stopped")
        if not busy:
            say("nothing runs")
