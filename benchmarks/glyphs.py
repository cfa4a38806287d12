"""Procedural glyphs and Omniglot: time to generate glyphs, and accuracy of 1-nearest-neighbour classification.

    python benchmarks/glyphs.py [--data-dir FOLDER]

Omniglot is reduced to 28 x 28 pixels by averaging areas. The distance between images is Euclidean, with and without a
blur of one pixel. The script writes `benchmarks/glyphs.md` if Omniglot is available.
"""

from __future__ import annotations

import argparse
import os
import platform
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from scipy.ndimage import gaussian_filter
from timing import least

from iclbench.families.images.glyphs import glyphs
from iclbench.families.images.omniglot import read_omniglot, shrink

CLASSES, DRAWINGS = 1623, 20
EPISODES = 10_000


def features(images: np.ndarray, sigma: float) -> np.ndarray:
    """Return images `(classes, drawings, pixels)`, blurred by `sigma` pixels."""
    wide = images.astype(np.float32) / 255
    return gaussian_filter(wide, (0, 0, sigma, sigma)).reshape(*wide.shape[:2], -1)


def all_ways(x: np.ndarray, gallery: int = 10) -> float:
    """Return the accuracy of 1-nearest-neighbour over all classes, with `gallery` drawings per class, on all other
    drawings.
    """
    gallery_drawings, query_drawings = (part.reshape(-1, x.shape[-1]) for part in (x[:, :gallery], x[:, gallery:]))
    labels, truth = (np.repeat(np.arange(len(x)), n) for n in (gallery, x.shape[1] - gallery))
    squares = np.square(gallery_drawings).sum(1)
    nearest = [(squares - 2 * block @ gallery_drawings.T).argmin(1) for block in np.array_split(query_drawings, 16)]
    return float((labels[np.concatenate(nearest)] == truth).mean())


def few_ways(x: np.ndarray, ways: int, shots: int, seed: int = 0) -> float:
    """Return the accuracy over random episodes: `shots` drawings of each of `ways` classes, and one query of the
    first class.
    """
    rng = np.random.default_rng(seed)
    hits = 0
    for _ in range(EPISODES):
        classes = rng.choice(len(x), ways, replace=False)
        drawings = np.stack([rng.choice(x.shape[1], shots + 1, replace=False) for _ in range(ways)])
        support_drawings = x[classes[:, None], drawings[:, :shots]].reshape(ways * shots, -1)
        hits += np.square(support_drawings - x[classes[0], drawings[0, shots]]).sum(1).argmin() < shots
    return hits / EPISODES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("ICLBENCH_DATA"))
    data_dir = parser.parse_args().data_dir
    lines = [
        "# Procedural glyphs and Omniglot",
        "",
        f"One thread, CPU time, minimum of 3. Python {platform.python_version()}, NumPy {np.__version__}.",
        "",
        "| drawn | seconds |",
        "| --- | --- |",
        f"| {CLASSES:,} x {DRAWINGS} at 28 x 28 | {least(lambda: glyphs(0, CLASSES, DRAWINGS)):.2f} |",
        f"| 100 x {DRAWINGS} at 28 x 28 | {least(lambda: glyphs(0, 100, DRAWINGS)):.2f} |",
        f"| 100 x {DRAWINGS} at 105 x 105 | {least(lambda: glyphs(0, 100, DRAWINGS, 105)):.2f} |",
        "",
        f"Accuracy of 1-nearest-neighbour at 28 x 28 ({EPISODES:,} episodes of few ways: ± 0.01):",
        "",
        f"| images | ink | blur | {CLASSES:,}-way, 10 drawings each | 5-way 1-shot | 2-way 4-shot |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    sets = {"glyphs": glyphs(0, CLASSES, DRAWINGS)}
    if data_dir:
        sets["Omniglot"] = np.stack([shrink(c, 28) for c in read_omniglot(data_dir / "omniglot")])
    for name, images in sets.items():
        for sigma in (0, 1):
            x = features(images, sigma)
            scores = (all_ways(x), few_ways(x, 5, 1), few_ways(x, 2, 4))
            lines.append(
                f"| {name} | {images.mean() / 255:.3f} | {sigma} px | " + " | ".join(f"{s:.3f}" for s in scores) + " |"
            )
            print(lines[-1], flush=True)
    if data_dir:
        Path(__file__).with_suffix(".md").write_text("\n".join(lines) + "\n")
    else:
        print("glyphs.md is not changed, because its rows for Omniglot need --data-dir")


if __name__ == "__main__":
    main()
