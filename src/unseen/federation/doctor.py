"""`doctor`: what is wrong with a kit on this machine, each finding with its remedy."""

from __future__ import annotations

import socket
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from unseen.errors import UnseenError
from unseen.federation import kit as checks
from unseen.federation import probe, serve
from unseen.federation.findings import Finding
from unseen.federation.handshake import versions
from unseen.federation.kit import FILES, FOREIGN, SECRETS, Kit

#: Seconds that a site's clock may be ahead of the server's, and behind: what Flower allows.
AHEAD, BEHIND = 5.0, 305.0
#: Days before its end from which a certificate deserves a warning.
SOON = 30
#: The largest part that Flower sends at once, with its envelope.
PART = 5 * 2**20 + 2**16
#: Free space below which a server or site will soon stop, in bytes.
ROOM = 2 * 2**30


def examine(
    kit: Kit,
    study: Path | None = None,
    data: Path | None = None,
    insecure: bool = False,
    now: datetime | None = None,
) -> list[Finding]:
    """Return the findings of all checks; none raises, and the network's are bounded in time.

    Args:
        kit: What is checked.
        study: A study to compare the site's data with.
        data: The site's data, instead of those that site.toml names.
        insecure: Whether the server is asked in plaintext.
        now: The time, for tests.
    """
    now = now or datetime.now(UTC)
    findings = [*_files(kit), *_permissions(kit), *_certificates(kit, now), *_pair(kit)]
    findings += _room(kit)
    findings += _server(kit) if kit.kind == "server" else []
    findings += _network(kit, insecure, now)
    findings += _data(kit, study, data)
    return findings


def _files(kit: Kit) -> Iterator[Finding]:
    gone = checks.missing(kit)
    yield from (Finding.fault("files", error) for error in gone)
    if not gone:
        yield Finding(
            "files", "ok", f"{', '.join(FILES[kit.kind])} of {kit.name}, {kit.federation}"
        )
    for name in FOREIGN[kit.kind]:
        if (kit.folder / name).exists():
            remedy = f"remove {kit.folder / name} from this machine"
            yield Finding(
                "keys", "fault", f"{name} does not belong into the kit of a {kit.kind}", remedy
            )


def _permissions(kit: Kit) -> Iterator[Finding]:
    open_keys = checks.exposed(kit)
    yield from (Finding.fault("permissions", error) for error in open_keys)
    mode = stat.S_IMODE(kit.folder.stat().st_mode)
    if mode & 0o077:
        remedy = f"chmod 700 {kit.folder}"
        yield Finding(
            "permissions", "warning", f"others may look into the kit (mode {mode:04o})", remedy
        )
    elif not open_keys:
        keys = [name for name in SECRETS if (kit.folder / name).is_file()]
        yield Finding("permissions", "ok", f"{', '.join(keys)}: for this account alone")


def _certificates(kit: Kit, now: datetime) -> Iterator[Finding]:
    for name in ("ca.crt", "server.crt") if kit.kind == "server" else ("ca.crt",):
        try:
            certificate = kit.certificate(name)
        except UnseenError as error:
            if (kit.folder / name).is_file():  # else it is said already
                yield Finding.fault("certificate", error)
            continue
        fault, ends = checks.period(certificate, name, now), certificate.not_valid_after_utc
        if fault:
            yield Finding.fault("certificate", fault)
        elif (ends - now).days < SOON:
            renewal = (
                "unseen federation provision --renew server" if name == "server.crt" else "new kits"
            )
            yield Finding("certificate", "warning", f"{name} ends on {ends:%Y-%m-%d}", renewal)
        else:
            yield Finding("certificate", "ok", f"{name} is valid until {ends:%Y-%m-%d}")
        if name != "server.crt":
            continue
        for host in kit.settings["servers"]:
            if not checks.covers(certificate, host):
                remedy = "put it into `servers` of federation.toml and provision --renew server"
                yield Finding("names", "fault", f"server.crt is not for {host}", remedy)
        try:
            if not checks.signed_by(certificate, kit.certificate("ca.crt")):
                remedy = "copy ca.crt and server.crt from the same kits"
                yield Finding("certificate", "fault", "server.crt is not signed by ca.crt", remedy)
        except UnseenError:
            pass  # said above


def _pair(kit: Kit) -> Iterator[Finding]:
    """Whether the private key is that of the public one."""
    from cryptography.hazmat.primitives import serialization as s

    if checks.missing(kit):
        return
    remedy = "copy both files again from the kits"
    try:
        private, public = _halves(kit)
    except (ValueError, UnseenError) as error:
        yield Finding("keys", "fault", f"a key cannot be read ({type(error).__name__})", remedy)
        return
    form = (s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)
    names = " and ".join(FILES[kit.kind][1:])
    if private.public_bytes(*form) != public.public_bytes(*form):
        yield Finding("keys", "fault", f"{names} are not of one pair", remedy)
    else:
        yield Finding("keys", "ok", f"{names} are one pair")


def _halves(kit: Kit) -> tuple[Any, Any]:
    """The public key that belongs to the private one, and the one next to it."""
    from cryptography.hazmat.primitives import serialization as s

    content = kit.private_key.read_bytes()
    if kit.kind == "site":
        private = s.load_ssh_private_key(content, None)
        return private.public_key(), s.load_ssh_public_key((kit.folder / "site.pub").read_bytes())
    certified = kit.certificate("server.crt").public_key()
    return s.load_pem_private_key(content, None).public_key(), certified


def _room(kit: Kit) -> Iterator[Finding]:
    import shutil

    free = shutil.disk_usage(kit.folder).free
    text = f"{free / 2**30:.1f} GiB are free where the kit lies"
    if free < ROOM:
        yield Finding("disk", "warning", text, "make room: a full disk ends a run")
    else:
        yield Finding("disk", "ok", text)


def _server(kit: Kit) -> Iterator[Finding]:
    """Sites that are let in, and whether the port is free or ours."""
    from unseen.federation.certificates import registered

    try:
        sites = list(registered(kit.folder))
    except UnseenError as error:
        yield Finding.fault("sites", error)
        return
    if sites:
        yield Finding("sites", "ok", f"let in: {', '.join(sites)}")
    else:
        yield Finding("sites", "fault", "sites/ holds no public key", "copy the .pub files there")


def _network(kit: Kit, insecure: bool, now: datetime) -> Iterator[Finding]:
    try:
        found = socket.getaddrinfo(kit.host, kit.port, type=socket.SOCK_STREAM)
        addresses = sorted({str(entry[4][0]) for entry in found})
        yield Finding("name", "ok", f"{kit.host} is {', '.join(addresses)}")
    except socket.gaierror as error:
        text = f"{kit.host} is not known here ({error.strerror})"
        yield Finding("name", "fault", text, probe.REMEDY["name"])
        yield Finding("server", "skipped", "port, certificate, clock, registration, versions, size")
        return
    try:
        answer = probe.ask(kit, insecure)
    except (UnseenError, OSError, ValueError) as error:
        yield Finding("server", "skipped", f"not asked, the kit cannot be used: {error}")
        return
    if answer.trouble == "unreachable" and kit.kind == "server":
        yield _own_port(kit)
        yield Finding("server", "skipped", "not running: certificate as shown, versions, size")
        return
    if answer.trouble:
        kind = {"unreachable": "port", "hostname": "names", "expired": "certificate"}
        what = kind.get(answer.trouble, "certificate" if answer.trouble == "authority" else "port")
        yield Finding(what, "fault", answer.text, answer.remedy)
        yield Finding("server", "skipped", "clock, registration, versions, size")
        return
    yield Finding("port", "ok", f"{kit.address} answers in {answer.seconds * 1000:.0f} ms")
    if answer.certificate:
        yield from _shown(answer, now)
    yield _clock(answer, now)
    if kit.kind == "site" and not insecure:
        yield from _known(kit, answer)
    yield _versions(answer)
    if answer.content.get("registered"):
        yield _size(kit, insecure)


def _own_port(kit: Kit) -> Finding:
    from unseen.federation.process import check_port

    try:
        check_port(str(kit.settings["listen"]), kit.port, str(kit.folder / "kit.toml"))
    except UnseenError as error:
        return Finding.fault("port", error)
    return Finding("port", "ok", f"{kit.port} is free")


def _shown(answer: probe.Answer, now: datetime) -> Iterator[Finding]:
    from cryptography import x509

    ends = x509.load_der_x509_certificate(answer.certificate).not_valid_after_utc
    if (ends - now).days < SOON:
        remedy = "the organiser renews it: unseen federation provision --renew server"
        yield Finding("certificate", "warning", f"the server's ends on {ends:%Y-%m-%d}", remedy)
    else:
        yield Finding("certificate", "ok", f"the server's is valid until {ends:%Y-%m-%d}")


def _clock(answer: probe.Answer, now: datetime) -> Finding:
    ahead = now.timestamp() + answer.seconds / 2 - answer.date
    text = f"this machine is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} the server"
    if not -BEHIND < ahead < AHEAD:
        remedy = "set both clocks by the network (timedatectl set-ntp true)"
        limits = f"; at most {AHEAD:.0f} s ahead and {BEHIND:.0f} s behind are let in"
        return Finding("clock", "fault", text + limits, remedy)
    return Finding("clock", "ok", text)


def _known(kit: Kit, answer: probe.Answer) -> Iterator[Finding]:
    if answer.content.get("registered") is True:
        yield Finding("registration", "ok", f"the server knows the key of {kit.name}")
        return
    remedy = f"copy site.pub into the server's kit as sites/{kit.name}.pub"
    yield Finding(
        "registration", "fault", f"the server does not know the key of {kit.name}", remedy
    )


def _versions(answer: probe.Answer) -> Finding:
    here, there = versions(), answer.content
    text = ", ".join(f"{name} {v} here, {there.get(name, '?')} there" for name, v in here.items())
    fault = serve.version_mismatch(answer)
    return Finding("versions", "fault" if fault else "ok", text, fault)


def _size(kit: Kit, insecure: bool) -> Finding:
    answer = probe.ask(kit, insecure, size=PART, timeout=60.0)
    if answer.trouble or answer.content.get("bytes") != PART:
        text = answer.text or f"{answer.content.get('bytes', 0):,} of {PART:,} bytes arrived."
        remedy = "a device between the two limits messages; 6 MiB in one piece must pass"
        return Finding("message size", "fault", text, remedy)
    rate = PART / max(answer.seconds, 1e-3) / 2**20
    return Finding("message size", "ok", f"{PART:,} bytes pass in one piece, {rate:.0f} MiB/s")


def _data(kit: Kit, study: Path | None, data: Path | None) -> Iterator[Finding]:
    """The site's data against the study."""
    if kit.kind != "site":
        return
    if data is None and not (kit.folder / "site.toml").is_file():
        yield Finding("data", "skipped", "not named yet", "--data PATH, or join once")
        return
    if study is None:
        yield Finding("data", "skipped", "no study to compare with", "--study STUDY.toml")
        return
    from unseen.federation import site_data

    yield from site_data.compare(kit, study, data)
