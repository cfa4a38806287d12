"""The context of a command: its folders, its device and its number of threads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Context:
    """The folders, the device and the number of threads of one command.

    Attributes:
        results: results folder, with runs and tables.
        data_dir: folder with data sets; None for the default folder of each family.
        device: name of the device for models, as in torch.
        threads: number of torch threads, set when the process starts and recorded with measurements.
    """

    results: Path = Path("results")
    data_dir: Path | None = None
    device: str = "cpu"
    threads: int = 1
