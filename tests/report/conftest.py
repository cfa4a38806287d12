"""Synthetic results folders and reports on them, shared by the tests of the report."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from iclbench.report import build, whole
from iclbench.report.blocks import Block, Section, Text
from iclbench.report.data import Results, load
from iclbench.report.sections import Job, jobs
from tests.report import synthetic, synthetic_grid, synthetic_targets


@dataclass
class Made:
    """A page, and what it was written from: it takes seconds, so nothing is read or made a second time."""

    page: Path
    loaded: Results
    sections: list[Section]


def made(results: Path, out: Path) -> Made:
    """Write the page of a folder, without figure files, and keep what was read and the sections that it is made of."""
    read: list[Results] = []
    sections: list[Section] = []

    def kept(make: Callable[[], Section | None]) -> Section | None:
        section = make()
        sections.extend([] if section is None else [section])
        return section

    def todo(found: Results, names: set[str]) -> list[Job]:
        read.append(found)
        return [replace(job, make=lambda make=job.make: kept(make)) for job in jobs(found, names)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whole, "jobs", todo)
        page = build(results, out, formats=()).page
    (loaded,) = read
    return Made(page, loaded, sections)


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic.write(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="session")
def made_of_results(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return made(results, tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="session")
def loaded(made_of_results: Made) -> Results:
    return made_of_results.loaded


@pytest.fixture(scope="session")
def sections(made_of_results: Made) -> list[Section]:
    """The sections of a report on them."""
    return made_of_results.sections


@pytest.fixture(scope="session")
def page(made_of_results: Made) -> Path:
    """The page of a report without figure files."""
    return made_of_results.page


@pytest.fixture(scope="session")
def targets_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tasks of the question `targets` only."""
    return synthetic_targets.write(tmp_path_factory.mktemp("targets"))


@pytest.fixture(scope="session")
def made_of_targets(targets_results: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return made(targets_results, tmp_path_factory.mktemp("targets-report"))


@pytest.fixture(scope="session")
def targets_page(made_of_targets: Made) -> Path:
    return made_of_targets.page


@pytest.fixture(scope="session")
def targets_sections(made_of_targets: Made) -> list[Section]:
    """The sections of a report on it."""
    return made_of_targets.sections


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
