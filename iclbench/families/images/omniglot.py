"""Real Omniglot (Lake, Salakhutdinov and Tenenbaum 2015): 1,623 handwritten characters of 50 alphabets, with 20
drawings each.

The images are read from the two official archives, `images_background.zip` (964 characters) and `images_evaluation.zip`
(659), or from the unpacked folders `images_background` and `images_evaluation`. Drawings are files
`ALPHABET/characterNN/NNNN_DD.png` of 105 x 105 pixels with 1 bit per pixel. Reading takes seconds, so the result is
cached in a file (`iclbench.families.images.array_cache`).
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath

import numpy as np
from jaxtyping import UInt8

from iclbench.core import limits, png
from iclbench.core.errors import DataError, error_text
from iclbench.core.file_errors import cannot_read
from iclbench.core.hashing import data_fingerprint, file_hash
from iclbench.families.images.array_cache import cached_array

CLASSES = {"images_background": 964, "images_evaluation": 659}
ALL_CLASSES, DRAWINGS, SIZE = sum(CLASSES.values()), 20, 105
# Limits on the unpacked size of a drawing and of a part in bytes. In the official archives, the largest sizes are 522
# and 4.8 million.
_MAX_DRAWING_BYTES, _MAX_PART_BYTES = 65_536, 100_000_000

_ADVICE = (
    "download images_background.zip and images_evaluation.zip from github.com/brendenlake/omniglot into a folder "
    "'omniglot', and set --data-dir or ICLBENCH_DATA to the folder that contains it"
)
_Reader = Callable[[str], bytes]


def load_omniglot(folder: Path, size: int) -> UInt8[np.ndarray, "classes 20 size size"]:
    """Load all 1,623 x 20 drawings at `size` x `size` pixels. Order and errors are as in `read_omniglot`."""

    def compute() -> UInt8[np.ndarray, "classes 20 size size"]:
        images = read_omniglot(folder)
        return images if size == SIZE else np.stack([shrink(drawings, size) for drawings in images])

    return cached_array(f"omniglot-{size}-{_content_hash(folder)}", folder, compute)


def _content_hash(folder: Path) -> str:
    """Return a hash of the archives. For an unpacked part, the names and sizes of its drawings are hashed."""
    parts: list[str | bytes] = []
    for part in CLASSES:
        if (folder / part).is_dir():
            parts.append(repr(sorted(_unpacked_sizes(folder, part).items())))
            continue
        archive = folder / f"{part}.zip"
        try:
            with limits.open_file(archive) as file:
                parts.append(file_hash(file))
        except OSError as error:
            raise cannot_read(archive, error, _ADVICE, missing="missing-data") from None
    return data_fingerprint(*parts)


def read_omniglot(folder: Path) -> UInt8[np.ndarray, "classes 20 105 105"]:
    """Read all 1,623 x 20 drawings, with ink 255 on paper 0.

    Background classes come first. Within a part, classes are in the order of alphabets and characters.

    Raises:
        DataError: an archive, a class or a drawing is missing or damaged, a name points outside the folder, or the
            files are much larger than the official ones.
    """
    return np.concatenate([_read_part(folder, part) for part in CLASSES])


def _unpacked_sizes(folder: Path, part: str) -> dict[str, int]:
    """Return the sizes of all drawings of an unpacked part, by name."""
    try:
        return {p.relative_to(folder).as_posix(): p.stat().st_size for p in (folder / part).glob("*/*/*.png")}
    except OSError as error:
        raise cannot_read(Path(error.filename or folder / part), error, _ADVICE) from None


def _read_part(folder: Path, part: str) -> UInt8[np.ndarray, "classes 20 105 105"]:
    archive = folder / f"{part}.zip"
    if (folder / part).is_dir():
        sizes = _unpacked_sizes(folder, part)
        return _drawings(
            folder / part, part, sizes, lambda name: limits.read_bytes(folder / name, _MAX_DRAWING_BYTES + 1)
        )
    try:
        with limits.open_file(archive) as file, zipfile.ZipFile(file) as zipped:
            sizes = _archive_sizes(archive, zipped)
            return _drawings(archive, part, sizes, lambda name: _read_bounded(zipped, name))
    except OSError as error:
        raise cannot_read(archive, error, _ADVICE, missing="missing-data") from None
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise DataError(
            f"{archive} is not an intact zip archive ({error_text(error)}); {_ADVICE}", code="unreadable-file"
        ) from None


def _archive_sizes(archive: Path, zipped: zipfile.ZipFile) -> dict[str, int]:
    """Return the sizes of the files of an archive, by name.

    Raises `DataError` for compression methods other than deflate, because `zipfile` cannot limit how much it unpacks.
    """
    for info in zipped.infolist():
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise DataError(
                f"{archive}: '{info.filename}' has an unsupported compression; use the official archive",
                code="not-supported",
            )
    sizes = {info.filename: info.file_size for info in zipped.infolist()}
    if len(sizes) < len(zipped.infolist()):
        raise DataError(f"{archive} has two files of the same name; use the official archive", code="duplicate")
    return sizes


def _read_bounded(zipped: zipfile.ZipFile, name: str) -> bytes:
    """Read a file of an archive, but at most one byte more than the largest drawing, since the size in the archive may
    be wrong."""
    with zipped.open(name) as file:
        return file.read(_MAX_DRAWING_BYTES + 1)


def _drawings(
    path: Path, part: str, sizes: Mapping[str, int], read: _Reader
) -> UInt8[np.ndarray, "classes 20 105 105"]:
    """Return the images of one part by class and drawer; raise `DataError` if the part is incomplete or too large."""
    characters: dict[str, dict[int, str]] = defaultdict(dict)
    numbers: set[int] = set()
    for name, size in sizes.items():
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise DataError(f"{path}: '{name}' points outside the folder; use the official archive")
        if size > _MAX_DRAWING_BYTES:
            raise DataError(
                f"{path}: '{name}' has {size:,} bytes unpacked, too many for a drawing; use the official archive",
                code="too-large",
            )
        match = re.fullmatch(rf"{part}/([^/]+/[^/]+)/(\d+)_(\d\d)\.png", name)
        if match:
            characters[match[1]][int(match[3])] = name
            numbers.add(int(match[2]))
    if sum(sizes.values()) > _MAX_PART_BYTES:
        raise DataError(
            f"{path} has {sum(sizes.values()):,} bytes unpacked, expected at most {_MAX_PART_BYTES:,}; use the "
            "official archive",
            code="too-large",
        )
    if len(characters) != CLASSES[part]:
        missing = "".join(
            f"; character {number:04d} is missing" for number in sorted(_character_numbers(part) - numbers)[:1]
        )
        raise DataError(f"{path} has {len(characters)} characters, expected {CLASSES[part]}{missing}; {_ADVICE}")
    images = np.empty((len(characters), DRAWINGS, SIZE, SIZE), np.uint8)
    for row, (character, drawings) in enumerate(sorted(characters.items())):
        missing_drawings = sorted({*range(1, DRAWINGS + 1)} - {*drawings})
        if missing_drawings:
            raise DataError(f"{path}: drawing {missing_drawings[0]:02d} of '{character}' is missing; {_ADVICE}")
        for drawer in range(DRAWINGS):
            images[row, drawer] = _ink(path, drawings[drawer + 1], read)
    return images


def _character_numbers(part: str) -> set[int]:
    """Return the character numbers of a part. Numbering starts at 1 and continues from one part to the next."""
    before = sum(list(CLASSES.values())[: list(CLASSES).index(part)])
    return set(range(before + 1, before + CLASSES[part] + 1))


def _ink(path: Path, name: str, read: _Reader) -> UInt8[np.ndarray, "105 105"]:
    try:
        paper = png.decode(read(name))
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"{path}: cannot read '{name}' ({error_text(error)}); {_ADVICE}", code="unreadable-file"
        ) from None
    if paper.shape != (SIZE, SIZE):
        raise DataError(f"{path}: '{name}' has {paper.shape[0]} x {paper.shape[1]} pixels, expected {SIZE} x {SIZE}")
    return np.where(paper == 0, np.uint8(255), np.uint8(0))


def shrink(images: UInt8[np.ndarray, "*glyphs height width"], size: int) -> UInt8[np.ndarray, "*glyphs size size"]:
    """Shrink square images by area averaging: every new pixel is the mean over the area that it covers."""
    old = images.shape[-1]
    edges = np.linspace(0, old, size + 1)
    overlap = np.minimum(edges[1:, None], np.arange(1, old + 1)) - np.maximum(edges[:-1, None], np.arange(old))
    weights = (np.clip(overlap, 0, None) * (size / old)).astype(np.float32)
    return np.round(weights @ images.astype(np.float32) @ weights.T).astype(np.uint8)
