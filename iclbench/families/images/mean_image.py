"""A baseline that predicts the mean image of the training data and ignores the context."""

from __future__ import annotations

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from iclbench.core.episodes import Points
from iclbench.core.predictions import Gaussian
from iclbench.core.predictor import Predictor
from iclbench.core.settings import BaseSettings, NonNegativeFloat
from iclbench.core.task import TaskFacts
from iclbench.families.images.image_completion import image_family


class MeanImageSettings(BaseSettings):
    """Settings of `mean-image`: `floor` is the smallest standard deviation, as in the head of the compared models."""

    floor: NonNegativeFloat = 0.1


class MeanImage(Predictor):
    """The mean and standard deviation of every pixel over the training images; the context is ignored.

    On average over the training images, no predictor that ignores the context has a lower squared error, and no
    Gaussian with this floor has a higher log-likelihood.

    Raises:
        UsageError: the task belongs to another family.
        DataError: the images are missing or damaged.
    """

    Settings: ClassVar[type[BaseSettings]] = MeanImageSettings
    libraries: ClassVar[tuple[str, ...]] = ()
    heads = ("gaussian",)

    def __init__(
        self, settings: MeanImageSettings | None = None, facts: TaskFacts | None = None, seed: int = 0
    ) -> None:
        self.settings = settings or MeanImageSettings()
        self.family = image_family(facts, "mean-image")

    def predict_targets(
        self, context: Points, x_target: Float[Tensor, "B Q 2"], related: Points | None = None
    ) -> Gaussian:
        mean, std = (moment.to(x_target) for moment in self.family.training_pixel_moments)
        pixels = self.family.pixel_at(x_target)
        return Gaussian(mean[pixels], std.clamp(min=self.settings.floor)[pixels])
