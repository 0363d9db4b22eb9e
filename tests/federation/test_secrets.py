"""A server does not start with what it could read the sites' updates by."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra flower")
pytest.importorskip("tenseal", reason="encrypted sums need the extra he")

from support.kits import provisioned

from unseen.errors import UnseenError
from unseen.sites.kits.kit import Kit


def refused(out: Path, words: str) -> None:
    with pytest.raises(UnseenError, match=words):
        Kit.read(out / "server").check()


def test_a_server_with_a_secret_of_the_sites_is_refused(tmp_path: Path) -> None:
    out = provisioned(tmp_path / "kits", ckks=True, masks=True)
    Kit.read(out / "server").check()
    Kit.read(out / "north").check()
    secret, private = (out / "north" / name for name in ("ckks.secret", "masks.private"))
    for path in (secret, private):
        copy = out / "server" / path.name
        copy.write_bytes(path.read_bytes())
        copy.chmod(0o600)
        refused(out, "is a site's secret")
        copy.unlink()
    public = out / "server" / "ckks.public"
    right = public.read_bytes()
    for content in (secret.read_bytes(), right + secret.read_bytes(), right[:-40]):
        public.write_bytes(content)
        refused(out, "must be the public one")
    public.write_bytes(right)
    Kit.read(out / "server").check()


def test_no_bytes_of_a_secret_are_in_the_servers_kit(tmp_path: Path) -> None:
    out = provisioned(tmp_path / "kits", ckks=True, masks=True)
    secrets = [path.read_bytes() for path in out.rglob("masks.private")]
    whole = (out / "north" / "ckks.secret").read_bytes()
    secrets += [whole[i : i + 64] for i in range(0, len(whole) - 64, 4096)]
    files = [path for path in (out / "server").rglob("*") if path.is_file()]
    assert out / "server" / "ckks.public" in files
    for path in files:
        content = path.read_bytes()
        assert not any(piece in content for piece in secrets if piece.strip(b"\0")), path
