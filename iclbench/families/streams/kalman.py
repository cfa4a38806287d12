"""Kalman filters for noisy rotations in the plane whose first coordinate is observed with noise (Kalman 1960).

For x' = A x + q w with A = [[a, -b], [b, a]] and y = x_1 + r v, where w and v are standard normal, a filter contains
the exact mean and covariance of the state at the next element, given the elements so far. Several systems per episode
are filtered at once. The covariances do not depend on the elements, so they are computed only once for systems that all
episodes share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from iclbench.core.episodes import Points
from iclbench.core.predictor import State

_LOG_2PI = math.log(2 * math.pi)

# Returns the entries (a, b) of A, which broadcast to (B, S), for the step after `count` elements, (B,).
Rotation = Callable[[Int[Tensor, " B"]], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Filters(State):
    """Filters of S systems per episode before the next element, in float64.

    Attributes:
        count: number of elements so far.
        mean: mean of the state.
        covariance: variance of the first coordinate, covariance of both coordinates, and variance of the second
            coordinate.
        log_evidence: log-density of the elements so far under each system.
    """

    count: Int[Tensor, " B"]
    mean: Float[Tensor, "B 2 S"]
    covariance: Float[Tensor, "#B 3 S"]
    log_evidence: Float[Tensor, "B S"]

    @classmethod
    def initial(cls, episodes: int, systems: int, device: torch.device) -> Filters:
        """Return the filters before the first element, whose state is x_0 ~ N(0, I)."""
        zeros = torch.zeros(episodes, systems, dtype=torch.float64, device=device)
        return cls(
            torch.zeros(episodes, dtype=torch.long, device=device),
            torch.stack([zeros, zeros], 1),
            torch.stack([zeros + 1, zeros, zeros + 1], 1),
            zeros,
        )


@dataclass(frozen=True)
class KalmanFilter:
    """The equations that advance `Filters` by one element.

    Attributes:
        rotation: returns the entries of A.
        process_noise: the standard deviation q.
        observation_noise: the standard deviation r.
    """

    rotation: Rotation
    process_noise: float
    observation_noise: float

    def std(self, filters: Filters) -> Float[Tensor, "#B S"]:
        """Return the standard deviation of the next element under each system. The mean of the element is
        `filters.mean[:, 0]`."""
        return (filters.covariance[:, 0] + self.observation_noise**2).sqrt()

    def filtered(self, filters: Filters, points: Points) -> Iterator[Filters]:
        """Yield the filters before each element and after the last element. Masked elements are skipped.

        Covariances have a batch size of 1 as long as they are equal in all episodes.
        """
        is_full = bool(points.mask.all())
        y = points.y[..., 0].double()
        if is_full and bool((filters.covariance == filters.covariance[:1]).all()):
            filters = replace(filters, covariance=filters.covariance[:1])
        for n in range(points.count):
            yield filters
            stepped = self._step(filters, y[:, n : n + 1])
            filters = stepped if is_full else _where(points.mask[:, n], stepped, filters)
        yield filters

    def after(self, filters: Filters, points: Points) -> Filters:
        """Return the filters after these further elements."""
        *_, last = self.filtered(filters, points)
        return replace(last, covariance=last.covariance.expand(len(points), -1, -1))

    def estimate(self, filters: Filters, y: Float[Tensor, "B 1"]) -> tuple[Float[Tensor, "B S"], Float[Tensor, "B S"]]:
        """Return the means of both coordinates of the state at an element, given this element and all earlier
        elements."""
        (mean_1, mean_2), (p11, p12, _) = filters.mean.unbind(1), filters.covariance.unbind(1)
        gain = (y - mean_1) / (p11 + self.observation_noise**2)
        return mean_1 + p11 * gain, mean_2 + p12 * gain

    def _step(self, filters: Filters, y: Float[Tensor, "B 1"]) -> Filters:
        """Return the filters after one more element."""
        (mean_1, mean_2), (p11, p12, p22) = filters.mean.unbind(1), filters.covariance.unbind(1)
        variance = p11 + self.observation_noise**2
        error = y - mean_1
        evidence = filters.log_evidence - (error.square() / variance + variance.log() + _LOG_2PI) / 2
        # The state given the element.
        mean_1, mean_2 = mean_1 + p11 / variance * error, mean_2 + p12 / variance * error
        shrink = self.observation_noise**2 / variance
        p11, p12, p22 = shrink * p11, shrink * p12, p22 - p12.square() / variance
        # The next state.
        count = filters.count + 1
        a, b = self.rotation(count)
        mean = torch.stack([a * mean_1 - b * mean_2, b * mean_1 + a * mean_2], 1)
        noise = self.process_noise**2
        covariance = [
            a.square() * p11 - 2 * a * b * p12 + b.square() * p22 + noise,
            a * b * (p11 - p22) + (a.square() - b.square()) * p12,
            b.square() * p11 + 2 * a * b * p12 + a.square() * p22 + noise,
        ]
        return Filters(count, mean, torch.stack(covariance, 1), evidence)


def _where(condition: Bool[Tensor, " B"], changed: Filters, unchanged: Filters) -> Filters:
    """Return the changed filters for the episodes in which the condition is true, and the unchanged filters for the
    others."""
    pairs = zip(changed.tensors().values(), unchanged.tensors().values(), strict=True)
    tensors = iter([torch.where(condition.reshape(-1, *[1] * (a.dim() - 1)), a, b) for a, b in pairs])
    return changed.map(lambda _: next(tensors))
