"""Fixtures with a synthetic grid, shared with the tests of the report."""

from tests.report.conftest import grid, grid_results

__all__ = ["grid", "grid_results"]
