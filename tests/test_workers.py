"""Groups of test modules that run in the same worker of `make test`."""

from pathlib import Path

from tests.conftest import WORKER_GROUPS, worker_group

ROOT = Path(__file__).parents[1]


def test_group_paths_exist_and_do_not_overlap() -> None:
    paths = [path for group in WORKER_GROUPS for path in group]
    assert all((ROOT / path).exists() for path in paths)
    assert not [(one, other) for one in paths for other in paths if one != other and one.startswith(other)]


def test_modules_of_a_group_share_a_worker() -> None:
    assert worker_group("tests/report/test_page.py") == worker_group("tests/report/test_figures.py")
    assert worker_group("tests/sweep/test_grids.py") == worker_group("tests/config/test_sizes.py")
    assert worker_group("tests/sweep/test_pack.py") == "tests/sweep/test_pack.py"
