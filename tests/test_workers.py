"""What the workers of `make test` share out among them: modules, and groups of modules that make the same things."""

from pathlib import Path

from tests.conftest import SHARED, shared

ROOT = Path(__file__).parents[1]


def test_what_stays_together_is_there_and_in_one_group() -> None:
    parts = [part for group in SHARED for part in group]
    assert all((ROOT / part).exists() for part in parts)
    assert not [(one, other) for one in parts for other in parts if one != other and one.startswith(other)]


def test_modules_of_a_group_have_one_name_and_others_their_own() -> None:
    assert shared("tests/report/test_page.py") == shared("tests/report/test_figures.py")
    assert shared("tests/sweep/test_grids.py") == shared("tests/config/test_sizes.py")
    assert shared("tests/sweep/test_pack.py") == "tests/sweep/test_pack.py"
