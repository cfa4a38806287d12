"""Write the archive of the reference results and its checksum: python -m benchmarks.reference_archive."""

from __future__ import annotations

from pathlib import Path

from iclbench.store import reference_archive

ROOT = Path(__file__).parents[1]

if __name__ == "__main__":
    print(reference_archive.publish(ROOT / "results" / reference_archive.FOLDER, ROOT / "dist"))
