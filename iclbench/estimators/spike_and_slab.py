"""The posterior mean of a linear function with few non-zero weights: an average over all supports.

Under every support of s of the d weights the problem is Bayesian regression on s inputs, whose posterior is updated
point by point; the density of each label given the labels before it is the evidence for the support (Mitchell and
Beauchamp 1988, Bayesian variable selection in linear regression, with the number of non-zero weights known). Exact, in
time proportional to the number of supports.
"""

from __future__ import annotations

import math
from itertools import combinations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from iclbench.core.errors import UsageError
from iclbench.core.settings import NoSettings
from iclbench.core.task import TaskFacts
from iclbench.estimators.base import LinearEstimator

# Entries of one episode's covariances: 10,260 for 3 of 20 weights, 387,600 for 5 of 20.
MOST_ENTRIES = 400_000
# Of one weight's standard deviation. Labels without noise are taken to have this much, which is above the rounding of
# float32 and still tells supports apart by the first label that one of them cannot explain.
LEAST_NOISE = 1e-5


class SpikeAndSlab(LinearEstimator[NoSettings]):
    """Bayes-optimal where the support is uniform over all of its size and the weights in it are from N(0, v), with
    noise or without."""

    episodes_at_once = 16

    def __init__(self, settings: NoSettings | None = None, facts: TaskFacts | None = None, seed: int = 0) -> None:
        super().__init__(settings, facts, seed)
        family = self.facts.family
        sparsity = getattr(getattr(family, "parameters", None), "sparsity", None)
        if sparsity is None:
            raise UsageError(
                f"{type(self).__name__} answers tasks with a known number of non-zero weights only, such as "
                "sparse-linear; choose another baseline"
            )
        self.sparsity = int(sparsity)
        shift = family.parse_shift(self.facts.shift)
        self.slab = float(shift.value("weight-scale", 1.0))
        self.noise = max(float(shift.value("noisy", family.noise)), LEAST_NOISE * self.slab)

    def weights(self, x: Float[Tensor, "B N Dx"], y: Float[Tensor, "B N"]) -> Float[Tensor, "B N Dx"]:
        supports = self._supports(x.shape[2]).to(x.device)
        number, s = supports.shape
        mean = x.new_zeros(len(x), number, s)
        covariance = (self.slab**2 * torch.eye(s, dtype=x.dtype, device=x.device)).expand(len(x), number, s, s)
        evidence = x.new_zeros(len(x), number)
        path = []
        for rows, label in zip(x.unbind(1), y.unbind(1), strict=True):
            inputs = rows[:, supports]
            products = (covariance @ inputs.unsqueeze(-1)).squeeze(-1)
            variance = ((inputs * products).sum(-1)).clamp_min(0) + self.noise**2
            surprise = label[:, None] - (inputs * mean).sum(-1)
            evidence = evidence - (surprise.square() / variance + variance.log()) / 2
            mean = mean + products * (surprise / variance).unsqueeze(-1)
            covariance = covariance - products.unsqueeze(-1) * (products / variance.unsqueeze(-1)).unsqueeze(-2)
            shares = (evidence.softmax(1).unsqueeze(-1) * mean).flatten(1)
            path.append(torch.zeros_like(rows).index_add_(1, supports.flatten(), shares))
        return torch.stack(path, 1)

    def _supports(self, dim: int) -> Int[Tensor, "supports s"]:
        number, s = math.comb(dim, self.sparsity), self.sparsity
        if number * s**2 > MOST_ENTRIES:
            raise UsageError(
                f"there are {number:,} supports of {s} of {dim} weights and it averages over {MOST_ENTRIES // s**2:,} "
                "of this size; leave it out with --baseline"
            )
        return torch.tensor(list(combinations(range(dim), s)))
