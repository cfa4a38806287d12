"""The posterior mean over a pool of linear functions (dMMSE; Raventós et al. 2023, arXiv 2306.15063, equation 3).

Each function of the pool is equally likely before the first point. After n points, its weight is proportional to
exp(-S_n / (2 sigma²)), where S_n is the sum of its squared errors at these points. One pass over the points updates the
sums of all functions in log space, so that weights do not underflow in long contexts.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from iclbench.core.errors import UsageError
from iclbench.core.settings import NoSettings
from iclbench.core.task import TaskFacts
from iclbench.estimators.base import Estimator, select_lengths, slices
from iclbench.estimators.spike_and_slab import MIN_NOISE

# Largest number of sums of squared errors that are in memory: a limit on episodes times functions of the pool.
_SUMS_AT_ONCE = 2**20


class PoolOracle(Estimator[NoSettings]):
    """The mean prediction of the functions in the pool, weighted by their posterior probabilities.

    It is Bayes-optimal for tasks with a pool (`task.pool`), with or without noise. Labels without noise are assumed to
    have the smallest noise that exceeds rounding errors.

    Raises:
        UsageError: the task has no pool (code `not-applicable`).
    """

    has_prior = True

    def __init__(self, settings: NoSettings | None = None, facts: TaskFacts | None = None, seed: int = 0) -> None:
        super().__init__(settings, facts, seed)
        family = self.facts.family
        if getattr(family, "pool", None) is None:
            raise UsageError(
                f"{type(self).__name__} needs a task with a pool of functions, such as linear with -o task.pool=64; "
                "choose another baseline",
                code="not-applicable",
            )
        weights, noise = family.pool_under(self.facts.shift)
        self.pool: Float[Tensor, "M Dx"] = weights
        self.noise = max(noise, MIN_NOISE * float(weights.square().mean().sqrt()))

    def answer(
        self,
        x: Float[Tensor, "B N Dx"],
        y: Float[Tensor, "B N"],
        lengths: Int[Tensor, "#B P"],
        queries: Float[Tensor, "B P Q Dx"],
    ) -> Float[Tensor, "B P Q"]:
        pool = self.pool.to(x)
        chunks = slices(len(x), max(1, _SUMS_AT_ONCE // len(pool)))
        means = torch.cat([self._posterior_means(x[chunk], y[chunk], pool) for chunk in chunks])
        return (select_lengths(means, lengths + 1).unsqueeze(2) * queries).sum(-1)

    def _posterior_means(
        self, x: Float[Tensor, "B N Dx"], y: Float[Tensor, "B N"], pool: Float[Tensor, "M Dx"]
    ) -> Float[Tensor, "B N+1 Dx"]:
        """Return the posterior means of the weights after 0, 1, ..., N points."""
        log_likelihood = x.new_zeros(len(x), len(pool))
        means = [pool.mean(0).expand(len(x), -1)]
        for inputs, labels in zip(x.unbind(1), y.unbind(1), strict=True):
            errors = (labels.unsqueeze(1) - inputs @ pool.T) / self.noise
            log_likelihood = log_likelihood - errors.square() / 2
            means.append(log_likelihood.softmax(1) @ pool)
        return torch.stack(means, 1)
