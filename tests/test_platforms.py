"""Systems other than this one: without POSIX modules, without /proc, and Windows's way to lock."""

import ast
import builtins
import sys
import types
from pathlib import Path

import pytest

import hofl
from hofl.core import locks, process
from hofl.core.errors import HoflError
from hofl.memory.device import usable_bytes
from support.runs import adapter_bytes, quick

SOURCE = Path(hofl.__file__).parent
POSIX = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
READERS_OF_PROC = {
    "core/process.py",
    "comparing/schedule.py",
    "memory/profile.py",
    "watching/progress.py",
}
"""Each of them says what it does where there is none."""


def at_import(tree: ast.Module) -> set[str]:
    """Modules that are imported when a module is, except where an error of that is caught."""
    found, left = set(), list(tree.body)
    while left:
        node = left.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module).split(".")[0])
        elif isinstance(node, ast.If | ast.With | ast.ClassDef):
            left += node.body
    return found


def test_no_module_needs_a_posix_module_to_be_imported() -> None:
    """Windows has none of them; inside functions they are for what only POSIX systems do."""
    users = {
        path.relative_to(SOURCE).as_posix(): found
        for path in SOURCE.rglob("*.py")
        if (found := at_import(ast.parse(path.read_text())) & POSIX)
    }
    assert users == {}


def test_proc_is_read_in_a_few_places_only() -> None:
    readers = set()
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        readers |= {
            path.relative_to(SOURCE).as_posix()
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
            if id(node) not in texts and node.value.startswith(("/proc", "/sys"))
        }
    assert readers == READERS_OF_PROC


@pytest.fixture
def no_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system without /proc and /sys, whichever way they are opened."""
    real, read = builtins.open, Path.read_text

    def refuse(path: object) -> None:
        if str(path).startswith(("/proc", "/sys")):
            raise FileNotFoundError(2, "No such file or directory", str(path))

    def opened(file: object, *rest: object, **options: object) -> object:
        refuse(file)
        return real(file, *rest, **options)  # type: ignore[call-overload]

    def text(path: Path, *rest: object, **options: object) -> str:
        refuse(path)
        return read(path, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "open", opened)
    monkeypatch.setattr(Path, "read_text", text)


def test_without_proc_a_run_ends_in_the_same_bits(
    tiny_folder: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    config = quick(tiny_folder, rounds=1)
    here = hofl.run(config, tmp_path / "here")
    request.getfixturevalue("no_proc")
    assert process.footprint() == process.Footprint(0, 0)
    assert adapter_bytes(hofl.run(config, tmp_path / "there").path) == adapter_bytes(here.path)


@pytest.mark.usefixtures("no_proc")
def test_without_proc_free_memory_is_unknown_and_said_in_one_line() -> None:
    assert list(process.memory_left()) == []
    with pytest.raises(HoflError, match="give an amount such as 4GiB"):
        usable_bytes()


@pytest.mark.usefixtures("no_proc")
def test_macos_and_windows_tell_their_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """There psutil asks the system; it is asked here with /proc in place."""
    memory = types.SimpleNamespace(available=3 * 2**30)
    monkeypatch.setattr("psutil.virtual_memory", lambda: memory)
    assert list(process.memory_left()) == [3 * 2**30]


class Windows(types.ModuleType):
    """``msvcrt`` as its documentation describes it, for the bytes of one file."""

    LK_LOCK, LK_NBLCK, LK_UNLCK = 1, 2, 0

    def __init__(self) -> None:
        super().__init__("msvcrt")
        self.held: set[tuple[str, int]] = set()

    def locking(self, handle: int, mode: int, size: int) -> None:
        import os

        place = (os.readlink(f"/proc/self/fd/{handle}"), os.lseek(handle, 0, os.SEEK_CUR))
        if mode == self.LK_UNLCK:
            self.held.remove(place)
        elif place in self.held:
            raise OSError(36, "resource deadlock avoided")
        else:
            self.held.add(place)


def test_on_windows_a_second_process_finds_the_lock_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = Windows()
    monkeypatch.setattr(locks, "fcntl", None)
    monkeypatch.setitem(sys.modules, "msvcrt", windows)
    path = tmp_path / "config.toml"
    path.write_text("rounds = 3")
    with path.open("rb") as first, path.open("rb") as second:
        with locks.locked(first):
            with pytest.raises(BlockingIOError), locks.locked(second, wait=False):
                pass
            assert path.read_text() == "rounds = 3"
        with locks.locked(second, wait=False):
            assert len(windows.held) == 1
    assert windows.held == set()
