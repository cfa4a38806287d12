"""Patches of a region in space and time as episodes (ICICL-TNP, section 5.3 and appendix G.3).

A patch is 10 x 10 cells of half a degree at three times, six hours apart: at most N = 300 points, fewer where there is
sea. x = (time, latitude, longitude, elevation) and y = temperature. N_c ~ U{N/100 .. N/3} points are context and all
others targets (or `targets` random ones of them). N counts the points of the patch at hand.

Related datasets are the same cells at other times. The paper contradicts itself about their sizes: U{N/3 .. N} in its
appendix G.3, which is the default here, and U{N/100 .. N/5} in its section 5.3 (`related_sizes = "section"`).

Patches with less land than half of their cells are not drawn, a choice of ours. January to June is trained on, July to
December evaluated on, as in the paper; under the shift `january-june` patches are from the months that are trained on.

Temperature is standardised by its mean and standard deviation over the land of the region from January to June,
latitude and longitude by those of all cells of the region, elevation by those of cells on land. For time there are two
clocks:

- `patch`: hours since the patch began, standardised over its times: -1.22, 0 and 1.22;
- `training`: hours since the year began, standardised over January to June, as the paper's words have it. Then six
  hours are 0.005, so that a network can hardly tell noon from midnight; it has met times from -1.73 to 1.73 and is
  evaluated from there to 5.25. The published numbers do not say which clock is behind them.
"""

from __future__ import annotations

from abc import abstractmethod
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor

from iclbench.core.episodes import Episodes, Points, take
from iclbench.core.errors import DataError, UsageError
from iclbench.core.settings import BaseSettings
from iclbench.families.base import Family
from iclbench.families.climate.region import ROWS, STEP_HOURS, YEAR, Scale, latitudes, longitudes, steps_until
from iclbench.families.request import Request
from iclbench.families.sampling import stratified_uniform
from iclbench.families.shifts import Kind, Shift

_QUARTERS = ("january-march", "april-june", "july-september", "october-december")


class PatchParameters(BaseSettings):
    """What patches are cut out and shown.

    Attributes:
        cells: of a patch along latitude and longitude.
        times: of a patch, six hours apart.
        targets: at most so many random ones of the points that are not context; 0: all.
        max_related: the largest number of related datasets.
        related_sizes: U{N/3 .. N} points each, as in the paper's `appendix`, or U{N/100 .. N/5}, as in its `section`.
        clock: what time is counted from and standardised over.
    """

    cells: Annotated[int, Field(ge=3, le=ROWS)] = 10
    times: Annotated[int, Field(ge=1, le=28)] = 3
    targets: Annotated[int, Field(ge=0)] = 0
    max_related: Annotated[int, Field(ge=0, le=6)] = 2
    related_sizes: Literal["appendix", "section"] = "appendix"
    clock: Literal["patch", "training"] = "patch"

    @property
    def most(self) -> int:
        """Points of a patch without sea."""
        return self.cells**2 * self.times

    @property
    def fewest(self) -> int:
        """Points of a patch with as little land as there may be."""
        return -(-(self.cells**2) // 2) * self.times


@dataclass(frozen=True)
class Places:
    """Where the patches of a batch lie: row, column and step of every point, as indices that broadcast to
    (batch, sets, times, rows, columns)."""

    step: Int[Tensor, "B S T 1 1"]
    row: Int[Tensor, "B 1 1 R 1"]
    column: Int[Tensor, "B 1 1 1 C"]

    @classmethod
    def of(cls, corner: Int[Tensor, "B 2"], start: Int[Tensor, "B S"], cells: int, times: int) -> Places:
        """Patches that begin at a row and column, the same for all sets of an episode, and at a step of their own."""
        line = torch.arange(max(cells, times), device=start.device)
        row, column = corner[:, :, None, None, None, None].unbind(1)
        step = start[:, :, None, None, None] + line[:times, None, None]
        return cls(step, row + line[:cells, None], column + line[:cells])


class Patches(Family):
    """Base of the families whose episodes are patches; a subclass says what is measured where.

    `points` is the largest context, under `points-N` every context has exactly N points.
    """

    Parameters = PatchParameters
    questions = frozenset({"targets"})
    shift_kinds = {"january-june": Kind(("the months",))}
    parameters: PatchParameters

    def __init__(self, parameters: PatchParameters, data_dir: Path | None = None) -> None:
        super().__init__(parameters, data_dir)
        self.related_sets = parameters.max_related
        self.related_points = _related_sizes(parameters.related_sizes, parameters.most)[1]
        self.stratified = False
        self._evaluated = False

    @property
    def year(self) -> int:
        """The year whose halves are trained and evaluated on."""
        return YEAR

    @property
    @abstractmethod
    def elevation(self) -> Float[Tensor, "22 40"]:
        """Metres, NaN: sea."""

    @property
    @abstractmethod
    def y_moments(self) -> tuple[float, float]:
        """Mean and standard deviation of the temperatures on land in the training half."""

    @property
    @abstractmethod
    def apart(self) -> int:
        """Steps between the beginnings of two patches of an episode, at least."""

    @abstractmethod
    def temperatures(
        self, places: Places, physical: Float[Tensor, "B S P 4"], generator: torch.Generator
    ) -> tuple[Float[Tensor, "B S P"], dict[str, Tensor]]:
        """Temperatures at these hours, degrees and metres, in float64 (any value at sea), and their truth."""

    @property
    def x_dim(self) -> int:
        return 4

    def held_out(self) -> Patches:
        """The same task on July to December."""
        other = copy(self)
        other._evaluated = True
        return other

    def parse_shift(self, name: str) -> Shift:
        shift = super().parse_shift(name)
        if shift.examples and shift.examples >= self.parameters.fewest:
            raise UsageError(
                f"shift '{name}': a patch may have as few as {self.parameters.fewest} points on land, and one must be "
                "left to predict"
            )
        return shift

    def strata(self, episodes: Episodes) -> dict[str, Bool[Tensor, " B"]]:
        """Episodes by the quarter of the year in which their context begins."""
        start = episodes.truth["start"][:, 0]
        ends = [steps_until(month, self.year) for month in (1, 4, 7, 10, 13)]
        quarters = zip(_QUARTERS, ends, ends[1:], strict=False)
        return {name: (begin <= start) & (start < end) for name, begin, end in quarters}

    @cached_property
    def corners(self) -> Int[Tensor, "places 2"]:
        """Where a patch may begin: first rows and columns."""
        size = self.parameters.cells
        land = self.elevation.isfinite().unfold(0, size, 1).unfold(1, size, 1).sum((-1, -2))
        first_cells = (2 * land >= size**2).nonzero()
        if not len(first_cells):
            raise DataError(f"no patch of {size} x {size} cells has land in half of them; lower task.cells")
        return first_cells

    @cached_property
    def scale(self) -> Scale:
        """What inputs and outputs are standardised by."""
        if "scale" in self.learned:
            return Scale.of_values(self.learned["scale"])
        steps = self.parameters.times if self.parameters.clock == "patch" else steps_until(7, self.year)
        return Scale.of(steps, self.elevation, *self.y_moments)

    def learn(self) -> dict[str, Any]:
        return super().learn() | {"scale": self.scale.values()} if self.needs_data else {}

    def physical(self, x: Float[Tensor, "B N 4"], start: Int[Tensor, " B"]) -> Float[Tensor, "B N 4"]:
        """Hours of the year, degrees and metres of inputs of patches that begin at these steps, in float64."""
        coordinates = self.scale.to(x.device).physical(x)
        coordinates[..., 0] += self._origin(start).unsqueeze(1)
        return coordinates

    def _origin(self, start: Int[Tensor, "*B"]) -> Int[Tensor, "*B"]:
        """The hour from which time is counted."""
        return STEP_HOURS * start if self.parameters.clock == "patch" else torch.zeros_like(start)

    def sample(self, request: Request) -> Episodes:
        episodes, generator = request.episodes, request.generator
        shift, device = self.parse_shift(request.shift), generator.device
        corner = self.corners.to(device)
        index = torch.randint(len(corner), (episodes,), generator=generator, device=device)
        corner, start = corner[index], self._starts(episodes, shift, generator)
        places = Places.of(corner, start, self.parameters.cells, self.parameters.times)
        physical, land = self._cut(places)
        scale = self.scale.to(device)
        y, truth = self.temperatures(places, physical, generator)
        y = ((y - scale.y_mean) / scale.y_std).masked_fill(~land.unsqueeze(1), 0).float()
        physical[..., 0] -= self._origin(start).unsqueeze(2)
        points = Points(scale.inputs(physical).float(), y.unsqueeze(-1), land.unsqueeze(1).expand(y.shape))
        shuffled = _shuffled(points, generator)
        context, targets = self._split(shuffled.map(lambda t: t[:, 0]), request.points, shift, generator)
        return Episodes(
            context=context,
            targets=targets,
            scored=targets.mask,
            related=self._related(shuffled.map(lambda t: t[:, 1:]), request.related, generator),
            truth={**truth, "corner": corner, "start": start},
        )

    def uniform(self, numbers: int, episodes: int, generator: torch.Generator) -> Float[Tensor, "numbers B"]:
        """Numbers in [0, 1) that an episode is drawn by; of frozen prompts each spread evenly over the episodes."""
        if self.stratified:
            groups = torch.zeros(episodes, dtype=torch.long, device=generator.device)
            return torch.stack([stratified_uniform(groups, generator) for _ in range(numbers)])
        return torch.rand((numbers, episodes), generator=generator, device=generator.device, dtype=torch.float64)

    def _starts(self, episodes: int, shift: Shift, generator: torch.Generator) -> Int[Tensor, "B S"]:
        """First steps of context and related datasets: each uniform among those far enough from the ones before it."""
        half = steps_until(7, self.year)
        evaluated = self._evaluated and not shift.part("january-june")
        first, end = (half, steps_until(13, self.year)) if evaluated else (0, half)
        steps = torch.arange(first, end - self.parameters.times + 1, device=generator.device)
        free = torch.ones((episodes, len(steps)), device=generator.device)
        starts = []
        for _ in range(1 + self.related_sets):
            starts.append(steps[torch.multinomial(free, 1, generator=generator)])
            free = free * ((steps - starts[-1]).abs() >= self.apart)
        return torch.cat(starts, 1)

    def _cut(self, places: Places) -> tuple[Float[Tensor, "B S P 4"], Bool[Tensor, "B P"]]:
        """Hours, degrees and metres of the points of every patch, in float64, and which are on land; elevation is 0 at
        sea."""
        device = places.step.device
        elevation = self.elevation.to(device)[places.row, places.column].double()
        coordinates = (
            STEP_HOURS * places.step.double(),
            latitudes().to(device)[places.row],
            longitudes().to(device)[places.column],
            elevation.nan_to_num(0),
        )
        physical = torch.stack(torch.broadcast_tensors(*coordinates), -1).flatten(2, 4)
        return physical, elevation.isfinite().flatten(1).repeat(1, self.parameters.times)

    def _split(self, patches: Points, points: int, shift: Shift, generator: torch.Generator) -> tuple[Points, Points]:
        """The first points of every patch as context, and those behind them as targets."""
        counts, parameters = patches.counts, self.parameters
        high = (counts // 3).clamp(max=points)
        low = torch.minimum(_hundredth(counts), high)
        sizes = low + (self.uniform(1, len(patches), generator)[0] * (high - low + 1)).long()
        if shift.examples:
            sizes = torch.full_like(sizes, shift.examples)
        most = min(parameters.targets or parameters.most, parameters.most - 1)
        return _span(patches, torch.zeros_like(sizes), sizes, points), _span(patches, sizes, counts - sizes, most)

    def _related(self, patches: Points, count: int | None, generator: torch.Generator) -> Points | None:
        """All related datasets that there can be, those beyond the number asked for (None: drawn) masked."""
        sets = self.related_sets
        if not sets:
            return None
        counts, device = patches.counts, generator.device
        numbers = torch.randint(sets + 1, (len(patches), 1), generator=generator, device=device)
        if count is not None:
            numbers = torch.full_like(numbers, count)
        low, high = _related_sizes(self.parameters.related_sizes, counts)
        uniform = torch.rand(counts.shape, generator=generator, device=device, dtype=torch.float64)
        sizes = (low + (uniform * (high - low + 1)).long()) * (torch.arange(sets, device=device) < numbers)
        flat, sizes = patches.map(lambda t: t.flatten(0, 1)), sizes.flatten()
        related = _span(flat, torch.zeros_like(sizes), sizes, self.related_points)
        return related.map(lambda t: t.unflatten(0, counts.shape))


_Count = TypeVar("_Count", int, Tensor)


def _hundredth(counts: _Count) -> _Count:
    """N/100, at least 1."""
    return counts // 100 + (counts < 100)


def _related_sizes(sizes: str, counts: _Count) -> tuple[_Count, _Count]:
    """The smallest and the largest related dataset, where the patch has so many points."""
    return (counts // 3, counts) if sizes == "appendix" else (_hundredth(counts), counts // 5)


def _shuffled(points: Points, generator: torch.Generator) -> Points:
    """Every set in random order, masked points last."""
    order = torch.rand(points.mask.shape, generator=generator, device=generator.device) + ~points.mask
    flat = points.map(lambda t: t.flatten(0, 1))
    return flat.map(lambda t: take(t, order.flatten(0, 1).argsort(1)).unflatten(0, order.shape[:2]))


def _span(points: Points, start: Int[Tensor, " B"], sizes: Int[Tensor, " B"], width: int) -> Points:
    """`width` points per episode from position `start` on, of which the first `sizes` are valid; masked values are
    0."""
    steps = torch.arange(width, device=start.device)
    mask = steps < sizes.unsqueeze(1)
    window = points.map(lambda t: take(t, (start.unsqueeze(1) + steps).clamp(max=points.count - 1)))
    return Points(window.x * mask.unsqueeze(-1), window.y * mask.unsqueeze(-1), mask)
