"""Real Omniglot (Lake, Salakhutdinov and Tenenbaum 2015): 1,623 handwritten characters of 50 alphabets, 20 drawings
each.

Read from the two official archives, `images_background.zip` (964 characters) and `images_evaluation.zip` (659), or
from folders of these names with the same content, `ALPHABET/characterNN/NNNN_DD.png`: 105 x 105 pixels, 1 bit.
"""

from __future__ import annotations

import re
import zipfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import numpy as np
from jaxtyping import UInt8

from iclbench import png
from iclbench.errors import DataError

CLASSES = {"images_background": 964, "images_evaluation": 659}
DRAWINGS, SIZE, ALL_CLASSES = 20, 105, 1623

_ADVICE = (
    "put images_background.zip and images_evaluation.zip there, as the Omniglot page of Brenden Lake offers them "
    "(github.com/brendenlake/omniglot), and point --data-dir or ICLBENCH_DATA at the folder that holds 'omniglot'"
)
_Reader = Callable[[str], bytes]


def read_omniglot(folder: Path) -> UInt8[np.ndarray, "classes 20 105 105"]:
    """All 1,623 x 20 drawings, ink 255 on paper 0: background classes first, in the order of alphabets and characters.

    Raises:
        DataError: an archive, a class or a drawing is missing or damaged, or a name leads out of the folder.
    """
    return np.concatenate([_read_part(folder, part) for part in CLASSES])


def _read_part(folder: Path, part: str) -> UInt8[np.ndarray, "classes 20 105 105"]:
    archive = folder / f"{part}.zip"
    if (folder / part).is_dir():
        names = [p.relative_to(folder).as_posix() for p in (folder / part).glob("*/*/*.png")]
        return _drawings(folder / part, part, names, lambda name: (folder / name).read_bytes())
    try:
        with zipfile.ZipFile(archive) as opened:
            return _drawings(archive, part, opened.namelist(), opened.read)
    except OSError as error:
        raise DataError(f"cannot read {archive}: {error.strerror}; {_ADVICE}") from None
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise DataError(f"{archive} is not a sound zip archive ({error}); {_ADVICE}") from None


def _drawings(where: Path, part: str, names: list[str], read: _Reader) -> UInt8[np.ndarray, "classes 20 105 105"]:
    """The images of one part by class and drawer, checked to be complete."""
    characters: dict[str, dict[int, str]] = defaultdict(dict)
    for name in names:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise DataError(f"{where}: '{name}' leads out of the folder; this is not the official archive")
        found = re.fullmatch(rf"{part}/([^/]+/[^/]+)/\d+_(\d\d)\.png", name)
        if found:
            characters[found[1]][int(found[2])] = name
    if len(characters) != CLASSES[part]:
        raise DataError(f"{where} holds {len(characters)} characters, expected {CLASSES[part]}; {_ADVICE}")
    images = np.empty((len(characters), DRAWINGS, SIZE, SIZE), np.uint8)
    for row, (character, drawings) in enumerate(sorted(characters.items())):
        missing = sorted({*range(1, DRAWINGS + 1)} - {*drawings})
        if missing:
            raise DataError(f"{where}: drawing {missing[0]:02d} of '{character}' is missing; {_ADVICE}")
        for drawer in range(DRAWINGS):
            images[row, drawer] = _ink(where, drawings[drawer + 1], read)
    return images


def _ink(where: Path, name: str, read: _Reader) -> UInt8[np.ndarray, "105 105"]:
    try:
        paper = png.decode(read(name))
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{where}: cannot read '{name}' ({error}); {_ADVICE}") from None
    if paper.shape != (SIZE, SIZE):
        raise DataError(f"{where}: '{name}' has {paper.shape[0]} x {paper.shape[1]} pixels, expected {SIZE} x {SIZE}")
    return np.where(paper == 0, np.uint8(255), np.uint8(0))


def reduced(images: UInt8[np.ndarray, "*glyphs height width"], size: int) -> UInt8[np.ndarray, "*glyphs size size"]:
    """Square images made smaller by averaging areas: every new pixel is the mean of the part of the page it covers."""
    old = images.shape[-1]
    edges = np.linspace(0, old, size + 1)
    covered = np.minimum(edges[1:, None], np.arange(1, old + 1)) - np.maximum(edges[:-1, None], np.arange(old))
    weights = (np.clip(covered, 0, None) * (size / old)).astype(np.float32)
    return np.round(weights @ images.astype(np.float32) @ weights.T).astype(np.uint8)


def load_omniglot(folder: Path, size: int) -> UInt8[np.ndarray, "classes 20 size size"]:
    """All drawings at `size` x `size` pixels."""
    images = read_omniglot(folder)
    return images if size == SIZE else np.stack([reduced(of_class, size) for of_class in images])
