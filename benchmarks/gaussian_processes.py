"""Time to sample Gaussian processes with related datasets, compared with one NumPy Cholesky factor per dataset.

    python benchmarks/gaussian_processes.py    # seconds; writes gaussian_processes.md, exits with 1 if too slow

The reference samples the same batch (kernel, lengthscale and sizes of every episode) with one covariance matrix in
float64, its Cholesky factor and one product per dataset. It does not sample the function on the grid of inputs for
figures, which iclbench does.

The measure is CPU seconds of one thread (`time.process_time`): the minimum over repeats, in which both sides alternate.
"""

from __future__ import annotations

import platform
import sys
from datetime import date
from pathlib import Path

import numpy as np
import torch
from backbones import ratio

from iclbench.core.episodes import Episodes
from iclbench.families.gaussian_processes.gp_mixture import GPMixture, GPParameters
from iclbench.families.gaussian_processes.kernels import RBF
from iclbench.families.request import Request

PROMISE = 5.0


def rival(episodes: Episodes, rng: np.random.Generator) -> list[np.ndarray]:
    """Sample outputs for the inputs and sizes of these episodes."""
    truth = zip(episodes.truth["kernel"].numpy(), episodes.truth["lengthscale"].numpy(), strict=True)
    outputs = []
    for e, (kernel, lengthscale) in enumerate(truth):
        context, targets, related = episodes.context[e], episodes.targets[e], episodes.related[e]
        inputs = [torch.cat([context.x[context.mask], targets.x])]
        inputs += [x[mask] for x, mask in zip(related.x, related.mask, strict=True) if mask.any()]
        for x in inputs:
            distance = x.double().numpy() - x.double().numpy().T
            if kernel == RBF:
                covariance = np.exp(-0.5 * (distance / lengthscale) ** 2)
            else:
                covariance = np.exp(-2 * np.sin(np.pi * distance / lengthscale) ** 2 / np.log(2))
            covariance[np.diag_indices(len(x))] += 0.04
            outputs.append(np.linalg.cholesky(covariance) @ rng.standard_normal(len(x)))
    return outputs


def main() -> None:
    torch.set_num_threads(1)
    family = GPMixture(GPParameters())
    rng = np.random.default_rng(0)
    generator = torch.Generator().manual_seed(0)
    rows = []
    for label, options in (
        ("a batch of 16, 0 to 5 related datasets", {}),
        ("a batch of 16, 5 related datasets each", {"related": 5}),
        ("a batch of 16, no related datasets", {"related": 0}),
        ("a batch of 16, 0 to 5, out of distribution", {"shift": "ood-lengthscale"}),
    ):
        episodes = family.sample(Request(16, 64, generator, **options))
        loop, ours = ratio(
            lambda e=episodes: rival(e, rng), lambda o=options: family.sample(Request(16, 64, generator, **o)), 10
        )
        rows.append((label, loop, ours))
    lines = [
        "# Sampling Gaussian processes: ratios against one NumPy Cholesky factor per dataset",
        "",
        f"`python benchmarks/gaussian_processes.py`, {date.today()}, {platform.machine()}, one thread, torch "
        f"{torch.__version__}, numpy {np.__version__}; CPU milliseconds, best of the repeats. Up to 64 context points, "
        "128 targets, related datasets of 64 to 128 points.",
        "",
        "| what | NumPy loop (ms) | ours (ms) | ratio | promised |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [f"| {what} | {1e3 * r:.1f} | {1e3 * o:.1f} | {r / o:.1f}x | {PROMISE:g}x |" for what, r, o in rows]
    text = "\n".join([*lines, ""])
    print(text)
    Path(__file__).with_suffix(".md").write_text(text, encoding="utf-8")
    sys.exit(not all(r / o >= PROMISE for _, r, o in rows))


if __name__ == "__main__":
    main()
