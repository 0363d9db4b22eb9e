"""A kit as a machine finds it: its settings, and the checks that need no network."""

from __future__ import annotations

import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from unseen.errors import UnseenError
from unseen.federation.certificates import needs_cryptography
from unseen.federation.kit_spec import is_address

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

Kind = Literal["server", "site"]
#: What a kit of each kind must hold; the last one is its private key.
FILES: Mapping[Kind, tuple[str, ...]] = {
    "server": ("ca.crt", "server.crt", "server.key"),
    "site": ("ca.crt", "site.pub", "site.key"),
}

#: Files that their owner alone may read.
SECRETS = ("ca.key", "server.key", "site.key", "ckks.secret", "masks.private")
#: Those that must never be in the kit of a server, or of a site.
FOREIGN: Mapping[Kind, tuple[str, ...]] = {
    "server": ("ca.key", "site.key", "ckks.secret", "masks.private"),
    "site": ("ca.key", "server.key"),
}


@dataclass(frozen=True)
class Kit:
    """A folder that `provision` wrote. settings: its kit.toml."""

    folder: Path
    kind: Kind
    settings: Mapping[str, Any]

    @classmethod
    def read(cls, folder: str | Path, kind: Kind | None = None) -> Kit:
        """Return the kit in a folder, if it is one and of the kind asked for."""
        needs_cryptography()
        path = Path(folder).expanduser().absolute()
        if not (path / "kit.toml").is_file():
            raise UnseenError(
                f"{path} is not a kit (kit.toml is missing).",
                remedy="`unseen federation provision` writes kits: kits/server, and one folder for "
                "each site.",
            )
        try:
            settings = tomllib.loads((path / "kit.toml").read_text(encoding="utf-8"))
            actual: Kind = settings["kind"]
            more = ("listen",) if actual == "server" else ("name", "role")
            names = ("federation", "servers", "port", *more)
            missing = [name for name in names if name not in settings]
        except (tomllib.TOMLDecodeError, KeyError) as error:
            raise UnseenError(
                f"{path / 'kit.toml'} cannot be read: {error}.", remedy="Copy it again."
            ) from None
        if missing or actual not in FILES:
            lacking = ", ".join(missing) or "its kind"
            raise UnseenError(f"{path / 'kit.toml'} lacks {lacking}.", remedy="Copy it again.")
        if kind is not None and actual != kind:
            other = "unseen federation serve" if actual == "server" else "unseen federation join"
            raise UnseenError(f"{path} is the kit of a {actual}; `{other}` starts it.")
        if any(c in str(path) for c in " \"'\\"):
            raise UnseenError(
                "the path of a kit is part of a command line and must not contain spaces, quotes "
                f"or backslashes: {path}.",
                remedy="Move the kit.",
            )
        return cls(path, actual, settings)

    @property
    def name(self) -> str:
        """The site's name, or `server`."""
        return str(self.settings.get("name", "server"))

    @property
    def federation(self) -> str:
        """The federation's name."""
        return str(self.settings["federation"])

    @property
    def host(self) -> str:
        """The server's name or address that is used first."""
        return str(self.settings["servers"][0])

    @property
    def port(self) -> int:
        """The server's port."""
        return int(self.settings["port"])

    @property
    def address(self) -> str:
        """The server as host:port."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def private_key(self) -> Path:
        """The kit's own private key."""
        return self.folder / FILES[self.kind][-1]

    @property
    def logs(self) -> Path:
        """Where logs go."""
        return self.folder / "logs"

    @property
    def state(self) -> Path:
        """What must survive a restart."""
        return self.folder / "state"

    def certificate(self, name: str) -> Certificate:
        """Return a certificate of the kit."""
        return read_certificate(self.folder / name)

    def check(self, insecure: bool = False, now: datetime | None = None) -> None:
        """Fail early on anything the other side would reject.

        A server never starts with a kit that contains a key that could decrypt updates.

        Args:
            insecure: Whether there are no certificates and no keys of sites.
            now: The time, for tests.
        """
        for fault in readable(self):
            raise fault
        if insecure:
            return
        for fault in (*missing(self), *exposed(self), *outdated(self, now)):
            raise fault


def read_certificate(path: Path) -> Certificate:
    """Return a certificate from PEM."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UnseenError(
            f"{path} is not a certificate ({error}).", remedy="Copy it again."
        ) from None


def missing(kit: Kit) -> list[UnseenError]:
    """Return an error for each file that is not there."""
    return [
        UnseenError(f"{kit.folder / name} is missing.", remedy="Copy it again from the kits.")
        for name in FILES[kit.kind]
        if not (kit.folder / name).is_file()
    ]


def exposed(kit: Kit) -> list[UnseenError]:
    """Return an error for each private key that others on this machine can read."""
    return [
        UnseenError(
            f"{path} can be read by others on this machine (mode {mode:04o}).",
            remedy=f"chmod 600 {path}",
        )
        for path in (kit.folder / name for name in SECRETS)
        if path.is_file() and (mode := stat.S_IMODE(path.stat().st_mode)) & 0o077
    ]


def readable(kit: Kit) -> list[UnseenError]:
    """Return an error for each site's secret in the kit of a server, under whatever name."""
    if kit.kind != "server":
        return []
    faults = [
        UnseenError(
            f"{path} is a site's secret, and a server that holds it could read updates.",
            remedy="Take it away from this machine, and make new keys for all sites.",
        )
        for path in (kit.folder / "ckks.secret", kit.folder / "masks.private")
        if path.is_file()
    ]
    public = kit.folder / "ckks.public"
    if public.is_file():
        from unseen.privacy.ckks import check_public

        try:
            check_public(public.read_bytes())
        except UnseenError as error:
            faults.append(UnseenError(f"{public}: {error.what}", remedy=error.remedy))
    return faults


def outdated(kit: Kit, now: datetime | None = None) -> list[UnseenError]:
    """Return an error for each certificate of the kit that is not valid now."""
    names = ("ca.crt", "server.crt") if kit.kind == "server" else ("ca.crt",)
    return [fault for name in names if (fault := period(kit.certificate(name), name, now))]


def period(certificate: Certificate, name: str, now: datetime | None = None) -> UnseenError | None:
    """Return why a certificate is not valid at this moment, or None."""
    now = now or datetime.now(UTC)
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > ends:
        one = "Make a new one with the authority's folder: unseen federation provision --renew"
        every = "Make all kits again: unseen federation provision FILE.toml --out"
        return UnseenError(
            f"certificate expired: {name} was valid until {ends:%Y-%m-%d %H:%M} UTC.",
            remedy=f"{one} server" if name.startswith("server") else f"{every} FOLDER",
        )
    if now < begins:
        return UnseenError(
            f"certificate not valid yet: {name} begins at {begins:%Y-%m-%d %H:%M} UTC, and this "
            f"machine's clock says {now:%Y-%m-%d %H:%M} UTC.",
            remedy="Set the clock.",
        )
    return None


def covers(certificate: Certificate, host: str) -> bool:
    """Return whether a certificate is for this name or address."""
    import ipaddress

    from cryptography import x509

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    if is_address(host):
        return ipaddress.ip_address(host) in names.get_values_for_type(x509.IPAddress)
    return host.lower() in [n.lower() for n in names.get_values_for_type(x509.DNSName)]


def signed_by(certificate: Certificate, authority: Certificate) -> bool:
    """Return whether the authority signed the certificate."""
    from cryptography.exceptions import InvalidSignature

    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True
