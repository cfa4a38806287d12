"""The states of a cell, and the check of its files."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

# A `failed` cell is tried again. Cells that are `diverged` (a training run without finite weights, or a cell that needs
# it) or `skipped` (not applicable) are not.
State = Literal["todo", "done", "failed", "diverged", "skipped"]


def is_intact(path: Path) -> bool:
    """Whether a file exists and is complete. Weights also need the file with their digest."""
    from iclbench import tables  # imports pandas

    check = {".parquet": tables.is_intact, ".safetensors": _has_tensors_and_digest}.get(path.suffix, Path.is_file)
    return check(path)


def _has_tensors_and_digest(path: Path) -> bool:
    from iclbench.core.files import DIGEST, digest_path, holds_tensors, tensors_metadata

    return holds_tensors(path) and (DIGEST not in tensors_metadata(path) or digest_path(path).is_file())


def state_label(state: State) -> str:
    """The state in words, for printed tables."""
    return "to do" if state == "todo" else state
