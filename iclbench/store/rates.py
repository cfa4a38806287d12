"""The tables of learning rates in a results folder, `RESULTS/rates/PRESET.toml`, which `iclbench tune` writes."""

from __future__ import annotations

from pathlib import Path

from iclbench.config.rates import RateTable, read_table


def results_path(results: Path, preset: str) -> Path:
    """Return the path of the table for a preset in a results folder, which may not exist."""
    return results / "rates" / f"{preset}.toml"


def read_rates(results: Path | None, preset: str) -> RateTable:
    """Return the table for a preset in a results folder.

    It is empty if the file does not exist or `results` is None.

    Raises:
        UsageError: the table is not valid.
    """
    return RateTable() if results is None else read_table(results_path(results, preset))
