"""Effect of longer training on the periodic half of the Gaussian-process task for a small network.

    python benchmarks/periodic.py train FOLDER scored      # a quarter of an hour of one core each; the same command
    python benchmarks/periodic.py train FOLDER unscored    # continues a stopped run
    python benchmarks/periodic.py table FOLDER             # writes periodic.md from the finished steps
    python benchmarks/periodic.py train FOLDER scored --steps 500             # a trial: half a minute of training
    python benchmarks/periodic.py table FOLDER --out trial.md                 # writes its table to another file

A TNP of width 64 without related datasets is trained on new episodes of `gp-mixture`. The loss is the mean over the
points of an episode, then over episodes. It always includes the context points in `scored`, and only in the first 5,500
steps in `unscored`. The evaluated weights are an exponential average over about the last thousand steps, so that every
step can be evaluated. Curves are gaps to `oracle-kernel`, paired per episode, on 128 episodes for every half octave of
periods and every octave of RBF lengthscales, within the range of the context (|x| up to 2) and beyond it. Intervals are
1.96 standard errors.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from iclbench.backbones.base import TaskShape
from iclbench.backbones.tnp import TNP
from iclbench.core.episodes import Episodes
from iclbench.core.files import atomic
from iclbench.core.seeds import generator, global_stream
from iclbench.estimators.base import TaskFacts
from iclbench.families.gaussian_processes.gp_mixture import GPMixture, GPParameters
from iclbench.families.gaussian_processes.kernels import LAMBDA
from iclbench.families.gaussian_processes.oracles import OracleKernel
from iclbench.families.request import Request

POINTS, TARGETS, BATCH, SEED = 64, 64, 16, 0
SETTINGS = TNP.Settings(width=64, layers=4, heads=4, fourier=5)
RATE, WARMUP, CLIP, AVERAGE = 1e-3, 300, 0.5, 0.999
PARTS = ("gap", "inside", "outside")
EVALUATE_EVERY, KEEP_EVERY = 1000, 250
BIN_EPISODES, INSIDE = 128, 2.0
OCTAVES = [0.25, 0.5, 1.0, 2.0, 4.0]
HALVES = [0.25 * 2 ** (k / 2) for k in range(9)]
BINS = [("periodic", low, high) for low, high in pairwise(HALVES)]
BINS += [("rbf", low, high) for low, high in pairwise(OCTAVES)]


@dataclass(frozen=True)
class Plan:
    """The last step with scored context points, and the schedule of the learning rate."""

    scored: int
    phase: tuple[tuple[int, float], ...]

    @property
    def steps(self) -> int:
        return self.phase[-1][0]

    def rate(self, step: int) -> float:
        """Return the learning rate: a warm-up, a constant rate, and a cosine decay to 0."""
        done = float(np.interp(step, *zip(*self.phase, strict=True)))
        return RATE * min(1, (step + 1) / WARMUP) * 0.5 * (1 + math.cos(math.pi * done))


# The second plan equals the first one up to step 5,500. Both were planned to be longer, and were shortened at 7,000 and
# 9,500 steps because other work used the machine.
PLANS = {
    "scored": Plan(13_500, ((5500, 0.0), (7000, 1500 / 11_500), (13_500, 1.0))),
    "unscored": Plan(5500, ((5500, 0.0), (9500, 4000 / 12_000), (13_500, 1.0))),
}


def family(kernel: str | None = None, low: float = 0.25, high: float = 4.0, targets: int = TARGETS) -> GPMixture:
    kernels = {"kernels": (kernel,)} if kernel else {}
    return GPMixture(GPParameters(lengthscale=(low, high), targets=targets, max_related=0, **kernels))


class Bin:
    """The episodes of a kernel and a range of lengthscales, and the log-likelihoods of the oracle."""

    def __init__(self, kernel: str, low: float, high: float) -> None:
        self.kernel, self.low, self.high = kernel, low, high
        gp_family = family(kernel, low, high, targets=128)
        self.episodes = gp_family.sample(Request(BIN_EPISODES, POINTS, generator(SEED, f"periodic-{kernel}-{low:.3f}")))
        oracle = OracleKernel(None, TaskFacts(family=gp_family)).informed(self.episodes.truth)
        targets = self.episodes.targets
        self.best = oracle.predict_targets(self.episodes.context, targets.x).log_likelihood(targets.y)
        self.inside = targets.x[..., 0].abs() <= INSIDE

    def row(self, likelihood: Tensor) -> dict[str, object]:
        """Return the means and standard errors of the gap over episodes: for all targets, and for targets within and
        beyond the range of the context.
        """
        gap = self.best - likelihood
        part = {"gap": gap.mean(1)}
        for name, where in (("inside", self.inside), ("outside", ~self.inside)):
            part[name] = (gap * where).sum(1) / where.sum(1)
        moments = {name: (float(g.mean()), float(g.std() / math.sqrt(len(g)))) for name, g in part.items()}
        return {"kernel": self.kernel, "low": self.low, "high": self.high, **moments}


def constant(episodes: Episodes) -> Tensor:
    """Return the log-likelihood of a predictor that models only the mean level of a periodic function. Its prior has
    the variance of the constant term of the kernel, and all other terms are noise."""
    from scipy.special import ive

    level = float(ive(0, 1 / LAMBDA))
    rest = 1 - level + 0.04
    counts = episodes.context.counts.unsqueeze(1)
    total = (episodes.context.y[..., 0] * episodes.context.mask).sum(1, keepdim=True)
    variance = 1 / (1 / level + counts / rest)
    error = episodes.targets.y[..., 0] - variance * total / rest
    spread = variance + rest
    return -0.5 * (error.square() / spread + (2 * math.pi * spread).log())


def loss(model: TNP, episodes: Episodes, context_too: bool) -> Tensor:
    scored = episodes.context.append(episodes.targets) if context_too else episodes.targets
    each = model.predict_targets(episodes.context, scored.x).loss(scored.y)
    return ((each * scored.mask).sum(1) / scored.mask.sum(1)).mean()


@torch.no_grad()
def evaluate(model: TNP, bins: list[Bin]) -> list[dict[str, object]]:
    rows = []
    for each in bins:
        targets = each.episodes.targets
        rows.append(each.row(model.predict_targets(each.episodes.context, targets.x).log_likelihood(targets.y)))
    return rows


def train(folder: Path, plan: Plan, steps: int | None = None) -> None:
    """Train to the last step of the plan or to step `steps`, from the checkpoint if one exists."""
    until = plan.steps if steps is None else min(steps, plan.steps)
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    with global_stream(SEED, "weights"):
        model = TNP(SETTINGS, TaskShape(1, POINTS, head="gaussian", question="targets"))
    average = deepcopy(model).requires_grad_(False)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0, fused=True)
    step, seconds, curve = 0, 0.0, []
    if (folder / "checkpoint.pt").exists():
        checkpoint = torch.load(folder / "checkpoint.pt")
        model.load_state_dict(checkpoint["model"])
        average.load_state_dict(checkpoint["average"])
        optimiser.load_state_dict(checkpoint["optimiser"])
        step, seconds, curve = checkpoint["step"], checkpoint["seconds"], checkpoint["curve"]
    task, bins, before = family(), [Bin(*edges) for edges in BINS], time.process_time() - seconds
    while step < until:
        for group in optimiser.param_groups:
            group["lr"] = plan.rate(step)
        optimiser.zero_grad()
        episodes = task.sample(Request(BATCH, POINTS, generator(SEED, "data", step)))
        loss(model, episodes, step < plan.scored).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimiser.step()
        step += 1
        weight = max(1 - AVERAGE, 1 / step)  # at first, all steps have equal weights
        torch._foreach_lerp_(list(average.parameters()), [p.detach() for p in model.parameters()], weight)
        seconds = time.process_time() - before
        if step % EVALUATE_EVERY == 0 or step in (250, 500, until):
            rows = [{"step": step, "seconds": seconds, **row} for row in evaluate(average, bins)]
            curve += rows
            (folder / "curve.json").write_text(json.dumps(curve, indent=0))
            gaps = [f"{row['gap'][0]:.2f}" for row in rows]
            print(step, f"{seconds / 60:.1f} min", *gaps, flush=True)
        if step % KEEP_EVERY == 0 or step == until:
            state = {"model": model, "average": average, "optimiser": optimiser}
            states = {name: part.state_dict() for name, part in state.items()}
            with atomic(folder / "checkpoint.pt") as path:
                torch.save(states | {"step": step, "seconds": seconds, "curve": curve}, path)


def interval_text(mean: float, error: float) -> str:
    return f"{mean:.2f} ± {1.96 * error:.2f}"


def lines(rows: list[dict[str, Any]], kernel: str, part: str, head: str, below: dict[str, list[str]]) -> list[str]:
    """Return a table of one kernel, with a row per evaluation and a column per bin."""
    kernel_rows = [row for row in rows if row["kernel"] == kernel]
    edges = sorted({(row["low"], row["high"]) for row in kernel_rows})
    cells_by_step = {(row["step"], row["low"]): interval_text(*row[part]) for row in kernel_rows}
    table_rows = {head: [f"{low:.2f} to {high:.2f}" for low, high in edges], "---": ["---"] * len(edges)}
    table_rows |= {
        f"{step:,}": [cells_by_step[step, low] for low, _ in edges]
        for step in sorted({row["step"] for row in kernel_rows})
    }
    return ["| " + " | ".join([name, *cells]) + " |" for name, cells in (table_rows | below).items()]


def table(folder: Path, out: Path) -> None:
    """Write the page with all tables."""
    bins = [Bin(*edges) for edges in BINS]
    level: dict[str, dict[str, list[str]]] = {}
    for each in bins:
        gaps = each.row(constant(each.episodes))
        for part in PARTS:
            level.setdefault(f"{each.kernel} {part}", {}).setdefault("mean level only", []).append(
                interval_text(*gaps[part])
            )
    text = [
        "# The periodic half of the Gaussian-process task",
        "",
        "`python benchmarks/periodic.py`: gap to `oracle-kernel` in nats per target, mean ± 1.96 standard errors over "
        f"{BIN_EPISODES} episodes of each bin, by training step of {BATCH} episodes. Mean level only: a predictor "
        "that models only the mean level of the function.",
    ]
    for name, plan in PLANS.items():
        if not (folder / name / "curve.json").exists():
            continue
        rows = json.loads((folder / name / "curve.json").read_text())
        last, minutes = max(row["step"] for row in rows), max(row["seconds"] for row in rows) / 60
        final = [row for row in rows if row["step"] == last]
        text += ["", f"## Context points scored up to step {min(plan.scored, plan.steps):,} of {plan.steps:,}", ""]
        text += [f"{minutes:.0f} minutes of one core up to step {last:,}.", ""]
        text += lines(rows, "periodic", "gap", "steps \\ period", level["periodic gap"])
        text += ["", "RBF:", "", *lines(rows, "rbf", "gap", "steps \\ lengthscale", level["rbf gap"])]
        for part, where in (("inside", "within the context's range"), ("outside", "beyond it")):
            text += ["", f"Periodic, targets {where}, at the end:", ""]
            text += lines(final, "periodic", part, "steps \\ period", level[f"periodic {part}"])
    out.write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["train", "table"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("plan", nargs="?", choices=list(PLANS), default="scored")
    parser.add_argument("--steps", type=int, help="last step (default: the last step of the plan)")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"), help="file for the tables")
    arguments = parser.parse_args()
    if arguments.what == "train":
        train(arguments.folder / arguments.plan, PLANS[arguments.plan], arguments.steps)
    else:
        table(arguments.folder, arguments.out)
