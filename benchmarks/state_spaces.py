"""State-space backbones: the selective scan, training steps and shifted queries, compared with references.

    python benchmarks/state_spaces.py    # about ten minutes; writes state_spaces.md, exits with 1 if a target is missed

- the scan of one layer, forward and backward, compared with the implementation of transformers for machines without
  CUDA kernels (`mamba_selective_scan`, which is the reference of mamba-ssm), and the tensors that both store for the
  backward pass;
- training steps at the sizes of the paper, compared with GPT-2;
- shifted-query evaluation, compared with one full pass per query as in the code of Garg et al.

The measure is CPU seconds of one thread (`time.process_time`): the minimum over repeats, in which both sides alternate.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch
import transformers
from backbones import BATCH, ratio
from torch import Tensor
from transformers.models.mamba.modeling_mamba import mamba_selective_scan

from iclbench.backbones.base import Backbone, TaskShape
from iclbench.config.cards import TrainSettings
from iclbench.core.episodes import Episodes, Points
from iclbench.layers.scan.scan import selective_scan
from iclbench.registry import BACKBONES
from iclbench.training.step import make_optimiser

TOKENS, CHANNELS, STATE = 82, 512, 16


def scan() -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    """Return the scan of transformers and ours on the same tensors, without the backward pass, which callers add."""
    dt = (torch.rand(BATCH, TOKENS, CHANNELS) * 0.1).requires_grad_()
    u = torch.randn(BATCH, TOKENS, CHANNELS, requires_grad=True)
    A = (-torch.arange(1.0, STATE + 1).repeat(CHANNELS, 1)).requires_grad_()
    B, C = (torch.randn(BATCH, TOKENS, STATE, requires_grad=True) for _ in range(2))

    def rival() -> Tensor:
        return mamba_selective_scan(u.mT, dt.mT, A, B.mT, C.mT).mT

    def ours() -> Tensor:
        return selective_scan(u, dt, A, B, C)[0]

    torch.testing.assert_close(ours(), rival(), atol=1e-4, rtol=1e-4)
    return rival, ours


def saved(work: Callable[[], object]) -> int:
    """Return the bytes stored for the backward pass, counting each storage once."""
    bytes_by_storage: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        bytes_by_storage[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        held = work()  # noqa: F841  (as long as this reference exists, no storage is reused)
    return sum(bytes_by_storage.values())


def model(name: str, points: int, dim: int = 20, **settings: object) -> Backbone:
    cls = BACKBONES.get(name)
    return cls(cls.Settings(**settings), TaskShape(dim, points))


def training_step(backbone: Backbone, points: int, dim: int = 20) -> Callable[[], None]:
    context = Points.full(torch.randn(BATCH, points, dim), torch.randn(BATCH, points, 1))
    episodes = Episodes(context=context, scored=context.mask)
    optimiser = make_optimiser(backbone, TrainSettings(steps=1))

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        backbone.loss(episodes, 0.0, torch.Generator())[0].backward()
        optimiser.step()

    return step


def shifted_queries(name: str, points: int, **settings: object) -> tuple[float, float]:
    """Measure n full passes, each with one input replaced, and one shifted-query pass."""
    dim = 20
    backbone = model(name, points, **settings).eval()
    x, y, queries = torch.randn(BATCH, points, dim), torch.randn(BATCH, points, 1), torch.randn(BATCH, points, dim)

    @torch.no_grad()
    def rival() -> list[Tensor]:
        answers = []
        for n in range(points):
            swapped = torch.cat([x[:, :n], queries[:, n : n + 1], x[:, n + 1 :]], 1)
            answers.append(backbone.predict_next(Points.full(swapped, y)).mean[:, n])
        return answers

    @torch.no_grad()
    def ours() -> Tensor:
        return backbone.predict_next(Points.full(x, y), x_query=queries).mean

    torch.testing.assert_close(ours(), torch.stack(rival(), 1), atol=1e-4, rtol=1e-4)
    return ratio(rival, ours, 2)


def main() -> None:
    torch.set_num_threads(1)
    theirs, ours = scan()
    rows = [
        ("scan, forward", *ratio(lambda: theirs().detach(), lambda: ours().detach(), 2), "transformers", 0.0),
        (
            "scan, forward and backward",
            *ratio(lambda: theirs().sum().backward(), lambda: ours().sum().backward(), 2),
            "transformers",
            30.0,
        ),
    ]
    memory = saved(theirs) / 1e6, saved(ours) / 1e6
    gpt2 = training_step(model("gpt2", 41), 41)
    for name, promise in (("mamba", 0.25), ("s4d", 0.0), ("s4", 0.0)):
        step = training_step(model(name, 41), 41)
        rows.append(
            (f"training step, {name} at the paper's size, n = 41", *ratio(gpt2, step, 2), "GPT-2 12/256/8", promise)
        )
    for name in ("mamba", "s4d", "s4"):
        label = f"shifted queries, {name}, 4 layers of 64, n = 41"
        rows.append((label, *shifted_queries(name, 41, layers=4, width=64), "41 full passes", 10.0))
    lines = [
        "# State-space backbones: ratios against named rivals",
        "",
        f"`python benchmarks/state_spaces.py`, {date.today()}, {platform.machine()}, one thread, torch "
        f"{torch.__version__}, transformers {transformers.__version__}; CPU seconds, best of the repeats. Scan: batch "
        f"{BATCH}, {TOKENS} tokens, {CHANNELS} channels, {STATE} states. Training step: batch {BATCH}, d = 20.",
        "",
        "| what | rival | rival (s) | ours (s) | ratio | promised |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {what} | {rival} | {r:.3f} | {o:.3f} | {r / o:.2f}x | {f'{p:g}x' if p else ''} |"
        for what, r, o, rival, p in rows
    ]
    lines += [
        "",
        f"Saved for the backward pass of one scan: transformers {memory[0]:.0f} MB, ours {memory[1]:.0f} MB "
        "(promised: at most 60 MB).",
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    Path(__file__).with_suffix(".md").write_text(text)
    sys.exit(memory[1] > 60 or any(r / o < promise for _, r, o, _, promise in rows))


if __name__ == "__main__":
    main()
