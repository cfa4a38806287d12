"""Minimum-norm least squares without intercept, exact for all prefixes of all episodes.

For up to d points, one triangular factor gives the minimum-norm solutions. For more points, least squares is equivalent
to Bayesian regression with unit noise and the prior N(w_d, (X'X)⁻¹) from the first d points. The regression is solved
in blocks. If the inputs of an episode lie in a subspace, they are first rotated into it. These methods square the
condition number. The few episodes that are too badly conditioned for this are solved separately for each prefix.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from iclbench.core.settings import NoSettings
from iclbench.estimators.base import LinearEstimator
from iclbench.estimators.recursive import minimum_norm, posterior_means

# Singular values below this fraction of the largest are rounding errors: inputs are usually float32 (rounding 6e-8).
RCOND = 1e-6
# If the squared sine of the angle between a row and the span of the earlier rows is below this value, factors of X X'
# lose more than half of the digits of float64.
MIN_SQUARED_SINE = 1e-8
# Smallest squared distance of one of the first d rows from the span of the earlier rows, relative to the squared length
# of the longest row. Below it, float64 cannot represent the weights of this row and of later rows.
MIN_SQUARED_DISTANCE = 1e-10


class LeastSquares(LinearEstimator[NoSettings]):
    """Minimum-norm least squares: Bayes-optimal for noiseless linear functions; the limit of ridge for penalty -> 0."""

    def weights(self, x: Float[Tensor, "B N Dx"], y: Float[Tensor, "B N"]) -> Float[Tensor, "B N Dx"]:
        return least_squares(x, y)


def least_squares(x: Float[Tensor, "B N Dx"], y: Float[Tensor, "B N"]) -> Float[Tensor, "B N Dx"]:
    """Return the minimum-norm solutions for the first 1, 2, ..., N points.

    Singular values below `RCOND` times the largest count as 0.
    """
    w, is_accurate = _full_rank(x, y)
    if bool(is_accurate.all()):
        return w
    inaccurate = (~is_accurate).nonzero().squeeze(1)
    w[inaccurate] = _any_rank(x[inaccurate], y[inaccurate])
    return w


def _full_rank(
    x: Float[Tensor, "B N Dx"], y: Float[Tensor, "B N"]
) -> tuple[Float[Tensor, "B N Dx"], Bool[Tensor, " B"]]:
    """Return the solutions, assuming that the first min(N, Dx) points are linearly independent, and a mask of the
    episodes in which the solutions are accurate."""
    d = x.shape[2]
    leading = x[:, :d]
    w, pivots, is_accurate_prefix = minimum_norm(leading, y[:, :d], MIN_SQUARED_SINE)
    is_accurate = is_accurate_prefix[:, -1]
    if x.shape[1] > d:
        w = torch.cat([w, posterior_means(x[:, d:], y[:, d:], leading.mT @ leading, w[:, -1])], 1)
        longest = x.square().sum(-1).amax(1)
        has_overflow = y.isfinite().all(1) & ~w.isfinite().flatten(1).all(1)
        is_accurate = is_accurate & (pivots.amin(1) > MIN_SQUARED_DISTANCE * longest) & ~has_overflow
    return w, is_accurate


def _any_rank(x: Float[Tensor, "B N Dx"], y: Float[Tensor, "B N"]) -> Float[Tensor, "B N Dx"]:
    """Return the solutions computed in the row space of each episode, where the points have full rank."""
    _, singular, basis = torch.linalg.svd(x, full_matrices=False)
    rank = (singular > RCOND * singular[:, :1]).sum(1)
    w = torch.zeros_like(x)
    for r in rank.unique().tolist():
        if r == 0:
            continue
        episodes = (rank == r).nonzero().squeeze(1)
        rows = basis[episodes, :r]
        coefficients, is_accurate = _full_rank(x[episodes] @ rows.mT, y[episodes])
        w[episodes] = coefficients @ rows
        inaccurate = episodes[~is_accurate]
        w[inaccurate] = _solve_each_prefix(x[inaccurate], y[inaccurate])
    return w


def _solve_each_prefix(x: Float[Tensor, "B N Dx"], y: Float[Tensor, "B N"]) -> Float[Tensor, "B N Dx"]:
    """Return the solutions computed by a singular value decomposition of each prefix."""
    solve = torch.linalg.lstsq
    solutions = [
        solve(x[:, :n].cpu(), y[:, :n, None].cpu(), rcond=RCOND, driver="gelsd").solution.squeeze(-1)
        for n in range(1, x.shape[1] + 1)
    ]
    return torch.stack(solutions, 1).to(x.device)
