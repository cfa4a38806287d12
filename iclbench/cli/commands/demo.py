"""`iclbench demo`: the main job on embedded defaults, in a few minutes on a laptop."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DemoResults = Annotated[
    Path, typer.Option("--results", envvar="ICLBENCH_RESULTS", help="Results folder.", show_default="./results/demo")
]


def demo(results: DemoResults = Path("results/demo")) -> None:
    """Train small backbones on two tasks, evaluate them beside baselines, probe their layers, write the report."""
