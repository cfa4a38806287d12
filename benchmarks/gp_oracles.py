"""The oracles of the Gaussian-process task, compared with the results of an independent prototype.

    python benchmarks/gp_oracles.py    # about five minutes; writes gp_oracles.md, exits with 1 on a disagreement

The score is the mean log-likelihood per target over independent samples of kernel, context and targets, with standard
errors over episodes. The prototype used other samples. Two results agree if they differ by at most three combined
standard errors. The gap of `oracle-bayes` to `oracle-kernel` is a paired difference.
"""

from __future__ import annotations

import math
import platform
import sys
import time
from datetime import date
from pathlib import Path

import numpy as np
import torch

from iclbench.core.seeds import generator
from iclbench.estimators.base import TaskFacts
from iclbench.families.gaussian_processes.gp_mixture import GPMixture, GPParameters
from iclbench.families.gaussian_processes.kernels import KERNELS
from iclbench.families.gaussian_processes.oracles import OracleBayes, OracleKernel
from iclbench.families.request import Request

DRAWS, BLOCK = 16_384, 64
BAYES, COUNTS = 320, (0, 1)
# Results and standard errors of the prototype. Those of single kernels use half of its samples.
KERNEL = {
    "none": {"all": (-0.290, 0.004), "rbf": (-0.488, 0.006), "periodic": (-0.086, 0.006)},
    "ood-lengthscale": {"all": (-0.351, 0.005), "rbf": (-0.470, 0.007), "periodic": (-0.229, 0.007)},
}
GAP = {"mixture": (0.079, 0.009), "Gaussian": (0.094, 0.011)}
PRIOR = -1.438

Row = tuple[str, np.ndarray, str, bool]


def kernel_rows(family: GPMixture, shift: str) -> list[Row]:
    """Return the rows of the kernel oracle, over all samples and over the samples of each kernel."""
    oracle = OracleKernel(None, TaskFacts(family=family, shift=shift))
    likelihoods, kernels, priors = [], [], []
    for block in range(DRAWS // BLOCK):
        episodes = family.sample(Request(BLOCK, 64, generator(0, f"oracle-{shift}", block), shift=shift, related=0))
        y = episodes.targets.y
        answer = oracle.informed(episodes.truth).predict_targets(episodes.context, episodes.targets.x)
        likelihoods.append(answer.log_likelihood(y).mean(1).numpy())
        kernels.append(episodes.truth["kernel"].numpy())
        prior = -0.5 * (y.square() / 1.04 + math.log(2 * math.pi * 1.04))
        priors.append(prior.mean((1, 2)).numpy())
    scores, kernel = np.concatenate(likelihoods), np.concatenate(kernels)
    rows = []
    for name, (value, error) in KERNEL[shift].items():
        selected = scores if name == "all" else scores[kernel == KERNELS.index(name)]
        rows.append(compare(f"oracle-kernel, {shift}, {name}", selected, value, error))
    if shift == "none":
        rows.append(compare("prior predictive, no data", np.concatenate(priors), PRIOR, 0.0))
    return rows


def bayes_rows(family: GPMixture) -> list[Row]:
    """Return the rows of the gap of `oracle-bayes` to `oracle-kernel`, by the number of related datasets."""
    facts = TaskFacts(family=family)
    with_kernel, without_kernel = OracleKernel(None, facts), OracleBayes(None, facts)
    parts: dict[str, list[np.ndarray]] = {}
    for block in range(BAYES // 16):
        episodes = family.sample(Request(16, 64, generator(0, "oracle-bayes", block), related=max(COUNTS)))
        context, targets = episodes.context, episodes.targets
        best = (
            with_kernel.informed(episodes.truth).predict_targets(context, targets.x).log_likelihood(targets.y).mean(1)
        )
        answers = without_kernel.predict_by_related(context, targets.x, episodes.related, COUNTS)
        for count, answer in zip(COUNTS, answers, strict=True):
            scores = answer.scores(targets.y)
            for name, metric in (("mixture", "log_likelihood"), ("Gaussian", "log_likelihood_gaussian")):
                label = f"oracle-kernel minus oracle-bayes, {name}, {count} related"
                parts.setdefault(label, []).append((best - scores[metric].mean(1)).numpy())
        print(f"  {16 * (block + 1)} of {BAYES}", file=sys.stderr, flush=True)
    gaps = {label: np.concatenate(blocks) for label, blocks in parts.items()}
    return [
        compare(label, each, *GAP[label.split(", ")[1]])
        if label.endswith(", 0 related")
        else (label, each, "below 0.01", bool(each.mean() < 0.01 + 3 * standard_error(each)))
        for label, each in gaps.items()
    ]


def compare(label: str, each: np.ndarray, value: float, error: float) -> Row:
    distance = abs(each.mean() - value) / math.hypot(standard_error(each), error)
    expected = f"{value:.3f}" + (f" ± {error:.3f}" if error else "")
    return label, each, f"{expected} ({distance:.1f} apart)", distance <= 3


def standard_error(each: np.ndarray) -> float:
    return float(each.std(ddof=1) / math.sqrt(len(each)))


def main() -> None:
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    family = GPMixture(GPParameters())
    started = time.process_time()
    rows = [row for shift in KERNEL for row in kernel_rows(family, shift)]
    between = time.process_time()
    rows += bayes_rows(family)
    seconds = (between - started) / (2 * DRAWS), (time.process_time() - between) / (BAYES * (1 + max(COUNTS)))
    lines = [
        "# The oracles of the Gaussian-process task and an independent prototype",
        "",
        f"`python benchmarks/gp_oracles.py`, {date.today()}, {platform.machine()}, one thread, torch "
        f"{torch.__version__}. Mean log-likelihood per target and its standard error over episodes; in brackets, the "
        "difference of the two results in combined standard errors (they agree up to three).",
        "",
        "| what | episodes | ours | prototype | agrees |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {label} | {len(each):,} | {each.mean():.4f} ± {standard_error(each):.4f} | {expected} | "
        f"{'yes' if agrees else 'NO'} |"
        for label, each, expected, agrees in rows
    ]
    lines += [
        "",
        f"CPU seconds: {seconds[0]:.4f} per episode sampled and answered by oracle-kernel, {seconds[1]:.2f} per "
        "dataset (context or related) of oracle-bayes, predictions included.",
        "",
    ]
    text = "\n".join(lines)
    print(text)
    Path(__file__).with_suffix(".md").write_text(text, encoding="utf-8")
    sys.exit(not all(row[-1] for row in rows))


if __name__ == "__main__":
    main()
