"""The states of a cell, and the two checks of finished results: all files are intact, and an evaluation has all metrics
that the current code computes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

# A `failed` cell is tried again. A cell is not tried again if it is `diverged` (a training run that diverged, or a cell
# that needs such a run) or `skipped` (not applicable).
State = Literal["todo", "done", "failed", "diverged", "skipped"]


def is_intact(path: Path) -> bool:
    """Whether a file exists and is complete. Weights must also have a file with their digest."""
    from iclbench import tables  # imports pandas

    check = {".parquet": tables.is_intact, ".safetensors": _has_tensors_and_digest}.get(path.suffix, Path.is_file)
    return check(path)


def _has_tensors_and_digest(path: Path) -> bool:
    from iclbench.core.files import DIGEST, digest_path, holds_tensors, tensors_metadata

    return holds_tensors(path) and (DIGEST not in tensors_metadata(path) or digest_path(path).is_file())


def has_all_metrics(recorded: object, question: str) -> bool:
    """Whether a finished evaluation has all metrics that the current code computes.

    Args:
        recorded: the metrics in the row of the cell, separated by spaces; a missing value if the row has none.
        question: question of the task.
    """
    from iclbench.core.expected_metrics import missing_metrics  # imports torch

    return not (isinstance(recorded, str) and missing_metrics(recorded.split(), question))


def state_label(state: State) -> str:
    """Return the state in words, for printed tables."""
    return "to do" if state == "todo" else state
