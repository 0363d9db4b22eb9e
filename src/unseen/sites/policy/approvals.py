"""Studies as sites are asked to take part in them: which wait at a site, and which it approved."""

from __future__ import annotations

import getpass
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from unseen.core.atomic import write_atomically
from unseen.errors import UnseenError
from unseen.expression import parse
from unseen.sites.kits.closed import closed
from unseen.sites.policy.site_policy import SitePolicy
from unseen.studies.settings.study import StudySpec

FOLDER = "studies"
#: Settings that decide nothing of what a site does.
APART = {"federation", "published"}
#: Settings of a study that sites cannot follow, and why.
SIMULATED = {
    "partition": "each site has the data that it has",
    "cross_evaluation": "local models stay at their sites",
    "weights_bands": "sites take the initial weights from the server",
}
#: Columns that a table must name, with an example of each.
COLUMNS = {"domain": "hospital", "label": "died"}
#: Digits of a digest that people read.
SHORT = 12
#: More studies than that do not wait at a site: a server could fill its disk with them.
MOST = 200
#: Bytes that the settings of a study may have.
LONGEST = 2**20


def federated(study: StudySpec) -> StudySpec:
    """Return the study as a federation runs it: bad replies are left out unless it says so."""
    check_table(study)
    for setting, why in SIMULATED.items():
        if getattr(study, setting):
            raise UnseenError(f"{setting} is for simulation: {why}.", remedy="Leave it out.")
    if "on_bad_reply" in study.model_fields_set:
        return study
    return study.model_copy(update={"on_bad_reply": "drop"})


def check_table(study: StudySpec) -> None:
    """Refuse a table that does not say which columns hold its label and its site.

    One process could not read it either, and a site would find out from the server's message.
    """
    (call,) = parse(study.dataset)
    lacks = [key for key in ("domain", "label") if key not in call.arguments]
    if call.name == "table" and lacks:
        raise UnseenError(
            f"{study.dataset} does not say {' and '.join(f'{key}=...' for key in lacks)}.",
            remedy=f"Add {', '.join(f'{key}={COLUMNS[key]!r}' for key in lacks)}, by the names of "
            "columns. A site's file needs no column of the domain: without it all rows are the "
            "site's, else those in which it has the site's name.",
        )


def settings_of(study: StudySpec) -> dict[str, Any]:
    """Return the settings of a study that sites are sent, as JSON holds them."""
    return study.model_dump(mode="json", exclude=APART)


def digest_of(settings: Mapping[str, Any]) -> str:
    """Return the SHA-256 by which a study is known, of its settings as sites are sent them."""
    text = json.dumps(settings, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Proposal:
    """A study, by what a site is sent of it."""

    study: StudySpec
    signature: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def settings(self) -> dict[str, Any]:
        return settings_of(self.study)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the settings: another study, or the same one changed, has another digest."""
        return digest_of(self.settings)


@dataclass(frozen=True)
class Request:
    """A study that a site was asked to take part in.

    Settings and signature are as the server sent them. `approval` says when and by which account it
    was approved; it is empty while it waits. `run_begun` is the one run that the approval is for,
    with what its sites agreed on and the digest of the data here; empty before one began.
    """

    digest: str
    settings: Mapping[str, Any]
    since: str = ""
    approval: Mapping[str, str] = field(default_factory=dict)
    signature: Mapping[str, Any] = field(default_factory=dict)
    run_begun: Mapping[str, str] = field(default_factory=dict)

    @property
    def proposal(self) -> Proposal:
        return Proposal(StudySpec(**self.settings), self.signature)


def now() -> str:
    """Return this moment as ledgers and approvals write it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def unapproved(request: Request, policy: SitePolicy, run: str) -> str:
    """Return why a run of a study may not begin, or go on; nothing where it may.

    An approval is for one run and for `most.days` days. Where no approval is needed, the
    coordinator's signature takes its place: a second run needs a newer one.
    """
    waits, approved = policy.approval == "wait", request.approval.get("time", "")
    if waits and not approved:
        return "waits for the approval of"
    since = approved if waits else max(approved, str(request.signature.get("time", "")))
    if since and datetime.fromisoformat(since) + timedelta(policy.most.days) < datetime.now(UTC):
        return f"was approved more than {policy.most.days} days ago; it waits for the approval of"
    before, signed = request.run_begun.get("run", run), str(request.signature.get("time", ""))
    if run != before and (waits or signed <= request.run_begun["signed"]):
        again = f"began as run {before[:SHORT]}, and an approval is for one"
        return f"{again}: another waits for the approval of"
    return ""


def account() -> str:
    """Return the name of the account that this process runs for."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"


@dataclass(frozen=True)
class Approvals:
    """The folder of a site's requests, one file each."""

    folder: Path

    def path(self, digest: str) -> Path:
        return self.folder / FOLDER / f"{digest}.json"

    def request(self, digest: str) -> Request | None:
        """Return a request by its whole digest; None for one that is not here."""
        path = self.path(digest)
        try:
            return Request(**json.loads(path.read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            what = f"{path} cannot be read."
            raise UnseenError(what, remedy="Remove it; the study then waits again.") from None

    def every(self) -> list[Request]:
        """Return all requests, the newest last."""
        digests = (path.stem for path in (self.folder / FOLDER).glob("*.json"))
        requests = (self.request(digest) for digest in digests)
        return sorted((r for r in requests if r is not None), key=lambda r: (r.since, r.digest))

    def find(self, beginning: str) -> Request:
        """Return the one request whose digest begins so."""
        matches = [r for r in self.every() if beginning and r.digest.startswith(beginning)]
        if len(matches) != 1:
            listed = ", ".join(r.digest[:SHORT] for r in self.every()) or "none"
            what = f"{len(matches)} studies have a digest that begins with {beginning!r}."
            raise UnseenError(what, remedy=f"Here are: {listed}.")
        return matches[0]

    def ask(self, proposal: Proposal) -> Request:
        """Return the request of a study, which waits from now on if it is new."""
        digest, size = proposal.digest, len(json.dumps(proposal.settings))
        if size > LONGEST:
            raise UnseenError(f"the study has {size:,} bytes of settings, and {LONGEST:,} at most.")
        before = self.request(digest)
        signed = str(proposal.signature.get("time", ""))
        if before is not None and signed <= str(before.signature.get("time", "")):
            return before
        if before is None and len(list((self.folder / FOLDER).glob("*.json"))) >= MOST:
            return Request(digest, proposal.settings)
        first = before or Request(digest, proposal.settings, now())
        return self._keep(replace(first, signature=proposal.signature))

    def approve(self, request: Request) -> Request:
        """Let one run of a study begin, in the name of this account."""
        approval = {"time": now(), "by": account()}
        return self._keep(replace(request, approval=approval, run_begun={}))

    def begin(self, request: Request, run: Mapping[str, str]) -> Request:
        """Note the one run that an approval is for."""
        signed = str(request.signature.get("time", ""))
        return self._keep(replace(request, run_begun={**run, "signed": signed}))

    def withdraw(self, request: Request) -> Request:
        """Let a study wait again."""
        return self._keep(replace(request, approval={}))

    def _keep(self, request: Request) -> Request:
        path = self.path(request.digest)
        with closed():
            write_atomically(path, json.dumps(vars(request), indent=1).encode())
        return request
