"""Signed answers: who said this, in answer to what, by the device's own key.

Flower checks which key signed a request, but not that the sender named in a reply is the one who
holds it. So a device signs every answer itself, with the P-384 key of its certificate, over

    the message that it answers | the header without the signature | the payload

A message is named by the SHA-256 of its contents, its time and its receiver among them: a
signature fits one question to one device, once.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from hofl.errors import HoflError, UploadRefused

FIELD = "signature"
"""Where it stands in the header of an answer."""
_ALGORITHM = ec.ECDSA(hashes.SHA384())
_PURPOSE = b"hofl answer 1"

Header = Mapping[str, Any]
Sign = Callable[[str, Header, bytes], str]
"""Message, header, payload -> signature."""


def statement(message: str, header: Header, payload: bytes) -> bytes:
    """What is signed: digests of a fixed length, so that no part can pass for another."""
    said = {name: value for name, value in header.items() if name != FIELD}
    written = json.dumps(said, sort_keys=True).encode()
    parts = (message.encode(), written, payload)
    return _PURPOSE + b"".join(hashlib.sha256(part).digest() for part in parts)


def signer(key: Path) -> Sign:
    """Signs with a device's private key (OpenSSH)."""
    try:
        private = serialization.load_ssh_private_key(key.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise HoflError(f"cannot use the key {key}: {error}.") from None
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise HoflError(f"{key} is no elliptic-curve key: make device keys with hofl certs.")

    def sign(message: str, header: Header, payload: bytes) -> str:
        return private.sign(statement(message, header, payload), _ALGORITHM).hex()

    return sign


class KeyRing:
    """The devices' public keys, ``NAME.pub`` in a folder, as it is now: who is taken out is out.

    Args:
        folder: None on loopback, where nobody has a key and everybody is taken at their word.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def knows(self, name: str) -> bool:
        """Whether a device may take part."""
        return self._folder is None or name in self._files(self._folder)

    def check(self, name: str, message: str, header: Header, payload: bytes) -> None:
        """Raise :class:`UploadRefused` unless the device of this name signed this answer."""
        if self._folder is None:
            return
        try:
            public = serialization.load_ssh_public_key(self._files(self._folder)[name].read_bytes())
        except (OSError, LookupError, ValueError, UnsupportedAlgorithm):
            raise UploadRefused(f"no usable key of {name!r} is registered") from None
        said = header.get(FIELD)
        if not isinstance(said, str) or not isinstance(public, ec.EllipticCurvePublicKey):
            raise UploadRefused("the answer is not signed")
        try:
            public.verify(bytes.fromhex(said), statement(message, header, payload), _ALGORITHM)
        except (InvalidSignature, ValueError):
            raise UploadRefused(f"the answer is not signed by the key of {name!r}") from None

    @staticmethod
    def _files(folder: Path) -> dict[str, Path]:
        return {path.stem: path for path in folder.glob("*.pub")}
