"""The wheel: it builds, carries its data, and works where it is installed."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_wheel_builds_installs_and_runs(tmp_path: Path) -> None:
    source = tmp_path / "source"
    tracked = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\n")
    for name in filter(None, tracked):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    build = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(tmp_path)]
    subprocess.run([*build, str(source)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("hofl-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {
        "hofl/py.typed",
        "hofl/core/normal_table.npy",
        "hofl/recipes/demo.toml",
        "hofl/data/tasks/helpdesk/train.jsonl",
    } <= names
    assert not any(name.startswith("tests") for name in names)
    target = tmp_path / "installed"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, "--target", str(target), str(wheel)], check=True)
    code = "import hofl; from hofl.core.directions import normal_table; normal_table(); "
    code += "print(hofl.__file__, hofl.METHODS)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(target), "PATH": ""},
    )
    assert done.stdout.startswith(str(target)), done.stderr
