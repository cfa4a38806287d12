"""Episodes that are patches of a region in space and time (ICICL-TNP, section 5.3 and appendix G.3).

By default, a patch has 10 x 10 cells of half a degree at three times with steps of six hours. It has at most N = 300
points, and fewer if some of its cells are sea. x = (time, latitude, longitude, elevation) and y = temperature. The
context has N_c ~ U{N/100 .. N/3} of the N points of the patch; the other points, or `targets` random ones of them, are
targets.

Related datasets contain the same cells at other times. The paper is inconsistent about their sizes: its appendix G.3
has U{N/3 .. N}, which is the default, and its section 5.3 has U{N/100 .. N/5} (`related_sizes = "section"`).

Only patches with land in at least half of their cells are drawn; the paper does not specify this. As in the paper,
training uses January to June and evaluation July to December. The shift `january-june` evaluates on the training
months.

All inputs and outputs are standardised by a mean and a standard deviation. For temperature, they are computed over the
land of the region from January to June; for latitude and longitude, over all cells of the region; for elevation, over
cells on land. There are two definitions of the input time (`clock`):

- `patch`: hours since the beginning of the patch, standardised over its times: -1.22, 0 and 1.22;
- `training`: hours since the beginning of the year, standardised over January to June, as the text of the paper says.
  Six hours are then 0.005, so a network can hardly distinguish noon from midnight. Training times are from -1.73 to
  1.73 and evaluation times from 1.73 to 5.25. The paper does not specify which clock its published results use.
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
    """Sizes of patches and definition of the input time.

    Attributes:
        cells: number of cells of a patch along latitude and along longitude.
        times: number of times of a patch, in steps of six hours.
        targets: largest number of targets, which are drawn from the points outside the context; 0 selects all of them.
        max_related: the largest number of related datasets.
        related_sizes: number of points of a related dataset: U{N/3 .. N} (`appendix`, as in appendix G.3 of the paper)
            or U{N/100 .. N/5} (`section`, as in section 5.3).
        clock: origin and standardisation of the input time, `patch` or `training`.
    """

    cells: Annotated[int, Field(ge=3, le=ROWS)] = 10
    times: Annotated[int, Field(ge=1, le=28)] = 3
    targets: Annotated[int, Field(ge=0)] = 0
    max_related: Annotated[int, Field(ge=0, le=6)] = 2
    related_sizes: Literal["appendix", "section"] = "appendix"
    clock: Literal["patch", "training"] = "patch"

    @property
    def max_points(self) -> int:
        """Number of points of a patch without sea."""
        return self.cells**2 * self.times

    @property
    def min_points(self) -> int:
        """Number of points of a patch with the smallest allowed number of cells on land."""
        return -(-(self.cells**2) // 2) * self.times


@dataclass(frozen=True)
class GridIndices:
    """Step, row and column of every point of the patches of a batch, as indices that broadcast to
    (batch, sets, times, rows, columns)."""

    step: Int[Tensor, "B S T 1 1"]
    row: Int[Tensor, "B 1 1 R 1"]
    column: Int[Tensor, "B 1 1 1 C"]

    @classmethod
    def of(cls, corner: Int[Tensor, "B 2"], start: Int[Tensor, "B S"], cells: int, times: int) -> GridIndices:
        """Return the indices of patches, given the first row and column per episode and the first step per set."""
        offsets = torch.arange(max(cells, times), device=start.device)
        row, column = corner[:, :, None, None, None, None].unbind(1)
        step = start[:, :, None, None, None] + offsets[:times, None, None]
        return cls(step, row + offsets[:cells, None], column + offsets[:cells])


class Patches(Family):
    """Base of the families whose episodes are patches; subclasses define elevation and temperatures.

    `points` of a request is the largest size of a context. Under `points-N` every context has exactly N points.
    """

    Parameters = PatchParameters
    questions = frozenset({"targets"})
    shift_kinds = {"january-june": Kind(("the months",))}
    parameters: PatchParameters

    def __init__(self, parameters: PatchParameters, data_dir: Path | None = None) -> None:
        super().__init__(parameters, data_dir)
        self.related_sets = parameters.max_related
        self.related_points = _related_size_range(parameters.related_sizes, parameters.max_points)[1]
        self.stratified = False
        self._is_held_out = False

    @property
    def year(self) -> int:
        """The year whose halves are used for training and evaluation."""
        return YEAR

    @property
    @abstractmethod
    def elevation(self) -> Float[Tensor, "22 40"]:
        """Elevation in metres; NaN for sea."""

    @property
    @abstractmethod
    def y_moments(self) -> tuple[float, float]:
        """Mean and standard deviation of the temperatures on land in the training half."""

    @property
    @abstractmethod
    def min_separation(self) -> int:
        """Smallest number of steps between the beginnings of two patches of an episode."""

    @abstractmethod
    def temperatures(
        self, grid_indices: GridIndices, coordinates: Float[Tensor, "B S P 4"], generator: torch.Generator
    ) -> tuple[Float[Tensor, "B S P"], dict[str, Tensor]]:
        """Return temperatures in float64, with arbitrary values at sea, and the truth of the episodes.

        Args:
            grid_indices: indices of the points.
            coordinates: their coordinates in hours, degrees and metres.
            generator: the source of randomness.
        """

    @property
    def x_dim(self) -> int:
        return 4

    def held_out(self) -> Patches:
        """Return the same task with episodes from July to December."""
        patches = copy(self)
        patches._is_held_out = True
        return patches

    def parse_shift(self, name: str) -> Shift:
        shift = super().parse_shift(name)
        if shift.examples and shift.examples >= self.parameters.min_points:
            raise UsageError(
                f"shift '{name}': a patch may have only {self.parameters.min_points} points on land, and the context "
                "must have fewer",
                code="bad-value",
            )
        return shift

    def strata(self, episodes: Episodes) -> dict[str, Bool[Tensor, " B"]]:
        """Group episodes by the quarter of the year in which their context begins."""
        start = episodes.truth["start"][:, 0]
        ends = [steps_until(month, self.year) for month in (1, 4, 7, 10, 13)]
        quarters = zip(_QUARTERS, ends, ends[1:], strict=False)
        return {name: (begin <= start) & (start < end) for name, begin, end in quarters}

    @cached_property
    def corners(self) -> Int[Tensor, "corners 2"]:
        """The possible first rows and columns of patches."""
        size = self.parameters.cells
        land_cells = self.elevation.isfinite().unfold(0, size, 1).unfold(1, size, 1).sum((-1, -2))
        first_cells = (2 * land_cells >= size**2).nonzero()
        if not len(first_cells):
            raise DataError(
                f"no patch of {size} x {size} cells has land in at least half of its cells; lower task.cells",
                code="not-applicable",
            )
        return first_cells

    @cached_property
    def scale(self) -> Scale:
        """Means and standard deviations of inputs and outputs."""
        if "scale" in self.learned:
            return Scale.of_values(self.learned["scale"])
        steps = self.parameters.times if self.parameters.clock == "patch" else steps_until(7, self.year)
        return Scale.of(steps, self.elevation, *self.y_moments)

    def learn(self) -> dict[str, Any]:
        return super().learn() | {"scale": self.scale.values()} if self.needs_data else {}

    def to_coordinates(self, x: Float[Tensor, "B N 4"], start: Int[Tensor, " B"]) -> Float[Tensor, "B N 4"]:
        """Convert inputs of patches that begin at `start` to hours of the year, degrees and metres, in float64."""
        coordinates = self.scale.to(x.device).to_coordinates(x)
        coordinates[..., 0] += self._origin(start).unsqueeze(1)
        return coordinates

    def _origin(self, start: Int[Tensor, "*B"]) -> Int[Tensor, "*B"]:
        """Return the hour of the year that is subtracted from input times."""
        return STEP_HOURS * start if self.parameters.clock == "patch" else torch.zeros_like(start)

    def sample(self, request: Request) -> Episodes:
        episodes, generator = request.episodes, request.generator
        shift, device = self.parse_shift(request.shift), generator.device
        corner = self.corners.to(device)
        index = torch.randint(len(corner), (episodes,), generator=generator, device=device)
        corner, start = corner[index], self._starts(episodes, shift, generator)
        grid_indices = GridIndices.of(corner, start, self.parameters.cells, self.parameters.times)
        coordinates, is_land = self._coordinates(grid_indices)
        scale = self.scale.to(device)
        y, truth = self.temperatures(grid_indices, coordinates, generator)
        y = ((y - scale.y_mean) / scale.y_std).masked_fill(~is_land.unsqueeze(1), 0).float()
        coordinates[..., 0] -= self._origin(start).unsqueeze(2)
        points = Points(scale.to_inputs(coordinates).float(), y.unsqueeze(-1), is_land.unsqueeze(1).expand(y.shape))
        points = _shuffle(points, generator)
        context, targets = self._split(points.map(lambda t: t[:, 0]), request.points, shift, generator)
        return Episodes(
            context=context,
            targets=targets,
            scored=targets.mask,
            related=self._related(points.map(lambda t: t[:, 1:]), request.related, generator),
            truth={**truth, "corner": corner, "start": start},
        )

    def uniform(self, numbers: int, episodes: int, generator: torch.Generator) -> Float[Tensor, "numbers B"]:
        """Draw uniform numbers in [0, 1) for every episode. For frozen prompts they are stratified over the
        episodes."""
        if self.stratified:
            groups = torch.zeros(episodes, dtype=torch.long, device=generator.device)
            return torch.stack([stratified_uniform(groups, generator) for _ in range(numbers)])
        return torch.rand((numbers, episodes), generator=generator, device=generator.device, dtype=torch.float64)

    def _starts(self, episodes: int, shift: Shift, generator: torch.Generator) -> Int[Tensor, "B S"]:
        """Draw the first steps of context and related datasets, each uniformly from the steps that are far enough from
        all previous ones."""
        half = steps_until(7, self.year)
        in_second_half = self._is_held_out and not shift.part("january-june")
        first, end = (half, steps_until(13, self.year)) if in_second_half else (0, half)
        steps = torch.arange(first, end - self.parameters.times + 1, device=generator.device)
        is_allowed = torch.ones((episodes, len(steps)), device=generator.device)
        starts = []
        for _ in range(1 + self.related_sets):
            starts.append(steps[torch.multinomial(is_allowed, 1, generator=generator)])
            is_allowed = is_allowed * ((steps - starts[-1]).abs() >= self.min_separation)
        return torch.cat(starts, 1)

    def _coordinates(self, grid_indices: GridIndices) -> tuple[Float[Tensor, "B S P 4"], Bool[Tensor, "B P"]]:
        """Return the coordinates of the points of every patch (hours, degrees and metres, in float64) and whether each
        point is on land. Elevation is 0 at sea."""
        device = grid_indices.step.device
        elevation = self.elevation.to(device)[grid_indices.row, grid_indices.column].double()
        axes = (
            STEP_HOURS * grid_indices.step.double(),
            latitudes().to(device)[grid_indices.row],
            longitudes().to(device)[grid_indices.column],
            elevation.nan_to_num(0),
        )
        coordinates = torch.stack(torch.broadcast_tensors(*axes), -1).flatten(2, 4)
        return coordinates, elevation.isfinite().flatten(1).repeat(1, self.parameters.times)

    def _split(self, patches: Points, points: int, shift: Shift, generator: torch.Generator) -> tuple[Points, Points]:
        """Split every patch into context and targets: its first points are the context, and the following points are
        targets."""
        counts, parameters = patches.counts, self.parameters
        high = (counts // 3).clamp(max=points)
        low = torch.minimum(_hundredth(counts), high)
        sizes = low + (self.uniform(1, len(patches), generator)[0] * (high - low + 1)).long()
        if shift.examples:
            sizes = torch.full_like(sizes, shift.examples)
        max_targets = min(parameters.targets or parameters.max_points, parameters.max_points - 1)
        context = _span(patches, torch.zeros_like(sizes), sizes, points)
        return context, _span(patches, sizes, counts - sizes, max_targets)

    def _related(self, patches: Points, count: int | None, generator: torch.Generator) -> Points | None:
        """Return `max_related` related datasets. All datasets after the first `count` (default: a random number) are
        masked."""
        sets = self.related_sets
        if not sets:
            return None
        counts, device = patches.counts, generator.device
        related_counts = torch.randint(sets + 1, (len(patches), 1), generator=generator, device=device)
        if count is not None:
            related_counts = torch.full_like(related_counts, count)
        low, high = _related_size_range(self.parameters.related_sizes, counts)
        uniform = torch.rand(counts.shape, generator=generator, device=device, dtype=torch.float64)
        sizes = (low + (uniform * (high - low + 1)).long()) * (torch.arange(sets, device=device) < related_counts)
        flat, sizes = patches.map(lambda t: t.flatten(0, 1)), sizes.flatten()
        related = _span(flat, torch.zeros_like(sizes), sizes, self.related_points)
        return related.map(lambda t: t.unflatten(0, counts.shape))


_Count = TypeVar("_Count", int, Tensor)


def _hundredth(counts: _Count) -> _Count:
    """Return N/100, but at least 1."""
    return counts // 100 + (counts < 100)


def _related_size_range(sizes: str, counts: _Count) -> tuple[_Count, _Count]:
    """Return the smallest and largest size of a related dataset for patches with `counts` points."""
    return (counts // 3, counts) if sizes == "appendix" else (_hundredth(counts), counts // 5)


def _shuffle(points: Points, generator: torch.Generator) -> Points:
    """Shuffle the points of every set and move masked points to the end."""
    order = torch.rand(points.mask.shape, generator=generator, device=generator.device) + ~points.mask
    flat = points.map(lambda t: t.flatten(0, 1))
    return flat.map(lambda t: take(t, order.flatten(0, 1).argsort(1)).unflatten(0, order.shape[:2]))


def _span(points: Points, start: Int[Tensor, " B"], sizes: Int[Tensor, " B"], width: int) -> Points:
    """Return `width` points per episode, starting at position `start`. Only the first `sizes` points are valid; the
    values of masked points are 0."""
    steps = torch.arange(width, device=start.device)
    mask = steps < sizes.unsqueeze(1)
    window = points.map(lambda t: take(t, (start.unsqueeze(1) + steps).clamp(max=points.count - 1)))
    return Points(window.x * mask.unsqueeze(-1), window.y * mask.unsqueeze(-1), mask)
