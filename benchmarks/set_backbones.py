"""Pseudo-token neural processes: training steps relative to a plain re-implementation, and growth of costs.

    python benchmarks/set_backbones.py

The reference follows the figures of the papers: `nn.MultiheadAttention` of torch between two layer norms, a loop over
related datasets, and AdamW without fusing. It assumes complete datasets and uses no masks, unlike iclbench. Ratios are
of CPU seconds (`time.process_time`): the minimum over repeats, in which both sides alternate. Exponents are
least-squares slopes of log cost against log size, after subtraction of the cost of size 1 (weights and their gradients,
and the other sizes). Memory is the peak of live tensors (counted, not measured) over forward and backward passes. The
script writes benchmarks/set_backbones.md.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from timing import cpu_seconds
from torch import Tensor, nn

from iclbench.backbones.base import Backbone, TaskShape
from iclbench.config.cards import TrainSettings
from iclbench.core.episodes import Episodes, Points
from iclbench.evaluation.costs.live_bytes import LiveBytes
from iclbench.registry import BACKBONES
from iclbench.training.step import make_optimiser

BATCH, CONTEXT, TARGETS, SETS, RELATED = 16, 64, 128, 5, 128
WIDTH, HEADS, LAYERS, TOKENS = 128, 8, 5, 32
SETTINGS = TrainSettings(steps=1, optimiser="adamw", lr=5e-4)


class PlainLayer(nn.Module):
    """Cross-attention and feed-forward network, pre-norm."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, q: Tensor, kv: Tensor) -> Tensor:
        normed = self.norms[0](kv)
        q = q + self.attention(self.norms[0](q), normed, normed, need_weights=False)[0]
        return q + self.inner(self.norms[1](q))


class PlainNP(nn.Module):
    """PT-TNP, or ICICL-TNP (figure 1 of its paper) if `steps` is 5."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.embedding = _three_layers(3, WIDTH)
        self.decoder = _three_layers(WIDTH, 2)
        self.u, self.u_related = (nn.Parameter(torch.randn(1, TOKENS, WIDTH)) for _ in range(2))
        self.layers = nn.ModuleList(nn.ModuleList(PlainLayer() for _ in range(steps)) for _ in range(LAYERS))

    def forward(self, x: Tensor, y: Tensor, x_target: Tensor, related: list[tuple[Tensor, Tensor]]) -> Tensor:
        z = self.embedding(torch.cat([x, y, torch.zeros_like(x)], -1))
        zs = [self.embedding(torch.cat([xj, yj, torch.zeros_like(xj)], -1)) for xj, yj in related]
        target = self.embedding(torch.cat([x_target, torch.zeros_like(x_target), torch.ones_like(x_target)], -1))
        u, us = self.u.repeat(len(x), 1, 1), [self.u_related.repeat(len(x), 1, 1) for _ in related]
        for from_data, among, read, *coupling in self.layers:
            u = from_data(u, z)
            if coupling:
                from_context, from_related = coupling
                us = [from_context(from_data(uj, zj), u) for uj, zj in zip(us, zs, strict=True)]
                us = [among(uj, uj) for uj in us]
                u = from_related(among(u, u), torch.cat(us, 1))
            else:
                u = among(u, u)
            target = read(target, u)
        return self.decoder(target)


def _three_layers(inputs: int, outputs: int) -> nn.Sequential:
    widths = [nn.Linear(inputs, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, outputs)]
    return nn.Sequential(*widths)


def points(*shape: int) -> Points:
    return Points.full(torch.randn(*shape, 1), torch.randn(*shape, 1))


def episodes(batch: int, context: int, targets: int, sets: int, related: int = RELATED) -> Episodes:
    queries = points(batch, targets)
    related_points = points(batch, sets, related) if sets else None
    return Episodes(context=points(batch, context), targets=queries, scored=queries.mask, related=related_points)


def as_trained(full: Episodes) -> Episodes:
    """Return the same points with the sizes of the paper: U{1..64} context points, and U{0..5} sets of U{64..128}
    points.
    """
    assert full.related is not None
    full.context.mask.copy_(torch.arange(CONTEXT) < torch.randint(1, CONTEXT + 1, (BATCH, 1)))
    is_present = torch.arange(SETS) < torch.randint(0, SETS + 1, (BATCH, 1))
    long_enough = torch.arange(RELATED) < torch.randint(RELATED // 2, RELATED + 1, (BATCH, SETS, 1))
    full.related.mask.copy_(is_present.unsqueeze(-1) & long_enough)
    return full


def build(name: str) -> Backbone:
    cls = BACKBONES.get(name)
    return cls(cls.Settings(), TaskShape(1, CONTEXT, head="gaussian", question="targets", related=SETS))


def step_of(model: nn.Module, loss: Callable[[], Tensor], optimiser: torch.optim.Optimizer) -> Callable[[], None]:
    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        loss().backward()
        optimiser.step()

    return step


def training_step(name: str, batch: Episodes, repeats: int) -> tuple[float, float]:
    """Return the minimum CPU seconds of the reference and of iclbench, which alternate after a warm-up."""
    plain, ours = PlainNP(5 if name == "icicl-tnp" else 3), build(name)
    queries, related = batch.queries, batch.related
    datasets = [(related.x[:, j], related.y[:, j]) for j in range(SETS)] if related and name == "icicl-tnp" else []

    def plain_loss() -> Tensor:
        mean, raw = plain(batch.context.x, batch.context.y, queries.x, datasets).chunk(2, -1)
        return F.gaussian_nll_loss(mean, queries.y, F.softplus(raw), full=True)

    adam = torch.optim.AdamW(plain.parameters(), lr=5e-4)
    steps = [
        step_of(plain, plain_loss, adam),
        step_of(ours, lambda: ours.loss(batch, 0.0, torch.Generator())[0], make_optimiser(ours, SETTINGS)),
    ]
    seconds = np.array([[cpu_seconds(step) for step in steps] for _ in range(repeats + 1)])[1:]
    rival_seconds, our_seconds = seconds.min(0)
    return float(rival_seconds), float(our_seconds)


def growth(name: str, sizes: dict[str, int], varied: str, values: list[int]) -> tuple[float, float]:
    """Return the exponents in one size of seconds and peak bytes of a forward and backward pass, without the cost of
    size 1.
    """
    model, seconds, peaks = build(name), [], []

    def work(batch: Episodes) -> None:
        model.zero_grad()
        model.loss(batch, 0.0, torch.Generator())[0].backward()

    for value in [1, *values]:
        batch = episodes(1, **sizes | {varied: value})
        work(batch)
        seconds.append(min(cpu_seconds(lambda batch=batch: work(batch)) for _ in range(3)))
        with LiveBytes() as count:
            work(batch)
        peaks.append(count.peak)
    return slope(values, seconds), slope(values, peaks)


def slope(sizes: list[int], costs: list[Any]) -> float:
    """Return the exponent. `costs` are those of size 1, followed by those of `sizes`."""
    return float(np.polyfit(np.log(sizes), np.log(np.subtract(costs[1:], costs[0])), 1)[0])


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    full = episodes(BATCH, CONTEXT, TARGETS, SETS)
    steps = [
        ("pt-tnp", *training_step("pt-tnp", full, 8)),
        ("icicl-tnp, with 5 complete related datasets", *training_step("icicl-tnp", full, 5)),
        ("icicl-tnp, sizes drawn as in the paper", *training_step("icicl-tnp", as_trained(full), 5)),
    ]
    small = {"context": 64, "targets": 64, "sets": 0}
    long, many = [1024, 2048, 4096, 8192], [8, 16, 32, 64]
    rows = [
        ("pt-tnp", "context points", "context", small, long),
        ("pt-tnp", "targets", "targets", small, long),
        ("icicl-tnp", "context points", "context", small | {"sets": 2}, long),
        ("icicl-tnp", "targets", "targets", small | {"sets": 2}, long),
        ("icicl-tnp", "related datasets of 128", "sets", small, many),
        ("icicl-tnp", "points of each of 2 related datasets", "related", small | {"sets": 2}, [n // 2 for n in long]),
        ("tnp", "context points", "context", small, [n // 4 for n in long]),
    ]
    lines = [
        "# Set backbones: training steps against a plain re-implementation, growth of cost",
        "",
        f"`python benchmarks/set_backbones.py`, {date.today()}, {platform.machine()}, one thread, torch "
        f"{torch.__version__}; D = {WIDTH}, {LAYERS} layers, {HEADS} heads, M = {TOKENS}.",
        "",
        f"A training step, {BATCH} episodes of {CONTEXT} context points, {TARGETS} targets, {SETS} related datasets of "
        f"{RELATED}; CPU seconds, best of the repeats.",
        "",
        "| what | rival (s) | ours (s) | ratio | promised |",
        "| --- | --- | --- | --- | --- |",
        *(f"| {name} | {r:.3f} | {o:.3f} | {r / o:.2f}x | 1x |" for name, r, o in steps),
        "",
        "Exponents of the costs of a forward and backward pass of one episode, with all other sizes small, after "
        "subtraction of the cost of size 1.",
        "",
        "| backbone | in | from ... to | seconds | peak bytes |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, what, varied, sizes, values in rows:
        in_time, in_memory = growth(name, sizes, varied, values)
        lines.append(f"| {name} | {what} | {values[0]} ... {values[-1]} | {in_time:.2f} | {in_memory:.2f} |")
        print(lines[-1], flush=True)
    text = "\n".join(lines) + "\n"
    print(text)
    Path(__file__).with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
