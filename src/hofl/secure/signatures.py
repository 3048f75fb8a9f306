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

from cryptography.exceptions import InvalidSignature
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
Verify = Callable[[str, str, Header, bytes], None]
"""Name, message, header, payload; raises :class:`UploadRefused`."""


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
    except (OSError, ValueError, TypeError) as error:
        raise HoflError(f"cannot use the key {key}: {error}.") from None
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise HoflError(f"{key} is no elliptic-curve key: make device keys with hofl certs.")

    def sign(message: str, header: Header, payload: bytes) -> str:
        return private.sign(statement(message, header, payload), _ALGORITHM).hex()

    return sign


def verifier(keys: Path) -> Verify:
    """Checks against the folder of public keys, as it is now: who is taken out of it is out."""

    def verify(name: str, message: str, header: Header, payload: bytes) -> None:
        try:
            path = {one.stem: one for one in keys.glob("*.pub")}[name]
            public = serialization.load_ssh_public_key(path.read_bytes())
        except (OSError, LookupError, ValueError):
            raise UploadRefused(f"no usable key of {name!r} is registered") from None
        said = header.get(FIELD)
        if not isinstance(said, str) or not isinstance(public, ec.EllipticCurvePublicKey):
            raise UploadRefused("the answer is not signed")
        try:
            public.verify(bytes.fromhex(said), statement(message, header, payload), _ALGORITHM)
        except (InvalidSignature, ValueError):
            raise UploadRefused(f"the answer is not signed by the key of {name!r}") from None

    return verify


def trusting(name: str, message: str, header: Header, payload: bytes) -> None:
    """Without keys, on loopback, nobody signs and nothing is checked."""
