"""Time to sample bursty sequences, and its fraction of a training step.

    python benchmarks/bursty.py    # less than a minute; writes bursty.md

The reference samples one sequence at a time in NumPy, as the code of the papers does: classes by `Generator.choice`
with the Zipf weights, drawings without replacement, then the images. The measure is CPU time of one thread, the minimum
over repeats.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from sampling_share import HEAD, sampling_share
from timing import least

from iclbench.config.resolution import resolve_run
from iclbench.core.seeds import generator
from iclbench.families.images.bursty import Bursty
from iclbench.families.images.bursty_parameters import BurstyParameters
from iclbench.families.request import Request

BATCH, POINTS, SHOTS = 24, 8, 3
MODELS = ("transformer", "coqe", "mamba", "pt-tnp", "cnp")


def loop(images: np.ndarray, weights: np.ndarray, p_bursty: float, rng: np.random.Generator) -> torch.Tensor:
    """Sample a batch, one sequence at a time, from images `(classes, drawings, pixels)`."""
    batch = []
    for _ in range(BATCH):
        if rng.random() < p_bursty:
            pair = rng.choice(len(weights), 2, replace=False, p=weights)
            free = rng.choice(len(weights), POINTS - 2 * SHOTS, p=weights)
            context = rng.permutation(np.concatenate([np.repeat(pair, SHOTS), free]))
            classes = np.append(context, rng.choice(pair))
        else:
            classes = rng.choice(len(weights), POINTS + 1, p=weights)
        drawings = np.empty(POINTS + 1, np.int64)
        for label in np.unique(classes):
            places = np.flatnonzero(classes == label)
            drawings[places] = rng.choice(images.shape[1], len(places), replace=False)
        batch.append(np.stack([images[c, d] for c, d in zip(classes, drawings, strict=True)]))
    return torch.from_numpy(np.stack(batch).astype(np.float32) / 255)


def sampling(size: int, alpha: float) -> str:
    """Return a row of the table: our sampler and the loop, for one size of images."""
    family = Bursty(BurstyParameters(classes=500, image_size=size, alpha=alpha))
    draw = generator(0, "data")
    ours = least(lambda: family.sample(Request(BATCH, POINTS, draw)), 200)
    drawn = torch.arange(500).unsqueeze(1).expand(500, 20), torch.arange(20).expand(500, 20)
    images, weights = family.characters.read(*drawn).numpy(), np.arange(1, 401.0) ** -alpha
    rng = np.random.default_rng(0)
    theirs = least(lambda: loop(images, weights / weights.sum(), 0.9, rng), 50)
    return f"| {size} x {size} | {alpha:g} | {BATCH / ours:,.0f} | {BATCH / theirs:,.0f} | {theirs / ours:.1f} |"


def training(name: str) -> str:
    """Return a row of the table: the share of sampling in a training step at preset `small`."""
    encoder = resolve_run("bursty", name, "small").backbone.settings["encoder"]
    return f"| {name} | {encoder} | {sampling_share('bursty', name, 'small')} |"


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    lines = [
        "# Bursty sequences",
        "",
        f"One thread, CPU time, minimum over repeats. Python {platform.python_version()}, torch {torch.__version__}, "
        f"NumPy {np.__version__}.",
        "",
        f"Batches of {BATCH} sequences of {POINTS} pairs and a query, 400 training classes, p_bursty = 0.9; the "
        "rival draws one sequence after the other in NumPy:",
        "",
        "| images | alpha | sequences per second | rival | ratio |",
        "| --- | --- | --- | --- | --- |",
        *(sampling(size, alpha) for size, alpha in ((28, 0.0), (28, 1.0), (105, 0.0))),
        "",
        "A training step of the card `bursty`, preset `small`:",
        "",
        f"| backbone | encoder | {' | '.join(HEAD)} |",
        "| --- | --- | --- | --- | --- |",
        *(training(name) for name in MODELS),
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    Path(__file__).with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
