"""`provision`: one folder per machine, holding what that machine needs and nothing of another."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from unseen.errors import UnseenError
from unseen.sites.kits import signatures
from unseen.sites.kits.certificates import Authority, write, write_pair, write_site_keys
from unseen.sites.kits.kit import SECRETS
from unseen.sites.kits.kit_spec import Federation, Role
from unseen.sites.templates import render, source
from unseen.studies.settings.named import toml

#: The description from which later additions and renewals are made, among the kits.
DESCRIPTION = "federation.toml"
EMPTY: Mapping[str, bytes] = {}


def provision(federation: Federation, out: Path, now: datetime | None = None) -> list[Path]:
    """Write all kits into an empty folder, and return their folders."""
    if out.exists() and any(out.iterdir()):
        remedy = "Add a site by --add, make new certificates by --renew, or choose another --out."
        what = f"{out} is not empty. Kits are made once, in a folder of their own."
        raise UnseenError(what, remedy=remedy)
    out.mkdir(parents=True, exist_ok=True)
    out.chmod(0o700)
    write(out / ".gitignore", b"*\n")  # kits hold private keys
    begin, names = now or datetime.now(UTC), ("ca", "server", *federation.sites)
    people = tuple(federation.people)
    authority = Authority.make(federation.name, begin, federation.ca_days)
    for name in (*names, *people):
        _folder(out / name, federation)
    signatures.write_key(out / "ca", signatures.AUTHORITY_KEY, signatures.AUTHORITY)
    write_pair(out / "ca" / "ca", authority.certificate, authority.key)
    write(out / "server" / "ca.crt", (out / "ca" / "ca.crt").read_bytes())
    authority.write_server(out / "server", federation.servers, begin, federation.days)
    for name in (*names[1:], *people):
        _kit(federation, out, name)
    for name in people:
        signatures.write_person(out / "ca", out / name, federation.name, name, federation.days)
    for name in federation.sites:
        signatures.write_member(out / "ca", out / name, federation.name, name)
    write_sum_keys(out, list(federation.sites), federation.channels)
    signatures.sign_kit(out / "ca", out / "server")
    write(out / DESCRIPTION, federation.text().encode())
    return [out / name for name in (*names, *people)]


def add(out: Path, name: str, role: Role = "train") -> Federation:
    """Write a kit for one more site, and return the federation that has it.

    `out` holds the authority's folder, which signs each site's certificate.

    Note:
        Encrypted sums have one secret key for all sites, which is taken from a kit that is here.
    """
    federation = described(out)
    if name in federation.sites:
        what = f"{name!r} is a site of {federation.name} already."
        raise UnseenError(what, remedy="--renew makes it new keys.")
    need_authority(out / "ca")
    wider = Federation(**federation.model_dump() | {"sites": {**federation.sites, name: role}})
    files = {"ckks": "ckks.secret", "masks": "masks.public.json"}
    every = ("ckks.public", *files.values())
    paths = (out / kit / file for kit in ("server", *federation.sites) for file in every)
    shared = {path.name: path.read_bytes() for path in paths if path.is_file()}
    if any(files[channel] not in shared for channel in federation.channels):
        what = f"what sites share ({', '.join(files.values())}) is in no kit under {out}."
        raise UnseenError(what, remedy="Bring the kit of one site back to add another.")
    _folder(out / name, wider)
    _kit(wider, out, name)
    signatures.write_member(out / "ca", out / name, wider.name, name)
    write_sum_keys(out, [name], [c for c in files if files[c] in shared], shared)
    write(out / DESCRIPTION, wider.text().encode())
    write(out / "server" / "README.md", readme("server", wider))
    return wider


def described(out: Path) -> Federation:
    """Return the federation whose kits lie in `out`."""
    if not (out / DESCRIPTION).is_file():
        remedy = "Name the folder that `unseen federation provision` wrote, by --out."
        raise UnseenError(f"{out} holds no kits ({DESCRIPTION} is missing).", remedy=remedy)
    return Federation.read(out / DESCRIPTION)


def need_authority(ca: Path) -> None:
    """Refuse, before anything is written, what ends with a signature of the authority."""
    if missing := [n for n in (signatures.AUTHORITY_KEY, "ca.key") if not (ca / n).is_file()]:
        raise UnseenError(
            f"this is signed by the federation's authority, and {ca} has no {missing[0]}.",
            remedy="Bring the folder back from where it is kept offline; nothing has changed.",
        )


def _folder(folder: Path, federation: Federation) -> None:
    """Make a folder that its owner alone can open, with a page about it."""
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    write(folder / "README.md", readme(folder.name, federation))


def _kit(federation: Federation, out: Path, name: str) -> None:
    folder, server = out / name, out / "server"
    kind = "server" if folder == server else "site" if name in federation.sites else "person"
    settings = {"kind": kind, "federation": federation.name}
    more: dict[str, object] = {"servers": federation.servers}
    write(folder / signatures.AUTHORITY, (out / "ca" / signatures.AUTHORITY).read_bytes())
    if (revoked := out / "ca" / signatures.REVOKED).is_file():
        write(folder / signatures.REVOKED, revoked.read_bytes())
    if folder == server:
        (server / "sites").mkdir(exist_ok=True)
        more |= {"listen": federation.bind}
    else:
        write(folder / "ca.crt", (server / "ca.crt").read_bytes())
        role = {**federation.sites, **federation.people}[name]
        settings |= {"name": name, "role": role}
    if kind == "site":
        write_site_keys(folder, server, name)
    write(folder / "kit.toml", toml({**settings, **more, "port": federation.port}).encode())
    if kind == "person":
        return
    start = "serve.sh" if folder == server else "join.sh"
    write(folder / "start.sh", source(start).encode())
    (folder / "start.sh").chmod(0o755)


def write_sum_keys(
    kits: Path, sites: Sequence[str], channels: Iterable[str], shared: Mapping[str, bytes] = EMPTY
) -> None:
    """Write the keys of sums that the server cannot read, into its kit and those of sites.

    `shared` are the files that other sites have: their common secret, their public halves.

    Note:
        All sites hold the one secret key of encrypted sums: a site that works together with the
        server can read every other site's update.
    """
    from unseen.privacy import channel

    for name in channels:
        server, own = channel.read(name).keys(sites, shared)
        for kit, files in {"server": server, **own}.items():
            if kit not in ("server", *sites) and not (kits / kit).is_dir():
                continue  # a site whose kit is elsewhere
            for file, content in files.items():
                write(kits / kit / file, content, private=file in SECRETS)


def readme(name: str, federation: Federation) -> bytes:
    """Return a kit's README, for people who administer machines and not models."""
    file = {"ca": "authority.md", "server": "server.md"}.get(name, "site.md")
    file = "person.md" if name in federation.people else file
    return render(file, federation=federation, name=name).encode()
