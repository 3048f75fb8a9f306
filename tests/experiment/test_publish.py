"""Results that are merged into their base model, or go to the Hugging Face hub."""

import base64
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import hofl
from support.models import batch, padded
from support.runs import quick, run_cli


@pytest.fixture(scope="module")
def finished(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> hofl.Result:
    config = quick(tiny_folder, rounds=1, method={"name": "fedavg", "lr": 0.1})
    return hofl.run(config, tmp_path_factory.mktemp("runs") / "run")


def test_a_merged_model_gives_the_adapters_logits(
    finished: hofl.Result, tiny_folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "merged"
    code, output = run_cli("merge", str(finished.path), "--out", str(out))
    assert (code, output) == (0, f"merged model: {out}\n")
    merged = AutoModelForCausalLM.from_pretrained(out)
    base = AutoModelForCausalLM.from_pretrained(tiny_folder)
    data = padded(batch(0))
    with torch.no_grad():
        plain = base(input_ids=data.input_ids).logits
        found = merged(input_ids=data.input_ids).logits
        adapted = peft.PeftModel.from_pretrained(base, finished.adapter)
        expected = adapted(input_ids=data.input_ids).logits
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert (expected - plain).abs().max() > 1e-2, "the adapter must change something"
    assert AutoTokenizer.from_pretrained(out).get_vocab()
    card = (out / "README.md").read_text()
    assert "library_name: transformers" in card
    assert "peft" not in card.split("---")[1]
    assert 'AutoModelForCausalLM.from_pretrained("FOLDER")' in card


def test_what_cannot_be_merged_is_one_line_and_nothing_is_written(
    finished: hofl.Result, tmp_path: Path
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for run, out, expected in (
        (tmp_path, tmp_path / "out", "is not a run"),
        (finished.path, tmp_path / "full", "exists and is not empty"),
        (finished.path, tmp_path / "full" / "file" / "out", "cannot use"),
    ):
        code, output = run_cli("merge", str(run), "--out", str(out))
        assert (code, output.count("\n")) == (2, 1)
        assert expected in output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full"]


def test_a_dry_run_lists_every_file_and_uses_no_network(
    finished: hofl.Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a dry run must not open a socket")

    monkeypatch.setattr(socket, "socket", refuse)
    code, output = run_cli("push", str(finished.path), "ada/helpdesk-lora")
    assert code == 0, output
    files = {path.name for path in finished.adapter.iterdir()}
    assert {"adapter_model.safetensors", "adapter_config.json", "README.md"} <= files
    lines = output.splitlines()
    assert {line.split()[-1] for line in lines[: len(files)]} == files
    assert lines[-2] == (
        "note: the card names no base model on the hub: others cannot load the adapter"
    )
    assert lines[-1].startswith("nothing was uploaded: with --yes these")


@pytest.mark.parametrize("repo", ["helpdesk", "a/b/c", "a b/c", "ada/../x"])
def test_what_is_not_a_repository_is_one_line(repo: str, finished: hofl.Result) -> None:
    code, output = run_cli("push", str(finished.path), repo)
    assert (code, output.count("\n")) == (2, 1)
    assert repr(repo) in output


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as an upload of small files needs."""

    files: dict[str, bytes]
    created: list[dict[str, Any]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/api/repos/create":
            self.created.append(json.loads(body))
            self.answer({"url": f"http://{self.headers['Host']}/ada/helpdesk", "id": "1"})
        elif self.path.endswith("/preupload/main"):
            names = [entry["path"] for entry in json.loads(body)["files"]]
            plain = {"uploadMode": "regular", "shouldIgnore": False, "oid": None}
            self.answer({"files": [{"path": name, **plain} for name in names]})
        elif "/commit/main" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    content = base64.b64decode(line["value"]["content"])
                    self.files[line["value"]["path"]] = content
            place = f"http://{self.headers['Host']}/ada/helpdesk/commit/{'0' * 40}"
            self.answer({"commitUrl": place, "commitOid": "0" * 40, "success": True})
        else:
            self.answer({"errors": [], "warnings": []})

    def do_GET(self) -> None:
        self.answer({"id": "ada/helpdesk", "sha": "0" * 40, "siblings": []})

    def answer(self, values: dict[str, Any]) -> None:
        text = json.dumps(values).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def hub() -> Iterator[tuple[str, type[Hub]]]:
    """A hub on this machine, and what it got."""
    kind = type("OneHub", (Hub,), {"files": {}, "created": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", kind
    finally:
        server.shutdown()
        server.server_close()


def push(endpoint: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hofl.cli.main", "push", *words]
    chosen = {**os.environ, "HF_ENDPOINT": endpoint, "HF_TOKEN": "hf_test"}
    return subprocess.run(command, capture_output=True, text=True, env=chosen)


def test_with_yes_the_files_arrive_as_they_are(finished: hofl.Result) -> None:
    """The endpoint is read when the library is imported: in a process of its own."""
    with hub() as (endpoint, got):
        done = push(endpoint, str(finished.path), "ada/helpdesk", "--private", "--yes")
        assert done.returncode == 0, done.stdout + done.stderr
    assert got.created[0]["name"] == "helpdesk"
    assert got.created[0]["visibility"] == "private"
    assert got.files == {path.name: path.read_bytes() for path in finished.adapter.iterdir()}


def test_a_hub_that_does_not_answer_is_one_line(finished: hofl.Result) -> None:
    done = push("http://127.0.0.1:9", str(finished.path), "ada/helpdesk", "--yes")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("error: cannot upload to ada/helpdesk")
