"""The tutorial: its files and all its commands, in order, on a tiny model."""

import io
import re
import shlex
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from support.runs import run_cli

PAGE = Path(__file__).parents[1] / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
MODEL = 'name = "smollm2-135m-instruct"'
ENGINE = "\n[engine]\nthreads = 1\n"


def test_every_step_of_the_tutorial_works(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text()
    files = iter(re.findall(r"as `([\w.]+)`", text))
    commands = []
    for language, body in BLOCK.findall(text):
        if language in ("csv", "toml"):
            if language == "toml":
                assert MODEL in body
                body = body.replace(MODEL, f'name = "{tiny_folder}"') + ENGINE
            Path(next(files)).write_text(body)
        elif language == "sh":
            for line in body.splitlines():
                code, output = run_cli(*shlex.split(line)[1:])
                assert code == 0, f"{line}\n{output}"
                commands.append(line.split()[1])
        else:
            assert language == "python"
            output = io.StringIO()
            with redirect_stdout(output):
                exec(compile(body, "tutorial", "exec"), {})
            assert output.getvalue().startswith("Peft")
    assert next(files, None) is None
    assert commands == ["check", "run", "watch", "run", "run", "report", "evaluate"]
    assert (tmp_path / "mail.html").stat().st_size > 400_000
    assert (tmp_path / "runs" / "mail" / "adapter" / "README.md").is_file()
