"""CelebA (Liu et al. 2015): aligned faces in their public layout, `img_align_celeba/*.jpg` and
`list_eval_partition.txt`.

Prepared as the released code of TNP (Nguyen and Grover 2022) and of CMAB (Feng et al. 2023) does, the two papers that
have published numbers on them: the whole image of 178 x 218 pixels is squeezed to size x size by Pillow's `resize`
(bicubic and antialiased in the versions 8.4 and 9.4 that these name), partitions 0 and 1 are trained on and partition 2
is evaluated on. Every image is decoded once per process, when it is first drawn.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from iclbench.core import limits
from iclbench.core.errors import DataError
from iclbench.families.images.image_sets import ImageSet, Part, folder_of

# Width and height of every aligned image.
ALIGNED = (178, 218)

_HOME = "CelebA (mmlab.ie.cuhk.edu.hk/projects/CelebA.html)"
_ADVICE = f"expected img_align_celeba/*.jpg and list_eval_partition.txt there, as in {_HOME}"
# 0 is the data set's own training partition, 1 validation, 2 test.
_PARTITIONS = {"train": ("0", "1"), "test": ("2",)}


class CelebA(ImageSet):
    """Faces to train or to evaluate on, all of one label.

    Raises:
        DataError: the files are not there.
    """

    def __init__(self, part: Part, data_dir: Path | None, size: int) -> None:
        folder = folder_of(data_dir, "celeba", _HOME)
        self._size = size
        self._paths = [folder / "img_align_celeba" / name for name in _names(folder, _PARTITIONS[part])]
        absent = next((p for p in (self._paths[0], self._paths[-1]) if not p.is_file()), None)
        if absent:
            raise DataError(f"{absent} is not there; {_ADVICE}")
        # Pages of zeros take no memory before they are written to.
        super().__init__(
            np.zeros((len(self._paths), size * size, 3), np.uint8), np.zeros(len(self._paths), dtype=np.int64)
        )
        self._decoded = torch.zeros(len(self._paths), dtype=torch.bool)

    def read(self, images: Int[Tensor, "*n"]) -> UInt8[Tensor, "*n pixels channels"]:
        numbers = images.cpu()
        pixels = self._pixels[torch.device("cpu")]
        for index in torch.unique(numbers[~self._decoded[numbers]]).tolist():
            pixels[index] = torch.from_numpy(_decode(self._paths[index], self._size).reshape(-1, 3))
            self._decoded[index] = True
        return pixels[numbers].to(images.device)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the names and lengths of the files: reading 200,000 images would take minutes."""
        digest = hashlib.sha256()
        for path in self._paths:
            digest.update(f"{path.name} {path.stat().st_size if path.is_file() else 0}\n".encode())
        return digest.hexdigest()[:12]


def _names(folder: Path, partitions: Sequence[str]) -> list[str]:
    """File names of these partitions."""
    path = folder / "list_eval_partition.txt"
    try:
        rows = [line.split() for line in limits.read_bytes(path).decode("ascii").splitlines()]
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; {_ADVICE}") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not a list of file names and partitions; {_ADVICE}") from None
    if any(len(row) != 2 or Path(row[0]).name != row[0] for row in rows):
        raise DataError(f"{path} is not a list of file names and partitions; {_ADVICE}")
    names = [name for name, part in rows if part in partitions]
    if not names:
        raise DataError(f"{path} names no image of partition {' or '.join(partitions)}; {_ADVICE}")
    return names


def _decode(path: Path, size: int) -> UInt8[np.ndarray, "size size 3"]:
    from PIL import Image

    try:
        with Image.open(path) as opened:
            limits.check(3 * opened.width * opened.height, f"{path}: {opened.width} x {opened.height} pixels,")
            image = opened.convert("RGB")
    except (OSError, Image.DecompressionBombError) as error:
        raise DataError(f"cannot read the image {path} ({error}); {_ADVICE}") from None
    if image.size != ALIGNED:
        expected = "{} x {}".format(*ALIGNED)
        raise DataError(f"{path} has {image.width} x {image.height} pixels, expected {expected}; {_ADVICE}")
    return np.asarray(image.resize((size, size), Image.Resampling.BICUBIC))
