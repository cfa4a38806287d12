"""Gaussian processes of two kernel families with related datasets (ICICL-TNP, section 5.1 and appendix G.1).

Per episode a kernel (RBF or periodic) and a log-uniform lengthscale; context and targets are one function of that
process, every related dataset is another one. All outputs carry noise of standard deviation 0.2, the targets too.

Draws go through the kernels' cosine series (`kernels`), in float64: no covariance matrix is built. Kernel, context
and targets are drawn first and then all related datasets that there can be, so that one seed gives the same function
and the same first datasets however many of them are asked for.

Frozen prompts are stratified by kernel, and within each kernel by log l and by the context size: as many episodes of
either kernel, and one lengthscale and one size in each of as many equal parts of their ranges. What is attainable on
256 episodes then strays from its mean over the task half as far. Training draws freely.

The authors draw one kernel, one context size and one number of related datasets per batch of 16; we draw them per
episode, `per_batch = true` trains as they did. Errors are divided by 1, the variance of the noiseless process: the zero
predictor scores 1.04.
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

SHORTEST, LONGEST = 0.01, 1000.0
Lengthscale = Annotated[float, Field(ge=SHORTEST, le=LONGEST)]
Size = Annotated[int, Field(gt=0, le=100_000)]
Edge = Annotated[float, Field(ge=-1000, le=1000)]

# The process of the related datasets in the mismatch probe (appendix G.1.1), by its name.
RELATED_FROM = {"same": (PERIODIC, 1.85), "rbf": (RBF, 0.52), "near": (PERIODIC, 1.76), "far": (PERIODIC, 0.28)}
MISMATCHED = {f"mismatch-{name}": process for name, process in RELATED_FROM.items()}
# Lengthscales beyond the task's, one kernel for all episodes, related datasets of another process than the context's.
PROCESS_KINDS = {
    "ood-lengthscale": Kind(("the kernel",)),
    **{kernel: Kind(("the kernel",), Number()) for kernel in KERNELS},
    **{f"mismatch-{name}": Kind(("the kernel",), related_from=name) for name in RELATED_FROM},
}


# Parameters that the mean score of `oracle-kernel` does not depend on.
_NOT_OF_THE_CEILING = {"targets", "max_related", "related_points", "per_batch"}


class GPParameters(BaseSettings):
    """`lengthscale` is the log-uniform range, `ood_lengthscale` how far the shift of that name reaches beyond it on
    either side; `context_low` the smallest context; `related_points` the smallest and largest related dataset."""

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
    def _ordered(self) -> GPParameters:
        for name in ("lengthscale", "related_points", "context_range", "target_range"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name}: expected the smaller number first, got {low}, {high}")
        if self.ood_lengthscale[0] >= self.lengthscale[0] or self.ood_lengthscale[1] <= self.lengthscale[1]:
            raise ValueError("ood_lengthscale: expected a range that reaches beyond that of lengthscale on both sides")
        return self


@dataclass(frozen=True)
class KernelPrior:
    """Kernels of equal probability, and log l uniform over disjoint intervals (one number: an interval of length 0).

    Attributes:
        kernels: their indices in `KERNELS`.
        intervals: of l, ascending.
    """

    kernels: tuple[int, ...]
    intervals: tuple[tuple[float, float], ...]

    @classmethod
    def only(cls, kernel: int, lengthscale: float) -> KernelPrior:
        return cls((kernel,), ((lengthscale, lengthscale),))

    @property
    def shortest(self) -> float:
        return self.intervals[0][0]

    @property
    def log_range(self) -> float:
        """Length of all intervals in log l."""
        return sum(math.log(high / low) for low, high in self.intervals)

    def draw(
        self, count: int, generator: torch.Generator, stratified: bool = False
    ) -> tuple[Int[Tensor, " B"], Float[Tensor, " B"]]:
        """Kernel and lengthscale of `count` processes. Stratified: kernels equally often, give or take one, and each
        with lengthscales spread evenly over log l. Otherwise the numbers used up do not depend on the prior."""
        if stratified:
            kind = stratified_uniform(torch.zeros(count, dtype=torch.long, device=generator.device), generator)
            index = (kind * len(self.kernels)).long()
            position = stratified_uniform(index, generator)
        else:
            kind, position = torch.rand(2, count, generator=generator, device=generator.device, dtype=torch.float64)
            index = (kind * len(self.kernels)).long()
        kernels = torch.tensor(self.kernels, device=index.device)[index]
        remaining = position * self.log_range
        logarithm = torch.full_like(remaining, math.log(self.shortest))
        for low, high in self.intervals:
            logarithm = torch.where(remaining >= 0, math.log(low) + remaining, logarithm)
            remaining = remaining - math.log(high / low)
        return kernels, logarithm.exp()


@dataclass(frozen=True)
class Process:
    """Kernel and lengthscale of every episode, and the shortest lengthscale that there can be."""

    kernel: Int[Tensor, " B"]
    lengthscale: Float[Tensor, " B"]
    shortest: float

    @classmethod
    def same(cls, episodes: int, kernel: int, lengthscale: float, device: torch.device) -> Process:
        """One kernel for all."""
        scales = torch.full((episodes,), lengthscale, dtype=torch.float64, device=device)
        return cls(torch.full((episodes,), kernel, device=device), scales, lengthscale)


class GPMixture(Family):
    """Functions of a Gaussian process whose kernel is drawn per episode, with related datasets of the same kernel.

    `points` is the largest context, under `points-N` every context has exactly N points.
    """

    Parameters = GPParameters
    questions = frozenset({"targets"})
    shift_kinds = PROCESS_KINDS
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
        if single and not SHORTEST <= single.value <= LONGEST:
            raise UsageError(f"shift '{name}': expected a lengthscale from {SHORTEST:g} to {LONGEST:g}")
        return shift

    def prior(self, shift: str = "none") -> KernelPrior:
        """What the context's kernel is drawn from under a shift."""
        parsed = self.parse_shift(shift)
        if parsed.part(*MISMATCHED):
            return KernelPrior.only(PERIODIC, 1.85)
        if single := parsed.part(*KERNELS):
            return KernelPrior.only(KERNELS.index(single.kind), single.value)
        (low, high), (lowest, highest) = self.parameters.lengthscale, self.parameters.ood_lengthscale
        intervals = ((lowest, low), (high, highest)) if parsed.part("ood-lengthscale") else ((low, high),)
        return KernelPrior(tuple(KERNELS.index(name) for name in self.parameters.kernels), intervals)

    def assumed_prior(self, shift: str = "none") -> KernelPrior:
        """The distribution of kernels assumed by a predictor without access to the kernel: that of the shift; where
        that is a single kernel, the task's, or that of `ood-lengthscale` when the kernel is outside of it."""
        prior = self.prior(shift)
        if prior.log_range:
            return prior
        low, high = self.parameters.lengthscale
        return self.prior("none" if low <= prior.shortest <= high else "ood-lengthscale")

    def keeps_oracle(self, oracle: str, shift: str) -> bool:
        """An oracle that infers the kernel is optimal only if the kernels are distributed as it assumes: not under
        shifts to a single kernel. The `mismatch-*` shifts are such, and most of their related datasets mislead it."""
        return oracle == "oracle-kernel" or self.assumed_prior(shift) == self.prior(shift)

    def held_out(self) -> GPMixture:
        """Episodes to evaluate on have draws of their own under `per_batch`, too: intervals are over kernels."""
        if not self.parameters.per_batch:
            return self
        return GPMixture(self.parameters.model_copy(update={"per_batch": False}), self.data_dir)

    def validation(self) -> GPMixture:
        return self.held_out()

    def sample_prompts(self, request: Request) -> Episodes:
        """Stratified by kernel, lengthscale and context size."""
        prompts = copy(self)
        prompts.stratified = True
        return prompts.sample_all_related(request)

    def ceiling(self, oracle: str, points: int, shift: str = "none") -> Ceiling | None:
        parameters = self.parameters.model_dump(exclude=_NOT_OF_THE_CEILING)
        published = GPParameters().model_dump(exclude=_NOT_OF_THE_CEILING)
        return CEILINGS.get((points, shift)) if oracle == "oracle-kernel" and parameters == published else None

    def strata(self, episodes: Episodes) -> dict[str, Bool[Tensor, " B"]]:
        """Episodes by kernel."""
        return {name: episodes.truth["kernel"] == index for index, name in enumerate(KERNELS)}

    def display_inputs(self) -> Float[Tensor, "points 1"]:
        low, high = self.parameters.target_range
        return torch.linspace(low, high, 161).unsqueeze(1)

    def sample(self, request: Request) -> Episodes:
        episodes, generator = request.episodes, request.generator
        shift, prior = self.parse_shift(request.shift), self.prior(request.shift)
        parameters, width = self.parameters, shift.examples or request.points
        draws = 1 if parameters.per_batch else episodes
        kernel, lengthscale = (t.expand(episodes) for t in prior.draw(draws, generator, self.stratified))
        process = Process(kernel, lengthscale, prior.shortest)
        low = width if shift.examples else min(parameters.context_low, width)
        if self.stratified:
            sizes = low + (stratified_uniform(kernel, generator) * (width - low + 1)).long().unsqueeze(1)
        else:
            sizes = _integers((draws, 1), low, width, generator).expand(episodes, 1)
        context_x = _uniform((episodes, 1, width), parameters.context_range, generator)
        target_x = _uniform((episodes, 1, parameters.targets), parameters.target_range, generator)
        grid = self.display_inputs().to(context_x).mT.expand(episodes, 1, -1)
        x, grid_size = torch.cat([context_x, target_x], -1), grid.shape[-1]
        present = torch.ones((episodes, 1), dtype=torch.bool, device=x.device)
        functions, mean = self._functions(process, torch.cat([x, grid], -1), present, generator)
        values, display = functions.tensor_split([-grid_size], -1)
        points = self._observe(x, values, generator).map(lambda t: t[:, 0])
        targets = points.span(width)
        truth = {"kernel": kernel, "lengthscale": lengthscale, "mean": mean[:, 0], "display": display.float().mT}
        if mismatched := shift.part(*MISMATCHED):
            process = Process.same(episodes, *MISMATCHED[mismatched.kind], generator.device)
        return Episodes(
            context=_first_points(points.span(0, width), sizes[:, 0]),
            targets=targets,
            scored=targets.mask,
            related=self._related(process, draws, request.related, generator),
            truth=truth,
        )

    def _related(self, process: Process, draws: int, count: int | None, generator: torch.Generator) -> Points | None:
        """All related datasets that there can be, those beyond the number asked for (None: drawn) masked."""
        sets, (low, high), episodes = self.related_sets, self.parameters.related_points, len(process.kernel)
        if not sets:
            return None
        if count == 0:  # nothing is drawn after the related datasets
            blank = torch.zeros((episodes, sets, high, 1), device=generator.device)
            return Points(blank, blank, torch.zeros(blank.shape[:-1], dtype=torch.bool, device=blank.device))
        numbers = _integers((draws, 1), 0, sets, generator).expand(episodes, 1)
        if count is not None:
            numbers = torch.full_like(numbers, count)
        sizes = _integers((episodes, sets), low, high, generator)
        x = _uniform((episodes, sets, high), self.parameters.target_range, generator)
        is_present = torch.arange(sets, device=numbers.device) < numbers
        values, _ = self._functions(process, x, is_present, generator)
        return _first_points(self._observe(x, values, generator), sizes * is_present)

    def _functions(
        self, process: Process, x: Float[Tensor, "B S N"], present: Bool[Tensor, "B S"], generator: torch.Generator
    ) -> tuple[Float[Tensor, "B S N"], Float[Tensor, "B S"]]:
        """S functions of every process at their inputs, in float64, and the means of periodic ones over a period; 0 for
        those that are not there, though the random numbers are drawn for all."""
        terms = [series_terms(kernel, process.shortest, self.span) for kernel in (RBF, PERIODIC)]
        shape = (*present.shape, 1 + max(terms), 2)
        normals = torch.randn(shape, generator=generator, device=x.device, dtype=torch.float64)
        values = torch.zeros_like(x, dtype=torch.float64)
        means = torch.zeros_like(present, dtype=torch.float64)
        lengthscale = process.lengthscale.unsqueeze(1).expand(present.shape)
        for kernel, most in zip((RBF, PERIODIC), terms, strict=True):
            rows = present & (process.kernel == kernel).unsqueeze(1)
            series = cosine_series(kernel, lengthscale[rows], self.span, most)
            values[rows] = series.functions(normals[rows][:, : most + 1], x[rows].double())
            if kernel == PERIODIC:
                means[rows] = normals[rows][:, 0, 0] * series.power[:, 0].sqrt()
        return values, means

    def _observe(self, x: Float[Tensor, "B S N"], values: Float[Tensor, "B S N"], generator: torch.Generator) -> Points:
        """Points with noise in their outputs."""
        noise = torch.randn(x.shape, generator=generator, device=x.device, dtype=values.dtype)
        y = (values + self.parameters.noise * noise).float()
        return Points.full(x.unsqueeze(-1), y.unsqueeze(-1))


def _uniform(shape: tuple[int, ...], edges: tuple[float, float], generator: torch.Generator) -> Tensor:
    low, high = edges
    return low + (high - low) * torch.rand(shape, generator=generator, device=generator.device)


def _integers(shape: tuple[int, ...], low: int, high: int, generator: torch.Generator) -> Tensor:
    """Uniform whole numbers, both ends included."""
    return torch.randint(low, high + 1, shape, generator=generator, device=generator.device)


def _first_points(points: Points, sizes: Int[Tensor, "*B"]) -> Points:
    """The first `sizes` points of every set; the others are 0 and masked."""
    mask = torch.arange(points.count, device=sizes.device) < sizes.unsqueeze(-1)
    return Points(points.x * mask.unsqueeze(-1), points.y * mask.unsqueeze(-1), mask)
