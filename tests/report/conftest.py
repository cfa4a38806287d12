"""Synthetic results folders and reports on them, shared by the tests of the report."""

from pathlib import Path

import pytest

from iclbench.report import build
from iclbench.report.blocks import Block, Section, Text
from iclbench.report.data import Results, load
from iclbench.report.sections import report
from tests.report import synthetic, synthetic_grid, synthetic_targets


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic.write(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="session")
def loaded(results: Path) -> Results:
    return load(results)


@pytest.fixture(scope="session")
def sections(loaded: Results) -> list[Section]:
    """The sections of a report on them."""
    return report(loaded)


@pytest.fixture(scope="session")
def page(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a report without figure files."""
    return build(results, tmp_path_factory.mktemp("report"), formats=()).page


@pytest.fixture(scope="session")
def targets_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tasks of the question `targets` only."""
    return synthetic_targets.write(tmp_path_factory.mktemp("targets"))


@pytest.fixture(scope="session")
def targets_sections(targets_results: Path) -> list[Section]:
    """The sections of a report on it."""
    return report(load(targets_results))


@pytest.fixture(scope="session")
def targets_blocks(targets_sections: list[Section]) -> dict[str, Block]:
    """Their blocks, by name."""
    blocks = [block for section in targets_sections for block in section.walk()]
    return {block.name: block for block in blocks if not isinstance(block, Text)}


@pytest.fixture(scope="session")
def grid(tmp_path_factory: pytest.TempPathFactory) -> synthetic_grid.Grid:
    """A folder as a sweep over many families leaves it."""
    return synthetic_grid.write(tmp_path_factory.mktemp("grid"))


@pytest.fixture(scope="session")
def grid_results(grid: synthetic_grid.Grid) -> Results:
    return load(grid.folder)
