"""Fixtures: synthetic results folders and reports on them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from iclbench.report import build, build_report
from iclbench.report.blocks import Block, Section, Text
from iclbench.report.data import Results, load_results
from iclbench.report.sections import Job, jobs
from tests.report import synthetic, synthetic_grid, synthetic_targets


@dataclass
class Report:
    """The page of a report with its results and sections, which take seconds to load and build."""

    page: Path
    results: Results
    sections: list[Section]


def build_and_record(folder: Path, out: Path) -> Report:
    """Build a report without pictures, and record its results and sections."""
    all_results: list[Results] = []
    sections: list[Section] = []

    def record_section(make: Callable[[], Section | None]) -> Section | None:
        section = make()
        sections.extend([] if section is None else [section])
        return section

    def recording_jobs(results: Results, names: set[str]) -> list[Job]:
        all_results.append(results)
        return [replace(job, make=lambda make=job.make: record_section(make)) for job in jobs(results, names)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_report, "jobs", recording_jobs)
        page = build(folder, out, formats=()).page
    (results,) = all_results
    return Report(page, results, sections)


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic.write(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="session")
def built_report(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Report:
    return build_and_record(results, tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="session")
def report_results(built_report: Report) -> Results:
    return built_report.results


@pytest.fixture(scope="session")
def sections(built_report: Report) -> list[Section]:
    return built_report.sections


@pytest.fixture(scope="session")
def page(built_report: Report) -> Path:
    return built_report.page


@pytest.fixture(scope="session")
def targets_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder whose tasks all have the question `targets`."""
    return synthetic_targets.write(tmp_path_factory.mktemp("targets"))


@pytest.fixture(scope="session")
def targets_report(targets_results: Path, tmp_path_factory: pytest.TempPathFactory) -> Report:
    return build_and_record(targets_results, tmp_path_factory.mktemp("targets-report"))


@pytest.fixture(scope="session")
def targets_page(targets_report: Report) -> Path:
    return targets_report.page


@pytest.fixture(scope="session")
def targets_sections(targets_report: Report) -> list[Section]:
    return targets_report.sections


@pytest.fixture(scope="session")
def targets_blocks(targets_sections: list[Section]) -> dict[str, Block]:
    """The blocks of `targets_sections` by name."""
    blocks = [block for section in targets_sections for block in section.walk()]
    return {block.name: block for block in blocks if not isinstance(block, Text)}


@pytest.fixture(scope="session")
def grid(tmp_path_factory: pytest.TempPathFactory) -> synthetic_grid.Grid:
    """The results folder of a sweep over many families."""
    return synthetic_grid.write(tmp_path_factory.mktemp("grid"))


@pytest.fixture(scope="session")
def grid_results(grid: synthetic_grid.Grid) -> Results:
    return load_results(grid.folder)
