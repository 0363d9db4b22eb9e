"""New keys for old ones, and keys that are no longer believed: one call for each."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from unseen.errors import UnseenError, nearest
from unseen.privacy.signing import read
from unseen.sites.kits import signatures
from unseen.sites.kits.certificates import Authority, write, write_pair, write_site_keys
from unseen.sites.kits.kit_spec import Federation
from unseen.sites.kits.provision import (
    DESCRIPTION,
    described,
    need_authority,
    readme,
    write_sum_keys,
)

#: Keys of sums, which all sites change together, and their files.
SUMS = {
    "ckks": ("ckks.secret", "ckks.public"), "masks": ("masks.private", "masks.public.json"),
}  # fmt: skip


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

    Note:
        The server's key is revoked together with the authority that signed its certificate: sites
        ask nobody whether a certificate is still believed.
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
    return str(read(certificate)["key"])


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
