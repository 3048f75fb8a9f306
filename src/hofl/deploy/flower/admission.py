"""Who may connect to the SuperLink: the keys in a folder, registered and unregistered with it."""

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from hofl.core.durable import write_whole
from hofl.core.errors import HoflError
from hofl.deploy.flower import commands
from hofl.deploy.transport import Notice

AGAIN = 60.0
"""Seconds until a key that could not be registered or unregistered is tried again."""


class Admission:
    """Keeps the SuperLink's registrations like the folder, also over restarts.

    Args:
        home: Flower's folder; ``registered.json`` there has node and key of every device, and the
            keys that were removed.
        keys: the devices' public keys, ``NAME.pub``.
        notice: called with what was registered, what is gone, and what goes wrong and is retried.
    """

    def __init__(self, home: Path, keys: Path, notice: Notice) -> None:
        self._home, self._keys, self._notice = home, keys, notice
        self._path = home / "registered.json"
        self._registered, self._removed = _load(self._path)
        self._known: set[tuple[str, str]] = set()
        self._retry: dict[str, float] = {}

    def update(self) -> None:
        """Register keys that were added, unregister those that are gone or were replaced."""
        present = _texts(self._keys)
        for name, (node, key) in list(self._registered.items()):
            if present.get(name) != key and self._due(name):
                self._try(name, partial(self._remove, name, node, key))
        for name, key in present.items():
            if (name, key) not in self._known and self._due(name):
                self._try(name, partial(self._add, name, key))

    def _add(self, name: str, key: str) -> None:
        if key in self._removed:
            self._known.add((name, key))
            raise HoflError(
                "it was removed from this run before, and Flower takes no key twice. "
                f"Make another: hofl certs FOLDER --device {name}"
            )
        node = commands.register(self._home, self._keys / f"{name}.pub")
        self._known.add((name, key))
        if node:
            self._registered[name] = node, key
            self._save()
            self._notice(f"{name} was registered: its key was added")

    def _remove(self, name: str, node: str, key: str) -> None:
        commands.unregister(self._home, node)
        self._known.discard((name, key))
        del self._registered[name]
        self._removed.add(key)
        self._save()
        self._notice(f"{name} was unregistered: its key is gone")

    def _try(self, name: str, change: Callable[[], None]) -> None:
        try:
            change()
        except (HoflError, OSError) as error:
            self._retry[name] = time.monotonic() + AGAIN
            self._notice(f"{name}.pub cannot be registered or unregistered: {error}")

    def _due(self, name: str) -> bool:
        return self._retry.get(name, 0.0) <= time.monotonic()

    def _save(self) -> None:
        fields = {"registered": self._registered, "removed": sorted(self._removed)}
        write_whole(self._path, json.dumps(fields, indent=2) + "\n")


def _texts(folder: Path) -> dict[str, str]:
    """Return the keys by name; a file that vanishes meanwhile is gone."""
    texts = {}
    for path in sorted(folder.glob("*.pub")):
        try:
            texts[path.stem] = path.read_text(errors="replace").strip()
        except OSError:
            continue
    return texts


def _load(path: Path) -> tuple[dict[str, tuple[str, str]], set[str]]:
    """Return node and key by name, and the keys that were removed."""
    if not path.exists():
        return {}, set()
    try:
        fields = json.loads(path.read_text())
        registered = fields["registered"].items()
        return {name: (str(node), str(key)) for name, (node, key) in registered}, {
            str(key) for key in fields["removed"]
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        raise HoflError(
            f"{path} is damaged: it says which devices are registered. Restore it, or delete it: "
            "devices that were removed then stay registered with Flower."
        ) from None
