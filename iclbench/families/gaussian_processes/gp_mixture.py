"""Gaussian processes with two kinds of kernel and related datasets (ICICL-TNP, section 5.1 and appendix G.1).

Every episode has a kernel (RBF or periodic) and a log-uniform lengthscale. Context and targets are points of one
function of this process, and every related dataset has points of another function of the same process. All outputs,
including the targets, have noise of standard deviation 0.2 by default.

Functions are sampled with the cosine series of the kernels (`kernels`), in float64 and without covariance matrices.
Kernel, context and targets are drawn first, then the largest number of related datasets. So, for a given seed, the
function and the first related datasets do not depend on the number of requested datasets.

Frozen prompts are stratified by kernel and, within each kernel, by log l and by context size: both kernels are equally
frequent, and if a kernel has n episodes, each of n equal intervals contains one of their lengthscales and one of their
sizes. This halves the deviation of the oracle's mean score over 256 episodes from its expected value. Training episodes
are independent.

The authors draw one kernel, one context size and one number of related datasets per batch of 16. Here they are drawn
per episode, or per batch with `per_batch = true`. Errors are divided by 1, the variance of the noiseless process, so
the zero predictor scores 1.04.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field, model_validator
from torch import Tensor

from iclbench.core.episodes import Episodes, Points
from iclbench.core.errors import UsageError
from iclbench.core.settings import BaseSettings, PositiveFloat, PositiveInt
from iclbench.families.base import Ceiling, Family
from iclbench.families.gaussian_processes.ceilings import CEILINGS
from iclbench.families.gaussian_processes.kernels import KERNELS, PERIODIC, RBF, cosine_series, series_terms
from iclbench.families.request import Request
from iclbench.families.sampling import stratified_uniform
from iclbench.families.shifts import Kind, Number, Shift

SHORTEST_LENGTHSCALE, LONGEST_LENGTHSCALE = 0.01, 1000.0
Lengthscale = Annotated[float, Field(ge=SHORTEST_LENGTHSCALE, le=LONGEST_LENGTHSCALE)]
Size = Annotated[int, Field(gt=0, le=100_000)]
Edge = Annotated[float, Field(ge=-1000, le=1000)]

# The processes of the related datasets in the mismatch probe (appendix G.1.1), by name.
RELATED_PROCESSES = {"same": (PERIODIC, 1.85), "rbf": (RBF, 0.52), "near": (PERIODIC, 1.76), "far": (PERIODIC, 0.28)}
MISMATCH_SHIFTS = {f"mismatch-{name}": process for name, process in RELATED_PROCESSES.items()}
# These shifts have other lengthscales than in training, one kernel for all episodes, or related datasets of another
# process.
GP_SHIFT_KINDS = {
    "ood-lengthscale": Kind(("the kernel",)),
    **{kernel: Kind(("the kernel",), Number()) for kernel in KERNELS},
    **{f"mismatch-{name}": Kind(("the kernel",), related_from=name) for name in RELATED_PROCESSES},
}
# Parameters that do not affect the mean score of `oracle-kernel`.
_CEILING_INDEPENDENT = {"targets", "max_related", "related_points", "per_batch"}


class GPParameters(BaseSettings):
    """Parameters of Gaussian processes; every range is (smallest, largest).

    Attributes:
        kernels: types of kernels, which are equally likely.
        lengthscale: range of the log-uniform lengthscale.
        ood_lengthscale: the wider range of the shift `ood-lengthscale`.
        noise: standard deviation of the noise of outputs.
        context_low: smallest context size.
        targets: number of targets.
        max_related: the largest number of related datasets.
        related_points: range of the sizes of related datasets.
        context_range: range of the inputs of the context.
        target_range: range of the inputs of targets and related datasets.
        per_batch: whether all episodes of a training batch have the same kernel, context size and number of related
            datasets.
    """

    kernels: tuple[Literal["rbf", "periodic"], ...] = Field(default=("rbf", "periodic"), strict=False, min_length=1)
    lengthscale: tuple[Lengthscale, Lengthscale] = Field(default=(0.25, 4.0), strict=False)
    ood_lengthscale: tuple[Lengthscale, Lengthscale] = Field(default=(0.1, 10.0), strict=False)
    noise: PositiveFloat = 0.2
    context_low: PositiveInt = 1
    targets: Size = 128
    max_related: Annotated[int, Field(ge=0, le=1000)] = 5
    related_points: tuple[Size, Size] = Field(default=(64, 128), strict=False)
    context_range: tuple[Edge, Edge] = Field(default=(-2.0, 2.0), strict=False)
    target_range: tuple[Edge, Edge] = Field(default=(-4.0, 4.0), strict=False)
    per_batch: bool = False

    @model_validator(mode="after")
    def _check_ranges(self) -> GPParameters:
        for name in ("lengthscale", "related_points", "context_range", "target_range"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name}: expected the smaller number first, got {low}, {high}")
        if self.ood_lengthscale[0] >= self.lengthscale[0] or self.ood_lengthscale[1] <= self.lengthscale[1]:
            raise ValueError("ood_lengthscale: expected a range that is wider than lengthscale on both sides")
        return self


@dataclass(frozen=True)
class KernelPrior:
    """A distribution over kernels: all types are equally likely, and log l is uniform over disjoint intervals.

    Attributes:
        kernels: indices of the types in `KERNELS`.
        intervals: intervals of l in ascending order. A single value is an interval of length 0.
    """

    kernels: tuple[int, ...]
    intervals: tuple[tuple[float, float], ...]

    @classmethod
    def single_kernel(cls, kernel: int, lengthscale: float) -> KernelPrior:
        """Return the distribution that contains only this kernel."""
        return cls((kernel,), ((lengthscale, lengthscale),))

    @property
    def shortest_lengthscale(self) -> float:
        return self.intervals[0][0]

    @property
    def log_range(self) -> float:
        """Total length of the intervals in log l."""
        return sum(math.log(high / low) for low, high in self.intervals)

    def draw(
        self, count: int, generator: torch.Generator, stratified: bool = False
    ) -> tuple[Int[Tensor, " B"], Float[Tensor, " B"]]:
        """Draw the kernels and lengthscales of `count` processes. If `stratified`, the counts of the kernels differ by
        at most one, and the lengthscales of each kernel are stratified in log l. Otherwise the number of random numbers
        does not depend on the prior."""
        if stratified:
            kernel_position = stratified_uniform(
                torch.zeros(count, dtype=torch.long, device=generator.device), generator
            )
            index = (kernel_position * len(self.kernels)).long()
            position = stratified_uniform(index, generator)
        else:
            kernel_position, position = torch.rand(
                2, count, generator=generator, device=generator.device, dtype=torch.float64
            )
            index = (kernel_position * len(self.kernels)).long()
        kernels = torch.tensor(self.kernels, device=index.device)[index]
        remaining = position * self.log_range
        log_lengthscale = torch.full_like(remaining, math.log(self.shortest_lengthscale))
        for low, high in self.intervals:
            log_lengthscale = torch.where(remaining >= 0, math.log(low) + remaining, log_lengthscale)
            remaining = remaining - math.log(high / low)
        return kernels, log_lengthscale.exp()


@dataclass(frozen=True)
class Process:
    """The kernel and the lengthscale of every episode, and the smallest lengthscale that can be drawn."""

    kernel: Int[Tensor, " B"]
    lengthscale: Float[Tensor, " B"]
    shortest_lengthscale: float

    @classmethod
    def constant(cls, episodes: int, kernel: int, lengthscale: float, device: torch.device) -> Process:
        """Return the same kernel for all episodes."""
        scales = torch.full((episodes,), lengthscale, dtype=torch.float64, device=device)
        return cls(torch.full((episodes,), kernel, device=device), scales, lengthscale)


class GPMixture(Family):
    """Functions of a Gaussian process whose kernel is drawn per episode, with related datasets of the same kernel.

    `points` of a request is the largest context size. Under `points-N`, every context has exactly N points.
    """

    Parameters = GPParameters
    questions = frozenset({"targets"})
    shift_kinds = GP_SHIFT_KINDS
    oracles = frozenset({"oracle-bayes", "oracle-kernel"})
    parameters: GPParameters

    def __init__(self, parameters: GPParameters, data_dir: Path | None = None) -> None:
        super().__init__(parameters, data_dir)
        self.related_sets = parameters.max_related
        self.stratified = False
        self.related_points = parameters.related_points[1]

    @property
    def x_dim(self) -> int:
        return 1

    @property
    def span(self) -> float:
        """The largest distance between two inputs of an episode."""
        edges = (*self.parameters.context_range, *self.parameters.target_range)
        return max(edges) - min(edges)

    def parse_shift(self, name: str) -> Shift:
        shift = super().parse_shift(name)
        single = shift.part(*KERNELS)
        if single and not SHORTEST_LENGTHSCALE <= single.value <= LONGEST_LENGTHSCALE:
            raise UsageError(
                f"shift '{name}': expected a lengthscale from {SHORTEST_LENGTHSCALE:g} to {LONGEST_LENGTHSCALE:g}",
                code="bad-value",
            )
        return shift

    def prior(self, shift: str = "none") -> KernelPrior:
        """Return the distribution of the kernel of the context under a shift."""
        parsed = self.parse_shift(shift)
        if parsed.part(*MISMATCH_SHIFTS):
            return KernelPrior.single_kernel(PERIODIC, 1.85)
        if single := parsed.part(*KERNELS):
            return KernelPrior.single_kernel(KERNELS.index(single.kind), single.value)
        (low, high), (lowest, highest) = self.parameters.lengthscale, self.parameters.ood_lengthscale
        intervals = ((lowest, low), (high, highest)) if parsed.part("ood-lengthscale") else ((low, high),)
        return KernelPrior(tuple(KERNELS.index(name) for name in self.parameters.kernels), intervals)

    def assumed_prior(self, shift: str = "none") -> KernelPrior:
        """Return the distribution of kernels that a predictor without access to the kernel assumes: the distribution
        under the shift. If the shift has a single kernel, the predictor assumes the distribution of the task or, for a
        lengthscale outside the range of the task, the distribution of `ood-lengthscale`."""
        prior = self.prior(shift)
        if prior.log_range:
            return prior
        low, high = self.parameters.lengthscale
        return self.prior("none" if low <= prior.shortest_lengthscale <= high else "ood-lengthscale")

    def is_oracle_optimal(self, oracle: str, shift: str) -> bool:
        """Return whether an oracle is optimal under a shift. An oracle that infers the kernel is optimal only if it
        assumes the true distribution of kernels. Under shifts to a single kernel, like `mismatch-*`, it assumes another
        distribution, and the related datasets of most of these shifts mislead it."""
        return oracle == "oracle-kernel" or self.assumed_prior(shift) == self.prior(shift)

    def held_out(self) -> GPMixture:
        """Return the same task without `per_batch`, since confidence intervals assume independent kernels."""
        if not self.parameters.per_batch:
            return self
        return GPMixture(self.parameters.model_copy(update={"per_batch": False}), self.data_dir)

    def validation(self) -> GPMixture:
        return self.held_out()

    def sample_prompts(self, request: Request) -> Episodes:
        """Draw prompts that are stratified by kernel, lengthscale and context size."""
        stratified_family = copy(self)
        stratified_family.stratified = True
        return stratified_family.sample_all_related(request)

    def ceiling(self, oracle: str, points: int, shift: str = "none") -> Ceiling | None:
        parameters = self.parameters.model_dump(exclude=_CEILING_INDEPENDENT)
        defaults = GPParameters().model_dump(exclude=_CEILING_INDEPENDENT)
        return CEILINGS.get((points, shift)) if oracle == "oracle-kernel" and parameters == defaults else None

    def strata(self, episodes: Episodes) -> dict[str, Bool[Tensor, " B"]]:
        """Group episodes by kernel."""
        return {name: episodes.truth["kernel"] == index for index, name in enumerate(KERNELS)}

    def display_inputs(self) -> Float[Tensor, "points 1"]:
        low, high = self.parameters.target_range
        return torch.linspace(low, high, 161).unsqueeze(1)

    def sample(self, request: Request) -> Episodes:
        episodes, generator = request.episodes, request.generator
        shift, prior = self.parse_shift(request.shift), self.prior(request.shift)
        parameters, width = self.parameters, shift.examples or request.points
        draw_count = 1 if parameters.per_batch else episodes
        kernel, lengthscale = (t.expand(episodes) for t in prior.draw(draw_count, generator, self.stratified))
        process = Process(kernel, lengthscale, prior.shortest_lengthscale)
        low = width if shift.examples else min(parameters.context_low, width)
        if self.stratified:
            sizes = low + (stratified_uniform(kernel, generator) * (width - low + 1)).long().unsqueeze(1)
        else:
            sizes = _integers((draw_count, 1), low, width, generator).expand(episodes, 1)
        context_x = _uniform((episodes, 1, width), parameters.context_range, generator)
        target_x = _uniform((episodes, 1, parameters.targets), parameters.target_range, generator)
        grid = self.display_inputs().to(context_x).mT.expand(episodes, 1, -1)
        x, grid_size = torch.cat([context_x, target_x], -1), grid.shape[-1]
        is_present = torch.ones((episodes, 1), dtype=torch.bool, device=x.device)
        functions, mean = self._functions(process, torch.cat([x, grid], -1), is_present, generator)
        values, display = functions.tensor_split([-grid_size], -1)
        points = self._observe(x, values, generator).map(lambda t: t[:, 0])
        targets = points.span(width)
        truth = {"kernel": kernel, "lengthscale": lengthscale, "mean": mean[:, 0], "display": display.float().mT}
        if mismatched := shift.part(*MISMATCH_SHIFTS):
            process = Process.constant(episodes, *MISMATCH_SHIFTS[mismatched.kind], generator.device)
        return Episodes(
            context=_first_points(points.span(0, width), sizes[:, 0]),
            targets=targets,
            scored=targets.mask,
            related=self._related(process, draw_count, request.related, generator),
            truth=truth,
        )

    def _related(
        self, process: Process, draw_count: int, count: int | None, generator: torch.Generator
    ) -> Points | None:
        """Return the largest number of related datasets. All datasets after the first `count` (default: a random
        number) are masked."""
        sets, (low, high), episodes = self.related_sets, self.parameters.related_points, len(process.kernel)
        if not sets:
            return None
        if count == 0:  # these draws can be skipped, since no other draws follow them
            blank = torch.zeros((episodes, sets, high, 1), device=generator.device)
            return Points(blank, blank, torch.zeros(blank.shape[:-1], dtype=torch.bool, device=blank.device))
        related_counts = _integers((draw_count, 1), 0, sets, generator).expand(episodes, 1)
        if count is not None:
            related_counts = torch.full_like(related_counts, count)
        sizes = _integers((episodes, sets), low, high, generator)
        x = _uniform((episodes, sets, high), self.parameters.target_range, generator)
        is_present = torch.arange(sets, device=related_counts.device) < related_counts
        values, _ = self._functions(process, x, is_present, generator)
        return _first_points(self._observe(x, values, generator), sizes * is_present)

    def _functions(
        self, process: Process, x: Float[Tensor, "B S N"], is_present: Bool[Tensor, "B S"], generator: torch.Generator
    ) -> tuple[Float[Tensor, "B S N"], Float[Tensor, "B S"]]:
        """Return the values of S functions of every process, in float64, and the means of periodic functions over a
        period. Both are 0 where `is_present` is false, but random numbers are drawn for all functions."""
        terms = [series_terms(kernel, process.shortest_lengthscale, self.span) for kernel in (RBF, PERIODIC)]
        shape = (*is_present.shape, 1 + max(terms), 2)
        normals = torch.randn(shape, generator=generator, device=x.device, dtype=torch.float64)
        values = torch.zeros_like(x, dtype=torch.float64)
        means = torch.zeros_like(is_present, dtype=torch.float64)
        lengthscale = process.lengthscale.unsqueeze(1).expand(is_present.shape)
        for kernel, count in zip((RBF, PERIODIC), terms, strict=True):
            rows = is_present & (process.kernel == kernel).unsqueeze(1)
            series = cosine_series(kernel, lengthscale[rows], self.span, count)
            values[rows] = series.functions(normals[rows][:, : count + 1], x[rows].double())
            if kernel == PERIODIC:
                means[rows] = normals[rows][:, 0, 0] * series.power[:, 0].sqrt()
        return values, means

    def _observe(self, x: Float[Tensor, "B S N"], values: Float[Tensor, "B S N"], generator: torch.Generator) -> Points:
        """Return points with noisy outputs."""
        noise = torch.randn(x.shape, generator=generator, device=x.device, dtype=values.dtype)
        y = (values + self.parameters.noise * noise).float()
        return Points.full(x.unsqueeze(-1), y.unsqueeze(-1))


def _uniform(shape: tuple[int, ...], edges: tuple[float, float], generator: torch.Generator) -> Tensor:
    low, high = edges
    return low + (high - low) * torch.rand(shape, generator=generator, device=generator.device)


def _integers(shape: tuple[int, ...], low: int, high: int, generator: torch.Generator) -> Tensor:
    """Draw uniform integers from `low` to `high`, both included."""
    return torch.randint(low, high + 1, shape, generator=generator, device=generator.device)


def _first_points(points: Points, sizes: Int[Tensor, "*B"]) -> Points:
    """Mask all points of every set after the first `sizes` points, and set them to 0."""
    mask = torch.arange(points.count, device=sizes.device) < sizes.unsqueeze(-1)
    return Points(points.x * mask.unsqueeze(-1), points.y * mask.unsqueeze(-1), mask)
