"""Table 1 and figure 2 of the constant-memory paper (arXiv 2306.12599): time and memory of neural processes for a
context, for queries and for updates.

    python benchmarks/np_memory.py

The models are TNP-D, EQTNP, LBANP and CMANP with the sizes of the EMNIST experiment of the paper (x of dimension 2, one
output), without gradients, on one episode. One size varies while the others are 64 points. Memory is the peak of live
tensors in addition to weights, points and tensors of earlier phases (counted, not measured). Seconds are CPU seconds of
one thread. Fused attention does not store a matrix of scores. Memory is measured for both variants, and seconds for the
fused one. Growth is the factor between the last two sizes, which differ by a factor of two: 1 is constant, 2 is linear,
and 4 is quadratic. The script writes benchmarks/np_memory.md.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch
from timing import warm
from torch.nn.attention import SDPBackend, sdpa_kernel

from iclbench.backbones.base import Backbone
from iclbench.core.episodes import Points
from iclbench.core.predictor import State
from iclbench.core.task import TaskShape
from iclbench.evaluation.costs.live_bytes import LiveBytes
from iclbench.registry import BACKBONES

MODELS = ("tnp-d", "eqtnp", "lbanp", "cmanp")
FEW, SIZES = 64, (256, 512, 1024, 2048, 4096)
KERNELS = {"plain": SDPBackend.MATH, "fused": SDPBackend.FLASH_ATTENTION}
# The phase, the varied size, and the entries of table 1 of the paper for each model in the order of `MODELS`. The table
# distinguishes constant and linear only by the colour of a mark.
_MORE, _LESS, _NONE = "quadratic", "constant or linear", "-"
PHASES = {
    ("condition", "N"): (_NONE, _MORE, _LESS, _LESS),
    ("query", "N"): (_MORE, _LESS, _LESS, _LESS),
    ("query", "M"): (_MORE, _LESS, _LESS, _LESS),
    ("update", "N"): (_NONE, _MORE, _LESS, _LESS),
    ("update", "D_U"): (_NONE, _MORE, _LESS, _LESS),
}


def build(name: str) -> Backbone:
    cls = BACKBONES.get(name)
    torch.manual_seed(0)
    return cls(cls.Settings(), TaskShape(2, 197, head="gaussian", question="targets")).eval()


def points(n: int) -> Points:
    return Points.full(torch.rand(1, n, 2), torch.randn(1, n, 1))


def prepare_phase(model: Backbone, phase: str, varied: str, size: int) -> Callable[[], object]:
    """Return the work of a phase, for which points and the state before the phase are prepared."""
    context = points(size if varied == "N" else FEW)
    if phase == "condition":
        return lambda: model.condition(context)
    state: State = model.condition(context)
    more = points(size if varied != "N" else FEW)
    if phase == "query":
        return lambda: model.query(state, more.x)
    return lambda: model.update(state, more)


def peak(work: Callable[[], object]) -> int:
    with LiveBytes() as count:
        work()
    return count.peak


def main() -> None:
    torch.set_num_threads(1)
    lines = [
        "# Memory and time of neural processes, phase by phase",
        "",
        f"`python benchmarks/np_memory.py`, {date.today()}, {platform.machine()}, one thread, torch "
        f"{torch.__version__}; published sizes, one episode, the other sizes {FEW}. Growth: from {SIZES[-2]:,} to "
        f"{SIZES[-1]:,} points, 1 is constant, 2 linear, 4 quadratic. TNP-D stores keys and values of its context, "
        "whereas the released code runs context and targets through all layers for every query: its cost is that of "
        "condition plus query.",
        "",
        "| model | phase | in | paper's table 1 | "
        + " | ".join(f"MB at {size:,}" for size in SIZES[::2])
        + " | growth | MB, fused | growth, fused | seconds | growth of seconds |",
        "| --- " * (7 + len(SIZES[::2]) + 2) + "|",
    ]
    for index, name in enumerate(MODELS):
        model = build(name)
        for (phase, varied), paper_entries in PHASES.items():
            peaks: dict[str, list[int]] = {}
            with torch.no_grad():  # the parts of composite operations are then counted separately
                for kernel, backend in KERNELS.items():
                    with sdpa_kernel([backend, SDPBackend.MATH]):
                        peaks[kernel] = [peak(prepare_phase(model, phase, varied, size)) for size in SIZES]
                times = [warm(prepare_phase(model, phase, varied, size)) for size in SIZES[-2:]]
            plain, fused = peaks["plain"], peaks["fused"]
            cells = [
                name,
                phase,
                varied,
                paper_entries[index],
                *(f"{plain[SIZES.index(size)] / 1e6:.2f}" for size in SIZES[::2]),
                f"{plain[-1] / plain[-2]:.2f}",
                f"{fused[-1] / 1e6:.2f}",
                f"{fused[-1] / fused[-2]:.2f}",
                f"{times[-1]:.3f}",
                f"{times[-1] / times[-2]:.2f}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    Path(__file__).with_suffix(".md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
