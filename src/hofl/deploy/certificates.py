"""A private certificate authority for one fleet, by the ``cryptography`` library.

FOLDER/ca.crt, ca.key          the authority; the key signs new devices and can stay offline
FOLDER/server.crt, server.key  the server's certificate
FOLDER/keys/NAME.pub           the devices' public keys, for ``hofl server --nodes``
FOLDER/issued/NAME.crt         every certificate of a device, to revoke them by
FOLDER/devices/NAME/           all that a device needs: ca.crt, its key, its certificate

A device has one P-384 key in two encodings: ``NAME`` (OpenSSH, for Flower's node authentication)
and ``NAME.key`` (PKCS #8, for TLS): certificate and node are one identity.
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

from hofl.core.errors import HoflError

AUTHORITY_DAYS = 3650
DAYS = 825
LOOPBACK = ("127.0.0.1", "localhost")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
_HOST = re.compile(r"(?:[*]\.)?[A-Za-z0-9_](?:[A-Za-z0-9_-]|\.(?=[A-Za-z0-9_]))*")
_CLIENT, _SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH


@dataclass(frozen=True)
class Authority:
    """A key that signs, and its certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def new(cls) -> "Authority":
        """Make an authority that may sign certificates, but no further authorities."""
        return cls._of(ec.generate_private_key(ec.SECP384R1()))

    def renewed(self) -> "Authority":
        """Return the same authority with a new certificate: it verifies what the old one does."""
        return self._of(self.key)

    @classmethod
    def _of(cls, key: ec.EllipticCurvePrivateKey) -> "Authority":
        name = _name("hofl fleet")
        usage = _key_usage(signs=True)
        certificate = (
            _builder(name, name, key.public_key(), AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(key, hashes.SHA384())
        )
        return cls(key, certificate)

    @classmethod
    def load(cls, folder: Path) -> "Authority":
        """Load the authority of a folder."""
        try:
            key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
            certificate = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
        except FileNotFoundError as error:
            raise HoflError(
                f"no file {error.filename}: give a folder of hofl certs with its authority."
            ) from None
        except (OSError, ValueError) as error:
            raise HoflError(f"cannot use the authority in {folder}: {error}.") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise HoflError(f"{folder / 'ca.key'} is not an elliptic-curve key: make a new folder.")
        return cls(key, certificate)

    def sign(
        self,
        name: str,
        key: ec.EllipticCurvePublicKey,
        hosts: Sequence[str],
        uses: Sequence[x509.ObjectIdentifier],
    ) -> bytes:
        """Return a certificate for a key, PEM."""
        builder = _builder(_name(name), self.certificate.subject, key, DAYS)
        certificate = (
            builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs=False), critical=True)
            .add_extension(self.identifier(), critical=False)
            .add_extension(x509.ExtendedKeyUsage(list(uses)), critical=False)
            .add_extension(x509.SubjectAlternativeName([_host(h) for h in hosts]), critical=False)
            .sign(self.key, hashes.SHA384())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)

    def identifier(self) -> x509.AuthorityKeyIdentifier:
        """Return what says which authority signed: all of them have the same name."""
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())

    def pem(self) -> bytes:
        """Return its certificate, PEM."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)


def make_certificates(folder: Path, hosts: Sequence[str], devices: Sequence[str]) -> list[Path]:
    """Make a new fleet, or more devices for the fleet in ``folder``; return the files written.

    Nothing is ever overwritten: when a name is taken, nothing at all is written.
    """
    fresh = not (folder / "ca.crt").exists() and not (folder / "ca.key").exists()
    authority = Authority.new() if fresh else Authority.load(folder)
    files: dict[Path, bytes] = {}
    if fresh:
        if not hosts:
            raise HoflError("a new fleet needs --host: the server's names and addresses.")
        files |= _pair(folder / "ca", authority.key, authority.pem())
        key = ec.generate_private_key(ec.SECP384R1())
        certificate = server_certificate(key.public_key(), hosts, authority)
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
    for name in devices:
        note_issued(folder, name, files[folder / "devices" / name / f"{name}.crt"])
    return list(files)


def check_name(name: str) -> None:
    """Refuse a device's name that cannot be one; names are parts of paths."""
    if not _NAME.fullmatch(name):
        raise HoflError(
            f"device name {name!r}: use up to 40 letters, digits, - and _, a letter or digit first."
        )


def note_issued(folder: Path, name: str, certificate: bytes) -> None:
    """Add a certificate to those that a device was given."""
    path = folder / "issued" / f"{name}.crt"
    earlier = path.read_bytes() if path.is_file() else b""
    replace_file(path, earlier + certificate)


def server_certificate(
    key: ec.EllipticCurvePublicKey, hosts: Sequence[str], authority: Authority
) -> bytes:
    """Return a certificate of the server, PEM; it is always reached on loopback, too."""
    return authority.sign("hofl server", key, list(dict.fromkeys([*hosts, *LOOPBACK])), [_SERVER])


def device_certificate(name: str, key: ec.EllipticCurvePublicKey, authority: Authority) -> bytes:
    """Return a certificate of a device, PEM.

    Its relay listens on its loopback, so it is a server there and nowhere else.
    """
    return authority.sign(name, key, LOOPBACK, [_CLIENT, _SERVER])


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file at once by one that only the owner can read."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    _write_new(fresh, data)
    os.replace(fresh, path)


def _device(folder: Path, name: str, authority: Authority) -> dict[Path, bytes]:
    check_name(name)
    key, home = ec.generate_private_key(ec.SECP384R1()), folder / "devices" / name
    certificate = device_certificate(name, key.public_key(), authority)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return {
        home / "ca.crt": authority.pem(),
        home / name: private,
        folder / "keys" / f"{name}.pub": public + f" {name}\n".encode(),
        **_pair(home / name, key, certificate),
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
    """Write a file that only the owner can ever read; an existing file is an error."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=10))  # clocks of devices are not exact
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
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
    if not _HOST.fullmatch(text):
        raise HoflError(
            f"host {text!r} is not a name or an address: write it as train.example.org or "
            "10.0.0.1, without a port."
        )
    return x509.DNSName(text)
