"""Where work is done and what it may use: folders, device and threads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Context:
    """Folders, device and threads, the same for all that one command does.

    Attributes:
        results: results folder, where runs and tables lie.
        data_dir: where families find their data sets; None: each where it looks by itself.
        device: where models compute, as torch names it.
        threads: torch threads; set when the process starts, recorded with measurements.
    """

    results: Path = Path("results")
    data_dir: Path | None = None
    device: str = "cpu"
    threads: int = 1
