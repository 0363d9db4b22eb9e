"""Keys and certificates: made here, written with the right modes, and never printed."""

from __future__ import annotations

import ipaddress
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

from unseen.errors import UnseenError, absent
from unseen.sites.kits.kit_spec import is_address

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric import ec, x25519
    from cryptography.x509.oid import ExtendedKeyUsageOID
except ImportError as error:
    raise absent("cryptography", "keys and certificates need", "flower") from error

#: Clocks of machines differ; a certificate is valid a little before it is made.
SKEW = timedelta(minutes=10)
#: What a key may be used for, as X.509 names it.
USAGES = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment",
    "key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
)  # fmt: skip


@dataclass(frozen=True)
class Authority:
    """What signs the server's certificate. Its key is written to the authority's own kit only."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def make(cls, name: str, begin: datetime, days: int) -> Authority:
        """Return a new authority of the federation of this name."""
        key, until = new_key(), begin + timedelta(days=days)
        extensions = (
            (x509.BasicConstraints(ca=True, path_length=0), True),
            (_usage("key_cert_sign", "crl_sign"), True),
            (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
        )
        return cls(_certificate(f"{name} federation CA", key, (begin, until), extensions), key)

    @classmethod
    def read(cls, folder: Path) -> Authority:
        """Return the authority of `kits/ca`."""
        if not (folder / "ca.key").is_file():
            remedy = "Bring the folder back from where it is kept offline, or provision again."
            raise UnseenError(f"{folder / 'ca.key'} does not exist.", remedy=remedy)
        key = s.load_pem_private_key((folder / "ca.key").read_bytes(), None)
        certificate = read_certificate(folder / "ca.crt")
        return cls(certificate, cast("ec.EllipticCurvePrivateKey", key))

    def write_server(self, kit: Path, hosts: Sequence[str], begin: datetime, days: int) -> None:
        """Write a new key of the server and its certificate, which never outlives the authority.

        This machine's loopback is added to the hosts.
        """
        key = new_key()
        until = min(begin + timedelta(days=days), self.certificate.not_valid_after_utc)
        names = map(general_name, dict.fromkeys((*hosts, "localhost", "127.0.0.1")))
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        extensions = (
            (x509.SubjectAlternativeName(names), False),
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (_usage("digital_signature"), True),
            (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
            (issuer, False),
        )
        certificate = _certificate(hosts[0][:64], key, (begin, until), extensions, self)
        write_pair(kit / "server", certificate, key)


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    period: tuple[datetime, datetime],
    extensions: Sequence[tuple[x509.ExtensionType, bool]],
    issuer: Authority | None = None,
) -> x509.Certificate:
    """A certificate of a key, signed by the issuer or by itself; extensions as (it, critical)."""
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.certificate.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(period[0] - SKEW)
        .not_valid_after(period[1])
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(issuer.key if issuer else key, hashes.SHA384())


def read_certificate(path: Path) -> x509.Certificate:
    """Return a certificate from PEM."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        what = f"{path} is not a certificate ({error})."
        raise UnseenError(what, remedy="Copy it again.") from None


def period(certificate: x509.Certificate, name: str, now: datetime) -> UnseenError | None:
    """Return why a certificate is not valid at a moment, or None."""
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > ends:
        remedy = "Make all kits again: unseen federation provision FILE.toml --out FOLDER"
        if name == "server.crt":
            again = "unseen federation provision --renew server"
            remedy = f"Make a new one with the authority's folder: {again}"
        what = f"certificate expired: {name} was valid until {ends:%Y-%m-%d %H:%M} UTC."
        return UnseenError(what, remedy=remedy)
    if now < begins:
        what = f"certificate not valid yet: {name} begins at {begins:%Y-%m-%d %H:%M} UTC"
        here = f"this machine's clock says {now:%Y-%m-%d %H:%M} UTC."
        return UnseenError(f"{what}; {here}", remedy="Set the clock.")
    return None


def covers(certificate: x509.Certificate, host: str) -> bool:
    """Return whether a certificate is for this name or address."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    return str(general_name(host).value).lower() in {str(name.value).lower() for name in names}


def _usage(*purposes: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{usage: usage in purposes for usage in USAGES})


def general_name(host: str) -> x509.GeneralName:
    """Return a host's name or address as certificates hold it."""
    if is_address(host):
        return x509.IPAddress(ipaddress.ip_address(host))
    return x509.DNSName(host)


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a private key on the curve P-384, which Flower's site authentication asks for."""
    return ec.generate_private_key(ec.SECP384R1())


def write_pair(stem: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    """Write a certificate and its private key as PEM, to `stem`.crt and `stem`.key."""
    private = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())
    write(stem.with_suffix(".key"), private, private=True)
    write(stem.with_suffix(".crt"), certificate.public_bytes(s.Encoding.PEM))


def write_site_keys(site: Path, server: Path, name: str) -> None:
    """Write a site's new key pair, as OpenSSH does.

    The site's kit gets both halves, the server's the public one.
    """
    key = new_key()
    private = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.OpenSSH, s.NoEncryption())
    public = key.public_key().public_bytes(s.Encoding.OpenSSH, s.PublicFormat.OpenSSH)
    write(site / "site.key", private, private=True)
    for path in (site / "site.pub", server / "sites" / f"{name}.pub"):
        write(path, public + f" {name}\n".encode())


def write(path: Path, content: bytes, private: bool = False) -> None:
    """Write a file whole or not at all; nobody else can open a private one at any moment."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:  # for its owner alone
        part = Path(folder) / path.name
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.chmod(0o600 if private else 0o644)
        part.replace(path)


def signature(path: Path, text: str) -> tuple[bytes, bytes]:
    """Return the public half of a site's key as PEM, and what the key signs a text with."""
    key = cast("ec.EllipticCurvePrivateKey", s.load_ssh_private_key(path.read_bytes(), None))
    return public_pem(key.public_key()), key.sign(text.encode(), ec.ECDSA(hashes.SHA256()))


def public_half(private: bytes) -> str | None:
    """Return the public half of a site's key for masks, in hexadecimal digits; None of no key."""
    try:
        key = x25519.X25519PrivateKey.from_private_bytes(private)
    except ValueError:
        return None
    return key.public_key().public_bytes_raw().hex()


def is_pair(private: bytes, public: bytes) -> bool:
    """Return whether two files of a kit are halves of one pair.

    A private key is OpenSSH or PEM, a public one OpenSSH or a certificate.
    """
    if b"CERTIFICATE" in public:
        key = s.load_pem_private_key(private, None)
        other = x509.load_pem_x509_certificate(public).public_key()
    else:
        key, other = s.load_ssh_private_key(private, None), s.load_ssh_public_key(public)
    return public_pem(key.public_key()) == public_pem(other)


def public_pem(key: Any) -> bytes:
    """Return a public key as PEM, which is how Flower sends it."""
    return bytes(key.public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo))


def registered(folder: Path) -> dict[str, bytes]:
    """Return site -> public key from the folder of the server's kit."""
    keys = {}
    for path in sorted((folder / "sites").glob("*.pub")):
        try:
            key = s.load_ssh_public_key(path.read_bytes())
        except ValueError:
            what = f"{path} is not a public key."
            raise UnseenError(what, remedy="Copy it again from the kits.") from None
        keys[path.stem] = public_pem(key)
    return keys
