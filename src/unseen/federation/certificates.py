"""Keys and certificates: made here, written with the right modes, and never printed."""

from __future__ import annotations

import ipaddress
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unseen.errors import UnseenError
from unseen.federation.kit_spec import is_address

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate

#: Clocks of machines differ; a certificate is valid a little before it is made.
SKEW = timedelta(minutes=10)
NO_PRIVACY = (
    "{what} asks for keys of sums that the server cannot read, which need unseen.privacy and its "
    "libraries: pip install 'unseen[he]', or leave it out."
)


def needs_cryptography() -> None:
    """Say which extra brings what keys are made with."""
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise UnseenError(
            "keys and certificates need cryptography.", remedy="pip install 'unseen[flower]'."
        ) from None


@dataclass(frozen=True)
class Authority:
    """What signs the server's certificate. Its key is written to the authority's own kit only."""

    certificate: Certificate
    key: EllipticCurvePrivateKey

    @classmethod
    def make(cls, name: str, days: int, now: datetime | None = None) -> Authority:
        """Return a new authority for the federation `name`."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.x509.oid import NameOID

        key, begin = new_key(), now or datetime.now(UTC)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} federation CA")])
        usage = x509.KeyUsage(
            digital_signature=False, content_commitment=False, key_encipherment=False,
            data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
            encipher_only=False, decipher_only=False,
        )  # fmt: skip
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin - SKEW)
            .not_valid_after(begin + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(identifier, critical=False)
            .sign(key, hashes.SHA384())
        )
        return cls(certificate, key)

    @classmethod
    def read(cls, folder: Path) -> Authority:
        """Return the authority of `kits/ca`."""
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        if not (folder / "ca.key").is_file():
            raise UnseenError(
                f"{folder / 'ca.key'} is not here.",
                remedy="Bring the authority's folder back from where it is kept offline, or "
                "provision again.",
            )
        key = load_pem_private_key((folder / "ca.key").read_bytes(), None)
        if not isinstance(key, EllipticCurvePrivateKey):
            raise UnseenError(
                f"{folder / 'ca.key'} is not an elliptic-curve key.", remedy="Provision again."
            )
        certificate = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
        return cls(certificate, key)

    def sign(
        self,
        key: EllipticCurvePrivateKey,
        hosts: Sequence[str],
        days: int,
        now: datetime | None = None,
    ) -> Certificate:
        """A server's certificate for all its names and addresses, and this machine's loopback.

        It never outlives the authority.
        """
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

        begin = now or datetime.now(UTC)
        until = min(begin + timedelta(days=days), self.certificate.not_valid_after_utc)
        names: list[x509.GeneralName] = []
        for host in dict.fromkeys((*hosts, "localhost", "127.0.0.1")):
            if is_address(host):
                names.append(x509.IPAddress(ipaddress.ip_address(host)))
            else:
                names.append(x509.DNSName(host))
        usage = x509.KeyUsage(
            digital_signature=True, content_commitment=False, key_encipherment=False,
            data_encipherment=False, key_agreement=False, key_cert_sign=False, crl_sign=False,
            encipher_only=False, decipher_only=False,
        )  # fmt: skip
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])]))
            .issuer_name(self.certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin - SKEW)
            .not_valid_after(until)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(issuer, critical=False)
            .sign(self.key, hashes.SHA384())
        )


def new_key() -> EllipticCurvePrivateKey:
    """Return a private key on the curve P-384, which Flower's site authentication asks for."""
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP384R1())


def write_certificate(path: Path, certificate: Certificate) -> None:
    """A certificate as PEM."""
    from cryptography.hazmat.primitives.serialization import Encoding

    write(path, certificate.public_bytes(Encoding.PEM))


def write_tls_key(path: Path, key: EllipticCurvePrivateKey) -> None:
    """A private key as PEM, for its owner alone."""
    from cryptography.hazmat.primitives import serialization as s

    content = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())
    write(path, content, private=True)


def write_site_keys(site: Path, server: Path, name: str) -> None:
    """A site's key pair: the private half into its own kit, the public half there and to the
    server, both as OpenSSH writes them."""
    from cryptography.hazmat.primitives import serialization as s

    key = new_key()
    private = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.OpenSSH, s.NoEncryption())
    public = key.public_key().public_bytes(s.Encoding.OpenSSH, s.PublicFormat.OpenSSH)
    line = public + b" " + name.encode() + b"\n"
    write(site / "site.key", private, private=True)
    write(site / "site.pub", line)
    write(server / "sites" / f"{name}.pub", line)


def write_he(kits: Path, sites: Sequence[str], secret: bytes | None = None) -> bytes:
    """Keys for encrypted sums: secret and public for each site, public alone for the server.

    All sites hold the one secret key: a site that works together with the server can read every
    other site's update.

    Args:
        kits: Folder of the kits.
        sites: Who gets the keys.
        secret: The existing secret key, for a site that is added; None makes a new one.

    Returns:
        The secret key.
    """
    ckks = _privacy("ckks")
    if secret is None:
        secret, public = ckks.make_keys()
        write(kits / "server" / "ckks.public", public)
    else:
        public = (kits / "server" / "ckks.public").read_bytes()
    for name in sites:
        write(kits / name / "ckks.secret", secret, private=True)
        write(kits / name / "ckks.public", public)
    return bytes(secret)


def write_masks(kits: Path, sites: Sequence[str], known: Mapping[str, str] | None = None) -> None:
    """Write keys for masked sums: a pair for each site, and all public halves for every site.

    Args:
        kits: Folder of the kits.
        sites: Who gets a new pair.
        known: Public halves of the other sites.
    """
    masks = _privacy("masks")
    public = dict(known or {})
    for name in sites:
        private, half = masks.make_keys()
        write(kits / name / "masks.private", private, private=True)
        public[name] = half.hex()
    content = json.dumps(public, indent=2, sort_keys=True).encode() + b"\n"
    for name in public:
        if (kits / name).is_dir():
            write(kits / name / "masks.public.json", content)


def _privacy(name: str) -> Any:
    """A module of unseen.privacy, which needs more libraries."""
    try:
        return import_module(f"unseen.privacy.{name}")
    except ImportError:
        raise UnseenError(NO_PRIVACY.format(what=f"{name} = true")) from None


def write(path: Path, content: bytes, private: bool = False) -> None:
    """Write a file whole or not at all; a private one is 0600 from its first byte on."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        os.fchmod(descriptor, 0o600 if private else 0o644)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def registered(folder: Path) -> Mapping[str, bytes]:
    """Site -> public key as Flower sends it, of the server's folder of public keys."""
    from cryptography.hazmat.primitives import serialization as s

    keys = {}
    for path in sorted((folder / "sites").glob("*.pub")):
        try:
            key = s.load_ssh_public_key(path.read_bytes())
        except ValueError:
            raise UnseenError(
                f"{path} is not a public key.", remedy="Copy it again from the kits."
            ) from None
        keys[path.stem] = key.public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)
    return keys
