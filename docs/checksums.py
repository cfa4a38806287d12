"""Checksums of the data sets in `docs/data.md`. `python -m docs.checksums DATA` compares the files in a data folder
with them.

A checksum is the first twelve digits of the SHA-256 of the unpacked files of a data set, concatenated in the order of
their names. For Omniglot, whose archives can be packed in many ways, the checksum covers the pixels of all drawings
instead.
"""

from __future__ import annotations

import gzip
import hashlib
import sys
from pathlib import Path

# The checksum of each data set, and its files, relative to the data folder. Files may also be compressed (`.gz`).
CHECKSUMS = {
    "Omniglot": ("061691d78ada", "omniglot/images_*"),
    "MNIST": ("5f617ad9c212", "mnist/*-ubyte"),
    "SST-2": ("661d838ec673", "language/classification/stsa.binary.*"),
    "SST-5": ("3dd8e145ae2c", "language/classification/stsa.fine.*"),
    "MR": ("b8846c3bbd59", "language/classification/rt-polarity.all"),
    "TREC": ("7a14eeae674d", "language/classification/TREC.*.all"),
    "MMLU": ("705a31481e86", "language/mmlu/[dt]e*/*.csv"),
    "BIG-Bench Hard": ("458d39a058ce", "language/bbh/bbh/*.json"),
    "airfoil": ("2862a364c396", "tabular/airfoil.csv"),
    "autompg": ("366fcd4d0def", "tabular/autompg.csv"),
    "bike": ("7f5ea8a57009", "tabular/bike.csv"),
    "breastcancer": ("904e2c324fb8", "tabular/breastcancer.csv"),
    "elevators": ("f9c478c8660c", "tabular/elevators.csv"),
    "energy": ("2f7b51540e73", "tabular/energy.csv"),
    "parkinsons": ("514813c9ae91", "tabular/parkinsons.csv"),
    "pol": ("1f4370e9c944", "tabular/pol.csv"),
    "servo": ("fbd529b3214f", "tabular/servo.csv"),
}


def checksum(name: str) -> str:
    """Return the checksum of a data set."""
    return CHECKSUMS[name][0]


def paths(name: str, data: Path) -> list[Path]:
    """Return the files of a data set in a data folder. The list is empty if the folder does not have the data set."""
    _, pattern = CHECKSUMS[name]
    return sorted(data.glob(pattern)) or sorted(data.glob(f"{pattern}.gz"))


def compute(name: str, data: Path) -> str:
    """Compute the checksum of a data set from its files in a data folder."""
    digest = hashlib.sha256()
    if name == "Omniglot":
        from iclbench.families.images.omniglot import read_omniglot  # slow import

        digest.update(read_omniglot(data / "omniglot").data)
        return digest.hexdigest()[:12]
    for path in paths(name, data):
        digest.update(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())
    return digest.hexdigest()[:12]


def main(folder: str) -> int:
    """Print whether each data set in a folder has the checksum in `CHECKSUMS`, and return the exit code."""
    data, is_different = Path(folder), False
    for name, (expected, pattern) in CHECKSUMS.items():
        if not paths(name, data):
            sys.stdout.write(f"{name}: no files match {data / pattern}\n")
            continue
        computed = compute(name, data)
        is_different |= computed != expected
        sys.stdout.write(f"{name}: {computed}, {'equal' if computed == expected else f'not {expected}'}\n")
    return int(is_different)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
