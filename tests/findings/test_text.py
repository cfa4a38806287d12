"""No number in a sentence without a quantity, and none that is another."""

from typing import Any

import pytest

from iclbench.analysis.pairs import Difference
from tests.findings.text import check, rewritten

QUANTITIES: dict[str, Any] = {
    "gap": Difference(0.1449, 0.0491, 0.2386),
    "n": 9,
    "less": -0.8342,
    "torch": "2.13.0",
    "where": "tabular",
    "points": 1369,
    "holds": True,
    "fails": False,
}
TEXT = """# Title

Mamba is ahead of GPT-2 on all nine classes (Grazzi et al. 2024, figure 1), by 0.14 [0.05, 0.24] on `tabular`. S4 is
not, at −0.83 nats and 1,369 points. Nothing is said here.
<!-- numbers
n, gap, where, holds
less,
  points
-->

    $ a command with 99 numbers

- torch 2.13.0, with
- twice nothing.
<!-- numbers
torch
-->
"""


def wrong(text: str, words: int = 2, **other: Any) -> list[str]:
    return [str(problem) for problem in check("a.md", text, QUANTITIES | other, words)]


def test_numbers_as_they_are_computed_are_no_problem() -> None:
    assert wrong(TEXT.replace("twice ", "")) == []


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"n": 8}, "a.md:3: “Mamba is ahead of GPT-2 on all nine"),
        ({"gap": Difference(0.1449, 0.0551, 0.2386)}, "0.05 is 0.06"),
        ({"where": "linear"}, "'linear'"),
        ({"holds": False}, "not true"),
        ({"less": 0.8342}, "a.md:3: “S4 is not, at −0.83 nats and 1,369 points.”: −0.83 is 0.83"),
        ({"points": 1368}, "1,369 is 1,368"),
        ({"torch": "2.13.1"}, "a.md:13: “- torch 2.13.0, with”: 2.13.0 is 2.13.1"),
    ],
)
def test_a_number_that_moved_names_its_sentence(other: dict[str, Any], said: str) -> None:
    (problem,) = wrong(TEXT.replace("twice ", ""), **other)
    assert said in problem


def test_a_quantity_without_cells_names_its_sentence() -> None:
    (problem,) = wrong(TEXT.replace("twice ", "").replace("n, gap", "score('gpt2'), gap"))
    assert "Mamba is ahead" in problem and "cannot be computed" in problem


def test_a_number_that_nobody_says_anything_of_is_a_problem() -> None:
    (problem,) = wrong(TEXT)
    assert "2 sentences of this paragraph have numbers, and 1 line" in problem
    assert wrong(TEXT, words=3) == [], "small counts are words of the language in other texts"
    (problem,) = wrong("Of 256 episodes, and of 12.\n<!-- numbers\n256\n-->\n")
    assert "nothing says what 12 is" in problem
    (problem,) = wrong("Of 256 episodes.\n")
    assert "Of 256 episodes" in problem
    assert wrong("Of 9 episodes.\n<!-- numbers: n -->\n") == [] != wrong("Of 8 episodes.\n<!-- numbers: n -->\n")


def test_powers_of_ten_are_numbers() -> None:
    text = "By 4.7e-8 and 1e5.\n<!-- numbers: small, 1e5 -->\n"
    assert wrong(text, small=4.68e-8) == []
    assert "4.7e-8 is 4.7e-7" in wrong(text, small=4.68e-7)[0]


def test_names_places_in_papers_and_code_are_no_numbers() -> None:
    assert (
        wrong(
            "GPT-2, S4D and AVX-512 (Chan et al. 2022, tables 1 and 2, appendix A.1.3) take `points-80` [x](a_1.png).\n"
        )
        == []
    )


def test_computed_numbers_are_written_as_the_text_writes_them() -> None:
    old = "On four of 1,200 episodes, by 0.1 [0.0, 0.1] and -0.9; on `linear` 7.\nAnd 4.\n"
    old += "<!-- numbers\nn, points, gap, less, where, n\nn\n-->\n"
    new = rewritten(old, QUANTITIES)
    assert new.startswith("On nine of 1,369 episodes, by 0.1 [0.0, 0.2] and -0.8; on `linear` 9.\nAnd 9.\n<!--")
    assert [p for p in wrong(new) if "'tabular'" not in p] == [] and rewritten(new, QUANTITIES) == new


@pytest.mark.parametrize(
    ("old", "value", "new"),
    [
        ("nine", 0, "0"),
        ("Nine", 12, "Twelve"),
        ("nine", 21, "21"),
        ("nine", 0.5, None),  # a measure in place of a count
        ("−0.83", 0.8342, None),  # another sign is another sentence
        ("0.83", -0.8342, None),
        ("−0.83", -0.001, None),
        ("0.83", 0.4, "0.40"),
    ],
)
def test_a_number_that_makes_another_sentence_is_named_and_not_written(old: str, value: float, new: str | None) -> None:
    text = f"Ahead on {old} of these.\n<!-- numbers: value -->\n"
    written = rewritten(text, {"value": value})
    assert written == (text if new is None else text.replace(old, new))
    assert bool(wrong(written, value=value)) == (new is None)
