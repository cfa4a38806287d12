"""Linear regression on every prefix of the data: all weight vectors are computed from a few triangular factors, instead
of one solve per prefix.

The Cholesky factor of a leading block of a matrix is the leading block of its Cholesky factor. With the prior N(m, P)
of w, noise of variance s, X P X' + s I = L L', V = L⁻¹ X P and z = L⁻¹ (y - X m), the posterior mean of w after n
points is therefore a cumulative sum: m + sum over i < n of V_i z_i. For s = 0, m = 0 and P = I, it is the minimum-norm
solution of n <= d equations.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

# Number of rows b per factor: small enough for long contexts (n d b operations instead of n³), and large enough for few
# iterations.
BLOCK_ROWS = 40


def posterior_means(
    x: Float[Tensor, "B N Dx"],
    y: Float[Tensor, "B N"],
    precision: Float[Tensor, "B Dx Dx"],
    mean: Float[Tensor, "B Dx"],
) -> Float[Tensor, "B N Dx"]:
    """Return the posterior mean of Bayesian linear regression with unit noise after 1, 2, ..., N points.

    Args:
        x: inputs.
        y: outputs.
        precision: inverse of the prior covariance.
        mean: prior mean.
    """
    path: list[Tensor] = []
    previous_rows: Tensor | None = None
    blocks = -(-x.shape[1] // BLOCK_ROWS)
    for rows, outputs in zip(x.tensor_split(blocks, 1), y.unsqueeze(-1).tensor_split(blocks, 1), strict=True):
        if previous_rows is not None:
            mean = path[-1][:, -1]
            precision = precision + previous_rows.mT @ previous_rows
        previous_rows = rows
        root = torch.linalg.cholesky_ex(precision).L
        white = torch.linalg.solve_triangular(root, rows.mT, upper=False)
        covariance = white.mT @ white
        covariance.diagonal(dim1=1, dim2=2).add_(1.0)
        factor = torch.linalg.cholesky_ex(covariance).L
        residual = outputs - rows @ mean.unsqueeze(-1)
        solved = torch.linalg.solve_triangular(factor, torch.cat([white.mT, residual], -1), upper=False)
        steps = (solved[..., :-1] * solved[..., -1:]).cumsum(1)
        path.append(mean.unsqueeze(1) + torch.linalg.solve_triangular(root, steps, upper=False, left=False))
    return torch.cat(path, 1)


def minimum_norm(
    x: Float[Tensor, "B N Dx"], y: Float[Tensor, "B N"], min_squared_sine: float
) -> tuple[Float[Tensor, "B N Dx"], Float[Tensor, "B N"], Bool[Tensor, "B N"]]:
    """Return the minimum-norm solutions of the first 1, 2, ..., N equations, where N <= Dx.

    Returns:
        The solutions; the squared distance of each row from the span of the previous rows; and a mask of the accurate
        solutions, which is False from the first row whose squared distance is below `min_squared_sine` times its
        squared length.
    """
    gram = x @ x.mT
    factor, failed_at = torch.linalg.cholesky_ex(gram)
    solved = torch.linalg.solve_triangular(factor, torch.cat([x, y.unsqueeze(-1)], -1), upper=False)
    pivots = factor.diagonal(dim1=1, dim2=2).square()
    # From the row at which the factorisation failed, the entries of the factor are arbitrary.
    rows = torch.arange(1, x.shape[1] + 1, device=x.device)
    is_factored = (failed_at.unsqueeze(1) == 0) | (rows < failed_at.unsqueeze(1))
    is_accurate = (is_factored & (pivots > min_squared_sine * gram.diagonal(dim1=1, dim2=2))).cumprod(1).bool()
    return (solved[..., :-1] * solved[..., -1:]).cumsum(1), pivots, is_accurate
