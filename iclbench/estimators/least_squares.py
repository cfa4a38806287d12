"""Minimum-norm least squares without intercept, exact for every prefix of every episode at once.

Up to d points the minimum-norm solutions are read off one triangular factor. From then on, least squares is Bayesian
regression whose prior is what the first d points say, N(w_d, (X'X)⁻¹) with unit noise, so that the same identity goes
on in blocks. Episodes whose inputs lie in a subspace are first rotated into it. The few that are still too badly
conditioned for squared condition numbers are solved prefix by prefix.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from iclbench.core.settings import NoSettings
from iclbench.estimators.base import LinearEstimator
from iclbench.estimators.recursive import minimum_norm, posterior_means

# Directions below this fraction of the largest are rounding noise: inputs usually come in float32 (rounding 6e-8).
RCOND = 1e-6
# Below this squared sine of the angle to the earlier rows, factors of X X' lose more than half of float64's digits.
SMALLEST_PIVOT = 1e-8
# Where the squared distance of one of the first d rows from the span of those before it is below this fraction of the
# longest row's squared length, what it says of w and what later rows say cannot be weighed in float64.
SHORTEST_PIVOT = 1e-10


class LeastSquares(LinearEstimator[NoSettings]):
    """Bayes-optimal for noiseless linear functions; the limit of ridge for penalty -> 0."""

    def weights(self, x: Float[Tensor, "B N Dx"], y: Float[Tensor, "B N"]) -> Float[Tensor, "B N Dx"]:
        return least_squares(x, y)


def least_squares(x: Float[Tensor, "B N Dx"], y: Float[Tensor, "B N"]) -> Float[Tensor, "B N Dx"]:
    """Minimum-norm least squares on the first 1, 2, ..., N points; singular values below `RCOND` count as 0."""
    w, sound = _full_rank(x, y)
    if bool(sound.all()):
        return w
    poor = (~sound).nonzero().squeeze(1)
    w[poor] = _any_rank(x[poor], y[poor])
    return w


def _full_rank(
    x: Float[Tensor, "B N Dx"], y: Float[Tensor, "B N"]
) -> tuple[Float[Tensor, "B N Dx"], Bool[Tensor, " B"]]:
    """The solutions, if the first min(N, Dx) points are safely independent, and for which episodes they are."""
    d = x.shape[2]
    leading = x[:, :d]
    w, pivots, trusted = minimum_norm(leading, y[:, :d], SMALLEST_PIVOT)
    sound = trusted[:, -1]
    if x.shape[1] > d:
        w = torch.cat([w, posterior_means(x[:, d:], y[:, d:], leading.mT @ leading, w[:, -1])], 1)
        longest = x.square().sum(-1).amax(1)
        overflown = y.isfinite().all(1) & ~w.isfinite().flatten(1).all(1)
        sound = sound & (pivots.amin(1) > SHORTEST_PIVOT * longest) & ~overflown
    return w, sound


def _any_rank(x: Float[Tensor, "B N Dx"], y: Float[Tensor, "B N"]) -> Float[Tensor, "B N Dx"]:
    """Within the row space of each episode the points are of full rank, as a rule from the first of them on."""
    _, singular, basis = torch.linalg.svd(x, full_matrices=False)
    rank = (singular > RCOND * singular[:, :1]).sum(1)
    w = torch.zeros_like(x)
    for r in rank.unique().tolist():
        if r == 0:
            continue
        episodes = (rank == r).nonzero().squeeze(1)
        rows = basis[episodes, :r]
        coefficients, sound = _full_rank(x[episodes] @ rows.mT, y[episodes])
        w[episodes] = coefficients @ rows
        w[episodes[~sound]] = _prefix_by_prefix(x[episodes[~sound]], y[episodes[~sound]])
    return w


def _prefix_by_prefix(x: Float[Tensor, "B N Dx"], y: Float[Tensor, "B N"]) -> Float[Tensor, "B N Dx"]:
    """Nothing shared and nothing squared: a singular value decomposition for every prefix."""
    solve = torch.linalg.lstsq
    solutions = [
        solve(x[:, :n].cpu(), y[:, :n, None].cpu(), rcond=RCOND, driver="gelsd").solution.squeeze(-1)
        for n in range(1, x.shape[1] + 1)
    ]
    return torch.stack(solutions, 1).to(x.device)
