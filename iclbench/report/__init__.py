"""Reports: figures, tables and one self-contained HTML page from result tables. Needs neither torch nor the network.

`build` writes a report. It is imported on first use, because `iclbench cost` uses only the tables of this package and
should not import the libraries for figures.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from iclbench.report.build_report import Report as Report
    from iclbench.report.build_report import build as build
    from iclbench.report.build_report import subtitle as subtitle


def __getattr__(name: str) -> Any:
    if name not in ("Report", "build", "subtitle"):
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module("iclbench.report.build_report"), name)
