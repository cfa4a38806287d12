"""Linear dynamical systems in the plane: noisy damped rotations whose first coordinate is observed with noise.

The hidden state of an episode starts at x_0 ~ N(0, I) and follows x' = A x + q w with A = rho R(theta), where R(theta)
is the rotation by the angle theta. Element n of the sequence is the first coordinate of x_n plus r v. All entries of w
and v are independent standard normal numbers. The radius rho and the angle theta are uniform over ranges and drawn per
episode. Models have to infer both from the elements.

Angles from 0 to pi cover all systems, since a reflection of the second coordinate changes theta to -theta without
changing any element.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float, Int
from pydantic import Field, model_validator
from torch import Tensor

from iclbench.core.episodes import Episodes, Points
from iclbench.core.errors import UsageError
from iclbench.core.records import TensorRecord
from iclbench.core.settings import BaseSettings, Range
from iclbench.families.request import Request
from iclbench.families.sampling import normal
from iclbench.families.shifts import Kind, Number, Shift
from iclbench.families.streams.base import ProbeTarget, StreamFamily
from iclbench.families.streams.kalman import Filters, KalmanFilter

LARGEST_RADIUS, LARGEST_NOISE = 2.0, 1e3
# A growing system is sampled only if radius^points is at most this number, because elements are float32.
LARGEST_GROWTH = 1e30
# The normaliser is a mean over this number of elements, the length of sequences in the presets `grid` and `small`.
NORMALISED_ELEMENTS = 64

SYSTEM_KINDS = {
    "radius": Kind(("the radius",), Number(largest=LARGEST_RADIUS)),
    "angle": Kind(("the angle",), Number(largest=math.pi)),
    "process-noise": Kind(("the process noise",), Number(largest=LARGEST_NOISE)),
    "noisy": Kind(("the observation noise",), Number(1.0, largest=LARGEST_NOISE)),
    "switch": Kind(("the number of systems",)),
}


class LinearSystemParameters(BaseSettings):
    """Ranges (smallest, largest) of the parameters of systems, and standard deviations of the noise.

    Attributes:
        radius: range of rho, the factor by which a step multiplies the length of a state.
        angle: range of theta, the angle by which a state rotates in a step.
        process_noise: standard deviation q of the noise of each coordinate of a state.
        observation_noise: standard deviation r of the noise of an element.
    """

    radius: Range[Annotated[float, Field(ge=0, le=LARGEST_RADIUS)]] = (0.8, 1.0)
    angle: Range[Annotated[float, Field(ge=0, le=math.pi)]] = (0.0, math.pi)
    process_noise: Annotated[float, Field(ge=0, le=LARGEST_NOISE)] = 0.2
    observation_noise: Annotated[float, Field(gt=0, le=LARGEST_NOISE)] = 0.3

    @model_validator(mode="after")
    def _check_ranges(self) -> LinearSystemParameters:
        for name in ("radius", "angle"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name}: expected the smaller number first, got {low}, {high}")
        return self


@dataclass(frozen=True)
class SwitchedSystems(TensorRecord):
    """The system of every episode and the system that replaces it. Without the shift `switch`, the two systems are
    equal.

    Attributes:
        radius, angle: rho and theta.
        later_radius, later_angle: rho and theta of the later system.
        switch: number of elements before the later system.
    """

    radius: Float[Tensor, " B"]
    angle: Float[Tensor, " B"]
    later_radius: Float[Tensor, " B"]
    later_angle: Float[Tensor, " B"]
    switch: Int[Tensor, " B"]

    def rotation(self, count: Int[Tensor, " B"]) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
        """Return the entries (a, b) of A = [[a, -b], [b, a]] for the step after `count` elements."""
        is_later = count >= self.switch
        return rotation(
            torch.where(is_later, self.later_radius, self.radius), torch.where(is_later, self.later_angle, self.angle)
        )


def rotation(
    radius: Float[Tensor, "*S"], angle: Float[Tensor, "*S"]
) -> tuple[Float[Tensor, "*S"], Float[Tensor, "*S"]]:
    """Return the entries (a, b) of A = [[a, -b], [b, a]] = rho R(theta)."""
    return radius * angle.cos(), radius * angle.sin()


class LinearSystems(StreamFamily):
    """Sequences of numbers, one element per requested point; the question is `next`.

    Shifts: with `radius-R` or `angle-T`, all systems have the radius R or the angle T. `process-noise-C` sets the
    standard deviation of the noise of the state, and `noisy-S` sets the standard deviation of the noise of the
    elements. With `switch`, another independent system replaces the system in the middle of the sequence and continues
    from the same state.
    """

    Parameters = LinearSystemParameters
    shift_kinds = SYSTEM_KINDS
    oracles = frozenset({"oracle-kalman", "oracle-bayes-kalman"})
    parameters: LinearSystemParameters

    @property
    def normaliser(self) -> float:
        """The mean variance of the first 64 noiseless elements, in closed form.

        The variance of element n is rho^(2n) + q² (1 + rho² + ... + rho^(2n - 2)), averaged over rho. It does not
        depend on theta.
        """
        powers = [_mean_power(self.parameters.radius, 2 * n) for n in range(NORMALISED_ELEMENTS)]
        variances = [power + self.parameters.process_noise**2 * sum(powers[:n]) for n, power in enumerate(powers)]
        return sum(variances) / len(variances)

    def is_oracle_optimal(self, oracle: str, shift: str) -> bool:
        """Return whether an oracle is optimal under a shift. `oracle-bayes-kalman` assumes that a sequence has one
        system, which is false under `switch`."""
        return oracle == "oracle-kalman" or self.parse_shift(shift).part("switch") is None

    def ranges(self, shift: str = "none") -> tuple[tuple[float, float], tuple[float, float]]:
        """Return the ranges of radius and angle under a shift. A single value is a range of length 0."""
        parsed = self.parse_shift(shift)
        radius, angle = parsed.part("radius"), parsed.part("angle")
        return (
            (radius.value, radius.value) if radius else self.parameters.radius,
            (angle.value, angle.value) if angle else self.parameters.angle,
        )

    def noises(self, shift: str = "none") -> tuple[float, float]:
        """Return the standard deviations of process noise and observation noise under a shift."""
        parsed = self.parse_shift(shift)
        return (
            parsed.value("process-noise", self.parameters.process_noise),
            parsed.value("noisy", self.parameters.observation_noise),
        )

    def kalman_filter(self, systems: SwitchedSystems, shift: str = "none") -> KalmanFilter:
        """Return the Kalman filter for these systems (one system per episode)."""

        def rotation_after(count: Int[Tensor, " B"]) -> tuple[Float[Tensor, "B 1"], Float[Tensor, "B 1"]]:
            a, b = systems.rotation(count)
            return a.unsqueeze(1), b.unsqueeze(1)

        return KalmanFilter(rotation_after, *self.noises(shift))

    def probe_targets(self, episodes: Episodes, elements: int, shift: str = "none") -> dict[str, ProbeTarget]:
        """Return two quantities of the Kalman filter with access to the system of the episode (`oracle-kalman`), in
        units of the elements.

        `state` is the posterior mean of both coordinates of the state at the last element that was read, given all
        elements that were read. The second coordinate is never observed. `prediction` is the predictive mean of the
        next element. The average over all systems (`oracle-bayes-kalman`) is not a target, since it would be too slow
        for the number of episodes that a probe needs.
        """
        systems, prefix = SwitchedSystems(**episodes.truth), episodes.context.span(0, elements)
        kalman_filter = self.kalman_filter(systems, shift)
        filters = list(kalman_filter.filtered(Filters.initial(len(prefix), 1, prefix.y.device), prefix))
        state = kalman_filter.estimate(filters[-2], prefix.y[:, -1].double())
        return {
            "state": ProbeTarget.of_all(torch.cat(state, 1)),
            "prediction": ProbeTarget.of_all(filters[-1].mean[:, 0]),
        }

    def check_shift(self, shift: Shift, points: int) -> None:
        largest = self.ranges(shift.name)[0][1]
        if points * math.log(max(1.0, largest)) > math.log(LARGEST_GROWTH):
            raise UsageError(
                f"a sequence of {points} points with a radius of {largest:g} can exceed the range of float32; request "
                "fewer points or a smaller radius",
                code="bad-value",
            )

    def sample(self, request: Request) -> Episodes:
        generator, episodes, points = request.generator, request.episodes, request.points
        # All systems are drawn before any state, so that they do not depend on the length of the sequences.
        systems = self._systems(request)
        process_noise, observation_noise = self.noises(request.shift)
        # States are complex numbers, so that multiplication by a number applies A.
        state = torch.view_as_complex(normal((episodes, 2), generator).double())
        state_noise = process_noise * torch.view_as_complex(normal((points - 1, episodes, 2), generator).double())
        factor = torch.polar(systems.radius, systems.angle)
        later_factor = torch.polar(systems.later_radius, systems.later_angle)
        switch, states = _switch_position(points), [state]
        for n in range(1, points):
            state = (factor if n < switch else later_factor) * state + state_noise[n - 1]
            states.append(state)
        noiseless = torch.stack(states, 1).real
        y = (noiseless + observation_noise * normal(noiseless.shape, generator)).float().unsqueeze(-1)
        context = Points.full(y.new_empty(episodes, points, 0), y)
        return Episodes(context=context, scored=context.mask, truth=systems.tensors())

    def _systems(self, request: Request) -> SwitchedSystems:
        """Draw the systems of a request. All shifts use the same random numbers."""
        shift, device = self.parse_shift(request.shift), request.generator.device
        radius_range, angle_range = self.ranges(request.shift)
        self.check_shift(shift, request.points)
        shape = (2, request.episodes)
        quantiles = torch.rand((2, *shape), generator=request.generator, dtype=torch.float64, device=device)
        radius = radius_range[0] + (radius_range[1] - radius_range[0]) * quantiles[0]
        angle = angle_range[0] + (angle_range[1] - angle_range[0]) * quantiles[1]
        later = 1 if shift.part("switch") else 0
        switch = torch.full((request.episodes,), _switch_position(request.points), device=device)
        return SwitchedSystems(radius[0], angle[0], radius[later], angle[later], switch)


def _switch_position(points: int) -> int:
    """Return the number of elements before the switch."""
    return points // 2


def _mean_power(edges: tuple[float, float], exponent: int) -> float:
    """Return the mean of rho^exponent for rho uniform between the edges. The mean is computed as a sum, because a
    difference of powers loses precision if the edges are close."""
    low, high = edges
    return sum(high**i * low ** (exponent - i) for i in range(exponent + 1)) / (exponent + 1)
