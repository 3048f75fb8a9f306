"""SQuAD 1.1's exact match and F1, case by case as the official rules decide them."""

import random
from fractions import Fraction

import pytest

from hofl.evaluation.squad import exact_match, f1, normalise, scores


@pytest.mark.parametrize(
    ("prediction", "golds", "em", "overlap"),
    [
        # articles: whole words only, in any place and case
        ("The Broncos", ["broncos"], 1, 1),
        ("a THE an Broncos the", ["Broncos"], 1, 1),
        ("theatre", ["atre"], 0, 0),
        ("another answer", ["answer"], 0, Fraction(2, 3)),
        ("x–a–y", ["x– –y"], 1, 1),  # an article leaves a blank behind
        ("vitamin A", ["vitamin"], 1, 1),
        # punctuation goes first and joins what it divided
        ("U.S.A.", ["usa"], 1, 1),
        ("twenty-one", ["twentyone"], 1, 1),
        ("a-ha", ["aha"], 1, 1),
        ("a. b", ["b"], 1, 1),
        ("$1,000", ["1000"], 1, 1),
        ("it's", ["its"], 1, 1),
        # other signs are letters to the rules: dash, quotes and accents stay
        ("1990–1995", ["19901995"], 0, 0),
        ("“Go”", ["Go"], 0, 0),
        ("Beyoncé", ["beyonce"], 0, 0),
        ("ÉCOLE", ["école"], 1, 1),
        ("é a b", ["é b"], 1, 1),
        # blanks of every kind
        ("  new \t york\n", ["New York"], 1, 1),
        ("new\u00a0york", ["New York"], 1, 1),
        # F1 counts repeated words
        ("b b c", ["b c"], 0, Fraction(4, 5)),
        ("b c", ["b b c c"], 0, Fraction(2, 3)),
        ("c b", ["b c"], 0, 1),
        # several answers: the best one counts, for each measure by itself
        ("two", ["one", "two", "three"], 1, 1),
        ("in the north sea", ["sea", "north sea area", "the north"], 0, Fraction(2, 3)),
        # empty predictions, and predictions that normalise to nothing
        ("", ["answer"], 0, 0),
        ("the!", ["answer"], 0, 0),
        # the official rules give an empty answer exact match, and still no F1
        ("", ["a"], 1, 0),
        ("The.", ["!"], 1, 0),
        ("answer", ["the"], 0, 0),
    ],
)
def test_cases(prediction: str, golds: list[str], em: int, overlap: Fraction | int) -> None:
    assert exact_match(prediction, golds) == em
    assert f1(prediction, golds) == pytest.approx(float(overlap))


def test_means_are_over_questions() -> None:
    found = scores(["b", "x c", ""], [["b"], ["c"], ["d", "e"]])
    assert found == {
        "em": pytest.approx(1 / 3),
        "f1": pytest.approx((1 + 2 / 3) / 3),
        "examples": 3,
    }


def test_predictions_and_answers_must_pair_up() -> None:
    with pytest.raises(ValueError, match=r"shorter|longer"):
        scores(["a"], [["a"], ["b"]])


def test_properties_on_random_texts() -> None:
    """Symmetric, 1 on itself, better with more answers, harmonic mean by counting pairs."""
    rng = random.Random(5)
    words = ["The", "a", "red", "Red,", "fox", "fox!", "1,000", "—", "é", "..."]
    for _ in range(500):
        left, right = (" ".join(rng.choices(words, k=rng.randint(0, 6))) for _ in range(2))
        assert normalise(normalise(left)) == normalise(left)
        assert f1(left, [right]) == f1(right, [left])
        assert exact_match(left, [left]) == 1
        assert f1(left, [left]) == (1 if normalise(left) else 0)
        assert f1(left, [right, left]) >= f1(left, [right])
        assert f1(left, [right]) == pytest.approx(slow_f1(left, right))


def slow_f1(left: str, right: str) -> float:
    """Cross words out one by one, then the harmonic mean of precision and recall."""
    mine, theirs = normalise(left).split(), normalise(right).split()
    rest = list(theirs)
    same = 0
    for word in mine:
        if word in rest:
            rest.remove(word)
            same += 1
    if not same:
        return 0.0
    precision, recall = Fraction(same, len(mine)), Fraction(same, len(theirs))
    return float(2 / (1 / precision + 1 / recall))
