"""The benchmarks from files and in the hub's own form, and how bad input is reported."""

import gzip
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from hofl.core.errors import HoflError
from hofl.data.sources import Benchmark
from hofl.data.task import FreeText, LabelWords, OwnOptions
from hofl.data.tasks import BENCHMARKS, load_task
from support.datafiles import ROWS, write_benchmarks, write_jsonl

every_benchmark = pytest.mark.parametrize("name", sorted(BENCHMARKS))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own, and no folder but the one that the test gives."""
    monkeypatch.setenv("HOFL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HOFL_DATA", raising=False)
    return tmp_path / "cache"


def hub_row(name: str, row: dict[str, Any]) -> dict[str, Any]:
    """The same row with the hub's columns."""
    if name == "sst2":
        return {"idx": 7, **row}
    if name == "boolq":
        return {key: row[key] for key in ("question", "answer", "passage")}
    if name == "ag_news":
        return {"text": f"{row['title']} {row['description']}", "label": row["label"]}
    if name == "squad":
        columns = ("text", "answer_start")
        return {**row, "answers": {key: [a[key] for a in row["answers"]] for key in columns}}
    return row


def as_on_the_hub(benchmark: Benchmark, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Benchmark:
    """The benchmark from a real ``datasets`` repository: Parquet files with the hub's schema."""
    import datasets
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)  # nothing is asked for over a network
    for split in benchmark.sizes:
        rows = [hub_row(benchmark.name, row) for row in ROWS[benchmark.name][split]]
        made = datasets.Dataset.from_list(rows)
        if "label" in rows[0]:
            kinds = datasets.ClassLabel(names=list(benchmark.classes))
            made = made.cast_column("label", kinds)
        made.to_parquet(folder / f"{split}.parquet")
    return replace(benchmark, hub=str(folder))


@every_benchmark
def test_files_and_hub_give_the_same_examples(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark = BENCHMARKS[name]
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    hub = as_on_the_hub(benchmark, tmp_path / "repository", monkeypatch).load()
    for suffix in (".jsonl", ".jsonl.gz"):
        files = benchmark.load(write_benchmarks(tmp_path / suffix, suffix))
        assert list(files.train) == list(hub.train)
        assert list(files.test) == list(hub.test)
        assert len(files.train) == len(ROWS[name][next(iter(benchmark.sizes))])


def test_examples_are_what_the_files_say(tmp_path: Path) -> None:
    folder = write_benchmarks(tmp_path)
    sst2 = load_task("sst2", folder)
    assert sst2.prompt().render(sst2.train[1].fields) == (
        "Review: dull , and {very} long\nSentiment:"
    )
    assert [one.label for one in sst2.train] == [1, 0, 1]
    boolq = load_task("boolq", folder)
    assert boolq.prompt().render(boolq.train[1].fields) == (
        "Rock salt is one.\nQuestion: is salt a mineral?\nAnswer:"
    )
    assert [one.label for one in boolq.train] == [0, 1]
    news = load_task("ag_news", folder)
    assert news.prompt().render(news.train[0].fields) == ("Article: A new chip It is fast.\nTopic:")
    squad = load_task("squad", folder)
    assert squad.prompt().render(squad.test[0].fields) == (
        "Title: Old Bridge\nContext: It was built again in 2004.\n"
        "Question: When was it built again?\nAnswer:"
    )
    assert squad.test[0].golds == ("2004", "in 2004")
    assert squad.test[0].fields["id"] == "v0"


@every_benchmark
def test_every_prompt_can_be_filled_and_answered(name: str, tmp_path: Path) -> None:
    task = load_task(name, write_benchmarks(tmp_path))
    for variant, prompt in task.prompts.items():
        assert task.prompt(variant) is prompt
        for example in (*task.train, *task.test):
            text = prompt.render(example.fields)
            assert "\n\n" not in text
            assert text == text.strip()
            assert example.fields[prompt.cut].strip() in text
            match prompt.answer:
                case LabelWords(words):
                    assert 0 <= example.label < len(words) == len(set(words))
                    assert not task.classes or len(words) == len(task.classes)
                case OwnOptions():
                    assert 0 <= example.label < len(example.options)
                case FreeText(most):
                    assert most == 64
                    assert example.golds


def test_sciq_choices_are_shuffled_by_row_and_the_label_follows(tmp_path: Path) -> None:
    rows = ROWS["sciq"]["train"]
    folder = write_benchmarks(tmp_path / "a")
    task = load_task("sciq", folder)
    for k, (row, example) in enumerate(zip(rows, task.train, strict=True)):
        assert set(example.options) == {f"right {k}", *(f"wrong {k}{c}" for c in "abc")}
        assert example.options[example.label] == row["correct_answer"]
        shown = task.prompts["letters"].render(example.fields)
        assert f"\n{'ABCD'[example.label]}. right {k}\n" in shown
    labels = [example.label for example in task.train]
    assert all(3 <= labels.count(place) <= 20 for place in range(4)), "every place is used"
    # A row's order is its own: it does not change with the rows around it.
    write_jsonl(tmp_path / "b" / "sciq" / "train.jsonl", rows[:5])
    write_jsonl(tmp_path / "b" / "sciq" / "test.jsonl", rows[:9])
    fewer = load_task("sciq", tmp_path / "b")
    assert list(fewer.train) == list(task.train[:5])
    assert list(fewer.test) == list(task.train[:9])


def test_an_incomplete_set_is_used_and_said_so(tmp_path: Path) -> None:
    folder = tmp_path / "ag_news"
    write_jsonl(folder / "train_partial.jsonl.gz", ROWS["ag_news"]["train"])
    write_jsonl(folder / "test.jsonl", ROWS["ag_news"]["test"])
    task = load_task("ag_news", tmp_path)
    assert "train_partial.jsonl.gz holds 2 of 120,000 examples" in task.note
    assert "test.jsonl holds 1 of 7,600 examples" in task.note
    write_jsonl(folder / "train.jsonl", ROWS["ag_news"]["train"][:1])
    assert len(load_task("ag_news", tmp_path).train) == 1, "a whole set goes before a part"


def test_the_folder_may_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOFL_DATA", str(write_benchmarks(tmp_path / "a")))
    assert len(load_task("sst2").train) == 3
    write_jsonl(tmp_path / "b" / "sst2" / "train.jsonl", ROWS["sst2"]["train"][:2])
    write_jsonl(tmp_path / "b" / "sst2" / "validation.jsonl", ROWS["sst2"]["validation"])
    assert len(load_task("sst2", tmp_path / "b").train) == 2, "a given folder goes before it"


GOOD = '{"sentence": "fine", "label": 1}\n'


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("sst2", GOOD * 16 + '{"sentence": "fi', "line 17: not valid JSON"),
        ("sst2", GOOD + "\n" + GOOD, "line 2: not valid JSON"),
        ("sst2", GOOD + "[1]\n", "line 2: not a JSON object: '[1]'"),
        ("sst2", GOOD + '{"label": ' + 5000 * "1" + "}", "line 2: not valid JSON"),
        ("sst2", GOOD + 200_000 * "[", "line 2: not valid JSON"),
        ("sst2", '{"text": "fine", "label": 1}', "line 1: no field 'sentence': there are text"),
        ("sst2", GOOD + '{"sentence": " ", "label": 1}', "line 2: field 'sentence' is empty"),
        ("sst2", '{"sentence": 3, "label": 1}', "line 1: field 'sentence' must be text, got 3"),
        ("sst2", GOOD + '{"sentence": "x", "label": 2}', "allowed are 0 (negative), 1 (positive)"),
        ("sst2", '{"sentence": "x", "label": true}', "unknown label True"),
        ("sst2", '{"sentence": "x", "label": "1"}', "unknown label '1'"),
        ("sst2", '{"sentence": "\\ud800", "label": 1}', "'sentence' is not valid Unicode"),
        ("sst2", "", "holds no examples"),
        ("boolq", '{"question": "q", "passage": "p", "answer": 1}', "unknown answer 1"),
        (
            "squad",
            '{"id": "i", "title": "t", "context": "c", "question": "q", "answers": []}',
            "line 1: field 'answers' must list at least one answer",
        ),
        ("ag_news", '{"label": 1, "title": "t"}', "no field 'description'"),
    ],
)
def test_a_bad_line_is_named_and_nothing_is_kept(
    name: str, content: str, message: str, tmp_path: Path, cache: Path
) -> None:
    folder = write_benchmarks(tmp_path / "data", ".jsonl")
    path = folder / name / "train.jsonl"
    path.write_text(content)
    with pytest.raises(HoflError) as refusal:
        load_task(name, folder)
    assert str(path) in str(refusal.value)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert list(cache.rglob("*.*")) == []


def test_damaged_bytes_are_named(tmp_path: Path) -> None:
    folder = write_benchmarks(tmp_path)
    path = folder / "sst2" / "train.jsonl.gz"
    packed = path.read_bytes()
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(HoflError, match=r"cannot read .*train\.jsonl\.gz: "):
        load_task("sst2", folder)
    path.write_bytes(gzip.compress(GOOD.encode() + b'{"sentence": "caf\xe9", "label": 0}'))
    with pytest.raises(HoflError, match=r"line 2: not UTF-8 \(byte 0xe9 at 17\)"):
        load_task("sst2", folder)


def test_a_folder_without_the_set_gets_the_layout_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(HoflError, match=r"sst2 has no train\.jsonl or train\.jsonl\.gz"):
        load_task("sst2", tmp_path)


def test_a_changed_file_is_read_again_and_an_unchanged_one_is_not(
    tmp_path: Path, cache: Path
) -> None:
    folder = write_benchmarks(tmp_path / "data", ".jsonl")
    path = folder / "sst2" / "train.jsonl"
    first = list(load_task("sst2", folder).train)
    facts = path.stat()
    path.write_text(" " * facts.st_size)  # same size and time: the kept file must answer
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert list(load_task("sst2", folder).train) == first
    path.write_text(GOOD)
    assert [one.fields["sentence"] for one in load_task("sst2", folder).train] == ["fine"]
    (kept,) = (cache / "data").glob("sst2-train-*")
    assert len(list(kept.iterdir())) == 1, "the earlier version is gone"


def test_a_cache_that_cannot_be_written_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOFL_CACHE", str(tmp_path / "file"))
    with pytest.raises(HoflError, match=r"cannot write the data cache .* Set HOFL_CACHE"):
        load_task("sst2", write_benchmarks(tmp_path / "data"))


@contextmanager
def overloaded_hub() -> Iterator[tuple[str, list[str]]]:
    """A hub on loopback that refuses everything for now: its address, and what it was asked."""
    asked: list[str] = []

    class Refusal(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(503)

        do_HEAD = do_POST = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusal) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


@pytest.mark.parametrize("listens", [True, False])
def test_without_the_hub_there_is_one_clear_line_and_no_retry(
    listens: bool, tmp_path: Path
) -> None:
    """``load_dataset`` alone would ask eight times, with ever longer waits in between."""
    with overloaded_hub() as (address, asked):
        endpoint = address if listens else "http://127.0.0.1:9"
        env = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path)}
        env.pop("HF_HUB_OFFLINE", None)
        done = subprocess.run(
            [sys.executable, "-m", "hofl.cli.main", "data", "boolq"],
            capture_output=True,
            text=True,
            env=env,
        )
    assert len(asked) == int(listens)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.strip().splitlines()
    assert "cannot load 'google/boolq' from the Hugging Face hub" in line
    assert "data.dir or HOFL_DATA" in line


def test_the_built_in_task_needs_no_data_library() -> None:
    code = (
        "import sys, hofl; from hofl.data.tasks import load_task; load_task('helpdesk').train[0]; "
        "print([m for m in ('datasets', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_processes_that_fill_an_empty_cache_together_agree(tmp_path: Path) -> None:
    folder = write_benchmarks(tmp_path / "data")
    code = (
        "import os, sys; from pathlib import Path; from hofl.data.tasks import load_task\n"
        "import pyarrow.ipc\n"
        "print(flush=True); sys.stdin.readline()\n"
        "for k in range(150):\n"
        "    os.environ['HOFL_CACHE'] = f'{sys.argv[1]}/cache{k}'\n"
        "    task = load_task('sst2', Path(sys.argv[2]))\n"
        "    assert [one.label for one in task.train] == [1, 0, 1]\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path), str(folder)]
    pipe = subprocess.PIPE
    together = [
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(3)
    ]
    for one in together:
        assert one.stdout is not None
        one.stdout.readline()  # everything is imported
    for one in together:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    assert [(one.communicate()[1], one.returncode) for one in together] == [("", 0)] * 3
