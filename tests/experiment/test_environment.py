"""What a run notes of its machine, it only reads."""

import os
import subprocess
import time
from pathlib import Path

from hofl.experiment.environment import git_commit


def test_looking_at_a_repository_does_not_write_to_it(tmp_path: Path) -> None:
    """Git would refresh its index, and hold the lock of it meanwhile.

    The file is as it was committed, but its time has changed: only reading it shows that.
    """

    def git(*words: str) -> None:
        identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *words], check=True)

    git("init", "--quiet")
    (tmp_path / "file").write_text("text")
    git("add", "file")
    git("commit", "--quiet", "--message", "first")
    os.utime(tmp_path / "file", (time.time() - 1000, time.time() - 1000))
    index = tmp_path / ".git" / "index"
    before = index.read_bytes()
    commit = git_commit(tmp_path / "file")
    assert commit
    assert "dirty" not in commit
    (tmp_path / "file").write_text("other")
    assert git_commit(tmp_path / "file") == f"{commit}-dirty"
    (tmp_path / "unknown").touch()
    assert git_commit(tmp_path / "unknown") is None
    assert index.read_bytes() == before


def test_a_change_beside_the_package_leaves_its_version_as_it_is(tmp_path: Path) -> None:
    """Pages and tools may change between the cells of a comparison: rows stay comparable."""

    def git(*words: str) -> None:
        identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *words], check=True)

    for name in ("package/deep/code", "package/start", "page"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "first")
    commit = git_commit(tmp_path / "package" / "start")
    (tmp_path / "page").write_text("other")
    assert git_commit(tmp_path / "package" / "start") == commit
    (tmp_path / "package" / "deep" / "code").write_text("other")
    assert git_commit(tmp_path / "package" / "start") == f"{commit}-dirty"
