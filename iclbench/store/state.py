"""The states that a unit of work can be in, and whether its files are intact."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

# `failed` is tried again; `diverged` (a training without finite weights, or a cell that needs one) and `skipped` (not
# applicable) are not.
State = Literal["todo", "done", "failed", "diverged", "skipped"]


def is_intact(path: Path) -> bool:
    """Whether a file exists and is not cut short; weights also need the file with their digest."""
    from iclbench import tables  # imports pandas

    check = {".parquet": tables.is_intact, ".safetensors": _has_tensors_and_digest}.get(path.suffix, Path.is_file)
    return check(path)


def _has_tensors_and_digest(path: Path) -> bool:
    from iclbench.core.files import DIGEST, digest_path, holds_tensors, tensors_metadata

    return holds_tensors(path) and (DIGEST not in tensors_metadata(path) or digest_path(path).is_file())


def state_label(state: State) -> str:
    """The state as tables for users name it."""
    return "to do" if state == "todo" else state
