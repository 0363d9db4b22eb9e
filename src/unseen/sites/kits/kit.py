"""A kit as a machine finds it: its settings, and the checks that need no network."""

from __future__ import annotations

import json
import stat
import tomllib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from unseen.errors import UnseenError
from unseen.sites.kits.certificates import period, public_half, read_certificate
from unseen.sites.kits.kit_spec import PersonRole, Role
from unseen.sites.kits.signatures import check_kit
from unseen.studies.settings.wording import Settings, WrongSettings, sentences

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

Kind = Literal["server", "site", "person"]
#: What a kit of each kind must hold; the last one is its private key.
FILES: Mapping[Kind, tuple[str, ...]] = {
    "server": ("ca.crt", "server.crt", "server.key"),
    "site": ("ca.crt", "authority.pub", "member.json", "member.key", "site.pub", "site.key"),
    "person": ("ca.crt", "person.json", "person.key"),
}
CERTIFICATES = {"server": ("ca.crt", "server.crt"), "site": ("ca.crt",), "person": ("ca.crt",)}
#: Files that their owner alone may read.
SECRETS = (
    "ca.key", "authority.key", "server.key", "site.key", "member.key", "person.key",
    "ckks.secret", "masks.private",
)  # fmt: skip
#: Of these, the ones that a kit of each kind may hold.
OWN: Mapping[Kind, tuple[str, ...]] = {
    "server": ("server.key",),
    "site": ("site.key", "member.key", "ckks.secret", "masks.private"),
    "person": ("person.key",),
}
#: Of a site's kit: its own rules, what `join` settled at the last start, and the folder of its
#: approvals and its ledger, which outlive what methods remember.
RULES, START, ACCOUNT = "site.toml", "join.toml", "account"
#: What a kit of each kind is for.
STARTS: Mapping[Kind, str] = {
    "server": "`unseen federation serve` starts it.",
    "site": "`unseen federation join` starts it.",
    "person": "`unseen federation sign` takes it.",
}
#: Settings that the kit.toml of each kind does not say.
UNSAID: Mapping[Kind, Mapping[str, str]] = {
    "server": {"name": "server", "role": "train"},
    "site": {"listen": "127.0.0.1"},
    "person": {"listen": "127.0.0.1"},
}


class Kit(Settings):
    """A folder that `provision` wrote, with what its kit.toml says.

    `servers` are the server's names and addresses, the one that is used first at the front; `name`
    is the site's or the person's, or `server`; `listen` is the address that the server binds.
    """

    about: ClassVar[str] = "kit.toml cannot be read"
    folder: Path
    kind: Kind
    federation: str
    servers: tuple[str, ...]
    port: int
    name: str
    role: Role | PersonRole
    listen: str

    @classmethod
    def read(cls, folder: str | Path, kind: Kind | None = None) -> Kit:
        """Return the kit in a folder."""
        path = Path(folder).expanduser().absolute()
        file = path / "kit.toml"
        if not file.is_file():
            remedy = (
                "`unseen federation provision` writes kits: kits/server, and one for each site."
            )
            raise UnseenError(f"{path} is not a kit (kit.toml is missing).", remedy=remedy)
        try:
            settings: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
            settings = {**UNSAID.get(settings.get("kind", ""), {}), **settings}
            kit = cls(folder=path, **settings)
        except (tomllib.TOMLDecodeError, WrongSettings, TypeError) as error:
            why = sentences(error.faults) if isinstance(error, WrongSettings) else f"{error}."
            raise UnseenError(f"{file} cannot be read: {why}", remedy="Copy it again.") from None
        if kind is not None and kit.kind != kind:
            raise UnseenError(f"{path} is the kit of a {kit.kind}.", remedy=STARTS[kit.kind])
        if set(" \"'\\") & set(str(path)):
            what = "the path of a kit must not contain spaces, quotes or backslashes"
            raise UnseenError(f"{what}: {path}.", remedy="Move the kit.")
        return kit

    @property
    def address(self) -> str:
        """The server as host:port."""
        return self.at(self.servers[0])

    @property
    def here(self) -> str:
        """The server as host:port, from its own machine; it may listen at every address."""
        loopback = {"0.0.0.0": "127.0.0.1", "localhost": "127.0.0.1", "::": "::1"}
        return self.at(loopback.get(self.listen, self.listen))

    def at(self, host: str) -> str:
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    @property
    def private_key(self) -> Path:
        return self.folder / FILES[self.kind][-1]

    @property
    def log(self) -> Path:
        return self.folder / "logs" / f"{self.kind}.log"

    @property
    def state(self) -> Path:
        """What must survive a restart."""
        return self.folder / "state"

    def certificate(self, name: str) -> Certificate:
        return read_certificate(self.folder / name)

    def check(self) -> None:
        """Fail early on anything the other side would reject.

        A server never starts with a kit that contains a key that could decrypt updates.
        """
        for look in (readable, missing, exposed, outdated, unsigned, others):
            for fault in look(self):
                raise fault


def missing(kit: Kit) -> list[UnseenError]:
    """Return an error for each file that is not there."""
    again = "Copy it again from the kits."
    paths = (kit.folder / name for name in FILES[kit.kind])
    return [UnseenError(f"{p} is missing.", remedy=again) for p in paths if not p.is_file()]


def exposed(kit: Kit) -> list[UnseenError]:
    """Return an error for each private key that others on this machine can read."""
    faults = []
    for path in (kit.folder / name for name in SECRETS):
        if path.is_file() and (mode := stat.S_IMODE(path.stat().st_mode)) & 0o077:
            what = f"{path} can be read by others on this machine (mode {mode:04o})."
            faults.append(UnseenError(what, remedy=f"chmod 600 {path}"))
    return faults


def readable(kit: Kit) -> Iterator[UnseenError]:
    """Yield an error for each site's secret in the kit of a server, under whatever name."""
    if kit.kind != "server":
        return
    for path in (kit.folder / "ckks.secret", kit.folder / "masks.private"):
        if path.is_file():
            what = f"{path} is a site's secret, and a server that holds it could read updates."
            remedy = "Take it away from this machine, and make new keys for all sites."
            yield UnseenError(what, remedy=remedy)
    if (public := kit.folder / "ckks.public").is_file():
        from unseen.privacy.ckks import check_public

        try:
            check_public(public.read_bytes())
        except UnseenError as error:
            yield UnseenError(f"{public}: {error.what}", remedy=error.remedy)


def others(kit: Kit) -> Iterator[UnseenError]:
    """Yield an error for each key pair of a site's kit that another site's kit was given.

    `provision` writes the site's name behind its public key, and every site's half of the masks by
    name. Nothing signs the first; the server, which knows the key by its name, is asked too.
    """
    if kit.kind != "site":
        return
    remedy = f"Copy both files again from the kit of {kit.name}."
    words = (kit.folder / "site.pub").read_bytes().split() if not missing(kit) else []
    if len(words) == 3 and (owner := words[2].decode(errors="replace")) != kit.name:
        what = f"site.pub is the key of {owner!r}, and this is the kit of {kit.name!r}."
        yield UnseenError(what, remedy=remedy)
    private, halves = (kit.folder / name for name in ("masks.private", "masks.public.json"))
    if private.is_file() and halves.is_file():
        half = public_half(private.read_bytes())
        if half is None or json.loads(halves.read_bytes()).get(kit.name) != half:
            what = f"masks.private is not the one of {kit.name!r} in masks.public.json."
            yield UnseenError(what, remedy=remedy)


def unsigned(kit: Kit) -> Iterator[UnseenError]:
    """Yield an error if a server's kit is not as the federation's authority signed it."""
    if kit.kind == "server":
        try:
            check_kit(kit.folder)
        except UnseenError as error:
            yield error


def outdated(kit: Kit) -> Iterator[UnseenError]:
    """Yield an error for each certificate of the kit that is not valid now."""
    for name in CERTIFICATES[kit.kind]:
        if fault := period(kit.certificate(name), name, datetime.now(UTC)):
            yield fault
