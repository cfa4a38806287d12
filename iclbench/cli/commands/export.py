"""`iclbench export RUN... --log TRACKER`: the curves and scores of finished runs for a tracker."""

from __future__ import annotations

from typing import Annotated

import typer

from iclbench.cli import completion
from iclbench.cli.options import RESULTS, Results, Trackers, Trust


def export(
    run: Annotated[list[str], typer.Argument(autocompletion=completion.runs, help="Finished runs.")],
    log: Trackers,
    results: Results = RESULTS,
    trust: Trust = None,
) -> None:
    """Write the training curves and scores of finished runs for TensorBoard, W&B or MLflow."""
