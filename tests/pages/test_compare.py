"""Numbers are compared to two digits, counts exactly, times not at all."""

import pytest

from tests.pages.blocks import blocks
from tests.pages.compare import difference, same, shortened
from tests.pages.session import Session, rewritten


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
def test_lines_that_say_the_same(shown: str, printed: str) -> None:
    assert same(shown, printed)


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
def test_lines_that_do_not(shown: str, printed: str) -> None:
    assert not same(shown, printed)


PRINTED = ["first  1.00", "", "second 2.00", "third, fourth, fifth", "more", "much", "", "last   3"]


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        (["first 1.01", "", "second 2.0", "...", "last 3"], ""),
        (["first 1.00", "...", "last 4"], "'last 4' is printed as 'no such line'"),
        (["first 1.5", "..."], "'first 1.5' is printed as 'first  1.00'"),
        (["first 1.00", "second 2.00", "..."], "'second 2.00' is printed as ''"),
        (["...", "much", ""], "'last   3' is printed, too"),
        (["...", "last 3", "and 4"], "'and 4' is printed as 'no such line'"),
    ],
)
def test_an_excerpt_is_in_order_and_has_gaps_where_it_says_so(shown: list[str], said: str) -> None:
    assert difference(shown, PRINTED) == said


def test_an_excerpt_is_written_anew_about_the_same_things() -> None:
    assert shortened(["first 9", "...", "last 9"], PRINTED) == ["first  1.00", "...", "last   3"]
    assert shortened(["last 4", "...", "third, four, ..."], PRINTED) == ["...", "third, fourth, ...", "...", "last   3"]
    assert shortened(["first", "", "second 7", "..."], PRINTED) == [*PRINTED[:3], "..."]
    twice = ["one", "a 1", "two", "a 2", "b 2"]
    assert shortened(["...", "two", "a 3", "..."], twice) == ["...", "two", "a 2", "..."]
    assert shortened(["all of it"], PRINTED) == PRINTED


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
$ cat cards/mine.toml  # what was written
family = "quadratic"
$ iclbench list nothing
```

<!-- not run: a network -->
```console
$ false
```
"""


@pytest.mark.slow
def test_a_session_runs_what_is_marked_in_no_way_and_says_what_is_wrong(tmp_path) -> None:  # type: ignore[no-untyped-def]
    assert [block.mark for block in blocks(PAGE)] == ["", "long", "", "", "", "not run"]
    found = list(Session(tmp_path).run(PAGE))
    wrong = [(PAGE.split("\n")[each.line - 1], each.wrong) for each in found if each.wrong]
    assert wrong[0] == ('>>> "words"', "''other'' is printed as ''words''")
    assert wrong[1][0].startswith("$ cat") and wrong[1][1].endswith("""printed as 'family = "linear"'""")
    assert wrong[2][0].endswith("list nothing") and wrong[2][1].startswith("exit code 2")
    assert len(wrong) == 3
    new = rewritten(PAGE, found)
    assert new == PAGE.replace("'other'", "'words'").replace('"quadratic"', '"linear"')
