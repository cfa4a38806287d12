"""The level of a predictor that has learned what images look like and reads nothing of its context."""

from __future__ import annotations

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from iclbench.core.episodes import Points
from iclbench.core.errors import UsageError
from iclbench.core.predictions import Gaussian
from iclbench.core.predictor import Predictor
from iclbench.core.settings import BaseSettings, NonNegativeFloat
from iclbench.core.task import TaskFacts
from iclbench.families.images.image_completion import ImageCompletion


class MeanImageSettings(BaseSettings):
    """`floor`: the least standard deviation, that of the head which it is compared with."""

    floor: NonNegativeFloat = 0.1


class MeanImage(Predictor):
    """Every pixel's mean and standard deviation over the training images; the context is ignored.

    On average over those images no predictor that ignores the context has a lower squared error, and no Gaussian with
    this floor has a higher log-likelihood.

    Raises:
        UsageError: the task is of another family.
        DataError: the images are not there or damaged.
    """

    Settings: ClassVar[type[BaseSettings]] = MeanImageSettings
    libraries: ClassVar[tuple[str, ...]] = ()
    heads = ("gaussian",)

    def __init__(
        self, settings: MeanImageSettings | None = None, facts: TaskFacts | None = None, seed: int = 0
    ) -> None:
        self.settings = settings or MeanImageSettings()
        self.facts = facts or TaskFacts()
        if not isinstance(self.facts.family, ImageCompletion):
            raise UsageError("mean-image answers tasks of the family image-completion only; choose another baseline")
        self.family = self.facts.family

    def predict_targets(
        self, context: Points, x_target: Float[Tensor, "B Q 2"], related: Points | None = None
    ) -> Gaussian:
        mean, std = (moment.to(x_target) for moment in self.family.trained_pixels)
        pixels = self.family.pixel_at(x_target)
        return Gaussian(mean[pixels], std.clamp(min=self.settings.floor)[pixels])
