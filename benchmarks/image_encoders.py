"""Time of a training step with each image encoder, relative to the residual network of Chan et al.

    python benchmarks/image_encoders.py

The sequences are those of `bursty`: 24 sequences of eight images and a query with 28 x 28 pixels. Two times are
measured for each encoder: the forward and backward pass of the encoder, and a complete training step of a Transformer
with four layers on top of it, including the optimiser. The measure is CPU seconds of one thread (`time.process_time`),
the minimum over repeats, in which encoders alternate. The script writes benchmarks/image_encoders.md.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import get_args

import numpy as np
import torch

from iclbench.backbones.base import EncoderName, TaskShape
from iclbench.backbones.image_backbone import build_backbone
from iclbench.backbones.transformer import Transformer, TransformerSettings
from iclbench.config.cards import TrainSettings
from iclbench.core.episodes import Episodes, Points
from iclbench.layers.vision.image_encoder import ImageEncoder
from iclbench.training.step import make_optimiser

BATCH, CONTEXT, SIDE, CLASSES, REPEATS = 24, 8, 28, 1_623, 9
NAMES: tuple[EncoderName, ...] = get_args(EncoderName)
SETTINGS = TrainSettings(steps=1, lr=3e-4)


def random_points(count: int) -> Points:
    return Points.full(torch.rand(BATCH, count, SIDE * SIDE), torch.randint(CLASSES, (BATCH, count)))


def encoder_alone(name: EncoderName) -> Callable[[], None]:
    encoder, x = ImageEncoder(name, (SIDE, SIDE)), torch.rand(BATCH * (CONTEXT + 1), SIDE * SIDE)

    def work() -> None:
        encoder.zero_grad()
        encoder(x).square().sum().backward()

    return work


def training_step(name: EncoderName) -> Callable[[], None]:
    shape = TaskShape(
        x_dim=SIDE * SIDE,
        points=CONTEXT,
        classes=CLASSES,
        x_shape=(SIDE, SIDE),
        head="categorical",
        question="targets",
    )
    model = build_backbone(Transformer, TransformerSettings(layers=4, encoder=name), shape)
    optimiser, queries = make_optimiser(model, SETTINGS), random_points(1)
    batch = Episodes(context=random_points(CONTEXT), targets=queries, scored=queries.mask, classes=CLASSES)

    def work() -> None:
        optimiser.zero_grad(set_to_none=True)
        model.loss(batch, 0.0, torch.Generator())[0].backward()
        optimiser.step()

    return work


def least_seconds(works: list[Callable[[], None]]) -> list[float]:
    """Return the CPU seconds of each encoder. Encoders alternate after a warm-up."""
    return np.array([[_cpu_seconds(work) for work in works] for _ in range(REPEATS + 1)])[1:].min(0).tolist()


def _cpu_seconds(work: Callable[[], None]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    alone = least_seconds([encoder_alone(name) for name in NAMES])
    steps = least_seconds([training_step(name) for name in NAMES])
    lines = [
        "# Image encoders: cost of a training step",
        "",
        f"`python benchmarks/image_encoders.py`, {date.today()}, {platform.machine()}, one thread, torch "
        f"{torch.__version__}; {BATCH} sequences of {CONTEXT + 1} images of {SIDE} x {SIDE} pixels, {CLASSES} classes. "
        f"CPU milliseconds, minimum of {REPEATS}; ratios to resnet-64.",
        "",
        "| encoder | parameters | encoder alone (ms) | ratio | step of `transformer`, 4 layers (ms) | ratio |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, a, s in zip(NAMES, alone, steps, strict=True):
        count = sum(p.numel() for p in ImageEncoder(name, (SIDE, SIDE)).parameters())
        ratios = a / alone[0], s / steps[0]
        lines.append(f"| {name} | {count:,} | {1e3 * a:.0f} | {ratios[0]:.2f} | {1e3 * s:.0f} | {ratios[1]:.2f} |")
    text = "\n".join(lines) + "\n"
    print(text)
    Path(__file__).with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
