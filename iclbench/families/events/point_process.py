"""Synthetic point processes of four kinds, with marks: Poisson, renewal, self-correcting and Hawkes.

An episode is one sequence of events. Its kind is drawn uniformly from `kinds`, and its parameters are drawn from
ranges. Models have to infer both from the events. The kinds are defined in `iclbench.families.events.processes`.

Rates (`rate`, `base`) and the decay of Hawkes kernels are log-uniform; all other ranges are uniform. Gaps of renewal
processes have mean 1. Rows of Markov chains of marks have a Dirichlet distribution with all parameters 1. The branching
matrix of a Hawkes process has exponential entries and is scaled to a uniformly drawn spectral radius.

The observation starts at time 0 without earlier events. A Hawkes process with branching matrix A approaches its
stationary rates (I - A)^-1 base slowly: at a spectral radius rho of 0.5 and a decay of 0.42 to 0.55, the first 20 time
units have 9 to 12 % fewer events than the stationary process. Over a time T, the missing share is about rho / ((1 -
rho) decay T), which is the exact limit for one mark. With `burn_in`, the process starts 20 / (decay (1 - rho)) time
units before the observation. Its earlier events are not part of the episode, but the truth contains their excitation.

Frozen prompts are stratified within each block that is drawn at once: the counts of the kinds differ by at most one,
and if a kind has n episodes, each of n equally likely intervals of `rate`, `sigma`, `trend`, `alpha`, `radius` and
`decay` contains one of them. Training episodes are independent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field, model_validator
from torch import Tensor

from iclbench.core.episodes import Episodes, Points
from iclbench.core.errors import UsageError
from iclbench.core.records import cat
from iclbench.core.settings import BaseSettings, Range
from iclbench.families.base import Family
from iclbench.families.events import hawkes
from iclbench.families.events.processes import KINDS, Processes
from iclbench.families.request import Request
from iclbench.families.sampling import stratified_uniform
from iclbench.families.shifts import Kind, Number, Shift

Rate = Annotated[float, Field(ge=1e-3, le=1e3)]
Radius = Annotated[float, Field(ge=0, le=0.95)]

# Limits of the values of the shifts `time-scale-C` and `branching-R`.
TIME_SCALES, LARGEST_RADIUS = (1e-6, 1e6), 10.0

EVENT_SHIFT_KINDS = {
    "time-scale": Kind(("the time scale",), Number()),
    "branching": Kind(("the kinds",), Number()),
    **{f"only-{kind}": Kind(("the kinds",)) for kind in KINDS},
}


class PointProcessParameters(BaseSettings):
    """Kinds and parameters of the processes; every range is (smallest, largest).

    Attributes:
        kinds: kinds of processes, which are equally likely.
        marks: number of marks K.
        rate: events per time unit (`poisson`).
        sigma: standard deviation of the logarithm of gaps (`renewal`).
        trend, alpha: growth of the logarithm of the intensity per time unit, and its decrease at every event
            (`self-correcting`).
        base: rate of each mark without events (`hawkes`).
        radius: spectral radius of the matrix of expected children (`hawkes`).
        decay: decay of the kernels per time unit (`hawkes`).
        burn_in: whether `hawkes` processes start before time 0.
    """

    kinds: Annotated[
        tuple[Literal["poisson", "renewal", "self-correcting", "hawkes"], ...], Field(strict=False, min_length=1)
    ] = ("poisson", "renewal", "self-correcting", "hawkes")
    marks: Annotated[int, Field(gt=0, le=1000)] = 3
    rate: Range[Rate] = (0.5, 2.0)
    sigma: Range[Annotated[float, Field(ge=0.01, le=5)]] = (0.3, 1.5)
    trend: Range[Annotated[float, Field(ge=0.01, le=100)]] = (0.5, 1.5)
    alpha: Range[Annotated[float, Field(ge=0.01, le=10)]] = (0.5, 1.5)
    base: Range[Rate] = (0.1, 0.5)
    radius: Range[Radius] = (0.2, 0.8)
    decay: Range[Rate] = (0.5, 4.0)
    burn_in: bool = False

    @model_validator(mode="after")
    def _check_ranges(self) -> PointProcessParameters:
        if len(set(self.kinds)) < len(self.kinds):
            raise ValueError(f"kinds: expected different kinds, got {', '.join(self.kinds)}")
        for name in ("rate", "sigma", "trend", "alpha", "base", "radius", "decay"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name}: expected the smaller number first, got {low}, {high}")
        return self


class PointProcess(Family):
    """Sequences with one event per requested point; the question is `next`.

    Shifts: `time-scale-C` multiplies all times by C; with `branching-R` all episodes are Hawkes processes of spectral
    radius R (at 1 and above the rate grows without limit); with `only-KIND` all episodes have one kind.
    """

    Parameters = PointProcessParameters
    shift_kinds = EVENT_SHIFT_KINDS
    questions = frozenset({"next"})
    oracles = frozenset({"oracle-events", "oracle-bayes-events"})
    y_dim = 3
    parameters: PointProcessParameters

    def __init__(self, parameters: PointProcessParameters, data_dir: Path | None = None) -> None:
        super().__init__(parameters, data_dir)
        self.marks = parameters.marks
        self.stratified = False

    @property
    def x_dim(self) -> int:
        return 0

    def parse_shift(self, name: str) -> Shift:
        shift, (shortest, longest) = super().parse_shift(name), TIME_SCALES
        if not shortest <= shift.value("time-scale", 1.0) <= longest:
            raise UsageError(
                f"shift '{name}': expected a time scale from {shortest:g} to {longest:g}", code="bad-value"
            )
        largest = 0.95 if self.parameters.burn_in else LARGEST_RADIUS
        if shift.value("branching", 0.0) > largest:
            reason = " (with task.burn_in the process must be stationary)" if self.parameters.burn_in else ""
            raise UsageError(
                f"shift '{name}': expected a spectral radius of at most {largest:g}{reason}", code="bad-value"
            )
        return shift

    def strata(self, episodes: Episodes) -> dict[str, Bool[Tensor, " B"]]:
        """Group episodes by kind."""
        return {name: episodes.truth["kind"] == index for index, name in enumerate(KINDS)}

    def sample_prompts(self, request: Request) -> Episodes:
        """Draw prompts that are stratified by kind and parameters."""
        stratified_family = copy(self)
        stratified_family.stratified = True
        return stratified_family.sample_all_related(request)

    def sample(self, request: Request) -> Episodes:
        shift = self.parse_shift(request.shift)
        # All processes are drawn before any event, so that they do not depend on the length of the sequences.
        processes = self._draw_processes(request.episodes, shift, request.generator)
        gaps, marks = processes.sample(request.points, request.generator)
        scale = shift.value("time-scale", 1.0)
        gaps = gaps * scale
        y = torch.stack([gaps, marks.to(gaps), gaps.cumsum(1)], -1).float()
        context = Points.full(y.new_empty(*y.shape[:2], 0), y)
        return Episodes(context=context, scored=context.mask, truth=processes.with_time_scale(scale).tensors())

    def assumed_processes(
        self, shift: str, counts: Mapping[str, int], generator: torch.Generator
    ) -> tuple[Processes, Float[Tensor, " S"]]:
        """Return a stratified sample of the distribution of processes under a shift: `counts` processes of each kind,
        and their log weights."""
        parsed = self.parse_shift(shift)
        kinds, parts, log_weights = self._kinds(parsed), [], []
        for kind in kinds:
            single_kind_family = copy(self)
            single_kind_family.stratified = True
            single_kind_family.parameters = self.parameters.model_copy(update={"kinds": (kind,)})
            parts.append(single_kind_family._draw_processes(counts[kind], parsed, generator))
            log_weights.append(torch.full((counts[kind],), -math.log(len(kinds) * counts[kind]), dtype=torch.float64))
        return cat(parts).with_time_scale(parsed.value("time-scale", 1.0)), torch.cat(log_weights)

    def _kinds(self, shift: Shift) -> tuple[str, ...]:
        """Return the kinds of processes under a shift."""
        if shift.part("branching"):
            return ("hawkes",)
        single_kind = tuple(kind for kind in KINDS if shift.part(f"only-{kind}"))
        return single_kind or self.parameters.kinds

    def _draw_processes(self, episodes: int, shift: Shift, generator: torch.Generator) -> Processes:
        """Draw the kind and the parameters of the process of every episode."""
        parameters, k, device = self.parameters, self.parameters.marks, generator.device
        kinds = self._kinds(shift)
        zeros = torch.zeros(episodes, dtype=torch.float64, device=device)
        quantiles = torch.rand((7, episodes), generator=generator, dtype=torch.float64, device=device)
        if self.stratified:
            quantiles[0] = stratified_uniform(zeros.long(), generator)
        index = (quantiles[0] * len(kinds)).long()
        if self.stratified:
            quantiles[1:] = torch.stack([stratified_uniform(index, generator) for _ in range(6)])
        rate, sigma, trend, alpha, radius, decay = quantiles[1:]
        base = torch.empty((episodes, k), dtype=torch.float64, device=device).uniform_(generator=generator)
        chain, matrix = (
            torch.empty((episodes, k, k), dtype=torch.float64, device=device).exponential_(generator=generator)
            for _ in range(2)
        )
        sigma = _uniform(parameters.sigma, sigma)
        radius = _uniform(parameters.radius, radius)
        if shift.part("branching"):
            radius = torch.full_like(radius, shift.value("branching", 1.0))
        processes = Processes(
            kind=torch.tensor([KINDS.index(name) for name in kinds], device=device)[index],
            chain=chain / chain.sum(-1, keepdim=True),
            rate=_log_uniform(parameters.rate, rate),
            location=-sigma.square() / 2,
            sigma=sigma,
            trend=_uniform(parameters.trend, trend),
            alpha=_uniform(parameters.alpha, alpha),
            initial=torch.ones_like(zeros),
            base=_log_uniform(parameters.base, base),
            branching=matrix * (radius / hawkes.spectral_radius(matrix))[:, None, None],
            decay=_log_uniform(parameters.decay, decay),
            excitation=torch.zeros_like(base),
        )
        return (
            processes.with_past(20 / (processes.decay * (1 - radius)), generator) if parameters.burn_in else processes
        )


def _uniform(edges: tuple[float, float], quantile: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    low, high = edges
    return low + (high - low) * quantile


def _log_uniform(edges: tuple[float, float], quantile: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    low, high = edges
    return low * torch.exp(math.log(high / low) * quantile)
