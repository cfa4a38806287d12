"""`iclbench check package.module:Class`: the contract tests, for a plug-in."""

from __future__ import annotations

from typing import Annotated

import typer

from iclbench.cli.options import Threads, set_up_torch


def check(
    target: Annotated[
        str, typer.Argument(help="A registered name or package.module:Class of a backbone, estimator or family.")
    ],
    threads: Threads = 1,
) -> None:
    """Run the contract tests on a backbone, estimator or family, yours or ours."""
    set_up_torch("cpu", threads)
    from iclbench.cli.terminal import out
    from iclbench.contracts import check_target

    failed = 0
    for name, problem in check_target(target):
        failed += problem is not None
        out.print(
            f"{'FAILED' if problem else 'ok    '} {name}{': ' + problem if problem else ''}",
            markup=False,
            soft_wrap=True,
        )
    if failed:
        raise typer.Exit(1)
