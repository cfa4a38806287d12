"""`iclbench check-pack PACK`: check packed results from an unknown source."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from iclbench.cli.options import DataDir, Device, MaxBytes, Threads, Trust, set_up_torch


def command(
    pack: Annotated[
        Path, typer.Argument(metavar="PACK", help="Folder of packed results, from iclbench sweep GRID --pack FOLDER.")
    ],
    recompute: Annotated[
        int, typer.Option("--recompute", min=1, help="Number of random runs that are trained again.", metavar="K")
    ] = 1,
    max_minutes: Annotated[
        float, typer.Option("--max-minutes", min=0.0, help="Time limit for a training run or an evaluation.")
    ] = 60.0,
    trust: Trust = None,
    data_dir: DataDir = None,
    max_bytes: MaxBytes = None,
    device: Device = "auto",
    threads: Threads = 1,
) -> None:
    """Check packed results from an unknown source: recompute them from the packed weights, and retrain some runs."""
    from iclbench.cli.terminal import out, say
    from iclbench.core.context import Context
    from iclbench.core.signals import sigterm_like_ctrl_c

    if sys.platform != "linux":
        say("note: on this system, memory is not limited, and processes that the code of a model starts are not ended")
    with sigterm_like_ctrl_c():
        context = Context(data_dir=data_dir, device=set_up_torch(device, threads), threads=threads)
        from iclbench.sweep.check_pack import check_pack

        for line in check_pack(pack, recompute, context, 60 * max_minutes):
            out.print(f"ok {line}")
    say("measured times and sizes are not compared")
