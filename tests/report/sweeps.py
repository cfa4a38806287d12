"""Results of small sweeps."""

from __future__ import annotations

from pathlib import Path

from iclbench.cli.main import main
from iclbench.report.data import Results, load_results


def sweep_results(folder: Path, grid: str) -> Results:
    """Sweep a grid, given as the text of its card, and return the results."""
    card, results = folder / "card.toml", folder / "results"
    card.write_text(grid)
    assert main(["sweep", str(card), "--results", str(results), "--workers", "1"]) == 0
    return load_results(results)
