"""`provision`: one folder per machine, holding what that machine needs and nothing of another."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

from jinja2 import StrictUndefined, Template

from unseen.errors import UnseenError, nearest
from unseen.federation.certificates import (
    Authority,
    new_key,
    write,
    write_he,
    write_masks,
    write_pair,
    write_site_keys,
)
from unseen.federation.kit_spec import Federation, Role, toml

#: The description from which later additions and renewals are made, among the kits.
DESCRIPTION = "federation.toml"
#: Start scripts, which work from wherever the kit was put.
SCRIPT = """\
#!/bin/sh
set -eu
kit=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
"""
SERVE = f'{SCRIPT}exec unseen federation serve "$kit" "$@"\n'
JOIN = f"""{SCRIPT}\
[ $# -ge 1 ] || {{
    echo "usage: start.sh DATA   (this site's data: a folder or a csv file)" >&2
    exit 2
}}
data=$1
shift
exec unseen federation join "$kit" --data "$data" "$@"
"""


def provision(federation: Federation, out: Path, now: datetime | None = None) -> list[Path]:
    """Write all kits into an empty folder, and return their folders.

    Args:
        federation: What the kits are for.
        out: The folder.
        now: When the certificates begin, for tests.
    """
    if out.exists() and any(out.iterdir()):
        raise UnseenError(
            f"{out} is not empty. Kits are made once, in a folder of their own.",
            remedy="Add a site by --add, make new certificates by --renew, or choose another "
            "--out.",
        )
    out.mkdir(parents=True, exist_ok=True)
    out.chmod(0o700)
    write(out / ".gitignore", b"*\n")  # kits hold private keys
    authority = Authority.make(federation.name, federation.ca_days, now)
    names = ("ca", "server", *federation.sites)
    for name in names:
        _folder(out / name, federation)
    write_pair(out / "ca" / "ca", authority.certificate, authority.key)
    write(out / "server" / "ca.crt", (out / "ca" / "ca.crt").read_bytes())
    _certify(federation, out, authority, federation.days, now)
    for name in names[1:]:
        _kit(federation, out, name)
    if federation.ckks:
        write_he(out, list(federation.sites))
    if federation.masks:
        write_masks(out, list(federation.sites))
    write(out / DESCRIPTION, federation.text().encode())
    return [out / name for name in names]


def add(out: Path, name: str, role: Role = "train") -> Federation:
    """Write a kit for one more site, and return the federation that has it.

    Args:
        out: Folder of the kits; the authority's may be elsewhere.
        name: The site's name. The server's kit gets its public key.
        role: `train` or `evaluate`.

    Note:
        Encrypted sums have one secret key for all sites, which is taken from a kit that is here.
    """
    federation = described(out)
    if name in federation.sites:
        raise UnseenError(
            f"{name!r} is a site of {federation.name} already.", remedy="--renew makes it new keys."
        )
    wider = Federation(**federation.model_dump() | {"sites": {**federation.sites, name: role}})
    wanted = {"ckks.secret": federation.ckks, "masks.public.json": federation.masks}
    shared = {
        path.name: path.read_bytes()
        for site in federation.sites
        for path in (out / site / file for file in wanted)
        if path.is_file()
    }
    if any(asked and file not in shared for file, asked in wanted.items()):
        raise UnseenError(
            f"what sites share ({', '.join(wanted)}) is in no kit under {out}.",
            remedy="Bring the kit of one site back to add another.",
        )
    _folder(out / name, wider)
    _kit(wider, out, name)
    if "ckks.secret" in shared:
        write_he(out, [name], shared["ckks.secret"])
    if "masks.public.json" in shared:
        write_masks(out, [name], json.loads(shared["masks.public.json"]))
    write(out / DESCRIPTION, wider.text().encode())
    write(out / "server" / "README.md", readme("server", wider))
    return wider


def renew(out: Path, name: str, days: int | None = None, now: datetime | None = None) -> list[Path]:
    """Make a new key and certificate of the server, or a new key pair of a site.

    Args:
        out: Folder of the kits.
        name: `server`, or a site.
        days: How long the certificate is valid; as the federation says, if None.
        now: When it begins, for tests.

    Returns:
        The files to carry over.
    """
    federation, server = described(out), out / "server"
    if name == "server":
        _certify(federation, out, Authority.read(out / "ca"), days or federation.days, now)
        return [server / "server.key", server / "server.crt"]
    if name not in federation.sites:
        raise nearest("kit", name, ("server", *federation.sites))
    write_site_keys(out / name, server, name)
    return [out / name / "site.key", out / name / "site.pub", server / "sites" / f"{name}.pub"]


def described(out: Path) -> Federation:
    """Return the federation whose kits lie in `out`."""
    if not (out / DESCRIPTION).is_file():
        raise UnseenError(
            f"{out} holds no kits ({DESCRIPTION} is missing).",
            remedy="Name the folder that `unseen federation provision` wrote, by --out.",
        )
    return Federation.read(out / DESCRIPTION)


def _folder(folder: Path, federation: Federation) -> None:
    """Make a folder that its owner alone can open, with a page about it."""
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    write(folder / "README.md", readme(folder.name, federation))


def _certify(
    federation: Federation, out: Path, authority: Authority, days: int, now: datetime | None
) -> None:
    """Write a new key of the server and its certificate."""
    key = new_key()
    certificate = authority.sign(key, federation.servers, days, now)
    write_pair(out / "server" / "server", certificate, key)


def _kit(federation: Federation, out: Path, name: str) -> None:
    """Write what every kit holds, and a site's keys, into the kit of the server or of a site."""
    folder, server = out / name, out / "server"
    kind = "server" if folder == server else "site"
    settings: dict[str, object] = {"kind": kind, "federation": federation.name}
    if folder == server:
        (server / "sites").mkdir(exist_ok=True)
        settings |= {"servers": federation.servers, "listen": federation.bind}
    else:
        write(folder / "ca.crt", (server / "ca.crt").read_bytes())
        write_site_keys(folder, server, name)
        settings |= {"name": name, "role": federation.sites[name], "servers": federation.servers}
    write(folder / "kit.toml", toml({**settings, "port": federation.port}).encode())
    write(folder / "start.sh", (SERVE if folder == server else JOIN).encode())
    (folder / "start.sh").chmod(0o755)


def readme(name: str, federation: Federation) -> bytes:
    """Return a kit's README, for people who administer machines and not models.

    Args:
        name: The kit's folder: `ca`, `server`, or a site.
        federation: What it is a kit of.
    """
    file = {"ca": "authority.md", "server": "server.md"}.get(name, "site.md")
    source = (Path(__file__).parent / "templates" / file).read_text(encoding="utf-8")
    template: Template = Template(source, undefined=StrictUndefined, keep_trailing_newline=True)
    return template.render(federation=federation, name=name).encode()
