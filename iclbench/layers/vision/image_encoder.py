"""The image encoder that all backbones use on tasks with images; it maps each image to features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from iclbench.core.errors import UsageError
from iclbench.layers.vision.contours import Contours
from iclbench.layers.vision.resnet import ResNet

EncoderName = Literal["resnet-64", "resnet-256", "resnet-512", "contours-64", "contours-512"]

# Largest number of images per pass in evaluation mode, to limit memory use. In this mode, images do not affect one
# another.
_MAX_BATCH = 512

_ENCODERS: dict[str, Callable[[int], nn.Module]] = {"resnet": ResNet, "contours": Contours}


class ImageEncoder(nn.Module):
    """An image encoder, selected by name.

    Args:
        name: encoder and width of the features, for example contours-64.
        x_shape: height and width of the images.

    Attributes:
        features: number of features E.

    Raises:
        UsageError: the shape of the images is not (height, width).
    """

    def __init__(self, name: EncoderName, x_shape: tuple[int, ...]) -> None:
        super().__init__()
        if len(x_shape) != 2:
            raise UsageError(
                f"image encoders read greyscale images of shape (height, width), not {x_shape}", code="not-applicable"
            )
        encoder, _, features = name.partition("-")
        self.x_shape, self.features = x_shape, int(features)
        self.net = _ENCODERS[encoder](self.features)

    def forward(self, x: Float[Tensor, "*shape P"]) -> Float[Tensor, "*shape E"]:
        """Return the features of flattened images.

        Raises:
            UsageError: the number of pixels is not height * width.
        """
        height, width = self.x_shape
        if x.shape[-1] != height * width:
            raise UsageError(
                f"the images have {x.shape[-1]} pixels, but the model reads images of {height} x {width}; pass images "
                "of the task that it was trained on",
                code="bad-value",
            )
        images = x.reshape(-1, height, width)
        batches = [images] if self.training else images.split(_MAX_BATCH)
        return torch.cat([self.net(batch) for batch in batches]).reshape(*x.shape[:-1], self.features)
