"""The exact Lasso path of many small problems at once (Osborne et al. 2000; Efron et al. 2004, section 3.1).

With G = X'X/n and b = X'y/n the path starts at alpha = max |b_j| and is linear between events: a coefficient joins
when its correlation reaches alpha, or drops when it reaches 0. All the algebra sits in one tableau per problem.
Sweeping the active coordinates A into G turns it into T with T_AA = -G_AA⁻¹, T_jA = G_jA G_AA⁻¹ and the Schur
complement elsewhere, and b into p. For the signs s of the active coefficients, p + alpha T s then holds the active
coefficients and, at the other coordinates, the correlations. One event is one sweep: a rank-one update, batched over
problems.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from iclbench.core.records import TensorRecord

# A column whose Schur complement is below this fraction of its square is a combination of the active ones.
_SINGULAR = 1e-11


@dataclass(frozen=True)
class _Paths(TensorRecord):
    """Where the unfinished paths stand. The tableau and its right-hand side are updated in place."""

    problem: Int[Tensor, " P"]
    tableau: Float[Tensor, "P D D"]
    right: Float[Tensor, "P D"]
    signs: Float[Tensor, "P D"]
    diagonal: Float[Tensor, "P D"]
    alpha: Float[Tensor, " P"]


def homotopy(
    gram: Float[Tensor, "P D D"], moment: Float[Tensor, "P D"], alphas: Float[Tensor, " K"]
) -> Float[Tensor, "P K D"]:
    """Minimisers of w'Gw/2 - b'w + alpha |w|_1 for every problem and every alpha > 0.

    Args:
        gram: G, positive semi-definite.
        moment: b, in the range of G.
        alphas: the penalties to read off, descending.
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
    # Paths of random data have about D events, adversarial ones up to 3^D; what is cut off fails the optimality check.
    for _ in range(50 + 20 * dim):
        slope = (paths.tableau @ paths.signs.unsqueeze(-1)).squeeze(-1)
        alpha, coordinate, sign = _next_event(paths, slope)
        passed = (alphas >= alpha.unsqueeze(1)) & (alphas < paths.alpha.unsqueeze(1))
        row, k = passed.nonzero(as_tuple=True)
        if len(row):
            solution = paths.right[row] + alphas[k].unsqueeze(1) * slope[row]
            weights[paths.problem[row], k] = solution.where(paths.signs[row] != 0, 0)
        unfinished = alpha > alphas[-1]
        remaining = int(unfinished.sum())
        if remaining == 0:
            break
        _sweep(paths, coordinate, sign)
        paths = replace(paths, alpha=alpha)
        if remaining < 0.8 * len(unfinished):  # copying tableaus costs as much as a few idle sweeps
            paths = paths[unfinished]
    return weights


def _next_event(
    paths: _Paths, slope: Float[Tensor, "P D"]
) -> tuple[Float[Tensor, " P"], Int[Tensor, " P"], Float[Tensor, " P"]]:
    """The next alpha, going down, at which a condition would be broken (0: none), where and with what sign.

    Only the direction of motion tells an event from its own echo: a coefficient that has just joined leaves 0 towards
    its sign, and one that has just dropped leaves its bound towards 0. Ties are events at the current alpha.
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
    joined = torch.where(plus[entries] >= minus[entries], 1.0, -1.0).to(slope.dtype)
    return torch.minimum(alpha.clamp_min(0), paths.alpha), coordinate, joined


def _sweep(paths: _Paths, coordinate: Int[Tensor, " P"], sign: Float[Tensor, " P"]) -> None:
    """Sweep one coordinate per problem in (if inactive) or out (if active), in place."""
    row = torch.arange(len(coordinate), device=coordinate.device)
    entries = (row, coordinate)
    active = paths.signs[entries] != 0
    direction = torch.where(active, -1.0, 1.0).to(sign.dtype)
    pivot = paths.tableau[row, coordinate, coordinate]
    column = paths.tableau[row, coordinate].clone()
    scaled = column / pivot.unsqueeze(1)
    value = paths.right[entries].clone()
    paths.tableau.baddbmm_(scaled.unsqueeze(2), column.unsqueeze(1), alpha=-1)
    paths.right.sub_(scaled * value.unsqueeze(1))
    turned = direction.unsqueeze(1) * scaled
    paths.tableau[row, :, coordinate] = turned
    paths.tableau[row, coordinate] = turned
    paths.tableau[row, coordinate, coordinate] = -1 / pivot
    paths.right[entries] = direction * value / pivot
    paths.signs[entries] = sign.where(~active, 0)
