"""Kits: who holds which key, with which rights, and what a certificate is good for."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="keys need the extra flower")

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_key,
)
from cryptography.x509.verification import PolicyBuilder, Store
from support.kits import answering, federation, provisioned, site
from typer.testing import CliRunner

from unseen.cli.main import app
from unseen.errors import UnseenError
from unseen.sites import probe
from unseen.sites.kits import provision
from unseen.sites.kits.certificates import registered
from unseen.sites.kits.kit import Kit, period
from unseen.sites.kits.kit_spec import Federation

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def private(folder: Path) -> set[str]:
    """Files that hold a private key, by their content."""
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and b"PRIVATE KEY" in path.read_bytes()
    }


def test_every_kit_holds_its_own_private_key_alone(tmp_path: Path) -> None:
    out = provisioned(tmp_path / "kits")
    assert private(out) == {
        "ca/ca.key", "ca/authority.key", "server/server.key", "coordinator/person.key",
        "north/site.key", "south/site.key", "west/site.key",
        "north/member.key", "south/member.key", "west/member.key",
    }  # fmt: skip
    contents = [(out / name).read_bytes() for name in private(out)]
    assert len(set(contents)) == 10


def test_private_keys_are_for_their_owner_alone(tmp_path: Path) -> None:
    out = provisioned(tmp_path / "kits")
    assert {stat.S_IMODE((out / name).stat().st_mode) for name in private(out)} == {0o600}
    folders = [out, *(path for path in out.iterdir() if path.is_dir())]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}
    assert (out / "north" / "start.sh").stat().st_mode & 0o100


def test_kits_say_nothing_secret(tmp_path: Path) -> None:
    described = tmp_path / "trial.toml"
    described.write_text(federation().text())
    shown = CliRunner().invoke(
        app, ["federation", "provision", str(described), "--out", str(tmp_path / "kits")]
    )
    assert shown.exit_code == 0, shown.output
    assert "PRIVATE" not in shown.output
    secret = [
        line
        for name in private(tmp_path / "kits")
        for line in (tmp_path / "kits" / name).read_text().splitlines()[1:-1]
    ]
    others = [p for p in (tmp_path / "kits").rglob("*") if p.is_file() and p.suffix != ".key"]
    text = shown.output + "".join(path.read_text() for path in others)
    # The first line of an OpenSSH key holds format and curve, which public keys share.
    assert not [line for line in secret if len(line) > 30 and line in text]


def test_site_keys_are_pairs_on_p384_that_the_server_knows(tmp_path: Path) -> None:
    out = provisioned(tmp_path / "kits")
    known = registered(out / "server")
    assert sorted(known) == ["north", "south", "west"]
    for name in known:
        key = load_ssh_private_key((out / name / "site.key").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.name == "secp384r1"
        public = load_ssh_public_key((out / "server" / "sites" / f"{name}.pub").read_bytes())
        assert isinstance(public, ec.EllipticCurvePublicKey)
        assert public.public_numbers() == key.public_key().public_numbers()
        assert (out / name / "site.pub").read_text().split()[2] == name


def test_the_servers_certificate_verifies_for_each_of_its_names(tmp_path: Path) -> None:
    servers = ("fed.example.org", "localhost", "192.0.2.7", "::1")
    out = provisioned(tmp_path / "kits", NOW, servers=servers)
    authority = x509.load_pem_x509_certificate((out / "north" / "ca.crt").read_bytes())
    certificate = x509.load_pem_x509_certificate((out / "server" / "server.crt").read_bytes())
    key = load_pem_private_key((out / "server" / "server.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert certificate.public_key() == key.public_key()
    builder = PolicyBuilder().store(Store([authority])).time(NOW)
    builder.build_server_verifier(x509.DNSName("fed.example.org")).verify(certificate, [])
    with pytest.raises(x509.verification.VerificationError):
        builder.build_server_verifier(x509.DNSName("other.example.org")).verify(certificate, [])
    late = PolicyBuilder().store(Store([authority])).time(NOW + timedelta(days=366))
    with pytest.raises(x509.verification.VerificationError):
        late.build_server_verifier(x509.DNSName("fed.example.org")).verify(certificate, [])
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fed.example.org", "localhost"]
    addresses = [str(a) for a in names.get_values_for_type(x509.IPAddress)]
    assert addresses == ["192.0.2.7", "::1", "127.0.0.1"]


def test_a_real_handshake(tmp_path: Path) -> None:
    out = provisioned(tmp_path / "kits")
    north = site(out)
    with answering(out / "server", north.port):
        answer = probe.ask(north)
        assert answer.trouble == "" and answer.content["registered"] is True
        assert answer.certificate


def test_a_wrong_authority_is_refused_and_named(tmp_path: Path) -> None:
    out = provisioned(tmp_path / "kits")
    other = provisioned(tmp_path / "other", port=site(out).port)
    with answering(out / "server", site(out).port):
        answer = probe.ask(site(other))
    assert answer.trouble == "authority" and "wrong certificate authority" in answer.text


def test_an_expired_certificate_is_refused_on_both_sides(tmp_path: Path) -> None:
    out = provisioned(tmp_path / "kits", datetime.now(UTC) - timedelta(days=3), days=1)
    with answering(out / "server", site(out).port):
        answer = probe.ask(site(out))
    assert answer.trouble == "expired" and "certificate expired" in answer.text
    with pytest.raises(UnseenError, match="certificate expired: server.crt.*--renew server"):
        Kit.read(out / "server", "server").check()
    provision.renew(out, "server")
    Kit.read(out / "server", "server").check()
    with answering(out / "server", site(out).port):
        assert probe.ask(site(out)).trouble == ""


def test_a_name_that_the_certificate_lacks_is_refused(tmp_path: Path) -> None:
    out = provisioned(tmp_path / "kits", servers=("fed.example.org",))
    (out / "north" / "kit.toml").write_text(
        (out / "north" / "kit.toml").read_text().replace("fed.example.org", "127.0.0.2")
    )
    with answering(out / "server", site(out).port, host="127.0.0.2"):
        answer = probe.ask(site(out))
    assert answer.trouble == "hostname" and "other names" in answer.text


def test_a_server_that_speaks_plaintext_is_refused(tmp_path: Path) -> None:
    out = provisioned(tmp_path / "kits")
    north = site(out)
    with answering(out / "server", north.port, plain=True):
        answer = probe.ask(north)
        assert answer.trouble == "plaintext" and "plaintext" in answer.text


def test_what_is_no_federation(tmp_path: Path) -> None:
    with pytest.raises(UnseenError, match="cannot name a site"):
        Federation.read(written(tmp_path, 'sites = {"../x" = "train"}'))
    with pytest.raises(UnseenError, match="role|train"):
        Federation.read(written(tmp_path, 'sites = {x = "both"}'))
    with pytest.raises(UnseenError, match="without port"):
        Federation.read(written(tmp_path, 'sites = {x = "train"}', servers='["https://x:1"]'))
    with pytest.raises(UnseenError, match="not TOML"):
        Federation.read(written(tmp_path, "sites = "))
    with pytest.raises(UnseenError, match="cannot name a site"):
        Federation.read(written(tmp_path, 'sites = {server = "train"}'))


def written(folder: Path, sites: str, servers: str = '["localhost"]') -> Path:
    path = folder / "f.toml"
    path.write_text(f'name = "x"\nservers = {servers}\n{sites}\n')
    return path


def test_where_the_server_listens(tmp_path: Path) -> None:
    assert federation().bind == "127.0.0.1"
    assert federation(servers=("fed.example.org",)).bind == "0.0.0.0"
    read = Federation.read(_saved(tmp_path, federation(ca_days=20, days=7, masks=True)))
    assert (read.days, read.ca_days, read.masks, read.ckks) == (7, 20, True, False)


def _saved(folder: Path, described: Federation) -> Path:
    (folder / "saved.toml").write_text(described.text())
    return folder / "saved.toml"


def test_kits_are_never_overwritten(tmp_path: Path) -> None:
    out = provisioned(tmp_path / "kits")
    before = (out / "ca" / "ca.key").read_bytes()
    with pytest.raises(UnseenError, match="not empty"):
        provision.provision(federation(), out)
    assert (out / "ca" / "ca.key").read_bytes() == before


def test_a_site_is_added_by_the_authority(tmp_path: Path) -> None:
    out = provisioned(tmp_path / "kits")
    before = {p: p.read_bytes() for p in out.rglob("*.key")}
    provision.add(out, "east", "evaluate")
    assert sorted(registered(out / "server")) == ["east", "north", "south", "west"]
    assert provision.described(out).sites["east"] == "evaluate"
    assert site(out, "east").role == "evaluate"
    assert {p: p.read_bytes() for p in before} == before
    with pytest.raises(UnseenError, match="already"):
        provision.add(out, "east")


def test_renewing_a_site_shuts_out_its_old_key(tmp_path: Path) -> None:
    out = provisioned(tmp_path / "kits")
    before = registered(out / "server")
    provision.renew(out, "north")
    after = registered(out / "server")
    assert after["north"] != before["north"] and after["south"] == before["south"]
    with pytest.raises(UnseenError, match="did you mean 'north'"):
        provision.renew(out, "nort")


def test_a_renewed_certificate_never_outlives_the_authority(tmp_path: Path) -> None:
    out = provisioned(tmp_path / "kits", NOW, ca_days=30, days=3000)
    provision.renew(out, "server", NOW)
    server = Kit.read(out / "server")
    ends = server.certificate("server.crt").not_valid_after_utc
    assert ends == server.certificate("ca.crt").not_valid_after_utc
    assert "expired" in str(
        period(server.certificate("server.crt"), "server.crt", ends + timedelta(1))
    )


def test_keys_of_encrypted_and_masked_sums(tmp_path: Path) -> None:
    pytest.importorskip("tenseal", reason="encrypted sums need the extra he")
    pytest.importorskip("unseen.privacy.ckks")
    pytest.importorskip("unseen.privacy.masks")
    out = provisioned(tmp_path / "kits", ckks=True, masks=True)
    secret = {p.parent.name for p in out.rglob("ckks.secret")}
    assert secret == {"north", "south", "west"}
    assert len({p.read_bytes() for p in out.rglob("ckks.secret")}) == 1
    assert {p.parent.name for p in out.rglob("ckks.public")} == {"north", "server", "south", "west"}
    assert len({p.read_bytes() for p in out.rglob("masks.private")}) == 3
    for name in ("ckks.secret", "masks.private"):
        assert {stat.S_IMODE(p.stat().st_mode) for p in out.rglob(name)} == {0o600}
    provision.add(out, "east")
    assert (out / "east" / "ckks.secret").read_bytes() == (
        out / "north" / "ckks.secret"
    ).read_bytes()
    shared = {p.read_bytes() for p in out.rglob("masks.public.json")}
    assert len(shared) == 1 and b"east" in shared.pop()
    assert not list((out / "server").rglob("*.secret")) + list((out / "server").rglob("*.private"))


@pytest.mark.parametrize("way", ["--renew", "--revoke"])
def test_nothing_is_said_to_be_done_for_a_name_that_is_not_there(tmp_path: Path, way: str) -> None:
    out = provisioned(tmp_path / "kits")
    shown = CliRunner().invoke(app, ["federation", "provision", "--out", str(out), way, "nobody"])
    assert shown.exit_code and "unknown kit 'nobody'" in f"{shown.output}{shown.exception}"
    assert "carr" not in shown.output
