"""Weight vectors at every prefix from triangular factors instead of one solve per prefix.

The factor of a leading block is the leading block of the factor. With X P X' + s I = L L', V = L⁻¹ X P and
z = L⁻¹ (y - X m), the posterior mean of w after n points, from the prior N(m, P) and noise of variance s, is
m + sum over i < n of V_i z_i: a cumulative sum. s = 0 and P = I is the minimum-norm solution of n <= d equations.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

# Rows per factor: far below n for long contexts (cost n d b instead of n³), far above 1 for short loops.
BLOCK = 40


def posterior_means(
    x: Float[Tensor, "B N Dx"],
    y: Float[Tensor, "B N"],
    precision: Float[Tensor, "B Dx Dx"],
    mean: Float[Tensor, "B Dx"],
) -> Float[Tensor, "B N Dx"]:
    """Bayesian linear regression with unit noise: the posterior mean of w after 1, 2, ..., N points.

    Args:
        x: inputs.
        y: outputs.
        precision: inverse of the prior covariance.
        mean: prior mean.
    """
    path: list[Tensor] = []
    previous_rows: Tensor | None = None
    blocks = -(-x.shape[1] // BLOCK)
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
    x: Float[Tensor, "B N Dx"], y: Float[Tensor, "B N"], smallest: float
) -> tuple[Float[Tensor, "B N Dx"], Float[Tensor, "B N"], Bool[Tensor, "B N"]]:
    """The minimum-norm solutions of the first 1, 2, ..., N equations, N <= Dx.

    Returns:
        The solutions; every row's squared distance from the span of the rows before it; and which solutions to trust:
        False from the first row on at which that is below `smallest` times the row's squared length.
    """
    gram = x @ x.mT
    factor, failed_at = torch.linalg.cholesky_ex(gram)
    solved = torch.linalg.solve_triangular(factor, torch.cat([x, y.unsqueeze(-1)], -1), upper=False)
    pivots = factor.diagonal(dim1=1, dim2=2).square()
    # Where there was no factor any more, what is left of the matrix stands there, of either sign.
    rows = torch.arange(1, x.shape[1] + 1, device=x.device)
    factored = (failed_at.unsqueeze(1) == 0) | (rows < failed_at.unsqueeze(1))
    sound = (factored & (pivots > smallest * gram.diagonal(dim1=1, dim2=2))).cumprod(1).bool()
    return (solved[..., :-1] * solved[..., -1:]).cumsum(1), pivots, sound
