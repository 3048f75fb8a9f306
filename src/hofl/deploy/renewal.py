"""Certificates over the years: renewed before they end, revoked when a device is lost.

A renewed certificate keeps its key, so old and new ones work side by side until the old one ends:
the authority signs with the same key, the server and the devices are known by the same keys, and
nothing secret has to travel again.

FOLDER/crl.pem          certificates that are revoked; nginx refuses them
FOLDER/issued/NAME.crt  every certificate that a device was given, the latest last
"""

import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from hofl.core.errors import HoflError
from hofl.deploy.certificates import (
    Authority,
    check_name,
    device_certificate,
    note_issued,
    replace_file,
    server_certificate,
)

WARNED = timedelta(days=30)
"""How long before its end a certificate is warned of."""
LOOK_EVERY = 86400.0
"""Seconds between two warnings of the same certificate."""


def renew(folder: Path, hosts: Sequence[str], devices: Sequence[str]) -> list[Path]:
    """Renew certificates; return the files written.

    Args:
        folder: of the fleet, with ``ca.key``.
        hosts: new names of the server; without any, those of its present certificate.
        devices: renew these alone; without any, everything: authority, server, all devices.
    """
    for name in devices:
        check_name(name)
    authority = Authority.load(folder)
    files: dict[Path, bytes] = {}
    if not devices:
        authority = authority.renewed()
        files[folder / "ca.crt"] = authority.pem()
        files[folder / "server.crt"] = _renewed_server(folder, hosts, authority)
        files[folder / "crl.pem"] = _list(authority, _revoked(folder))
    elif hosts:
        raise HoflError("--host belongs to the server: leave --device out to renew everything.")
    registered = sorted(path.stem for path in (folder / "keys").glob("*.pub"))
    for name in devices or registered:
        certificate = device_certificate(name, _public_key(folder, name), authority)
        home = folder / "devices" / name
        files[home / "ca.crt"] = authority.pem()
        files[home / f"{name}.crt"] = certificate
        note_issued(folder, name, certificate)  # first: one that is not known cannot be revoked
    for path, data in files.items():
        replace_file(path, data)
    return list(files)


def revoke(folder: Path, names: Sequence[str]) -> list[Path]:
    """Revoke every certificate that these devices were given; delete their keys and folders.

    The name is then free for another key.
    """
    authority = Authority.load(folder)
    revoked = _revoked(folder)
    for name in names:
        check_name(name)
        issued = _issued(folder, name)
        if not issued:
            raise HoflError(
                f"no certificate of {name!r} is known: copy its NAME.crt to "
                f"{folder / 'issued' / name}.crt, then revoke it again."
            )
        revoked |= {each.serial_number for each in x509.load_pem_x509_certificates(issued)}
    replace_file(folder / "crl.pem", _list(authority, revoked))
    for name in names:
        (folder / "keys" / f"{name}.pub").unlink(missing_ok=True)
        if (home := folder / "devices" / name).is_dir():
            shutil.rmtree(home)
    return [folder / "crl.pem"]


class ExpiryWatch:
    """Warns once a day of certificates that end within 30 days.

    Args:
        certificates: returns the files to look at.
        advice: what to do.
        warn: called with a line for each of them.
    """

    def __init__(
        self, certificates: Callable[[], Iterable[Path]], advice: str, warn: Callable[[str], None]
    ) -> None:
        self._certificates, self._advice, self._warn = certificates, advice, warn
        self._next = 0.0

    def look(self) -> None:
        """Look, if it is time to."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + LOOK_EVERY
        now = datetime.now(UTC)
        for path in self._certificates():
            left = _end(path) - now
            if left < WARNED:
                when = "has ended" if left < timedelta() else f"ends in {left.days} days"
                self._warn(f"{path} {when}: {self._advice}")


def server_certificates(folder: Path) -> list[Path]:
    """Return what a server should watch: its own certificates and those of present devices."""
    names = sorted(path.stem for path in (folder / "keys").glob("*.pub"))
    issued = [folder / "issued" / f"{name}.crt" for name in names]
    return [folder / "ca.crt", folder / "server.crt", *(path for path in issued if path.is_file())]


def _end(path: Path) -> datetime:
    """Return when the latest certificate of a file ends; a damaged file is another's to report."""
    try:
        certificates = x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError):
        return datetime.max.replace(tzinfo=UTC)
    return max(each.not_valid_after_utc for each in certificates)


def _renewed_server(folder: Path, hosts: Sequence[str], authority: Authority) -> bytes:
    try:
        present = x509.load_pem_x509_certificate((folder / "server.crt").read_bytes())
        names = present.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound) as error:
        raise HoflError(f"cannot renew {folder / 'server.crt'}: {error}.") from None
    key = present.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise HoflError(f"{folder / 'server.crt'} is not of an elliptic-curve key: make a new one.")
    known = [str(name.value) for name in names]
    return server_certificate(key, hosts or known, authority)


def _public_key(folder: Path, name: str) -> ec.EllipticCurvePublicKey:
    path = folder / "keys" / f"{name}.pub"
    try:
        key = serialization.load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError) as error:
        raise HoflError(f"cannot renew the certificate of {name!r}: {error}.") from None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise HoflError(f"{path} is not an elliptic-curve key: make device keys with hofl certs.")
    return key


def _issued(folder: Path, name: str) -> bytes:
    """Return all known certificates of a device; fleets of earlier versions have no record."""
    places = folder / "issued" / f"{name}.crt", folder / "devices" / name / f"{name}.crt"
    return b"".join(path.read_bytes() for path in places if path.is_file())


def _revoked(folder: Path) -> set[int]:
    path = folder / "crl.pem"
    if not path.is_file():
        return set()
    try:
        return {entry.serial_number for entry in x509.load_pem_x509_crl(path.read_bytes())}
    except ValueError:  # its text is a link to a list of frequent questions
        raise HoflError(f"{path} is damaged: it lists what is revoked. Restore it.") from None


def _list(authority: Authority, serials: Iterable[int]) -> bytes:
    """Return a revocation list, PEM; it is valid as long as the authority."""
    now = datetime.now(UTC)
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.certificate.subject)
        .last_update(now - timedelta(minutes=10))
        .next_update(authority.certificate.not_valid_after_utc)
        .add_extension(authority.identifier(), critical=False)
        .add_extension(x509.CRLNumber(time.time_ns()), critical=False)
    )
    for serial in sorted(serials):
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now)
        builder = builder.add_revoked_certificate(entry.build())
    revocations = builder.sign(authority.key, hashes.SHA384())
    return revocations.public_bytes(serialization.Encoding.PEM)
