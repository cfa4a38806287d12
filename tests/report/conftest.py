"""One synthetic results folder and one report on it, shared by the tests of the report."""

from pathlib import Path

import pytest

from iclbench.report import build
from tests.report import synthetic


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic.write(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="session")
def page(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a report without figure files."""
    return build(results, tmp_path_factory.mktemp("report"), formats=())
