"""Sets of labelled images of equal size, each split into training and evaluation images.

| images | trained on | evaluated on | `unseen-classes` |
| --- | --- | --- | --- |
| `glyphs` | first drawings of the first classes | 20 other drawings of these classes | 20 drawings of further classes |
| `mnist` | training file | test file | |
| `emnist` (balanced) | training file, classes 0 to 9 | test file, the same classes | test file, classes 10 to 46 |
| `celeba` | partitions 0 and 1 | partition 2 | |
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Int, UInt8
from torch import Tensor

from iclbench.core.errors import DataError
from iclbench.core.hashing import data_fingerprint
from iclbench.families.images.glyphs import glyphs
from iclbench.families.images.idx_file import read_idx

Part = Literal["train", "validation", "test", "unseen"]
# Number of held-out drawings of every glyph.
HELD_OUT_DRAWINGS = 20
# Number of training classes of balanced EMNIST: the digits, which come before the letters.
TRAINING_CLASSES = 10

_MNIST = "the MNIST database (yann.lecun.com/exdb/mnist)"
_EMNIST = "the EMNIST dataset of NIST (www.nist.gov/itl/products-and-services/emnist-dataset), balanced split"


class ImageSet:
    """Labelled images in memory.

    Args:
        pixels: `(images, height·width, channels)`, row by row.
        labels: `(images,)`, integers.
    """

    def __init__(self, pixels: UInt8[np.ndarray, "images pixels channels"], labels: Int[np.ndarray, " images"]) -> None:
        self._pixels = {torch.device("cpu"): torch.from_numpy(np.ascontiguousarray(pixels))}
        names, first_position, counts = np.unique(np.sort(labels), return_index=True, return_counts=True)
        self.labels, self.first_position, self.counts = (
            torch.from_numpy(a.astype(np.int64)) for a in (names, first_position, counts)
        )
        # Image numbers sorted by label: the images with label labels[i] are the counts[i] entries that start at
        # first_position[i].
        self.order = torch.from_numpy(np.argsort(labels, kind="stable"))

    def read(self, numbers: Int[Tensor, "*n"]) -> UInt8[Tensor, "*n pixels channels"]:
        """Return the images with these numbers, on the device of `numbers`."""
        if numbers.device not in self._pixels:
            self._pixels[numbers.device] = self._pixels[torch.device("cpu")].to(numbers.device)
        return self._pixels[numbers.device][numbers]

    @cached_property
    def fingerprint(self) -> str:
        """Hash of pixels and labels."""
        tensors = (self._pixels[torch.device("cpu")], self.order, self.labels, self.counts)
        return data_fingerprint(*(tensor.numpy().tobytes() for tensor in tensors))


def glyph_images(part: Part, classes: int, drawings: int, size: int, jitter: float) -> ImageSet:
    """Return procedural characters. Each class has `drawings` training drawings, `HELD_OUT_DRAWINGS` drawings for
    evaluation and the same number for the choice of learning rates."""
    first_class = classes if part == "unseen" else 0
    first_drawer = drawings + HELD_OUT_DRAWINGS * (part == "validation")
    drawers = range(drawings) if part == "train" else range(first_drawer, first_drawer + HELD_OUT_DRAWINGS)
    images = glyphs(0, range(first_class, first_class + classes), drawers, size, jitter=jitter)
    labels = np.repeat(np.arange(first_class, first_class + classes), len(drawers))
    return ImageSet(images.reshape(len(labels), size * size, 1), labels)


def mnist_images(part: Part, data_dir: Path | None) -> ImageSet:
    """Read the training or test images of MNIST from the idx files in the folder `mnist`.

    Raises:
        DataError: a file is missing or damaged.
    """
    images, labels = _idx_pair(data_dir, "mnist", {"train": "train", "test": "t10k"}[part], _MNIST)
    return ImageSet(_flat(images), labels)


def emnist_images(part: Part, data_dir: Path | None) -> ImageSet:
    """Read the training, test or unseen images of balanced EMNIST from the idx files in the folder `emnist`. The files
    contain transposed images, which are turned upright.

    Raises:
        DataError: a file is missing or damaged.
    """
    split = "train" if part == "train" else "test"
    images, labels = _idx_pair(data_dir, "emnist", f"emnist-balanced-{split}", _EMNIST)
    is_in_part: Bool[np.ndarray, " images"] = (labels >= TRAINING_CLASSES) == (part == "unseen")
    return ImageSet(_flat(images[is_in_part].transpose(0, 2, 1)), labels[is_in_part])


def _idx_pair(
    data_dir: Path | None, name: str, prefix: str, source: str
) -> tuple[UInt8[np.ndarray, "images 28 28"], Int[np.ndarray, " images"]]:
    folder = folder_of(data_dir, name, source)
    images = read_idx(folder, f"{prefix}-images-idx3-ubyte", 3, source)
    labels = read_idx(folder, f"{prefix}-labels-idx1-ubyte", 1, source)
    if images.shape[1:] != (28, 28) or len(images) != len(labels) or not len(images):
        shape = " x ".join(map(str, images.shape))
        raise DataError(
            f"{folder}: {prefix} has images of shape {shape} and {len(labels)} labels; expected one label per 28 x 28 "
            "image. Use image and label files from the same download"
        )
    return images, labels.astype(np.int64)


def folder_of(data_dir: Path | None, name: str, source: str) -> Path:
    """Return the folder of a dataset; raise `DataError` if the data folder is not set."""
    if data_dir is None:
        raise DataError(
            f"the images of {source} are required: set --data-dir or ICLBENCH_DATA to the folder that contains "
            f"'{name}'",
            code="missing-data",
        )
    return data_dir / name


def _flat(images: UInt8[np.ndarray, "images height width"]) -> UInt8[np.ndarray, "images pixels 1"]:
    return images.reshape(len(images), -1, 1)
