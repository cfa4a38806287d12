"""Speed of backbones as ratios to plain re-implementations, measured in one run.

    python benchmarks/backbones.py

- a training step, compared with the training loop of Garg et al.: `transformers.GPT2Model` with its default
  vocabulary, y padded to a full vector, outputs read at every token, and Adam without fusing;
- shifted-query evaluation, compared with one full pass per query as in the code of Garg et al.;
- the bootstrap of a curve, compared with explicit resampling.

The measure is CPU seconds (`time.process_time`): the minimum over repeats, in which both sides alternate. The script
writes benchmarks/backbones.md.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from datetime import date
from pathlib import Path

import numpy as np
import torch
from timing import cpu_seconds
from torch import Tensor, nn
from transformers import GPT2Config, GPT2Model

from iclbench.backbones.base import TaskShape
from iclbench.backbones.gpt2 import GPT2, GPT2Settings
from iclbench.config.cards import TrainSettings
from iclbench.core.episodes import Episodes, Points
from iclbench.evaluation.bootstrap import bootstrap_interval
from iclbench.training.step import make_optimiser

BATCH = 64


class PlainGPT2(nn.Module):
    """The model of Garg et al., re-implemented: a wrapper around GPT-2 of the transformers library."""

    def __init__(self, dim: int, points: int, layers: int, width: int, heads: int) -> None:
        super().__init__()
        config = GPT2Config(
            n_positions=2 * points,
            n_embd=width,
            n_layer=layers,
            n_head=heads,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            use_cache=False,
        )
        self.read_in, self.backbone, self.read_out = nn.Linear(dim, width), GPT2Model(config), nn.Linear(width, 1)

    def forward(self, xs: Tensor, ys: Tensor) -> Tensor:
        wide = torch.cat([ys.unsqueeze(2), torch.zeros(*ys.shape, xs.shape[2] - 1)], 2)
        tokens = torch.stack([xs, wide], 2).view(xs.shape[0], 2 * xs.shape[1], xs.shape[2])
        hidden = self.backbone(inputs_embeds=self.read_in(tokens)).last_hidden_state
        return self.read_out(hidden)[:, ::2, 0]


def ratio(rival: Callable[[], object], ours: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Return the minimum CPU seconds of `rival` and of `ours`. Their calls alternate after a warm-up."""
    rival(), ours()
    pairs = [(cpu_seconds(rival), cpu_seconds(ours)) for _ in range(repeats)]
    return min(r for r, _ in pairs), min(o for _, o in pairs)


def training_step(size: str, sizes: dict[str, int], dim: int, points: int, repeats: int) -> tuple[float, float]:
    x, y = torch.randn(BATCH, points, dim), torch.randn(BATCH, points)
    plain = PlainGPT2(dim, points, **sizes)
    adam = torch.optim.Adam(plain.parameters(), lr=1e-4)

    def rival() -> None:
        adam.zero_grad()
        (y - plain(x, y)).square().mean().backward()
        adam.step()

    lean = GPT2(GPT2Settings(size=size), TaskShape(dim, points))
    optimiser = make_optimiser(lean, TrainSettings(steps=1))
    batch = Points.full(x, y.unsqueeze(-1))
    episodes = Episodes(context=batch, scored=batch.mask)

    def ours() -> None:
        optimiser.zero_grad(set_to_none=True)
        lean.loss(episodes, 0.0, torch.Generator())[0].backward()
        optimiser.step()

    return ratio(rival, ours, repeats)


def shifted_queries(points: int) -> tuple[float, float]:
    dim = 20
    x, y, queries = torch.randn(BATCH, points, dim), torch.randn(BATCH, points, 1), torch.randn(BATCH, points, dim)
    model = GPT2(GPT2Settings(size="tiny"), TaskShape(dim, points)).eval()
    plain = PlainGPT2(dim, points, layers=3, width=64, heads=2).eval()

    def rival() -> None:
        with torch.no_grad():
            for n in range(points):
                swapped = torch.cat([x[:, :n], queries[:, n:]], 1)
                plain(swapped, y[..., 0])[:, n]

    def ours() -> None:
        with torch.no_grad():
            model.predict_next(Points.full(x, y), x_query=queries)

    return ratio(rival, ours, 2)


def bootstrap(points: int) -> tuple[float, float]:
    errors = np.random.default_rng(0).random((1280, points))

    def rival() -> None:
        tensor = torch.from_numpy(errors)
        picks = torch.randint(1280, (1000, 1280))
        means = tensor[picks].mean(1).sort(0).values
        means[25], means[975]

    return ratio(rival, lambda: bootstrap_interval(errors), 3)


def main() -> None:
    torch.set_num_threads(1)
    standard, tiny = {"layers": 12, "width": 256, "heads": 8}, {"layers": 3, "width": 64, "heads": 2}
    rows = [
        ("training step, standard, d = 20, n = 41", *training_step("standard", standard, 20, 41, 2), 1.25),
        ("training step, tiny, d = 20, n = 41", *training_step("tiny", tiny, 20, 41, 8), 1.25),
        ("training step, tiny, d = 5, n = 11", *training_step("tiny", tiny, 5, 11, 20), 1.25),
        ("shifted queries, tiny, n = 41", *shifted_queries(41), 20.0),
        ("shifted queries, tiny, n = 101", *shifted_queries(101), 20.0),
        ("bootstrap, 1,280 episodes, n = 41", *bootstrap(41), 5.0),
        ("bootstrap, 1,280 episodes, n = 101", *bootstrap(101), 5.0),
    ]
    lines = [
        "# Backbones and evaluation: ratios against plain re-implementations",
        "",
        f"`python benchmarks/backbones.py`, {date.today()}, {platform.machine()}, one thread, "
        f"torch {torch.__version__}, batch {BATCH}; CPU seconds, best of the repeats.",
        "",
        "| what | rival (s) | ours (s) | ratio | promised |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [f"| {name} | {r:.4f} | {o:.4f} | {r / o:.2f}x | {p:g}x |" for name, r, o, p in rows]
    text = "\n".join(lines) + "\n"
    print(text)
    Path(__file__).with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
