"""Files that survive a kill: replaced at once, with a checksum that shows damage.

A sealed JSON object has ``sha256`` as its last member: the digest of the text before it.

>>> text = sealed('{"round": 1}')
>>> text
'{"round": 1, "sha256": "f24d8831f6f12a085c0751ef5411bb7b734bfd15e8bbaa588a8385424fe4ee65"}'
>>> intact(text), intact(text.replace("1,", "2,")), intact('{"round": 2}')
(True, False, True)
"""

import hashlib
import os
import re
import shutil
from pathlib import Path

from hofl.core.errors import HoflError

PARTIAL = ".tmp"
"""How the name of a file or folder ends while it is written: what a kill leaves behind."""
_COMMENT = "# sha256 of the lines above: "
_DIGITS = re.compile("[0-9a-f]{32}")
_SEAL_BEGINS = re.compile(r'"sha256": "[0-9a-f]{64}"')
_SEAL = re.compile(r',\s*"sha256": "([0-9a-f]{64})"\s*}\s*\Z')


def sealed(text: str) -> str:
    """Return the text of a JSON object with its seal."""
    body = text.rstrip().removesuffix("}").rstrip()
    gap = "\n  " if "\n" in body else " "
    end = "\n}\n" if "\n" in body else "}"
    return f'{body},{gap}"sha256": "{_digest(body)}"{end}'


def intact(text: str) -> bool:
    """Return whether the seal fits; text without one is of an earlier version, and is believed."""
    seal = _SEAL.search(text)
    return seal is None or _digest(text[: seal.start()]) == seal[1]


def has_seal(text: str) -> bool:
    """Return whether text was written up to its seal, whatever came of it since."""
    return _SEAL_BEGINS.search(text) is not None


def with_checksum(text: str) -> str:
    """Return the text of a TOML file with a last line, a comment, that holds its SHA-256."""
    return f"{text.rstrip()}\n{_COMMENT}{_digest(text.rstrip())}\n"


def check_text(path: Path) -> None:
    """Refuse a TOML file that does not fit the checksum in its last line, if it has one.

    Raises:
        HoflError: it was damaged, or changed on purpose; the message says what to do.
    """
    text = path.read_bytes().decode(errors="replace").rstrip()
    body, _, last = text.rpartition("\n")
    # A damaged last line still holds most of its digits.
    wrong = _DIGITS.search(last) and last != _COMMENT + _digest(body.rstrip())
    if wrong or "\ufffd" in text:
        raise HoflError(
            f"{path} is not as it was written. If you changed it, remove its last line, the "
            "checksum, and try again; if not, it is damaged: restore it from a backup."
        )


def write_whole(path: Path, text: str, mode: int = 0o666) -> None:
    """Replace a file at once: after a power cut it holds the old text or the new one."""
    fresh = path.with_name(path.name + PARTIAL)
    fresh.unlink(missing_ok=True)
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(handle, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
    sync_folder(path.parent)


def put_in_place(fresh: Path, folder: Path) -> dict[str, str]:
    """Replace a folder of files by a fresh one, durably; return SHA-256 of each of its files."""
    digests = {}
    for path in sorted(fresh.iterdir()):
        digests[path.name] = file_digest(path)
        with path.open("rb") as file:
            os.fsync(file.fileno())
    sync_folder(fresh)
    old = folder.with_name(folder.name + ".old" + PARTIAL)
    if folder.exists():
        os.replace(folder, old)
    os.replace(fresh, folder)
    sync_folder(folder.parent)
    if old.exists():
        shutil.rmtree(old)
    return digests


def file_digest(path: Path) -> str:
    """Return SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(folder: Path) -> None:
    """Make the renaming of a file inside durable; Windows cannot open folders, and needs not."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
