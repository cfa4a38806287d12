"""Outputs agree if counts are equal and other numbers agree to two digits. Times and memory are ignored. Pages can
be updated with new output."""

from pathlib import Path

import pytest

from tests.pages.blocks import blocks
from tests.pages.compare import difference, lines_agree, new_excerpt
from tests.pages.session import Session, with_new_output


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("area 0.133 ±0.015", "area  0.134  ±0.0148"),
        ("time 11.8 ms and 3 s", "time 140 µs and 1 h 20 min"),
        ("11.8 MiB", "14.8 MiB"),
        ("of 2026-11-24", "of 2027-01-01"),
        ("-0.5,0.376255,-1.064", "-0.5,0.376311,-1.061"),
        ("1,280 episodes", "1,280 episodes"),
        ("<.0005 0.001", "<.0005 0.002"),
        ("first, second, ...", "first, second, third"),
        ("25.6 k", "25.4 k"),
        ("mean -0.71]", "mean -0.70]"),
    ],
)
def test_lines_that_differ_only_by_rounding_times_or_memory_agree(shown: str, printed: str) -> None:
    assert lines_agree(shown, printed)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("area 0.133", "area 0.15"),
        ("100/100", "99/100"),
        ("-0.5,0.376255,-1.064", "-0.5,0.46311,-1.061"),
        ("1,280 episodes", "1,281 episodes"),
        ("12 examples", "13 examples"),
        ("linear-smoke-none-131360d0", "linear-smoke-none-131360d1"),
        ("a b", "a b c"),
        ("mean -0.71", "mean 0.71"),
        ("11.8 KiB", "14.8 KiB"),
    ],
)
def test_lines_with_different_counts_numbers_or_words_do_not_agree(shown: str, printed: str) -> None:
    assert not lines_agree(shown, printed)


PRINTED = ["first  1.00", "", "second 2.00", "third, fourth, fifth", "more", "much", "", "last   3"]


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (["first 1.01", "", "second 2.0", "...", "last 3"], ""),
        (["first 1.00", "...", "last 4"], "'last 4' is printed as 'no such line'"),
        (["first 1.5", "..."], "'first 1.5' is printed as 'first  1.00'"),
        (["first 1.00", "second 2.00", "..."], "'second 2.00' is printed as ''"),
        (["...", "much", ""], "'last   3' is printed, too"),
        (["...", "last 3", "and 4"], "'and 4' is printed as 'no such line'"),
    ],
)
def test_an_excerpt_must_be_in_the_printed_order_with_gaps_only_at_dots(shown: list[str], expected: str) -> None:
    assert difference(shown, PRINTED) == expected


def test_a_new_excerpt_contains_the_lines_that_correspond_to_the_shown_lines() -> None:
    assert new_excerpt(["first 9", "...", "last 9"], PRINTED) == ["first  1.00", "...", "last   3"]
    assert new_excerpt(["last 4", "...", "third, four, ..."], PRINTED) == [
        "...",
        "third, fourth, ...",
        "...",
        "last   3",
    ]
    assert new_excerpt(["first", "", "second 7", "..."], PRINTED) == [*PRINTED[:3], "..."]
    twice = ["one", "a 1", "two", "a 2", "b 2"]
    assert new_excerpt(["...", "two", "a 3", "..."], twice) == ["...", "two", "a 2", "..."]
    assert new_excerpt(["all of it"], PRINTED) == PRINTED


PAGE = """# Page

```python
import math
```

<!-- long -->
```python
1 / 0
```

```python
>>> math.pi
3.1
>>> "words"
'other'
```

```{code-block} toml
:caption: cards/mine.toml

family = "linear"
```

```console
$ cat cards/mine.toml  # the file above
family = "quadratic"
$ iclbench list nothing
```

<!-- not run: a network -->
```console
$ false
```
"""


@pytest.mark.slow
def test_a_session_runs_unmarked_blocks_and_reports_problems(tmp_path: Path) -> None:
    assert [block.mark for block in blocks(PAGE)] == ["", "long", "", "", "", "not run"]
    outputs = list(Session(tmp_path).run(PAGE))
    problems = [(PAGE.split("\n")[output.line - 1], output.problem) for output in outputs if output.problem]
    assert problems[0] == ('>>> "words"', "''other'' is printed as ''words''")
    assert problems[1][0].startswith("$ cat") and problems[1][1].endswith("""printed as 'family = "linear"'""")
    assert problems[2][0].endswith("list nothing") and problems[2][1].startswith("exit code 2")
    assert len(problems) == 3
    new_page = with_new_output(PAGE, outputs)
    assert new_page == PAGE.replace("'other'", "'words'").replace('"quadratic"', '"linear"')
