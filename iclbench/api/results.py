"""Results folders: their tables as data frames, and their report."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from iclbench import tables
from iclbench.api import arguments
from iclbench.core.errors import UsageError
from iclbench.store.runs import Run, all_runs

if TYPE_CHECKING:
    from iclbench.api.predict import Trained


class ResultsFolder:
    """The tables of a results folder; each method reads the files again at each call.

    Attributes:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def values(self) -> pd.DataFrame:
        """Return the scores of all contestants with their intervals, one row per measured value."""
        return tables.read_all("values", self.path)

    def costs(self) -> pd.DataFrame:
        """Return the measured costs: parameters, seconds, bytes and floating-point operations."""
        return tables.read_all("costs", self.path)

    def errors(self) -> pd.DataFrame:
        """Return the scores of single episodes, for paired comparisons of contestants."""
        return tables.read_all("errors", self.path)

    def examples(self) -> pd.DataFrame:
        """Return the points and predictions of the first few episodes."""
        return tables.read_all("examples", self.path)

    def answers(self) -> pd.DataFrame:
        """Return the answers of language models to single questions."""
        return tables.read_all("answers", self.path)

    def cells(self) -> pd.DataFrame:
        """Return the cells of all sweeps with their states."""
        return tables.read_all("cells", self.path)

    def runs(self) -> list[Run]:
        """Return all runs in this folder, including unfinished runs."""
        return all_runs(self.path)

    def load(self, run: str) -> Trained:
        """Load the model of a finished run by name."""
        from iclbench.api.predict import load  # needs torch

        return load(run, self.path)

    def __repr__(self) -> str:
        return f"open_results({str(self.path)!r})"


def open_results(path: str | Path = "results") -> ResultsFolder:
    """Open a results folder to read its tables.

    Raises:
        UsageError: the folder does not exist.

    >>> from tempfile import TemporaryDirectory
    >>> from iclbench.api.tasks import task
    >>> from iclbench.api.train import train
    >>> with TemporaryDirectory() as folder:
    ...     _ = train(task("linear", "smoke"), "cnp", results=folder, steps=5)
    ...     [run.name for run in open_results(folder).runs()]
    ['linear-cnp-smoke-s0']
    """
    folder = arguments.folder("path", path).absolute()
    if not folder.is_dir():
        raise UsageError(
            f"the folder {path} does not exist; icl.train(...) and iclbench train create it", code="missing-file"
        )
    return ResultsFolder(folder)


def write_report(
    results: str | Path = "results",
    folder: str | Path | None = None,
    tasks: str | Sequence[str] = (),
    contestants: str | Sequence[str] = (),
) -> Path:
    """Write the report on a results folder, with its tables and the data of its figures.

    If a section or a picture cannot be created, a warning is issued.

    Args:
        results: results folder.
        folder: folder of the report (default: `report` in the results folder).
        tasks: names of tasks (default: all tasks).
        contestants: names of models, runs, baselines and oracles to include (default: all).

    Returns:
        The path of the HTML page.

    Raises:
        UsageError: the results folder has no results, or the folder of the report contains a page, tables or figures
            that are not from a report.
        UnknownNameError: a task, contestant or run has no results.

    >>> from tempfile import TemporaryDirectory
    >>> from iclbench.api.tasks import task
    >>> from iclbench.api.train import train
    >>> with TemporaryDirectory() as folder:
    ...     _ = train(task("linear", "smoke"), "cnp", results=folder, steps=5)
    ...     write_report(folder).relative_to(folder).as_posix()
    'report/index.html'
    """
    from iclbench.report import build  # needs SciPy and Altair

    results_folder = arguments.folder("results", results)
    report_folder = results_folder / "report" if folder is None else arguments.folder("folder", folder)
    report = build(
        results_folder,
        report_folder,
        tasks=arguments.names("tasks", tasks),
        contestants=arguments.names("contestants", contestants),
    )
    lines = [f"section '{title}' could not be created: {reason}" for title, reason in report.failed_sections.items()]
    lines += [f"picture '{name}' is missing: {reason}" for name, reason in report.missing_pictures.items()]
    lines += [f"the report has tables but no figures: {report.script_error}"] * bool(report.script_error)
    for line in lines:
        warnings.warn(line, stacklevel=2)
    return report.page
