"""Results of small sweeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from iclbench.cli.main import main
from iclbench.report.data import Results, load_results
from tests.inline_executor import InlineExecutor


def sweep_results(folder: Path, grid: str) -> Results:
    """Sweep a grid, given as the text of its card, and return the results."""
    card, results = folder / "card.toml", folder / "results"
    card.write_text(grid)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("iclbench.cli.sweep_run.worker_pool", lambda slots, threads: InlineExecutor())
        assert main(["sweep", str(card), "--results", str(results), "--workers", "1"]) == 0
    return load_results(results)
