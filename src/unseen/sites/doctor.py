"""`doctor`: what is wrong with a kit on this machine, each finding with its remedy."""

from __future__ import annotations

import shutil
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from unseen.errors import UnseenError
from unseen.sites import probe
from unseen.sites.kits import kit as checks
from unseen.sites.kits.certificates import covers, is_pair, period, registered
from unseen.sites.kits.kit import CERTIFICATES, FILES, OWN, SECRETS, START, Kit
from unseen.sites.policy.site_policy import SitePolicy
from unseen.sites.process import check_port

if TYPE_CHECKING:
    from unseen.data.dataset import DataSet

#: Seconds that a site's clock may be ahead of the server's, and behind: what Flower allows.
AHEAD, BEHIND = 5.0, 305.0
#: Days before its end from which a certificate deserves a warning.
SOON = 30
#: The largest part that Flower sends at once, with its envelope.
PART = 5 * 2**20 + 2**16
#: Free space below which a server or site will soon stop, in bytes.
ROOM = 2 * 2**30


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    what: str
    state: Literal["ok", "warning", "fault", "skipped"]
    text: str
    remedy: str = ""

    @classmethod
    def of(cls, what: str, error: UnseenError | None, otherwise: str = "") -> Finding:
        """Return a fault from the error that a start of the kit would end with, if any."""
        if error is None:
            return cls(what, "ok", otherwise)
        return cls(what, "fault", error.what.rstrip("."), error.remedy)

    def line(self) -> str:
        remedy = f"  -> {self.remedy}" if self.remedy else ""
        return f"{self.state:8}{self.what}: {self.text}{remedy}"


def examine(
    kit: Kit, study: Path | None = None, data: Path | None = None, now: datetime | None = None
) -> list[Finding]:
    """Return the findings of all checks; none raises, and the network's are bounded in time.

    `data` replace those of the last start.
    """
    now = now or datetime.now(UTC)
    findings = [*_files(kit), *_permissions(kit), *_certificates(kit, now), *_pair(kit)]
    if kit.kind == "server":
        return [*findings, *_signature(kit), _sites(kit), *_network(kit, now)]
    return [*findings, *_network(kit, now), *_data(kit, study, data)]


def _files(kit: Kit) -> Iterator[Finding]:
    names = f"{', '.join(FILES[kit.kind])} of {kit.name}, {kit.federation}"
    errors: list[UnseenError | None] = [*checks.missing(kit)]
    for error in errors or [None]:
        yield Finding.of("files", error, names)
    for name in SECRETS:
        if name not in OWN[kit.kind] and (kit.folder / name).exists():
            text = f"{name} does not belong into the kit of a {kit.kind}"
            yield Finding("keys", "fault", text, f"remove {kit.folder / name} from this machine")
    free = shutil.disk_usage(kit.folder).free
    text = f"{free / 2**30:.1f} GiB are free where the kit lies"
    remedy = "make room: a full disk ends a run" if free < ROOM else ""
    yield Finding("disk", "warning" if remedy else "ok", text, remedy)


def _permissions(kit: Kit) -> Iterator[Finding]:
    exposed = checks.exposed(kit)
    yield from (Finding.of("permissions", error) for error in exposed)
    if (mode := stat.S_IMODE(kit.folder.stat().st_mode)) & 0o077:
        text = f"others may look into the kit (mode {mode:04o})"
        yield Finding("permissions", "warning", text, f"chmod 700 {kit.folder}")
    elif not exposed:
        keys = [name for name in SECRETS if (kit.folder / name).is_file()]
        yield Finding("permissions", "ok", f"{', '.join(keys)}: for this account alone")


def _certificates(kit: Kit, now: datetime) -> Iterator[Finding]:
    read = {}
    for name in CERTIFICATES[kit.kind]:
        try:
            read[name] = certificate = kit.certificate(name)
        except UnseenError as error:
            if (kit.folder / name).is_file():  # else it is said already
                yield Finding.of("certificate", error)
            continue
        remedy = "unseen federation provision --renew server" if name != "ca.crt" else "new kits"
        if fault := period(certificate, name, now):
            yield Finding.of("certificate", fault)
        else:
            yield _ending(name, certificate.not_valid_after_utc, now, remedy)
    if "server.crt" not in read:
        return
    for host in kit.servers:
        if not covers(read["server.crt"], host):
            remedy = "put it into `servers` of federation.toml and provision --renew server"
            yield Finding("names", "fault", f"server.crt is not for {host}", remedy)
    try:
        if "ca.crt" in read:
            read["server.crt"].verify_directly_issued_by(read["ca.crt"])
    except Exception:  # of cryptography: another authority's name, key or signature
        remedy = "copy ca.crt and server.crt from the same kits"
        yield Finding("certificate", "fault", "server.crt is not signed by ca.crt", remedy)


def _ending(name: str, ends: datetime, now: datetime, remedy: str) -> Finding:
    if (ends - now).days < SOON:
        return Finding("certificate", "warning", f"{name} ends on {ends:%Y-%m-%d}", remedy)
    return Finding("certificate", "ok", f"{name} is valid until {ends:%Y-%m-%d}")


def _pair(kit: Kit) -> Iterator[Finding]:
    if checks.missing(kit):
        return
    files = FILES[kit.kind][-2:]
    public, private = ((kit.folder / name).read_bytes() for name in files)
    try:
        if is_pair(private, public):
            yield Finding("keys", "ok", f"{' and '.join(files)} are one pair")
            yield from (Finding.of("keys", error) for error in checks.others(kit))
            return
        text = f"{' and '.join(files)} are not of one pair"
    except ValueError as error:
        text = f"a key cannot be read ({type(error).__name__})"
    yield Finding("keys", "fault", text, "copy both files again from the kits")


def _signature(kit: Kit) -> Iterator[Finding]:
    errors: list[UnseenError | None] = [*checks.unsigned(kit)]
    for error in errors or [None]:
        yield Finding.of("signature", error, "the federation's authority signed this kit as it is")


def _sites(kit: Kit) -> Finding:
    try:
        sites = registered(kit.folder)
    except UnseenError as error:
        return Finding.of("sites", error)
    if sites:
        return Finding("sites", "ok", f"let in: {', '.join(sites)}")
    return Finding("sites", "fault", "sites/ holds no public key", "copy the .pub files there")


def _network(kit: Kit, now: datetime) -> Iterator[Finding]:
    try:
        answer = probe.ask(kit)
    except (OSError, ValueError) as error:
        yield Finding("server", "skipped", f"not asked, the kit cannot be used: {error}")
        return
    if answer.trouble != "name":
        entries = socket.getaddrinfo(kit.servers[0], kit.port, type=socket.SOCK_STREAM)
        addresses = ", ".join(sorted({str(entry[4][0]) for entry in entries}))
        yield Finding("name", "ok", f"{kit.servers[0]} is {addresses}")
    if answer.trouble == "unreachable" and kit.kind == "server":
        try:
            check_port(kit.listen, kit.port, str(kit.folder / "kit.toml"))
            yield Finding("port", "ok", f"{kit.port} is free")
        except UnseenError as error:
            yield Finding.of("port", error)
        yield Finding("server", "skipped", "not running: certificate as shown, versions, size")
        return
    if answer.trouble:
        yield Finding(answer.check, "fault", answer.text, answer.remedy)
        yield Finding("server", "skipped", "clock, registration, versions, size")
        return
    yield Finding("port", "ok", f"{kit.address} answers in {answer.seconds * 1000:.0f} ms")
    if answer.certificate:
        from cryptography import x509

        ends = x509.load_der_x509_certificate(answer.certificate).not_valid_after_utc
        remedy = "the organiser renews it: unseen federation provision --renew server"
        yield _ending("the server's", ends, now, remedy)
    yield _clock(answer, now)
    if kit.kind == "site":
        recognised = f"the server knows the key of {kit.name}"
        yield Finding.of("registration", probe.unregistered(kit, answer), recognised)
    there = answer.content
    if "unseen" not in there:
        yield Finding("versions", "skipped", "the server tells them to registered sites alone")
        return
    pairs = (f"{k} {v} here, {there.get(k, '?')} there" for k, v in probe.versions().items())
    yield Finding.of("versions", probe.other_versions(answer), ", ".join(pairs))
    if there.get("registered"):
        yield _size(kit)


def _clock(answer: probe.Answer, now: datetime) -> Finding:
    ahead = now.timestamp() + answer.seconds / 2 - answer.date
    text = f"this machine is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} the server"
    if -BEHIND < ahead < AHEAD:
        return Finding("clock", "ok", text)
    limits = f"at most {AHEAD:.0f} s ahead and {BEHIND:.0f} s behind are let in"
    remedy = "set both clocks by the network (timedatectl set-ntp true)"
    return Finding("clock", "fault", f"{text}; {limits}", remedy)


def _size(kit: Kit) -> Finding:
    answer = probe.ask(kit, size=PART, timeout=60.0)
    if answer.trouble or answer.content.get("bytes") != PART:
        text = answer.text or f"{answer.content.get('bytes', 0):,} of {PART:,} bytes arrived."
        remedy = "a device between the two limits messages; 6 MiB in one piece must pass"
        return Finding("message size", "fault", text, remedy)
    rate = PART / max(answer.seconds, 1e-3) / 2**20
    return Finding("message size", "ok", f"{PART:,} bytes pass in one piece, {rate:.0f} MiB/s")


def _data(kit: Kit, study: Path | None, data: Path | None) -> Iterator[Finding]:
    settled = (kit.folder / START).is_file()
    if data is None and not settled:
        yield Finding("data", "skipped", "not named yet", "--data PATH, or join once")
        return
    if study is None:
        yield Finding("data", "skipped", "no study to compare with", "--study STUDY.toml")
        return
    from unseen.sites.flower.site import Site
    from unseen.sites.policy import preflight
    from unseen.studies.settings.study import StudySpec

    try:
        policy = SitePolicy.read(kit.folder)
        site = Site(kit.name, Path(), kit.state, kit.role, kit.folder, kit.federation, policy)
        site = Site.read(kit.folder) if settled else site
        site = site if data is None else replace(site, data=data.absolute())
        refusals, dataset = preflight.refusals(site, StudySpec.read(study))
    except UnseenError as error:
        yield Finding.of("data", error)
        return
    except OSError as error:
        yield Finding("data", "fault", f"cannot be read: {error}", "check path and rights")
        return
    for refusal in refusals:  # that figures alone do not leave ends no run
        state: Literal["warning", "fault"] = "fault" if refusal.trains else "warning"
        yield Finding("rules", state, f"{refusal.why} (rule {refusal.rule})", refusal.remedy)
    if not refusals:
        yield Finding("rules", "ok", "site.toml allows the study, with the rows that are here")
    if dataset is not None and dataset.classes is not None and not dataset.masks:
        yield _classes(dataset)


def _classes(dataset: DataSet) -> Finding:
    """How many examples of each class are here."""
    (domain,) = dataset.domains
    sizes = {name: int((domain.y == code).sum()) for code, name in enumerate(dataset.classes or ())}
    absent = [name for name, n in sizes.items() if not n]
    remedy = f"no example of {', '.join(absent)}: is that right?" if absent else ""
    if len(sizes) - len(absent) < 2:
        remedy = "check the label column; a site of one class trains towards always answering it"
    text = ", ".join(f"{name} {n}" for name, n in sizes.items())
    return Finding("classes", "warning" if remedy else "ok", text, remedy)
