"""`iclbench demo`: the main job on embedded defaults, in a few minutes on a laptop."""

from __future__ import annotations

from pathlib import Path

from iclbench.cli.options import Results


def demo(results: Results = Path("results/demo")) -> None:
    """Train small backbones on two tasks, evaluate them beside baselines, probe their layers, write the report."""
