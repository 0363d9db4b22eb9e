"""The file that names a federation: its server, its sites, and how long certificates are valid."""

from __future__ import annotations

import ipaddress
import re
import tomllib
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator

from unseen.errors import UnseenError
from unseen.spec.wording import Settings, WrongSettings, sentences

Role = Literal["train", "evaluate"]
#: A name that is also a folder, a field of a certificate and a word of a command line.
NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")
#: Labels of a DNS name, or of a dotted address, which is checked apart.
HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
#: Folders of kits that do not belong to a site.
RESERVED = ("ca", "server")


class Federation(Settings):
    """A federation as `unseen federation provision` reads it.

    name: of the federation. servers: names and addresses by which sites reach the server, the one
    that kits use first; all of them are put into its certificate. port: the one TCP port of the
    server. listen: the address the server binds; by default 127.0.0.1 where all of `servers` are
    of this machine, else 0.0.0.0. days: validity of the server's certificate; ca_days: of the
    authority that signs it. sites: name -> `train` or `evaluate`. ckks: the kits get keys for
    encrypted sums.
    """

    about: ClassVar[str] = "the federation's settings cannot work"
    name: str
    servers: Annotated[tuple[str, ...], Field(min_length=1)]
    port: Annotated[int, Field(ge=1, le=65535)] = 9443
    listen: str | None = None
    days: Annotated[int, Field(ge=1, le=3650)] = 365
    ca_days: Annotated[int, Field(ge=1, le=7300)] = 3650
    sites: Annotated[dict[str, Role], Field(min_length=1)] = Field(
        description="a table of one or more sites, each name = 'train' or 'evaluate'"
    )
    ckks: bool = False
    masks: bool = False

    @field_validator("name")
    @classmethod
    def _plain(cls, value: str) -> str:
        if not NAME.fullmatch(value):
            raise ValueError("it must be lower-case letters, digits and dashes, 40 at most")
        return value

    @field_validator("servers")
    @classmethod
    def _reachable(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for host in value:
            if not is_address(host) and not HOST.fullmatch(host):
                raise ValueError(
                    f"{host!r} must be a host name or an IP address, without port or https://"
                )
        return value

    @field_validator("sites")
    @classmethod
    def _named(cls, value: dict[str, Role]) -> dict[str, Role]:
        for name in value:
            if not NAME.fullmatch(name) or name in RESERVED:
                raise ValueError(
                    f"{name!r} cannot name a site: lower-case letters, digits and dashes, 40 at "
                    f"most, and neither of {', '.join(RESERVED)}"
                )
        return value

    @property
    def host(self) -> str:
        """The server's name that kits use."""
        return self.servers[0]

    @property
    def bind(self) -> str:
        """The address that the server binds."""
        if self.listen is not None:
            return self.listen
        return "127.0.0.1" if all(map(is_local, self.servers)) else "0.0.0.0"

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return a federation from its TOML file; all that is wrong with it in one paragraph."""
        if not path.is_file():
            raise UnseenError(f"{path} is not a file; a federation is described in a TOML file.")
        try:
            return cls(**tomllib.loads(path.read_text(encoding="utf-8")))
        except tomllib.TOMLDecodeError as error:
            raise UnseenError(f"{path} is not TOML: {error}.") from None
        except WrongSettings as error:
            faults = sentences(error.faults)
            raise UnseenError(f"{path} does not describe a federation: {faults}") from None

    def text(self) -> str:
        """Return the same federation, written down for later additions and renewals."""
        lines = [f'name = "{self.name}"', f"servers = {list(self.servers)}".replace("'", '"')]
        lines += [f"port = {self.port}", f'listen = "{self.bind}"', f"days = {self.days}"]
        lines += [f"ca_days = {self.ca_days}"]
        lines += [f"{name} = true" for name in ("ckks", "masks") if getattr(self, name)]
        lines += ["", "[sites]"]
        return "\n".join([*lines, *(f'{n} = "{role}"' for n, role in self.sites.items())]) + "\n"


def is_address(host: str) -> bool:
    """Return whether it is an IP address and not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_local(host: str) -> bool:
    """Return whether the host is this machine's loopback."""
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)
