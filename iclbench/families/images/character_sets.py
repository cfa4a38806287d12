"""Character images: all drawings of all classes as one array of pixels, loaded once per process and device."""

from __future__ import annotations

from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from iclbench.core.errors import DataError
from iclbench.core.hashing import data_fingerprint
from iclbench.families.images.glyphs import glyphs
from iclbench.families.images.omniglot import DRAWINGS, load_omniglot


class CharacterSet:
    """Images of characters in memory.

    Args:
        images: `(classes, drawings, size, size)`, ink 255 on paper 0.
    """

    def __init__(self, images: UInt8[np.ndarray, "classes drawings size size"]) -> None:
        self.drawings = images.shape[1]
        rows = np.ascontiguousarray(images).reshape(images.shape[0] * images.shape[1], -1)
        self._images = {torch.device("cpu"): torch.from_numpy(rows)}

    def read(self, classes: Int[Tensor, "*n"], drawings: Int[Tensor, "*n"]) -> UInt8[Tensor, "*n pixels"]:
        """Return these drawings of these classes, each flattened row by row, on the device of `classes`."""
        if classes.device not in self._images:
            self._images[classes.device] = self._images[torch.device("cpu")].to(classes.device)
        # Selecting rows by one index is several times faster than indexing by classes and drawings.
        rows = (classes * self.drawings + drawings).flatten()
        return self._images[classes.device].index_select(0, rows).unflatten(0, classes.shape)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all pixels."""
        return data_fingerprint(self._images[torch.device("cpu")].numpy().data)


@lru_cache(maxsize=4)
def procedural_characters(classes: int, size: int, jitter: float) -> CharacterSet:
    """Return the first `classes` procedural characters, with 20 drawings each."""
    return CharacterSet(glyphs(0, classes, DRAWINGS, size, jitter=jitter))


def omniglot_characters(data_dir: Path | None, size: int) -> CharacterSet:
    """Return all 1,623 characters of real Omniglot from `data_dir`/omniglot.

    Raises:
        DataError: the data folder is missing, or the dataset is missing, incomplete or damaged.
    """
    if data_dir is None:
        raise DataError(
            "the archives of Omniglot are required: set --data-dir or ICLBENCH_DATA to the folder that contains "
            "'omniglot', or use -o task.glyphs=procedural",
            code="missing-data",
        )
    return _omniglot(data_dir / "omniglot", size)


@lru_cache(maxsize=4)
def _omniglot(folder: Path, size: int) -> CharacterSet:
    return CharacterSet(load_omniglot(folder, size))
