"""A private certificate authority for one fleet, by the ``cryptography`` library.

FOLDER/ca.crt, ca.key          the authority; the key signs new devices and can stay offline
FOLDER/server.crt, server.key  the server's certificate
FOLDER/keys/NAME.pub           the devices' public keys, for ``hofl server --nodes``
FOLDER/devices/NAME/           all that a device needs: ca.crt, its key, its certificate

A device has one P-384 key in two encodings: ``NAME`` (OpenSSH, for Flower's node authentication)
and ``NAME.key`` (PKCS #8, for TLS). Certificate and node identity cannot be told apart.
"""

import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hofl.errors import HoflError

AUTHORITY_DAYS = 3650
DAYS = 825
LOOPBACK = ("127.0.0.1", "localhost")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
_CLIENT, _SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH


@dataclass(frozen=True)
class Authority:
    """A key that signs, and its certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def new(cls) -> "Authority":
        """A new authority, which may sign certificates but no further authorities."""
        key = ec.generate_private_key(ec.SECP384R1())
        name = _name("hofl fleet")
        usage = _key_usage(signs=True)
        certificate = (
            _builder(name, name, key, AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(key, hashes.SHA384())
        )
        return cls(key, certificate)

    @classmethod
    def load(cls, folder: Path) -> "Authority":
        """The authority of a folder."""
        try:
            key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
            certificate = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
        except (OSError, ValueError) as error:
            raise HoflError(f"cannot use the authority in {folder}: {error}.") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise HoflError(f"{folder / 'ca.key'} is no elliptic-curve key: make a new folder.")
        return cls(key, certificate)

    def sign(
        self,
        name: str,
        key: ec.EllipticCurvePrivateKey,
        hosts: Sequence[str],
        uses: Sequence[x509.ObjectIdentifier],
    ) -> bytes:
        """A certificate for a key, PEM."""
        # All authorities have one name: which of several signed is told by its key.
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        builder = _builder(_name(name), self.certificate.subject, key, DAYS)
        certificate = (
            builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs=False), critical=True)
            .add_extension(signer, critical=False)
            .add_extension(x509.ExtendedKeyUsage(list(uses)), critical=False)
            .add_extension(x509.SubjectAlternativeName([_host(h) for h in hosts]), critical=False)
            .sign(self.key, hashes.SHA384())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)


def make_certificates(folder: Path, hosts: Sequence[str], devices: Sequence[str]) -> list[Path]:
    """A new fleet, or more devices for the fleet in ``folder``; the files written.

    Nothing is ever overwritten: when a name is taken, nothing at all is written.
    """
    fresh = not (folder / "ca.crt").exists() and not (folder / "ca.key").exists()
    authority = Authority.new() if fresh else Authority.load(folder)
    files: dict[Path, bytes] = {}
    if fresh:
        if not hosts:
            raise HoflError("a new fleet needs --host: the server's names and addresses.")
        files |= _pair(folder / "ca", authority.key, _pem(authority.certificate))
        key = ec.generate_private_key(ec.SECP384R1())
        certificate = authority.sign("hofl server", key, [*hosts, *LOOPBACK], [_SERVER])
        files |= _pair(folder / "server", key, certificate)
    elif hosts:
        raise HoflError(f"{folder} has a server already: leave --host out to add devices.")
    for name in devices:
        files |= _device(folder, name, authority)
    if not files:
        raise HoflError(f"{folder} is a fleet already: give --device NAME to add a device to it.")
    taken = [path for path in files if path.exists()]
    if taken:
        raise HoflError(f"{taken[0]} exists: nothing was written. Choose another name or folder.")
    for path, data in files.items():
        _write_new(path, data)
    return list(files)


def _device(folder: Path, name: str, authority: Authority) -> dict[Path, bytes]:
    if not _NAME.fullmatch(name):
        raise HoflError(
            f"device name {name!r}: use up to 40 letters, digits, - and _, a letter or digit first."
        )
    key, own = ec.generate_private_key(ec.SECP384R1()), folder / "devices" / name
    # Its relay listens on the device's own loopback, so it is a server there and nowhere else.
    certificate = authority.sign(name, key, LOOPBACK, [_CLIENT, _SERVER])
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return {
        own / "ca.crt": _pem(authority.certificate),
        own / name: private,
        folder / "keys" / f"{name}.pub": public + f" {name}\n".encode(),
        **_pair(own / name, key, certificate),
    }


def _pair(stem: Path, key: ec.EllipticCurvePrivateKey, certificate: bytes) -> dict[Path, bytes]:
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return {
        stem.with_name(f"{stem.name}.key"): private,
        stem.with_name(f"{stem.name}.crt"): certificate,
    }


def _write_new(path: Path, data: bytes) -> None:
    """Readable by the owner alone from the first byte; an existing file is an error."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=10))  # clocks of devices are not exact
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _key_usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        pass
    try:
        return x509.DNSName(text)
    except ValueError:
        raise HoflError(f"host {text!r} is no name and no address.") from None


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
