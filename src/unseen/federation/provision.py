"""`provision`: one folder per machine, holding what that machine needs and nothing of another."""

from __future__ import annotations

import json
import os
import shlex
from datetime import datetime
from pathlib import Path

from unseen.errors import UnseenError, nearest
from unseen.federation import certificates
from unseen.federation.kit_spec import NAME, RESERVED, Federation, Role

#: The description from which later additions and renewals are made, among the kits.
DESCRIPTION = "federation.toml"


def provision(federation: Federation, out: Path, now: datetime | None = None) -> list[Path]:
    """Write all kits into an empty folder, and return their folders.

    Args:
        federation: What the kits are for.
        out: The folder.
        now: When the certificates begin, for tests.
    """
    certificates.needs_cryptography()
    if out.exists() and any(out.iterdir()):
        raise UnseenError(
            f"{out} is not empty. Kits are made once, in a folder of their own: add a site by "
            "--add, make new certificates by --renew, or choose another --out."
        )
    out.mkdir(parents=True, exist_ok=True)
    os.chmod(out, 0o700)
    certificates.write(out / ".gitignore", b"*\n")  # kits hold private keys
    authority = certificates.Authority.make(federation.name, federation.ca_days, now)
    certificates.write_tls_key(_folder(out, "ca") / "ca.key", authority.key)
    certificates.write_certificate(out / "ca" / "ca.crt", authority.certificate)
    certificates.write(out / "ca" / "README.md", readme("authority", federation))
    _server(federation, out, authority, now)
    for name in federation.sites:
        _site(federation, out, name)
    if federation.ckks:
        certificates.write_he(out, list(federation.sites))
    if federation.masks:
        certificates.write_masks(out, list(federation.sites))
    certificates.write(out / DESCRIPTION, federation.text().encode())
    return [out / "ca", out / "server", *(out / name for name in federation.sites)]


def add(out: Path, name: str, role: Role = "train") -> Federation:
    """Write a kit for one more site, and return the federation that has it.

    The authority's key is not needed; the server gets the site's public key.

    Encrypted sums have one secret key for all sites, which is taken from a kit that is here.
    """
    certificates.needs_cryptography()
    federation = described(out)
    if not NAME.fullmatch(name) or name in RESERVED:
        raise UnseenError(
            f"{name!r} cannot name a site: lower-case letters, digits and dashes, and neither of "
            f"{', '.join(RESERVED)}."
        )
    if name in federation.sites:
        raise UnseenError(
            f"{name!r} is a site of {federation.name} already; --renew makes it new keys."
        )
    holders = [out / n for n in federation.sites]
    secret = next((k for k in holders if (k / "ckks.secret").is_file()), None)
    public = next((k for k in holders if (k / "masks.public.json").is_file()), None)
    if (federation.ckks and secret is None) or (federation.masks and public is None):
        raise UnseenError(
            f"what sites share (ckks.secret, masks.public.json) is in no kit under {out}: bring "
            "the kit of one site back to add another."
        )
    wider = federation.model_copy(update={"sites": {**federation.sites, name: role}})
    _site(wider, out, name)
    if secret is not None:
        certificates.write_he(out, [name], (secret / "ckks.secret").read_bytes())
    if public is not None:
        certificates.write_masks(
            out, [name], json.loads((public / "masks.public.json").read_bytes())
        )
    certificates.write(out / DESCRIPTION, wider.text().encode())
    certificates.write(out / "server" / "README.md", readme("server", wider))
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
    certificates.needs_cryptography()
    federation = described(out)
    if name != "server" and name not in federation.sites:
        raise nearest("kit", name, ("server", *federation.sites))
    if name == "server":
        authority = certificates.Authority.read(out / "ca")
        chosen = federation if days is None else federation.model_copy(update={"days": days})
        _certify(chosen, out, authority, now)
        return [out / "server" / "server.key", out / "server" / "server.crt"]
    certificates.write_site_keys(out / name, out / "server", name)
    return [out / name / "site.key", out / name / "site.pub", out / "server/sites" / f"{name}.pub"]


def described(out: Path) -> Federation:
    """Return the federation whose kits lie in `out`."""
    if not (out / DESCRIPTION).is_file():
        raise UnseenError(
            f"{out} holds no kits ({DESCRIPTION} is missing): name the folder that "
            "`unseen federation provision` wrote, by --out."
        )
    return Federation.read(out / DESCRIPTION)


def _folder(out: Path, name: str) -> Path:
    """A kit's folder, open to its owner alone."""
    (out / name).mkdir(mode=0o700, exist_ok=True)
    os.chmod(out / name, 0o700)
    return out / name


def _certify(
    federation: Federation, out: Path, authority: certificates.Authority, now: datetime | None
) -> None:
    key = certificates.new_key()
    certificate = authority.sign(key, federation.servers, federation.days, now)
    certificates.write_tls_key(out / "server" / "server.key", key)
    certificates.write_certificate(out / "server" / "server.crt", certificate)


def _server(
    federation: Federation, out: Path, authority: certificates.Authority, now: datetime | None
) -> None:
    folder = _folder(out, "server")
    (folder / "sites").mkdir(exist_ok=True)
    certificates.write_certificate(folder / "ca.crt", authority.certificate)
    _certify(federation, out, authority, now)
    settings = {
        "kind": "server",
        "federation": federation.name,
        "servers": list(federation.servers),
        "listen": federation.bind,
        "port": federation.port,
    }
    certificates.write(folder / "kit.toml", toml(settings).encode())
    certificates.write(folder / "README.md", readme("server", federation))
    _script(folder / "start.sh", "unseen federation serve")


def _site(federation: Federation, out: Path, name: str) -> None:
    folder = _folder(out, name)
    certificates.write(folder / "ca.crt", (out / "server" / "ca.crt").read_bytes())
    certificates.write_site_keys(folder, out / "server", name)
    settings = {
        "kind": "site",
        "federation": federation.name,
        "name": name,
        "role": federation.sites[name],
        "servers": list(federation.servers),
        "port": federation.port,
    }
    certificates.write(folder / "kit.toml", toml(settings).encode())
    certificates.write(folder / "README.md", readme("site", federation, name))
    _script(
        folder / "start.sh", "unseen federation join", "this site's data: a folder or a csv file"
    )


def readme(kind: str, federation: Federation, name: str = "") -> bytes:
    """Return a kit's README, for people who administer machines and not models.

    Args:
        kind: `site`, `server` or `authority`.
        federation: What it is a kit of.
        name: The site's name.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("unseen.federation")
    environment = Environment(loader=loader, undefined=StrictUndefined, keep_trailing_newline=True)
    role = federation.sites.get(name, "")
    template = environment.get_template(f"{kind}.md")
    return template.render(federation=federation, name=name, role=role).encode()


def _script(path: Path, command: str, data: str = "") -> None:
    """A start script that works from wherever the kit was put."""
    lines = ["#!/bin/sh", "set -eu", 'kit=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)']
    if data:
        usage = shlex.quote(f"usage: start.sh DATA   ({data})")
        lines += [f"[ $# -ge 1 ] || {{ echo {usage} >&2; exit 2; }}", "data=$1", "shift"]
        lines += [f'exec {command} "$kit" --data "$data" "$@"']
    else:
        lines += [f'exec {command} "$kit" "$@"']
    certificates.write(path, ("\n".join(lines) + "\n").encode())
    path.chmod(0o755)


def toml(settings: dict[str, object]) -> str:
    """Texts, whole numbers and lists of texts in TOML's spelling."""
    return "".join(f"{key} = {_value(value)}\n" for key, value in settings.items())


def _value(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, int):
        return str(value)
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
