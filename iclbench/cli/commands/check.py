"""`iclbench check package.module:Class`: the contract tests, for a plug-in."""

from __future__ import annotations

from typing import Annotated

import typer

from iclbench.cli import completion
from iclbench.cli.options import DataDir, MaxBytes, Threads, Trust


def check(
    target: Annotated[
        str,
        typer.Argument(
            autocompletion=completion.classes,
            help="A registered name or package.module:Class of a backbone, estimator or family, or a card "
            "(.toml): of a task, whose family is checked with the card's parameters, or of a baseline.",
        ),
    ],
    data_dir: DataDir = None,
    trust: Trust = None,
    max_bytes: MaxBytes = None,
    threads: Threads = 1,
) -> None:
    """Run the contract tests on a backbone, estimator or family, yours or ours."""
