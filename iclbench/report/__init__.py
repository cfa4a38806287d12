"""Tables to figures and one self-contained HTML page. Reads parquet only: neither torch nor the network.

`build` writes the report. It is imported when it is first asked for: the tables of `iclbench eval` need no figures.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from iclbench.report.whole import Report as Report
    from iclbench.report.whole import build as build
    from iclbench.report.whole import subtitle as subtitle


def __getattr__(name: str) -> Any:
    if name not in ("Report", "build", "subtitle"):
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module("iclbench.report.whole"), name)
