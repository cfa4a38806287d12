"""Gradient descent on the weights, and GD++ (von Oswald et al. 2023; Grazzi et al. 2024, appendix on probing).

From w = 0, t steps of size eta on the mean squared error (1/2k)|y - Xw|² give w_t = V [eta sum over i < t of (1 - eta
D)^i] V'b with X'X/k = V D V' and b = X'y/k, so one eigendecomposition gives the weights after all steps. GD++ first
multiplies all inputs of the context and the queries by I - gamma X'X (not divided by k). This matrix has the same
eigenvectors, so the map changes only the eigenvalues.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from iclbench.core.episodes import Points
from iclbench.core.settings import BaseSettings, NonNegativeFloat, PositiveInt
from iclbench.estimators.base import Estimator, select_lengths, slices

StepSize = Literal["raw", "transformed"]
# Maximum total size of the matrices X'X that are computed at once; 64 episodes of 160 points in 20 dimensions fit.
_MAX_ELEMENTS = 2**22


class DescentSettings(BaseSettings):
    """Settings of gradient descent.

    Attributes:
        steps: number of steps.
        gamma: strength of the map of GD++; 0 is plain gradient descent.
        step_size: whether the step size 2/(L + mu) is computed from the "raw" or the "transformed" inputs. L and mu are
            the largest and the smallest eigenvalue of their covariance.
    """

    steps: PositiveInt = 24
    gamma: NonNegativeFloat = 0.0
    step_size: StepSize = "raw"


class GradientDescent(Estimator[DescentSettings]):
    """Linear predictions with the weights after `steps` steps of gradient descent."""

    Settings = DescentSettings

    def answer(
        self,
        x: Float[Tensor, "B N Dx"],
        y: Float[Tensor, "B N"],
        lengths: Int[Tensor, "#B P"],
        queries: Float[Tensor, "B P Q Dx"],
    ) -> Float[Tensor, "B P Q"]:
        settings, all_lengths = self.settings, lengths.expand(len(x), -1)
        episodes_at_once = max(1, _MAX_ELEMENTS // (x.shape[1] * x.shape[2] ** 2))
        answers = []
        for chunk in slices(len(x), episodes_at_once):
            inputs, counts = x[chunk], all_lengths[chunk] if len(lengths) > 1 else lengths
            gram = select_lengths((inputs.unsqueeze(3) * inputs.unsqueeze(2)).cumsum(1), counts)
            moment = select_lengths((inputs * y[chunk].unsqueeze(-1)).cumsum(1), counts)
            eigenvalues, query_products = _decompose(gram, moment, queries[chunk])
            gain = _gain(eigenvalues, counts, settings.steps, settings.gamma, settings.step_size)
            answers.append((query_products @ gain[..., -1:]).squeeze(-1))
        return torch.cat(answers)


def _decompose(
    gram: Float[Tensor, "B P Dx Dx"], moment: Float[Tensor, "B P Dx"], queries: Float[Tensor, "B P Q Dx"]
) -> tuple[Float[Tensor, "B P Dx"], Float[Tensor, "B P Q Dx"]]:
    """Return the eigenvalues of X'X, and the elementwise product of V'X'y and V'q for each query q."""
    eigenvalues, basis = torch.linalg.eigh(gram)
    return eigenvalues.clamp_min(0), (moment.unsqueeze(-2) @ basis) * (queries @ basis)


def _gain(
    eigenvalues: Float[Tensor, "B P Dx"], lengths: Int[Tensor, "#B P"], steps: int, gamma: float, step_size: StepSize
) -> Float[Tensor, "B P Dx steps"]:
    """Return the factor in each eigendirection after 1, 2, ..., `steps` steps."""
    count = lengths.clamp_min(1).unsqueeze(-1)
    shrink = (1 - gamma * eigenvalues).square()
    transformed = shrink * eigenvalues / count
    covariance = eigenvalues / count if step_size == "raw" else transformed
    # With fewer points than dimensions, the smallest eigenvalue mu is 0.
    sum_of_extremes = covariance.amin(-1, keepdim=True) + covariance.amax(-1, keepdim=True)
    eta = 2 / sum_of_extremes.clamp_min(1e-300)
    powers = (1 - eta * transformed).unsqueeze(-1).repeat_interleave(steps, -1)
    powers[..., 0] = 1
    return (eta * shrink / count).unsqueeze(-1) * powers.cumprod(-1).cumsum(-1)


def descent_curve(
    context: Points,
    x_target: Float[Tensor, "B Q Dx"],
    steps: int = 24,
    gamma: float = 0.0,
    step_size: StepSize = "raw",
) -> Float[Tensor, "B Q steps"]:
    """Return the answers of GD (`gamma` = 0) or GD++ on the complete context after each step, in float64.

    Args:
        context: context points with one output dimension.
        x_target: inputs of the queries, before the map of GD++.
        steps: number of steps; answers after 1, 2, ..., `steps` steps are returned.
        gamma: strength of the map I - gamma X'X.
        step_size: as in `DescentSettings`.
    """
    eigenvalues, query_products, counts = _decompose_context(context, x_target)
    return (query_products @ _gain(eigenvalues, counts, steps, gamma, step_size)).squeeze(1)


def search_gamma(
    context: Points,
    targets: Points,
    steps: int = 24,
    step_size: StepSize = "raw",
    grid: Float[Tensor, " G"] | None = None,
) -> tuple[float, Float[Tensor, " G"]]:
    """Search for the gamma with the smallest mean squared error on `targets` after the last step.

    Args:
        context: context points with one output dimension.
        targets: points on which the error is computed.
        steps: number of steps.
        step_size: as in `DescentSettings`.
        grid: candidates (default: 300 values from 1e-6 to 1e-3, evenly spaced in the logarithm, as in the code of von
            Oswald et al.).

    Returns:
        The best gamma, and the error of each candidate.
    """
    grid = torch.logspace(-6, -3, 300, dtype=torch.float64) if grid is None else grid
    eigenvalues, query_products, counts = _decompose_context(context, targets.x)
    y = targets.y.double()[targets.mask].squeeze(-1)
    error_list = []
    for gamma in grid.tolist():
        answers = query_products @ _gain(eigenvalues, counts, steps, gamma, step_size)[..., -1:]
        error_list.append((answers[:, 0, :, 0][targets.mask] - y).square().mean())
    errors = torch.stack(error_list)
    return float(grid[errors.nan_to_num(torch.inf).argmin()]), errors


def _decompose_context(
    context: Points, x_target: Float[Tensor, "B Q Dx"]
) -> tuple[Float[Tensor, "B 1 Dx"], Float[Tensor, "B 1 Q Dx"], Int[Tensor, "B 1"]]:
    """Return the result of `_decompose` for one fit per episode on all its points, and the numbers of points."""
    x, y = context.x.double(), context.y.double()
    if not bool(context.mask.all()):
        x, y = (t.masked_fill(~context.mask.unsqueeze(-1), 0) for t in (x, y))
    eigenvalues, query_products = _decompose((x.mT @ x).unsqueeze(1), y.mT @ x, x_target.double().unsqueeze(1))
    return eigenvalues, query_products, context.counts.unsqueeze(1)
