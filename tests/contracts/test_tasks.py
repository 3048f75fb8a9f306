"""What every task promises, checked for each entry of ``TASKS``.

Benchmarks are read from small files in their layout, and from the real ones where HOFL_DATA names
a folder that holds them. A new benchmark is tested by being listed, with rows in
``support.datafiles``.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hofl.data.task import Example, FreeText, LabelWords, OwnOptions, Prompt, Task
from hofl.data.tasks import BENCHMARKS, TASKS, load_task
from support.datafiles import ROWS, write_benchmarks

REAL = os.environ.get("HOFL_DATA")

each = pytest.mark.parametrize("name", TASKS)


@pytest.fixture(scope="module", autouse=True)
def small_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of small files, and one cache for these tests; $HOME's is left alone."""
    folder = tmp_path_factory.mktemp("benchmarks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOFL_CACHE", str(folder / "cache"))
        patch.delenv("HOFL_DATA", raising=False)
        yield write_benchmarks(folder)


@pytest.fixture
def task(name: str, small_files: Path) -> Task:
    """The task that a test is about, from the small files."""
    return load_task(name, small_files)


def examples(task: Task) -> Iterator[Example]:
    """All of a small task; of a large one all that are tested and some that are trained on."""
    yield from task.test
    step = max(1, len(task.train) // 2000)
    for k in range(0, len(task.train), step):
        yield task.train[k]


def filled(prompt: Prompt, example: Example) -> str:
    """The template by ``str.format``; a line of fields that are all empty is left out."""
    values = {name: text.strip() for name, text in example.fields.items()}
    lines = [(line, line.format(**values)) for line in prompt.template.split("\n")]
    return "\n".join(text for line, text in lines if text.strip() or "{" not in line)


def test_every_benchmark_has_small_files() -> None:
    assert set(ROWS) == set(BENCHMARKS)
    assert set(TASKS) == {"helpdesk", *BENCHMARKS}


@each
def test_a_task_has_both_sets_prompts_and_its_own_name(name: str, task: Task) -> None:
    assert task.name == name
    assert len(task.train)
    assert len(task.test)
    assert task.prompts
    assert len(set(task.classes)) == len(task.classes)


@each
def test_every_prompt_renders_every_example(task: Task) -> None:
    for example in examples(task):
        for prompt in task.prompts.values():
            text = prompt.render(example.fields)
            assert text == filled(prompt, example)
            assert text == text.strip() != ""
            for name in prompt.fields:
                assert example.fields[name].strip() in text


@each
def test_every_example_has_an_answer_that_every_prompt_allows(task: Task) -> None:
    for example in examples(task):
        for prompt in task.prompts.values():
            assert answered(prompt, example), f"{prompt.answer} does not fit {example}"
        if task.classes:
            assert 0 <= example.label < len(task.classes)


def answered(prompt: Prompt, example: Example) -> bool:
    """Whether the example says what is right in the prompt's own terms."""
    match prompt.answer:
        case LabelWords(words):
            return 0 <= example.label < len(words)
        case OwnOptions():
            return 0 <= example.label < len(example.options) > 1
        case FreeText():
            return bool(example.golds) and all(gold.strip() for gold in example.golds)


@each
def test_label_words_are_distinct_and_match_the_classes(task: Task) -> None:
    for prompt in task.prompts.values():
        if isinstance(prompt.answer, LabelWords):
            words = prompt.answer.words
            assert len({word.casefold() for word in words}) == len(words) > 1
            assert all(word == word.strip() != "" for word in words)
            assert not task.classes or len(words) == len(task.classes)


@each
def test_loading_again_gives_the_same_examples(name: str, task: Task, small_files: Path) -> None:
    again = load_task(name, small_files)
    assert list(again.train) == list(task.train)
    assert list(again.test) == list(task.test)
    assert again.prompts == task.prompts


@pytest.mark.skipif(not REAL, reason="HOFL_DATA names no folder with the benchmark files")
@pytest.mark.parametrize("name", BENCHMARKS)
def test_the_real_files_keep_these_promises(name: str) -> None:
    real = load_task(name, Path(REAL or ""))
    test_every_prompt_renders_every_example(real)
    test_every_example_has_an_answer_that_every_prompt_allows(real)
    test_label_words_are_distinct_and_match_the_classes(real)
