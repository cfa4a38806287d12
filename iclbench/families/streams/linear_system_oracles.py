"""The two oracles of `linear-system`: predictions given the system, and given only the distribution of systems.

`oracle-kalman` has access to the system of every episode, and to the new system and its time under `switch`. It
predicts with the Kalman filter, which is exact.

`oracle-bayes-kalman` has access only to the distribution of systems under the evaluated shift. It averages the Kalman
filters of a grid of systems, the midpoints of equal intervals of radius and angle, with their posterior weights. Up to
the error of the grid, no predictor without access to the system has a better expected log-density or a smaller expected
squared error.

For the default systems and grid, over 500 sequences of 64 elements, doubling the number of angles changes the mean
log-density of an element by less than 1e-6 nats and the log-density of single elements by up to 0.01. Doubling the
number of radii changes the mean by less than 1e-4 and single elements by up to 0.2. With little process noise, the
posterior is narrower and the grid is coarser in comparison: at a standard deviation of 0.05, over 300 sequences,
doubling the number of angles changes the mean by less than 1e-3 nats and single elements by up to 1.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, TypeVar

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from iclbench.core.episodes import Points
from iclbench.core.errors import UsageError
from iclbench.core.predictions import Gaussian, Mixture, Prediction
from iclbench.core.predictor import Oracle, State, join_positions
from iclbench.core.records import cat
from iclbench.core.settings import BaseSettings, NoSettings
from iclbench.families.family_predictor import FamilyPredictor
from iclbench.families.streams.kalman import Filters, KalmanFilter
from iclbench.families.streams.linear_system import LinearSystems, SwitchedSystems, rotation

# Number of filters that are updated at once. Their arrays fit into the processor's cache.
_FILTERS_AT_ONCE = 32_768

_Settings = TypeVar("_Settings", bound=BaseSettings)


@dataclass(frozen=True)
class SystemState(State):
    """The filters of every episode and, if the oracle has access to them, the systems."""

    filters: Filters
    systems: SwitchedSystems | None = None


class _SystemOracle(FamilyPredictor[_Settings], abstract=True):
    """Base of the oracles; raises `UsageError` for other families."""

    family_class, family_name = LinearSystems, "linear-system"
    family: LinearSystems
    order = "causal"

    @abstractmethod
    def _initial_state(self, episodes: int, device: torch.device) -> SystemState:
        """Return the state before the first element."""

    @abstractmethod
    def _kalman_filter(self, state: SystemState) -> KalmanFilter:
        """Return the Kalman filter for the systems of these episodes."""

    @abstractmethod
    def _next_element(self, filters: Filters, std: Float[Tensor, "#B S"], dtype: torch.dtype) -> Prediction:
        """Return the distribution of the next element, `(B, 1)`.

        Args:
            filters: the filters after the elements so far.
            std: standard deviation of the next element under each system.
            dtype: dtype of the prediction.
        """

    def predict_next(
        self,
        points: Points,
        related: Points | None = None,
        *,
        x_query: Float[Tensor, "B N 0"] | None = None,
        prefixes: Sequence[int] | None = None,
    ) -> Prediction:
        lengths = [int(n) for n in (range(points.count) if prefixes is None else prefixes)]
        state = self._initial_state(len(points), points.y.device)
        chunk_size = max(1, _FILTERS_AT_ONCE // state.filters.log_evidence.shape[1])
        chunks = [slice(start, start + chunk_size) for start in range(0, max(1, len(points)), chunk_size)]
        return cat([self._predict_chunk(state[chunk], points[chunk], lengths) for chunk in chunks])

    def _predict_chunk(self, state: SystemState, points: Points, lengths: list[int]) -> Prediction:
        kalman_filter, answers = self._kalman_filter(state), {}
        needed_lengths = lengths or [0]
        for n, filters in enumerate(kalman_filter.filtered(state.filters, points.span(0, max(needed_lengths)))):
            if n in needed_lengths:
                answers[n] = self._next_element(filters, kalman_filter.std(filters), points.y.dtype)
        return join_positions([answers[n] for n in needed_lengths]).at(slice(len(lengths)))

    def condition(self, context: Points, related: Points | None = None) -> SystemState:
        return self.update(self._initial_state(len(context), context.y.device), context)

    def query(self, state: SystemState, x: Float[Tensor, "B Q 0"]) -> Prediction:
        """Return the same prediction for every query, since elements have no x."""
        answer = self._next_element(state.filters, self._kalman_filter(state).std(state.filters), x.dtype)
        return answer.map(lambda t: t.expand(-1, x.shape[1], *t.shape[2:]))

    def update(self, state: SystemState, points: Points) -> SystemState:
        return replace(state, filters=self._kalman_filter(state).after(state.filters, points))


class OracleKalman(_SystemOracle[NoSettings], Oracle):
    """The Kalman filter of the true system."""

    heads = ("gaussian",)

    def _initial_state(self, episodes: int, device: torch.device) -> SystemState:
        if self.truth is None:
            raise UsageError(
                "oracle-kalman needs the systems; call informed(episodes.truth) first", code="missing-value"
            )
        return SystemState(Filters.initial(episodes, 1, device), SwitchedSystems(**self.truth))

    def _kalman_filter(self, state: SystemState) -> KalmanFilter:
        assert state.systems is not None
        return self.family.kalman_filter(state.systems, self.facts.shift)

    def _next_element(self, filters: Filters, std: Float[Tensor, "#B 1"], dtype: torch.dtype) -> Gaussian:
        mean = filters.mean[:, 0].to(dtype).unsqueeze(-1)
        return Gaussian(mean, std.to(dtype).unsqueeze(-1).expand_as(mean))


class BayesKalmanSettings(BaseSettings):
    """The grid of `oracle-bayes-kalman`: numbers of radii and of angles. A range of length 0 has one grid point."""

    radii: Annotated[int, Field(gt=0, le=1000)] = 12
    angles: Annotated[int, Field(gt=0, le=10_000)] = 192


class OracleBayesKalman(_SystemOracle[BayesKalmanSettings]):
    """The average of Kalman filters over the posterior of systems."""

    Settings = BayesKalmanSettings
    heads = ("mixture",)

    def _initial_state(self, episodes: int, device: torch.device) -> SystemState:
        return SystemState(Filters.initial(episodes, self._rotations[0].shape[1], device))

    def _kalman_filter(self, state: SystemState) -> KalmanFilter:
        a, b = (t.to(state.filters.mean.device) for t in self._rotations)
        return KalmanFilter(lambda _: (a, b), *self.family.noises(self.facts.shift))

    def _next_element(self, filters: Filters, std: Float[Tensor, "#B S"], dtype: torch.dtype) -> Mixture:
        # The log-weights are normalised in float64, since long sequences have large log-densities.
        logits = filters.log_evidence.log_softmax(1).to(dtype).unsqueeze(1)
        means = filters.mean[:, 0].to(dtype)[:, None, :, None]
        return Mixture(logits, means, std.to(dtype)[:, None, :, None].expand_as(means))

    @cached_property
    def _rotations(self) -> tuple[Float[Tensor, "1 S"], Float[Tensor, "1 S"]]:
        """The entries (a, b) of the rotation matrices of all systems in the grid."""
        radius_range, angle_range = self.family.ranges(self.facts.shift)
        radius, angle = torch.meshgrid(
            _midpoints(radius_range, self.settings.radii), _midpoints(angle_range, self.settings.angles), indexing="ij"
        )
        return rotation(radius.reshape(1, -1), angle.reshape(1, -1))


def _midpoints(edges: tuple[float, float], count: int) -> Float[Tensor, " count"]:
    """Return the midpoints of equal intervals, or a single point if the edges are equal."""
    low, high = edges
    count = 1 if low == high else count
    return low + (high - low) * (torch.arange(count, dtype=torch.float64) + 0.5) / count
