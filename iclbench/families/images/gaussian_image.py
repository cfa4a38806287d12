"""A baseline that fits a Gaussian to the training images and conditions it on the context to predict pixels."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from iclbench.core.episodes import Points
from iclbench.core.predictions import Gaussian
from iclbench.core.predictor import Predictor
from iclbench.core.settings import BaseSettings, PositiveFloat
from iclbench.core.task import TaskFacts
from iclbench.families.images.image_completion import ImageCompletion, image_family


class GaussianImageSettings(BaseSettings):
    """Settings of `gaussian-image`: `floor` is the standard deviation of independent noise on every pixel. It is
    therefore the smallest standard deviation of a prediction, as in the head of the compared models."""

    floor: PositiveFloat = 0.1


class Posterior(NamedTuple):
    """Gaussian posterior of target values given the values of context pixels.

    Attributes:
        mean: posterior means.
        std: posterior standard deviations, including the noise.
        log_evidence: log-density of the context, up to a constant that depends only on its size.
    """

    mean: Float[Tensor, "B Q Dy"]
    std: Float[Tensor, "B Q Dy"]
    log_evidence: Float[Tensor, " B"]


class GaussianImage(Predictor):
    """The conditional distribution of pixels under a Gaussian with the mean and the covariance of the training images.

    If training and evaluated images have the same mean and covariance, no predictor that is linear in the context
    pixels has a lower squared error. Related images are ignored.

    Raises:
        UsageError: the task belongs to another family, or its images are too large.
        DataError: the images are missing or damaged.
    """

    Settings: ClassVar[type[BaseSettings]] = GaussianImageSettings
    libraries: ClassVar[tuple[str, ...]] = ()
    heads = ("gaussian",)

    def __init__(
        self, settings: GaussianImageSettings | None = None, facts: TaskFacts | None = None, seed: int = 0
    ) -> None:
        self.settings = settings or GaussianImageSettings()
        self.family = image_family(facts, "gaussian-image")

    @cached_property
    def _moments(self) -> tuple[Float[Tensor, " V"], Float[Tensor, "V V"]]:
        """Mean and covariance of a training image with a uniform label."""
        class_means, class_covariances = self.family.training_class_moments
        offsets = class_means - class_means.mean(0)
        return class_means.mean(0), class_covariances.mean(0) + offsets.T @ offsets / len(offsets)

    def predict_targets(
        self, context: Points, x_target: Float[Tensor, "B Q 2"], related: Points | None = None
    ) -> Gaussian:
        answer = condition(self.family, *self._moments, self.settings.floor, context, x_target)
        return Gaussian(answer.mean.to(x_target), answer.std.to(x_target))


def condition(
    family: ImageCompletion,
    mean: Float[Tensor, " V"],
    covariance: Float[Tensor, "V V"],
    noise: float,
    context: Points,
    x_target: Float[Tensor, "B Q 2"],
) -> Posterior:
    """Return the posterior at target pixels under a Gaussian prior of images with independent noise on every pixel.

    Args:
        family: the family, which maps coordinates to pixels.
        mean, covariance: moments of the V values of an image, in which the outputs of a pixel are adjacent.
        noise: standard deviation of the noise.
        context: observed pixels.
        x_target: coordinates of the target pixels.
    """
    outputs = family.y_dim
    observed, targets = (_value_indices(family, x, outputs).to(mean.device) for x in (context.x, x_target))
    mask = context.mask.to(mean.device).repeat_interleave(outputs, 1)
    residual = torch.where(mask, context.y.to(mean).flatten(1) - mean[observed], 0.0)
    factor = torch.linalg.cholesky(_masked_covariance(covariance, observed, mask, noise))
    cross = covariance[observed.unsqueeze(2), targets.unsqueeze(1)] * mask.unsqueeze(2)
    whitened, whitened_cross = (
        torch.linalg.solve_triangular(factor, right_side, upper=False) for right_side in (residual.unsqueeze(2), cross)
    )
    variance = covariance.diagonal()[targets] - whitened_cross.square().sum(1)
    log_determinant = 2 * factor.diagonal(dim1=1, dim2=2).log().sum(1)
    return Posterior(
        (mean[targets] + (whitened_cross * whitened).sum(1)).unflatten(1, (-1, outputs)),
        (variance.clamp(min=0) + noise**2).sqrt().unflatten(1, (-1, outputs)),
        -0.5 * (whitened.square().sum((1, 2)) + log_determinant),
    )


def _value_indices(family: ImageCompletion, x: Float[Tensor, "B N 2"], outputs: int) -> Tensor:
    """Return the indices of all values of the pixels at these coordinates, `(B, N · outputs)`."""
    return (family.pixel_at(x).unsqueeze(-1) * outputs + torch.arange(outputs, device=x.device)).flatten(1)


def _masked_covariance(
    covariance: Float[Tensor, "V V"], observed: Tensor, mask: Bool[Tensor, "B N"], noise: float
) -> Float[Tensor, "B N N"]:
    """Return the covariance of the observed values. Masked values are independent of all others and have variance 1."""
    blocks = covariance[observed.unsqueeze(2), observed.unsqueeze(1)] * (mask.unsqueeze(2) & mask.unsqueeze(1))
    return blocks + torch.diag_embed(torch.where(mask, noise**2, 1.0).to(covariance))
