"""Image completion: intensities are a function of pixel coordinates and are observed at some random pixels.

Two protocols define the numbers of observed pixels among P pixels:

- `share` (ICICL-TNP, section 5.2 and appendix G.2): there are N ~ U{P/100 .. P/5} context pixels. The other pixels, or
  `targets` random ones of them, are targets. There are 0 to `max_related` further images of the same label, each with
  U{P/100 .. P/2} observed pixels. Coordinates are standardised over the image, intensities over the dataset.
- `cmab` (CMAB paper, appendix): N ~ U[3, budget - 3) context and M ~ U[3, budget - N) target pixels with a budget of
  200. Coordinates lie in [-1, 1], intensities in [-0.5, 0.5].

A label is drawn uniformly, then an image with this label. Training and evaluation draw from different images; see
`iclbench.families.images.image_sets`. The shifts are `unseen-classes` (images with labels that are not used in
training, for datasets that have such images) and `other-label` (related images have another label than the context, as
in figure 14 of the ICICL-TNP paper).
"""

from __future__ import annotations

import copy
import math
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import torch
from jaxtyping import Float, Int, UInt8
from pydantic import Field, model_validator
from torch import Tensor

from iclbench.core.episodes import Episodes, Points, take
from iclbench.core.errors import DataError, UsageError
from iclbench.core.hashing import data_fingerprint
from iclbench.core.settings import BaseSettings, PositiveFloat
from iclbench.core.task import TaskFacts
from iclbench.families.base import Family
from iclbench.families.images.celeba import CelebA
from iclbench.families.images.image_sets import ImageSet, Part, emnist_images, glyph_images, mnist_images
from iclbench.families.request import Request
from iclbench.families.shifts import Kind, Kinds, Shift

# Mean and standard deviation of intensities in [0, 1] over the training images: the common values for MNIST and EMNIST,
# measured values for glyphs at 28 x 28, approximate values over all channels for CelebA.
INTENSITY = {"glyphs": (0.067, 0.22), "mnist": (0.1307, 0.3081), "emnist": (0.1751, 0.3332), "celeba": (0.44, 0.29)}
# Smallest number of context or target pixels under `cmab`.
MIN_PIXELS = 3
# Number of images that are averaged at once, which limits memory.
_IMAGE_BATCH = 1024
# Largest number of values of an image whose covariance is computed. A covariance matrix of this size takes 134 MB.
_MAX_VALUES = 4096


class ImageParameters(BaseSettings):
    """Parameters of image completion.

    Attributes:
        images: the dataset.
        size: height and width of an image in pixels.
        classes: number of training classes (only for glyphs).
        drawings: number of training drawings of each class (only for glyphs).
        jitter: factor of the variation between drawings of a class (only for glyphs).
        sampling: the protocol, `share` or `cmab`.
        targets: number of target pixels under `share`; 0 selects all pixels outside the context.
        budget: exclusive upper limit of the total number of context and target pixels under `cmab`.
        max_related: the largest number of related images.
    """

    images: Literal["glyphs", "mnist", "emnist", "celeba"] = "glyphs"
    size: Annotated[int, Field(ge=8, le=512)] = 28
    classes: Annotated[int, Field(ge=2, le=10_000)] = 50
    drawings: Annotated[int, Field(ge=20, le=10_000)] = 200
    jitter: PositiveFloat = 1.0
    sampling: Literal["share", "cmab"] = "share"
    targets: Annotated[int, Field(ge=0)] = 0
    budget: Annotated[int, Field(ge=2 * MIN_PIXELS + 2)] = 200
    max_related: Annotated[int, Field(ge=0, le=16)] = 3

    @model_validator(mode="after")
    def _check_consistency(self) -> ImageParameters:
        if self.images in ("mnist", "emnist") and self.size != 28:
            raise ValueError(f"size: images of {self.images} are 28 x 28, got {self.size}")
        if self.images == "celeba" and self.max_related:
            raise ValueError("max_related: images of celeba have no labels and so no related images; write 0")
        if self.sampling == "cmab" and self.budget > self.size**2:
            raise ValueError(f"budget: an image has {self.size**2} pixels, got {self.budget}")
        return self


class ImageCompletion(Family):
    """Pixel intensities as a function of coordinates, given some pixels and related images of the same class.

    `points` of a request is the largest context size. Under `points-N`, every context has exactly N pixels.

    Args:
        parameters: see `ImageParameters`.
        data_dir: the folder that contains `mnist/`, `emnist/` or `celeba/`; not needed for glyphs.

    Raises:
        DataError: on first use, if the images are missing or damaged.
    """

    Parameters = ImageParameters
    questions = frozenset({"targets"})
    shift_kinds: ClassVar[Kinds] = {
        "unseen-classes": Kind(("the set of images",)),
        "other-label": Kind(("the related images",)),
    }
    data_parameters = ("images",)
    parameters: ImageParameters

    def __init__(self, parameters: ImageParameters, data_dir: Path | None = None) -> None:
        super().__init__(parameters, data_dir)
        self.y_dim = 3 if parameters.images == "celeba" else 1
        self.related_sets = parameters.max_related
        self.related_points = max(1, self.pixels // 2)
        self._part: Part = "train"
        self._image_sets: dict[Part, ImageSet] = {}

    def held_out(self) -> ImageCompletion:
        """Return the same task on images that are not used in training. Both families share the loaded images."""
        family = copy.copy(self)
        family._part = "test"
        return family

    def validation(self) -> ImageCompletion:
        """Return the same task on drawings that are used neither for training nor for prompts. Datasets of real images
        have no third part, so their training images are used."""
        family = copy.copy(self)
        family._part = "train" if self.needs_data else "validation"
        return family

    @property
    def x_dim(self) -> int:
        return 2

    @property
    def pixels(self) -> int:
        return int(self.parameters.size**2)

    @property
    def normaliser(self) -> float:
        std = INTENSITY[self.parameters.images][1]
        return 1.0 if self.parameters.sampling == "share" else std**2

    @property
    def y_scale(self) -> float:
        """Standard deviation of one channel, whose variance is the normaliser."""
        return math.sqrt(self.normaliser)

    @property
    def fingerprint(self) -> str:
        has_unseen_part = self._part == "test" and self._has_unseen_classes
        parts: list[Part] = [self._part, "unseen"] if has_unseen_part else [self._part]
        return data_fingerprint(*(self._images(part).fingerprint for part in parts))

    @property
    def training_fingerprint(self) -> str:
        return self._images("train").fingerprint

    @property
    def needs_data(self) -> bool:
        return self.parameters.images != "glyphs"

    @property
    def _has_unseen_classes(self) -> bool:
        return self.parameters.images in ("glyphs", "emnist")

    def parse_shift(self, name: str) -> Shift:
        shift = super().parse_shift(name)
        if shift.part("unseen-classes") and not self._has_unseen_classes:
            raise UsageError(
                f"shift '{name}': all classes of {self.parameters.images} are used in training; use glyphs or emnist",
                code="not-applicable",
            )
        if shift.part("other-label") and not self.related_sets:
            raise UsageError(
                f"shift '{name}': this task has no related images; raise task.max_related", code="not-applicable"
            )
        if shift.examples and shift.examples >= self.pixels:
            raise UsageError(
                f"shift '{name}': an image has {self.pixels} pixels, and the context must have fewer", code="bad-value"
            )
        return shift

    @property
    def _pixels_per_unit(self) -> float:
        """Number of pixels per unit of a coordinate. A uniform distribution over `size` integers has variance (size² -
        1) / 12."""
        size = self.parameters.size
        return ((size**2 - 1) / 12) ** 0.5 if self.parameters.sampling == "share" else (size - 1) / 2

    def display_inputs(self) -> Float[Tensor, "points 2"]:
        """Return the coordinates (row, column) of every pixel, row by row."""
        size = self.parameters.size
        coordinates = torch.arange(size, dtype=torch.float64) - (size - 1) / 2
        coordinates = coordinates / self._pixels_per_unit
        return torch.cartesian_prod(coordinates, coordinates).float()

    def pixel_at(self, x: Float[Tensor, "*n 2"]) -> Int[Tensor, "*n"]:
        """Return the index of the nearest pixel of `display_inputs`."""
        size = self.parameters.size
        row, column = (x * self._pixels_per_unit + (size - 1) / 2).round().clamp(0, size - 1).long().unbind(-1)
        return row * size + column

    @cached_property
    def training_pixel_moments(self) -> tuple[Float[Tensor, "P Dy"], Float[Tensor, "P Dy"]]:
        """Mean and standard deviation of every pixel over the training distribution: a uniform label, then a uniform
        image with this label."""
        images = self._images("train")
        weights = (1 / images.counts.double()).repeat_interleave(images.counts) / len(images.counts)
        mean, square = torch.zeros(2, self.pixels, self.y_dim, dtype=torch.float64)
        for numbers, weight in zip(images.order.split(_IMAGE_BATCH), weights.split(_IMAGE_BATCH), strict=True):
            intensities = self._scaled(images.read(numbers)).double()
            mean += torch.einsum("n,npd->pd", weight, intensities)
            square += torch.einsum("n,npd->pd", weight, intensities.square())
        return mean.float(), (square - mean.square()).clamp(min=0).sqrt().float()

    @cached_property
    def training_class_moments(self) -> tuple[Float[Tensor, "C V"], Float[Tensor, "C V V"]]:
        """Mean and covariance of the V values of an image, for every label of the training images.

        Raises:
            UsageError: a covariance would have too many entries.
        """
        if (size := self.pixels * self.y_dim) > _MAX_VALUES:
            raise UsageError(
                f"covariances are computed for images of at most {_MAX_VALUES} values, but these have {size}; "
                "lower task.size or choose another baseline",
                code="not-applicable",
            )
        images = self._images("train")
        means, covariances = [], []
        for numbers in images.order.split(images.counts.tolist()):
            total, square = torch.zeros(size, dtype=torch.float64), torch.zeros(size, size, dtype=torch.float64)
            for batch in numbers.split(_IMAGE_BATCH):
                values = self._scaled(images.read(batch)).double().flatten(1)
                total += values.sum(0)
                square += values.T @ values
            mean = total / len(numbers)
            means.append(mean)
            covariances.append(square / len(numbers) - mean.outer(mean))
        return torch.stack(means), torch.stack(covariances)

    def sample(self, request: Request) -> Episodes:
        episodes, generator = request.episodes, request.generator
        shift, device = self.parse_shift(request.shift), generator.device
        images = self._images("unseen" if shift.part("unseen-classes") else self._part)
        x = self.display_inputs().to(device)
        if request.active_dims is not None:
            x = x * (torch.arange(2, device=device) < request.active_dims)
        counts = images.counts.to(device)
        label = torch.randint(len(counts), (episodes,), generator=generator, device=device)
        member = (torch.rand(episodes, generator=generator, device=device) * counts[label]).long()
        intensities = self._read(images, label, member)
        context, targets = self._split(x, intensities, request.points, shift, generator)
        truth = {
            "label": images.labels.to(device)[label],
            "image": _image_numbers(images, label, member),
            "display": intensities,
        }
        related = None
        if self.related_sets:
            related, truth["related_image"] = self._related(images, x, label, member, shift, request.related, generator)
        return Episodes(
            context=context,
            targets=targets,
            scored=targets.mask,
            related=related,
            truth=truth,
        )

    def _split(
        self,
        x: Float[Tensor, "P 2"],
        intensities: Float[Tensor, "B P Dy"],
        points: int,
        shift: Shift,
        generator: torch.Generator,
    ) -> tuple[Points, Points]:
        """Draw context pixels, and targets among the other pixels."""
        episodes, pixels, budget = len(intensities), self.pixels, self.parameters.budget
        is_share = self.parameters.sampling == "share"
        low, high = (
            _share_range(pixels, points) if is_share else _limit_range(MIN_PIXELS, budget - MIN_PIXELS - 1, points)
        )
        low, high = shift.examples or low, shift.examples or high
        order = _permutations((episodes, pixels), generator)
        sizes = _integers(low, torch.full((episodes,), high, device=x.device), generator)
        others = pixels - sizes
        if is_share:
            max_targets = self.parameters.targets or pixels - low
            target_counts = others.clamp(max=max_targets)
        else:
            max_targets = budget - MIN_PIXELS - 1
            target_counts = _integers(MIN_PIXELS, (budget - 1 - sizes).clamp(min=MIN_PIXELS), generator).minimum(others)
        positions = sizes.unsqueeze(1) + torch.arange(min(max_targets, pixels - low), device=x.device)
        target_order = order.gather(1, positions.clamp(max=pixels - 1))
        return _observed_points(x, intensities, order[:, :high], sizes), _observed_points(
            x, intensities, target_order, target_counts
        )

    def _related(
        self,
        images: ImageSet,
        x: Float[Tensor, "P 2"],
        label: Int[Tensor, " B"],
        member: Int[Tensor, " B"],
        shift: Shift,
        count: int | None,
        generator: torch.Generator,
    ) -> tuple[Points, Int[Tensor, "B J"]]:
        """Draw the largest number of related images. Return them and their numbers in the set. All images after the
        first `count` (default: a random number) are masked."""
        sets, episodes, pixels = self.related_sets, len(label), self.pixels
        related_counts = torch.randint(sets + 1, (episodes, 1), generator=generator, device=x.device)
        if count is not None:
            related_counts = torch.full_like(related_counts, count)
        excluded = member.unsqueeze(1)
        if shift.part("other-label"):
            offset = torch.randint(1, len(images.labels), (episodes,), generator=generator, device=x.device)
            label, excluded = (label + offset) % len(images.labels), excluded[:, :0]
        members = _distinct_numbers(images.counts.to(x.device)[label], sets, excluded, generator)
        intensities = self._read(images, label.unsqueeze(1), members).flatten(0, 1)
        max_sizes = torch.full((episodes * sets,), self.related_points, device=x.device)
        sizes = _integers(max(1, pixels // 100), max_sizes, generator)
        order = _permutations((episodes * sets, pixels), generator)[:, : self.related_points]
        is_present = (torch.arange(sets, device=x.device) < related_counts).flatten()
        observed = _observed_points(x, intensities, order, sizes * is_present).map(
            lambda t: t.unflatten(0, (episodes, sets))
        )
        return observed, _image_numbers(images, label.unsqueeze(1), members)

    def _read(self, images: ImageSet, label: Int[Tensor, "*#B"], member: Int[Tensor, "*B"]) -> Float[Tensor, "*B P Dy"]:
        """Read intensities and convert them to the scale of the task."""
        return self._scaled(images.read(_image_numbers(images, label, member)))

    def _scaled(self, stored: UInt8[Tensor, "*B P Dy"]) -> Float[Tensor, "*B P Dy"]:
        intensity = stored.float() / 255
        if self.parameters.sampling == "cmab":
            return intensity - 0.5
        mean, std = INTENSITY[self.parameters.images]
        return (intensity - mean) / std

    def _images(self, part: Part) -> ImageSet:
        if part not in self._image_sets:
            images = self._load(part)
            needed_images = self.related_sets + 1
            if len(images.counts) and int(images.counts.min()) < needed_images:
                rarest_label = int(images.labels[images.counts.argmin()])
                raise DataError(
                    f"{self.parameters.images}: label {rarest_label} has {int(images.counts.min())} image(s), but an "
                    f"episode requires {needed_images}; lower task.max_related or add images"
                )
            self._image_sets[part] = images
        return self._image_sets[part]

    def _load(self, part: Part) -> ImageSet:
        parameters = self.parameters
        match parameters.images:
            case "mnist":
                return mnist_images(part, self.data_dir)
            case "emnist":
                return emnist_images(part, self.data_dir)
            case "celeba":
                return CelebA(part, self.data_dir, parameters.size)
        return glyph_images(part, parameters.classes, parameters.drawings, parameters.size, parameters.jitter)


def image_family(facts: TaskFacts | None, baseline: str) -> ImageCompletion:
    """Return the family of a task of image completion; raise `UsageError` for another family."""
    family = None if facts is None else facts.family
    if not isinstance(family, ImageCompletion):
        raise UsageError(
            f"{baseline} requires a task of the family image-completion; choose another baseline", code="not-applicable"
        )
    return family


def _share_range(pixels: int, points: int) -> tuple[int, int]:
    """Return the smallest and largest context size under `share`."""
    return _limit_range(max(1, pixels // 100), max(1, pixels // 5), points)


def _limit_range(low: int, high: int, limit: int) -> tuple[int, int]:
    """Return the part of a range of sizes that does not exceed `limit`."""
    high = min(high, limit)
    return min(low, high), high


def _image_numbers(images: ImageSet, label: Int[Tensor, "*#B"], member: Int[Tensor, "*B"]) -> Int[Tensor, "*B"]:
    """Return the numbers of images in the set, given their labels and their positions among the images with this
    label."""
    return images.order.to(member.device)[images.first_position.to(member.device)[label] + member]


def _observed_points(
    x: Float[Tensor, "P 2"], intensities: Float[Tensor, "B P Dy"], pixels: Int[Tensor, "B N"], sizes: Int[Tensor, " B"]
) -> Points:
    """Return these pixels as points, of which the first `sizes` are valid. Masked values are 0."""
    mask = torch.arange(pixels.shape[1], device=sizes.device) < sizes.unsqueeze(1)
    unmasked = mask.unsqueeze(-1)
    return Points(x[pixels] * unmasked, take(intensities, pixels) * unmasked, mask)


def _permutations(shape: tuple[int, int], generator: torch.Generator) -> Int[Tensor, "B P"]:
    return torch.rand(shape, generator=generator, device=generator.device).argsort(1)


def _integers(low: int, high: Int[Tensor, " B"], generator: torch.Generator) -> Int[Tensor, " B"]:
    """Draw uniform integers from `low` to `high`, both included."""
    uniform = torch.rand(high.shape, generator=generator, device=high.device, dtype=torch.float64)
    return low + (uniform * (high - low + 1)).long()


def _distinct_numbers(
    counts: Int[Tensor, " B"], sets: int, excluded: Int[Tensor, "B K"], generator: torch.Generator
) -> Int[Tensor, "B J"]:
    """Draw, for every episode, `sets` different numbers below `counts` that are not excluded, in random order.

    Each number is drawn from a range that is shortened by the count of excluded numbers, and is then shifted past the
    excluded numbers in ascending order.
    """
    initially_excluded = excluded.shape[1]
    for _ in range(sets):
        uniform = torch.rand(counts.shape, generator=generator, device=counts.device, dtype=torch.float64)
        number = (uniform * (counts - excluded.shape[1])).long()
        for lower in excluded.sort(1).values.unbind(1):
            number = number + (number >= lower)
        excluded = torch.cat([excluded, number.unsqueeze(1)], 1)
    return excluded[:, initially_excluded:]
