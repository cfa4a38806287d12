"""Options shared by several commands."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from iclbench.core import limits, trust
from iclbench.core.errors import UsageError
from iclbench.core.signals import defer_signals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iclbench.store.runs import Run

Results = Annotated[
    Path, typer.Option("--results", envvar="ICLBENCH_RESULTS", help="Results folder.", show_default="./results")
]
DataDir = Annotated[
    Path | None, typer.Option("--data-dir", envvar="ICLBENCH_DATA", help="Folder with your copies of data sets.")
]
Device = Annotated[
    str, typer.Option("--device", envvar="ICLBENCH_DEVICE", help="Device for models: auto, cpu, cuda, cuda:1, ...")
]
Threads = Annotated[
    int,
    typer.Option(
        "--threads", envvar="ICLBENCH_THREADS", min=1, help="Number of torch threads; 1 is best for small models."
    ),
]
Trackers = Annotated[
    list[str],
    typer.Option(
        "--log",
        metavar="TRACKER",
        help="Also log to tensorboard, wandb (offline) or mlflow. May be repeated.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers", "-j", min=1, help="Number of processes, with one thread each.", show_default="one per core"
    ),
]
PerGpu = Annotated[int, typer.Option("--per-gpu", min=1, help="Number of processes per GPU.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


def _max_bytes(text: str | None) -> str | None:
    if text:
        limits.parse(text)
        os.environ[limits.VARIABLE] = text
    return text


def _trust(modules: list[str] | None) -> list[str] | None:
    trust.trust(*modules or [])
    return modules


Trust = Annotated[
    list[str] | None,
    typer.Option(
        "--trust",
        metavar="MODULE",
        callback=_trust,
        help="Trust the code of this module if a card or run uses it. Adds to ICLBENCH_TRUST. May be repeated.",
    ),
]
MaxBytes = Annotated[
    str | None,
    typer.Option(
        "--max-bytes",
        metavar="SIZE",
        callback=_max_bytes,
        envvar=limits.VARIABLE,
        help="Size limit for unpacked files, tables in memory and models, such as 500M or 8G.",
        show_default="1G",
    ),
]

RESULTS = Path("results")


def finished_runs(results: Path) -> list[Run]:
    """Return all finished runs of a results folder."""
    from iclbench.store.runs import all_runs

    return [run for run in all_runs(results) if run.is_finished]


def selected_runs(results: Path, names: Sequence[str] | None) -> list[Run]:
    """Return the named runs, or all finished runs. On a terminal, ask the user whether to trust their code.

    Raises:
        UsageError: a run does not exist, or no run is finished.
    """
    from iclbench.store.archives import find
    from iclbench.store.runs import DivergedError, all_runs

    runs = [find(results, name) for name in names] if names else finished_runs(results)
    if not runs:
        diverged = [error for run in all_runs(results) if (error := run.recorded_divergence) is not None]
        if diverged:
            lines = "; ".join(f"run '{error.run.name}' has {error.reason}" for error in diverged[:8])
            more = f"; and {len(diverged) - 8} more" if len(diverged) > 8 else ""
            message = f"no finished run in {results}: {lines}{more}. Train {DivergedError.ADVICE}"
            raise UsageError(message, code="nothing-to-do")
        raise UsageError(
            f"no finished run in {results}; start with: iclbench train linear gpt2 --preset smoke", code="nothing-to-do"
        )
    for run in runs if trust.ask_user else ():  # ask before a progress bar is drawn; a refused run is skipped later
        with suppress(UsageError):
            for target in run.config.targets:
                trust.require(target)
    return runs


def set_up_torch(device: str, threads: int) -> str:
    """Import torch, set its number of threads, and return the name of the device. `auto` selects a GPU if one is
    available.

    Raises:
        UsageError: the device is not available.
    """
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    if threads == 1:
        # Spinning idle threads of several processes would starve each other on few cores. With several threads,
        # sleeping between small operations is slower than a single thread (a Mamba step: 0.50 s against 0.15 s).
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    with defer_signals(signal.SIGINT, signal.SIGTERM):  # an exception during this import would abort the process
        import torch

    torch.set_num_threads(threads)
    from iclbench.core.devices import resolve_device

    return resolve_device(device)


def example_count(extrapolate: str, trained_length: int) -> int:
    """Parse the value of `--extrapolate`: `160` examples, or `4x` for four times the training length."""
    number = extrapolate.removesuffix("x")
    if not (number.isascii() and number.isdecimal()):
        raise UsageError(
            "--extrapolate takes a number of examples, such as 160, or a multiple of the training length, such as 4x, "
            f"not {extrapolate!r}",
            code="bad-value",
        )
    return int(number) * (trained_length if number != extrapolate else 1)
