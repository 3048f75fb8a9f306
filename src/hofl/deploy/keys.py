"""The files that prove who is who, and signed answers. ``hofl certs`` makes them.

Flower checks which key signed a request, but not that the sender named in a reply is the one who
holds it. So a device signs every answer itself, with the P-384 key of its certificate, over

    the message that it answers | the header without the signature | the payload

A message has a name that no other message has (Flower's is the SHA-256 of its contents, its time
and its receiver among them): a signature fits one question to one device, once.
"""

import hashlib
import json
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from hofl.core.errors import HoflError, UploadRefused

FIELD = "signature"
"""Where the signature stands in the header of an answer."""
_ALGORITHM = ec.ECDSA(hashes.SHA384())
_PURPOSE = b"hofl answer 1"

Header = Mapping[str, Any]
Sign = Callable[[str, Header, bytes], str]
"""Message, header, payload -> signature."""


@dataclass(frozen=True)
class ServerFiles:
    """The server's folder of ``hofl certs``: ``ca.crt``, ``server.crt``, ``server.key``."""

    folder: Path

    @property
    def ca(self) -> Path:
        """The certificate that both sides trust."""
        return self._existing("ca.crt")

    @property
    def pair(self) -> tuple[Path, Path]:
        """The server's certificate and key."""
        return self._existing("server.crt"), self._existing("server.key")

    def check(self) -> None:
        """Refuse a folder that a server cannot use."""
        _ = self.ca, self.pair

    def _existing(self, name: str) -> Path:
        path = self.folder / name
        if not path.is_file():
            raise HoflError(f"no file {path}: make certificates with hofl certs.")
        return path.resolve()


@dataclass(frozen=True)
class Identity:
    """A device's folder of ``hofl certs``: ``ca.crt``, ``NAME``, ``NAME.crt``, ``NAME.key``.

    Args:
        folder: the folder; its name is NAME, unless the key is given.
        key: the private key in OpenSSH's encoding, if it is not ``folder/NAME``.
    """

    folder: Path
    key: Path | None = None

    @property
    def private_key(self) -> Path:
        """The private key in OpenSSH's encoding, which signs answers."""
        return self.key or self.folder / self.folder.resolve().name

    @property
    def name(self) -> str:
        """The name that the key is registered under."""
        return self.private_key.name

    @property
    def ca(self) -> Path:
        """The certificate that the device trusts."""
        return self.folder / "ca.crt"

    @property
    def pair(self) -> tuple[Path, Path]:
        """The device's certificate and key, for TLS."""
        return self.folder / f"{self.name}.crt", self.folder / f"{self.name}.key"

    def check(self) -> None:
        """Refuse to start without all files and a key that can sign."""
        for path in (self.private_key, self.ca, *self.pair):
            if not path.is_file():
                raise HoflError(f"no file {path}: make device keys with hofl certs.")
        signer(self.private_key)

    def client_context(self) -> ssl.SSLContext:
        """Return a context that verifies the server's name and shows this certificate."""
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=self.ca)
        context.load_cert_chain(*self.pair)
        return context

    def server_context(self) -> ssl.SSLContext:
        """Return a context for listening on the device's own loopback."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*self.pair)
        return context


def public_keys(folder: Path) -> Sequence[Path]:
    """Return the devices' public keys, ``NAME.pub``, or refuse a folder without any."""
    keys = sorted(folder.glob("*.pub"))
    if not keys:
        raise HoflError(f"{folder} holds no device keys (NAME.pub): make them with hofl certs.")
    return keys


def statement(message: str, header: Header, payload: bytes) -> bytes:
    """Return what is signed: digests of a fixed length, so that no part can pass for another."""
    unsigned = {name: value for name, value in header.items() if name != FIELD}
    text = json.dumps(unsigned, sort_keys=True).encode()
    parts = (message.encode(), text, payload)
    return _PURPOSE + b"".join(hashlib.sha256(part).digest() for part in parts)


def signer(key: Path) -> Sign:
    """Return a function that signs with a device's private key (OpenSSH)."""
    try:
        private = serialization.load_ssh_private_key(key.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise HoflError(f"cannot use the key {key}: {error}.") from None
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise HoflError(f"{key} is not an elliptic-curve key: make device keys with hofl certs.")

    def sign(message: str, header: Header, payload: bytes) -> str:
        return private.sign(statement(message, header, payload), _ALGORITHM).hex()

    return sign


class KeyRing:
    """The devices' public keys, ``NAME.pub`` in a folder. Deleting a key file revokes the device.

    Args:
        folder: None on loopback, where nobody has a key and names are not checked.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def knows(self, name: str) -> bool:
        """Return whether a device may take part."""
        return self._folder is None or name in self._files(self._folder)

    def check(self, name: str, message: str, header: Header, payload: bytes) -> None:
        """Raise :class:`UploadRefused` unless the device of this name signed this answer."""
        if self._folder is None:
            return
        try:
            public = serialization.load_ssh_public_key(self._files(self._folder)[name].read_bytes())
        except (OSError, LookupError, ValueError, UnsupportedAlgorithm):
            raise UploadRefused(f"no usable key of {name!r} is registered") from None
        signature = header.get(FIELD)
        if not isinstance(signature, str) or not isinstance(public, ec.EllipticCurvePublicKey):
            raise UploadRefused("the answer is not signed")
        try:
            public.verify(bytes.fromhex(signature), statement(message, header, payload), _ALGORITHM)
        except (InvalidSignature, ValueError):
            raise UploadRefused(f"the answer is not signed by the key of {name!r}") from None

    @staticmethod
    def _files(folder: Path) -> dict[str, Path]:
        return {path.stem: path for path in folder.glob("*.pub")}
