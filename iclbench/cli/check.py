"""`iclbench check package.module:Class`: run the contract tests on a class."""

from __future__ import annotations

from typing import Annotated

import typer

from iclbench.cli import completion
from iclbench.cli.options import DataDir, MaxBytes, Threads, Trust, set_up_torch


def command(
    target: Annotated[
        str,
        typer.Argument(
            autocompletion=completion.classes,
            help="A registered name or package.module:Class of a backbone, estimator or family, or the card (.toml) "
            "of a baseline or a task. For a task, its family is checked with the card's parameters. "
            "To check a sequence mixer, name a model class that uses it.",
        ),
    ],
    data_dir: DataDir = None,
    trust: Trust = None,
    max_bytes: MaxBytes = None,
    threads: Threads = 1,
) -> None:
    """Run the contract tests on a backbone, estimator or family."""
    from iclbench.cli.terminal import out

    set_up_torch("cpu", threads)
    from iclbench.cli.check_class import check_class, classes, oracle_claims, summary

    contract_count, broken_contracts = 0, list[str]()
    for cls in classes(target):
        for name, problem in check_class(cls, target, data_dir):
            contract_count += 1
            broken_contracts += [name] * (problem is not None)
            out.print(f"{'FAILED' if problem else 'ok    '} {name}{': ' + problem if problem else ''}")
    for line in oracle_claims(target):
        out.print(line)
    out.print(summary(contract_count, broken_contracts))
    if broken_contracts:
        raise typer.Exit(1)
