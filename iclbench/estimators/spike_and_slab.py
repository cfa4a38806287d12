"""The posterior mean of a sparse linear function, averaged over all supports.

Given the support (s of the d weights), the problem is Bayesian regression on s inputs, whose posterior is updated with
each point. The product of the densities of the labels, each given the previous labels, is the evidence for the support
(Mitchell and Beauchamp 1988, Bayesian variable selection in linear regression, with a known number of non-zero
weights). The result is exact, and the time is proportional to the number of supports.
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

# Largest total size of the covariance matrices of an episode: 10,260 for 3 of 20 weights, 387,600 for 5 of 20.
MAX_ENTRIES = 400_000
# Smallest standard deviation of the noise, relative to the standard deviation of a weight; labels without noise are
# assumed to have this noise. It is larger than rounding errors of float32, and small enough that the first label that a
# support cannot explain excludes this support.
MIN_NOISE = 1e-5


class SpikeAndSlab(LinearEstimator[NoSettings]):
    """Bayesian regression with a spike-and-slab prior: supports of known size are equally likely, weights are N(0, v).

    The predictions are Bayes-optimal under this prior, with or without noise.
    """

    episodes_at_once = 16

    def __init__(self, settings: NoSettings | None = None, facts: TaskFacts | None = None, seed: int = 0) -> None:
        super().__init__(settings, facts, seed)
        family = self.facts.family
        sparsity = getattr(getattr(family, "parameters", None), "sparsity", None)
        if sparsity is None:
            raise UsageError(
                f"{type(self).__name__} needs a task with a known number of non-zero weights, such as sparse-linear; "
                "choose another baseline",
                code="not-applicable",
            )
        self.sparsity = int(sparsity)
        shift = family.parse_shift(self.facts.shift)
        self.weight_std = float(shift.value("weight-scale", 1.0))
        self.noise = max(family.label_noise(shift), MIN_NOISE * self.weight_std)

    def weights(self, x: Float[Tensor, "B N Dx"], y: Float[Tensor, "B N"]) -> Float[Tensor, "B N Dx"]:
        supports = self._supports(x.shape[2]).to(x.device)
        n_supports, s = supports.shape
        mean = x.new_zeros(len(x), n_supports, s)
        covariance = (self.weight_std**2 * torch.eye(s, dtype=x.dtype, device=x.device)).expand(
            len(x), n_supports, s, s
        )
        evidence = x.new_zeros(len(x), n_supports)
        path = []
        for x_row, label in zip(x.unbind(1), y.unbind(1), strict=True):
            inputs = x_row[:, supports]
            products = (covariance @ inputs.unsqueeze(-1)).squeeze(-1)
            variance = ((inputs * products).sum(-1)).clamp_min(0) + self.noise**2
            residual = label[:, None] - (inputs * mean).sum(-1)
            evidence = evidence - (residual.square() / variance + variance.log()) / 2
            mean = mean + products * (residual / variance).unsqueeze(-1)
            covariance = covariance - products.unsqueeze(-1) * (products / variance.unsqueeze(-1)).unsqueeze(-2)
            weighted_means = (evidence.softmax(1).unsqueeze(-1) * mean).flatten(1)
            path.append(torch.zeros_like(x_row).index_add_(1, supports.flatten(), weighted_means))
        return torch.stack(path, 1)

    def _supports(self, dim: int) -> Int[Tensor, "supports s"]:
        n_supports, s = math.comb(dim, self.sparsity), self.sparsity
        if n_supports * s**2 > MAX_ENTRIES:
            raise UsageError(
                f"{type(self).__name__} averages over at most {MAX_ENTRIES // s**2:,} supports, but {s} of {dim} "
                f"weights have {n_supports:,} supports; choose other baselines with --baseline",
                code="too-large",
            )
        return torch.tensor(list(combinations(range(dim), s)))
