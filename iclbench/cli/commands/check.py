"""`iclbench check package.module:Class`: the contract tests, for a plug-in."""

from __future__ import annotations

from typing import Annotated

import typer

from iclbench.cli import completion
from iclbench.cli.options import DataDir, MaxBytes, Threads


def check(
    target: Annotated[
        str,
        typer.Argument(
            autocompletion=completion.classes,
            help="A registered name or package.module:Class of a backbone, estimator or family, or a task's card "
            "(.toml), whose family is checked with the card's parameters.",
        ),
    ],
    data_dir: DataDir = None,
    max_bytes: MaxBytes = None,
    threads: Threads = 1,
) -> None:
    """Run the contract tests on a backbone, estimator or family, yours or ours."""
