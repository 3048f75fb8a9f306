"""Templates: what they accept, what they refuse, and that users' texts stay as they are."""

import pytest

from hofl.core.errors import HoflError
from hofl.data.task import LabelWords, Prompt, Task

WORDS = LabelWords(("no", "yes"))


def prompt(template: str, cut: str = "text") -> Prompt:
    return Prompt(template, cut, WORDS)


@pytest.mark.parametrize("text", ["{text}", "{0}", "{{", "}", "%s {other} \\n", "{text!r:>10}"])
def test_braces_in_a_text_are_harmless(text: str) -> None:
    filled = prompt("Say: {text} / {other}:").render({"text": text, "other": "{text}"})
    assert filled == f"Say: {text} / {{text}}:"


def test_blanks_around_values_go_and_doubled_braces_are_braces() -> None:
    shown = prompt('{{"review": {text}}}\nLabel:').render({"text": "  so \n so \t"})
    assert shown == '{"review": so \n so}\nLabel:'


def test_a_line_of_empty_fields_is_left_out_and_other_empty_lines_stay() -> None:
    template = "{title}{text}\n\nQ: {question}\nA:"
    fields = {"title": " ", "text": "", "question": ""}
    assert prompt(template).render(fields) == "\nQ: \nA:"
    assert prompt(template).render({**fields, "text": "t"}) == "t\n\nQ: \nA:"


def test_fields_are_named_once_in_their_order() -> None:
    assert prompt("{b} {text} {a b}\n{text}:").fields == ("b", "text", "a b")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{text} ", "ends in white space"),
        ("{text}\n", "ends in white space"),
        ("{txt}:", "does not hold {text}, the field to cut: it holds txt"),
        ("Nothing:", "it holds no field"),
        ("{text:", "prompt template '{text:'"),
        ("{text} }:", "Single '}'"),
        ("{}:", "write fields as {field}"),
        ("{text!r}:", "write fields as {field}"),
        ("{text:>9}:", "write fields as {field}"),
    ],
)
def test_a_bad_template_is_one_clear_error(template: str, message: str) -> None:
    with pytest.raises(HoflError) as refusal:
        prompt(template)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_an_unknown_variant_gets_the_known_ones_in_the_error() -> None:
    task = Task("t", {"one": prompt("{text}:"), "two": prompt("{text}?")}, (), ())
    assert task.prompt() is task.prompts["one"]
    with pytest.raises(HoflError, match="'t' has no prompt 'three': choose one of one, two"):
        task.prompt("three")
