"""The states of a cell, and the two checks of finished results: all files are intact (`is_intact`), and their record is
current (`is_current`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

# A `failed` cell is tried again. A cell is not tried again if it is `diverged` (a training run that diverged, or a cell
# that needs such a run) or `skipped` (not applicable).
State = Literal["todo", "done", "failed", "diverged", "skipped"]


def is_intact(path: Path) -> bool:
    """Whether a file exists and is complete, whichever results it contains. Weights must also have a file with their
    digest."""
    from iclbench import tables  # imports pandas

    check = {".parquet": tables.is_intact, ".safetensors": _has_tensors_and_digest}.get(path.suffix, Path.is_file)
    return check(path)


def _has_tensors_and_digest(path: Path) -> bool:
    from iclbench.core.files import DIGEST, digest_path, holds_tensors, tensors_metadata

    return holds_tensors(path) and (DIGEST not in tensors_metadata(path) or digest_path(path).is_file())


def is_current(recorded: Mapping[Any, object], expected: Mapping[str, str], question: str | None = None) -> bool:
    """Whether recorded results are those of the current settings, code and data.

    Args:
        recorded: the record, which is the metadata of a file or the columns of a row. `metrics` lists the metrics of an
            evaluation, separated by spaces; it may be missing.
        expected: the identities that the record must have, by key.
        question: question of the task, if the results are an evaluation. It must have all metrics that the current code
            computes.

    >>> is_current({"cell": "5e884898", "status": "done"}, {"cell": "5e884898"})
    True
    >>> is_current({"cell": "5e884898", "metrics": "accuracy"}, {"cell": "5e884898"}, "targets")
    False
    """
    has_identities = all(recorded.get(key) == value for key, value in expected.items())
    return has_identities and (question is None or _has_all_metrics(recorded.get("metrics"), question))


def _has_all_metrics(recorded: object, question: str) -> bool:
    from iclbench.core.expected_metrics import missing_metrics  # imports torch

    return not (isinstance(recorded, str) and missing_metrics(recorded.split(), question))


def state_label(state: State) -> str:
    """Return the state in words, for printed tables."""
    return "to do" if state == "todo" else state
