"""`iclbench lm demo-model OUT`: a small language model for users without weights."""

from __future__ import annotations

from pathlib import Path

from iclbench.cli.options import set_up_torch


def demo_model(out: Path, seed: int, steps: int | None, threads: int) -> None:
    """Train a small language model on letters, in a few minutes, to try everything without weights."""
    set_up_torch("cpu", threads)
    from iclbench.cli.lm.train_demo import train_demo

    train_demo(out, seed, steps)
