"""`iclbench lm demo-model OUT`: a small language model for users without weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from iclbench.cli.options import Threads


def demo_model(
    out: Annotated[Path, typer.Argument(help="Folder to write the model to.")],
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of weights and training data.")] = 0,
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, help="Training steps, at most; default: enough.")
    ] = None,
    threads: Threads = 1,
) -> None:
    """Train a small language model on letters, in a few minutes, to try everything without weights."""
