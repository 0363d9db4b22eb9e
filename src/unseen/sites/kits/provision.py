"""`provision`: one folder per machine, holding what that machine needs and nothing of another.

New keys for old ones, and keys that are no longer believed, are one call each: `renew`, `revoke`.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from unseen.errors import UnseenError, nearest
from unseen.sites.kits import signatures
from unseen.sites.kits.certificates import Authority, write, write_pair, write_site_keys
from unseen.sites.kits.kit import SECRETS
from unseen.sites.kits.kit_spec import Federation, Role
from unseen.sites.templates import render, source
from unseen.studies.settings.named import toml

#: The description from which later additions and renewals are made, among the kits.
DESCRIPTION = "federation.toml"
EMPTY: Mapping[str, bytes] = {}
#: Keys of sums, which all sites change together, and their files.
SUMS = {
    "ckks": ("ckks.secret", "ckks.public"), "masks": ("masks.private", "masks.public.json"),
}  # fmt: skip


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

    All sites hold the one secret key of encrypted sums: a site that works together with the server
    can read every other site's update.
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


def renew(out: Path, name: str, now: datetime | None = None) -> list[Path]:
    """Replace old keys by new ones.

    Args:
        out: Folder of the kits.
        name: `server`: a key and a certificate. A site: its key pair. `ckks` or `masks`: the keys
            of sums of all sites. A person: a key and a certificate, the old key being revoked.
        now: When it begins, for tests.

    Returns:
        The files to carry over.
    """
    federation, server, ca = described(out), out / "server", out / "ca"
    names = ("server", *federation.sites, *federation.people, *federation.channels)
    if name not in names:
        raise nearest("kit", name, names)
    if name != "masks":
        need_authority(ca)
    if name == "server":
        begin = now or datetime.now(UTC)
        Authority.read(ca).write_server(server, federation.servers, begin, federation.days)
        signatures.sign_kit(ca, server)
        return [server / "server.key", server / "server.crt", server / signatures.SIGNED]
    if name in SUMS:
        return _new_sums(out, federation, [name])
    if name in federation.people:
        lists = _revoked(out, federation, [_key(out / name / signatures.PERSON)])
        signatures.write_person(ca, out / name, federation.name, name, federation.days)
        return [out / name / signatures.PERSON_KEY, out / name / signatures.PERSON, *lists]
    lists = _revoked(out, federation, [_key(ca / signatures.MEMBERS / f"{name}.json")])
    write_site_keys(out / name, server, name)
    signatures.write_member(ca, out / name, federation.name, name)
    files = ("site.key", "site.pub", signatures.MEMBER_KEY, signatures.MEMBER)
    return [*(out / name / file for file in files), server / "sites" / f"{name}.pub", *lists]


def revoke(out: Path, name: str, now: datetime | None = None) -> list[Path]:
    """Make keys useless that may be in wrong hands.

    Args:
        out: Folder of the kits, with the authority's.
        name: `server`: whoever has its old key is believed by no site that has the new `ca.crt`. A
            site: it leaves the federation, and the others get new keys of sums. A person: what it
            signs from now on is refused.
        now: When new certificates begin, for tests.

    Returns:
        The files to carry over.

    The server's key is revoked together with the authority that signed its certificate: sites ask
    nobody whether a certificate is still believed.
    """
    federation, server, ca = described(out), out / "server", out / "ca"
    need_authority(ca)
    if name == "server":
        begin = now or datetime.now(UTC)
        authority = Authority.make(federation.name, begin, federation.ca_days)
        write_pair(ca / "ca", authority.certificate, authority.key)
        authority.write_server(server, federation.servers, begin, federation.days)
        kits = ["server", *federation.sites, *federation.people]
        copies = [out / kit / "ca.crt" for kit in kits if (out / kit).is_dir()]
        for copy in copies:
            write(copy, (ca / "ca.crt").read_bytes())
        signatures.sign_kit(ca, server)
        pair = [server / "server.key", server / "server.crt", server / signatures.SIGNED]
        return [*pair, *copies]
    if name in federation.people:
        people = {n: role for n, role in federation.people.items() if n != name}
        lists = _revoked(out, federation, [_key(out / name / signatures.PERSON)])
        _describe(out, federation, people=people)
        return lists
    if name not in federation.sites:
        raise nearest("kit", name, ("server", *federation.sites, *federation.people))
    if len(federation.sites) == 1:
        raise UnseenError(f"{name!r} is the only site of {federation.name}.")
    sites = {n: role for n, role in federation.sites.items() if n != name}
    narrower = _describe(out, federation, sites=sites)
    (server / "sites" / f"{name}.pub").unlink(missing_ok=True)
    lists = _revoked(out, narrower, [_key(ca / signatures.MEMBERS / f"{name}.json")])
    return [server / "sites", *lists, *_new_sums(out, narrower, federation.channels)]


def _key(certificate: Path) -> str:
    """The public half of the key of a person or a site."""
    return str(signatures.read(certificate)["key"])


def _revoked(out: Path, federation: Federation, keys: Sequence[str]) -> list[Path]:
    """Write the list of revoked keys into all kits that are here."""
    content = signatures.revoke(out / "ca", keys)
    kits = ["ca", "server", *federation.sites, *federation.people]
    paths = [out / kit / signatures.REVOKED for kit in kits if (out / kit).is_dir()]
    for path in paths:
        write(path, content)
    return paths[1:]


def _new_sums(out: Path, federation: Federation, channels: Sequence[str]) -> list[Path]:
    """Write new keys of sums into all kits that are here; the old ones are of no use then."""
    if not channels:
        return []
    sites = list(federation.sites)
    if missing := [site for site in sites if not (out / site).is_dir()]:
        what = f"the kits of {', '.join(missing)} are not under {out}"
        raise UnseenError(f"{what}, and all sites change these keys together.")
    write_sum_keys(out, sites, channels)
    if "ckks" in channels:
        signatures.sign_kit(out / "ca", out / "server")
    names = [file for channel in channels for file in SUMS[channel]]
    paths = [out / kit / file for kit in ("server", *sites) for file in names]
    server = [out / "server" / signatures.SIGNED] if "ckks" in channels else []
    return [*(path for path in paths if path.is_file()), *server]


def _describe(out: Path, federation: Federation, **changes: object) -> Federation:
    """Write the description of the kits with these changes."""
    after = Federation(**federation.model_dump() | changes)
    write(out / DESCRIPTION, after.text().encode())
    write(out / "server" / "README.md", readme("server", after))
    return after
