"""The ceiling of the Gaussian-process task: the mean score of `oracle-kernel` over all episodes.

    python benchmarks/gp_ceilings.py    # about three minutes of one core; writes gp_ceilings.md

The ceiling is the mean log-likelihood per target over 65,536 episodes, which are stratified like frozen prompts. Its
standard error is over blocks of 64 episodes, each with a separate random stream.
`iclbench/families/gaussian_processes/ceilings.py` has these numbers. The script exits with 1 if one of them differs by
more than three combined standard errors from the computed value.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from iclbench.core.seeds import generator
from iclbench.estimators.base import TaskFacts
from iclbench.families.gaussian_processes.ceilings import CEILINGS
from iclbench.families.gaussian_processes.gp_mixture import GPMixture, GPParameters
from iclbench.families.gaussian_processes.oracles import OracleKernel
from iclbench.families.request import Request

EPISODES, BLOCK = 65_536, 64
FAMILY = GPMixture(GPParameters(max_related=0))


def ceiling(points: int, shift: str) -> tuple[float, float]:
    """Return the mean and its standard error for contexts of up to `points` points."""
    oracle = OracleKernel(None, TaskFacts(family=FAMILY, shift=shift))
    means = []
    for block in range(EPISODES // BLOCK):
        draws = generator(0, f"ceiling-{points}-{shift}", block)
        episodes = FAMILY.sample_prompts(Request(BLOCK, points, draws, shift=shift))
        answer = oracle.informed(episodes.truth).predict_targets(episodes.context, episodes.targets.x)
        means.append(float(answer.log_likelihood(episodes.targets.y).mean()))
    return float(np.mean(means)), float(np.std(means, ddof=1) / np.sqrt(len(means)))


def main() -> int:
    torch.set_num_threads(1)
    lines, wrong = [], 0
    for (points, shift), stored in CEILINGS.items():
        value, error = ceiling(points, shift)
        distance = abs(value - stored.value) / np.hypot(error, stored.error)
        wrong += distance > 3
        lines.append(f"| {points} | {shift} | {value:.4f} ± {error:.4f} |")
        print(lines[-1], file=sys.stderr, flush=True)
    text = [
        "# The ceiling of the Gaussian-process task",
        "",
        f"`python benchmarks/gp_ceilings.py`: mean log-likelihood per target of `oracle-kernel` over {EPISODES:,} "
        "stratified episodes, with its standard error.",
        "",
        "| context points, up to | shift | ceiling |",
        "| --- | --- | --- |",
        *lines,
    ]
    Path(__file__).with_suffix(".md").write_text("\n".join(text) + "\n")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
