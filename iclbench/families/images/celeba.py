"""CelebA (Liu et al. 2015): aligned faces in their public layout, `img_align_celeba/*.jpg` and
`list_eval_partition.txt`.

Images are prepared as in the released code of TNP (Nguyen and Grover 2022) and CMAB (Feng et al. 2023), the two papers
with published results. The complete image of 178 x 218 pixels is resized to size x size by Pillow's `resize` (bicubic
and antialiased in versions 8.4 and 9.4, which their code uses). Partitions 0 and 1 are training data, and partition 2
is evaluation data. Every image is decoded once per process, when it is first drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from iclbench.core import limits
from iclbench.core.errors import DataError, error_text
from iclbench.core.file_errors import cannot_read
from iclbench.core.hashing import data_fingerprint
from iclbench.families.images.image_sets import ImageSet, Part, folder_of

# Width and height of every aligned image.
ALIGNED = (178, 218)

_SOURCE = "CelebA (mmlab.ie.cuhk.edu.hk/projects/CelebA.html)"
_ADVICE = f"the folder 'celeba' must contain img_align_celeba/*.jpg and list_eval_partition.txt of {_SOURCE}"
# In the list of the dataset, 0 is the training partition, 1 the validation partition and 2 the test partition.
_PARTITIONS = {"train": ("0", "1"), "test": ("2",)}


class CelebA(ImageSet):
    """Faces for training or for evaluation, all with the same label.

    Raises:
        DataError: files are missing or damaged.
    """

    def __init__(self, part: Part, data_dir: Path | None, size: int) -> None:
        folder = folder_of(data_dir, "celeba", _SOURCE)
        self._size = size
        self._paths = [folder / "img_align_celeba" / name for name in _names(folder, _PARTITIONS[part])]
        missing = next((p for p in (self._paths[0], self._paths[-1]) if not p.is_file()), None)
        if missing:
            raise DataError(f"{missing} does not exist; {_ADVICE}", code="missing-data")
        # Pages of zeros take no memory until they are written.
        super().__init__(
            np.zeros((len(self._paths), size * size, 3), np.uint8), np.zeros(len(self._paths), dtype=np.int64)
        )
        self._is_decoded = torch.zeros(len(self._paths), dtype=torch.bool)

    def read(self, images: Int[Tensor, "*n"]) -> UInt8[Tensor, "*n pixels channels"]:
        numbers = images.cpu()
        pixels = self._pixels[torch.device("cpu")]
        for index in torch.unique(numbers[~self._is_decoded[numbers]]).tolist():
            pixels[index] = torch.from_numpy(_decode(self._paths[index], self._size).reshape(-1, 3))
            self._is_decoded[index] = True
        return pixels[numbers].to(images.device)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the names and sizes of the files. Pixels are not hashed, since reading 200,000 images takes
        minutes."""
        sizes = ((path.name, path.stat().st_size if path.is_file() else 0) for path in self._paths)
        return data_fingerprint(*(f"{name} {size}\n" for name, size in sizes))


def _names(folder: Path, partitions: Sequence[str]) -> list[str]:
    """Return the file names of the images of these partitions."""
    path = folder / "list_eval_partition.txt"
    try:
        rows = [line.split() for line in limits.read_bytes(path).decode("ascii").splitlines()]
    except OSError as error:
        raise cannot_read(path, error, _ADVICE, missing="missing-data") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not a list of file names and partitions; {_ADVICE}", code="bad-syntax") from None
    if any(len(row) != 2 or Path(row[0]).name != row[0] for row in rows):
        raise DataError(f"{path} is not a list of file names and partitions; {_ADVICE}", code="bad-syntax")
    names = [name for name, part in rows if part in partitions]
    if not names:
        raise DataError(f"{path} lists no image of partition {' or '.join(partitions)}; {_ADVICE}")
    return names


def _decode(path: Path, size: int) -> UInt8[np.ndarray, "size size 3"]:
    from PIL import Image

    try:
        with Image.open(path) as file_image:
            width, height = file_image.size
            limits.check(3 * width * height, f"{path}: {width} x {height} pixels,")
            image = file_image.convert("RGB")
    except (OSError, Image.DecompressionBombError) as error:
        code = "missing-data" if isinstance(error, FileNotFoundError) else "unreadable-file"
        raise DataError(f"cannot read the image {path} ({error_text(error)}); {_ADVICE}", code=code) from None
    if image.size != ALIGNED:
        expected = "{} x {}".format(*ALIGNED)
        raise DataError(f"{path} has {image.width} x {image.height} pixels, expected {expected}; {_ADVICE}")
    return np.asarray(image.resize((size, size), Image.Resampling.BICUBIC))
