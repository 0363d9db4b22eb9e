"""The file that names a federation: its server, its sites, and how long certificates are valid."""

import ipaddress
import re
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from unseen.errors import UnseenError
from unseen.studies.settings.named import toml
from unseen.studies.settings.wording import Settings, WrongSettings, sentences

Role = Literal["train", "evaluate"]
#: What people may do: a coordinator signs studies.
PersonRole = Literal["coordinator"]
#: A name that is also a folder, a field of a certificate and a word of a command line.
NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")
PLAIN = "lower-case letters, digits and dashes, 40 at most"
#: A DNS name: labels of 63 letters at most. One whose last label is a number is an address in
#: some spelling, such as 127.1 or 0x7f.1, which no certificate holds.
LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9])?"
HOST = re.compile(rf"(?=.{{1,253}}$)(?:{LABEL}\.)*(?!(?:\d+|0[xX][0-9a-fA-F]*)$){LABEL}")
#: Folders of kits that do not belong to a site.
RESERVED = ("ca", "server")


def _plain(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ValueError(f"it must be {PLAIN}")
    return name


def _naming(what: str) -> AfterValidator:
    """Return the check of a name that is also the name of a kit."""

    def check(name: str) -> str:
        if not NAME.fullmatch(name) or name in RESERVED:
            raise ValueError(f"{name!r} cannot name {what}: {PLAIN}, not {' or '.join(RESERVED)}")
        return name

    return AfterValidator(check)


def _reachable(host: str) -> str:
    if "%" in host:
        raise ValueError(f"{host!r} must not name an interface: %... means another one elsewhere")
    if not is_address(host) and not HOST.fullmatch(host):
        raise ValueError(f"{host!r} must be a host name or an IP address, without port or https://")
    return host


class Federation(Settings):
    """A federation as `unseen federation provision` reads it.

    Kits use the first of `servers`; all are put into the certificate.
    """

    about: ClassVar[str] = "the federation's settings cannot work"
    name: Annotated[str, AfterValidator(_plain)]
    servers: Annotated[tuple[Annotated[str, AfterValidator(_reachable)], ...], Field(min_length=1)]
    port: Annotated[int, Field(ge=1, le=65535)] = 9443
    listen: str | None = None
    days: Annotated[int, Field(ge=1, le=3650)] = 365
    ca_days: Annotated[int, Field(ge=1, le=7300)] = 3650
    sites: dict[Annotated[str, _naming("a site")], Role] = Field(
        min_length=1, description="a table of one or more sites, each name = 'train' or 'evaluate'"
    )
    people: dict[Annotated[str, _naming("a person")], PersonRole] = Field(
        default_factory=lambda: dict[str, PersonRole](coordinator="coordinator"),
        description="a table of people, each name = 'coordinator'",
    )
    ckks: bool = False
    masks: bool = False

    @model_validator(mode="after")
    def _apart(self) -> Self:
        if both := sorted({*self.sites} & {*self.people}):
            raise ValueError(f"{', '.join(both)} cannot name a site and a person")
        return self

    @property
    def bind(self) -> str:
        """The address that the server binds.

        By default it is that of this machine alone where all of `servers` are, else every address:
        `::`, which takes IPv4 too, if one of them is IPv6.
        """
        if self.listen:
            return self.listen
        if all(map(is_local, self.servers)):
            return "::1" if ":" in self.servers[0] else "127.0.0.1"
        return "::" if any(":" in host for host in self.servers) else "0.0.0.0"

    @property
    def channels(self) -> list[str]:
        """The channels whose keys the kits get."""
        return [name for name, applies in (("ckks", self.ckks), ("masks", self.masks)) if applies]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return a federation from its TOML file, or name all that is wrong with it at once."""
        if not path.is_file():
            raise UnseenError(f"{path} is not a file.", remedy="Describe a federation there.")
        try:
            return cls(**tomllib.loads(path.read_text(encoding="utf-8")))
        except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise UnseenError(f"{path} is not TOML: {error}.") from None
        except WrongSettings as error:
            faults = sentences(error.faults)
            raise UnseenError(f"{path} does not describe a federation: {faults}") from None

    def text(self) -> str:
        """Return the same federation in TOML, for later additions and renewals."""
        settings = {**self.model_dump(exclude={"sites", "people"}), "listen": self.bind}
        fields = {name: value for name, value in settings.items() if value is not False}
        return f"{toml(fields)}\n[sites]\n{toml(self.sites)}\n[people]\n{toml(self.people)}"


def is_address(host: str) -> bool:
    """Return whether the host is an IP address and not a name."""
    with suppress(ValueError):
        return bool(ipaddress.ip_address(host))
    return False


def is_local(host: str) -> bool:
    """Return whether the host is this machine's loopback."""
    if not is_address(host):
        return host == "localhost"
    address = ipaddress.ip_address(host)
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
