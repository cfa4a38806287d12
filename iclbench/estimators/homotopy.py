"""The exact Lasso paths of many small problems at once (Osborne et al. 2000; Efron et al. 2004, section 3.1).

With G = X'X/n and b = X'y/n, the path starts at alpha = max |b_j| and is linear between events. At an event, a
coefficient joins the active set because its correlation reaches alpha, or drops out because the coefficient reaches 0.

Each problem has one tableau. Sweeping the active coordinates A turns G into T with T_AA = -G_AA⁻¹, T_jA = G_jA G_AA⁻¹
and the Schur complement elsewhere, and turns b into p. With the signs s of the active coefficients, p + alpha T s
contains the active coefficients and, at the other coordinates, the correlations. An event is one sweep, which is a
rank-one update that is batched over problems.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from iclbench.core.records import TensorRecord

# A column counts as a linear combination of the active columns if its Schur complement is below this fraction of its
# squared length.
_SINGULAR = 1e-11


@dataclass(frozen=True)
class _Paths(TensorRecord):
    """The current state of the unfinished paths; the tableau and its right-hand side are updated in place."""

    problem: Int[Tensor, " P"]
    tableau: Float[Tensor, "P D D"]
    right: Float[Tensor, "P D"]
    signs: Float[Tensor, "P D"]
    diagonal: Float[Tensor, "P D"]
    alpha: Float[Tensor, " P"]


def homotopy(
    gram: Float[Tensor, "P D D"], moment: Float[Tensor, "P D"], alphas: Float[Tensor, " K"]
) -> Float[Tensor, "P K D"]:
    """Return the minimisers of w'Gw/2 - b'w + alpha |w|_1 for all problems and all penalties alpha > 0.

    Args:
        gram: G, positive semi-definite.
        moment: b, in the range of G.
        alphas: the penalties, in descending order.
    """
    problems, dim = moment.shape
    weights = moment.new_zeros(problems, len(alphas), dim)
    paths = _Paths(
        problem=torch.arange(problems, device=moment.device),
        tableau=gram.clone(),
        right=moment.clone(),
        signs=torch.zeros_like(moment),
        diagonal=gram.diagonal(dim1=1, dim2=2).clone(),
        alpha=moment.abs().amax(1),
    )
    # Paths of random data have about D events, and paths of adversarial data have up to 3^D. The caller detects
    # truncated paths, because they fail its optimality check.
    for _ in range(50 + 20 * dim):
        slope = (paths.tableau @ paths.signs.unsqueeze(-1)).squeeze(-1)
        alpha, coordinate, sign = _next_event(paths, slope)
        is_passed = (alphas >= alpha.unsqueeze(1)) & (alphas < paths.alpha.unsqueeze(1))
        row, k = is_passed.nonzero(as_tuple=True)
        if len(row):
            solution = paths.right[row] + alphas[k].unsqueeze(1) * slope[row]
            weights[paths.problem[row], k] = solution.where(paths.signs[row] != 0, 0)
        is_unfinished = alpha > alphas[-1]
        remaining = int(is_unfinished.sum())
        if remaining == 0:
            break
        _sweep(paths, coordinate, sign)
        paths = replace(paths, alpha=alpha)
        if remaining < 0.8 * len(is_unfinished):  # rarely, because copying tableaus takes as long as a few sweeps
            paths = paths[is_unfinished]
    return weights


def _next_event(
    paths: _Paths, slope: Float[Tensor, "P D"]
) -> tuple[Float[Tensor, " P"], Int[Tensor, " P"], Float[Tensor, " P"]]:
    """Return the next smaller alpha at which an optimality condition becomes active, its coordinate and its sign.

    The alpha is 0 if no event remains. The previous event is not found again: a coefficient that has just joined moves
    from 0 in the direction of its sign, and the correlation of a coefficient that has just dropped moves from its bound
    towards 0. Tied events follow each other at the same alpha.
    """
    active = paths.signs != 0
    independent = paths.tableau.diagonal(dim1=1, dim2=2) > _SINGULAR * paths.diagonal
    rising, falling = 1 - slope, 1 + slope
    plus = (paths.right / rising).where(rising > 0, 0)
    minus = (-paths.right / falling).where(falling > 0, 0)
    join = torch.maximum(plus, minus).where(independent, 0)
    drop = (-paths.right / slope).where(paths.signs * slope > 0, 0)
    alpha, coordinate = torch.where(active, drop, join).max(1)
    entries = (torch.arange(len(slope), device=slope.device), coordinate)
    sign = torch.where(plus[entries] >= minus[entries], 1.0, -1.0).to(slope.dtype)
    return torch.minimum(alpha.clamp_min(0), paths.alpha), coordinate, sign


def _sweep(paths: _Paths, coordinate: Int[Tensor, " P"], sign: Float[Tensor, " P"]) -> None:
    """Sweep one coordinate of each problem into the active set, or out of it if it is active, in place."""
    row = torch.arange(len(coordinate), device=coordinate.device)
    entries = (row, coordinate)
    active = paths.signs[entries] != 0
    direction = torch.where(active, -1.0, 1.0).to(sign.dtype)
    pivot = paths.tableau[row, coordinate, coordinate]
    column = paths.tableau[row, coordinate].clone()
    column_over_pivot = column / pivot.unsqueeze(1)
    value = paths.right[entries].clone()
    paths.tableau.baddbmm_(column_over_pivot.unsqueeze(2), column.unsqueeze(1), alpha=-1)
    paths.right.sub_(column_over_pivot * value.unsqueeze(1))
    signed_column = direction.unsqueeze(1) * column_over_pivot
    paths.tableau[row, :, coordinate] = signed_column
    paths.tableau[row, coordinate] = signed_column
    paths.tableau[row, coordinate, coordinate] = -1 / pivot
    paths.right[entries] = direction * value / pivot
    paths.signs[entries] = sign.where(~active, 0)
