"""Images to features, token by token: the layer that every backbone shares on tasks with images."""

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

# Images at once in evaluation mode, where they do not depend on one another: bounds the memory of large ones.
_AT_ONCE = 512

_KINDS: dict[str, Callable[[int], nn.Module]] = {"resnet": ResNet, "contours": Contours}


class ImageEncoder(nn.Module):
    """One of the encoders by name.

    Args:
        name: kind and width of the features.
        x_shape: height and width of the images.

    Attributes:
        features: E.

    Raises:
        UsageError: the images are not of one channel.
    """

    def __init__(self, name: EncoderName, x_shape: tuple[int, ...]) -> None:
        super().__init__()
        if len(x_shape) != 2:
            raise UsageError(f"image encoders take grey images of shape (height, width), not {x_shape}")
        kind, _, features = name.partition("-")
        self.x_shape, self.features = x_shape, int(features)
        self.net = _KINDS[kind](self.features)

    def forward(self, x: Float[Tensor, "*shape P"]) -> Float[Tensor, "*shape E"]:
        """Features of flattened images.

        Raises:
            UsageError: they have another number of pixels.
        """
        height, width = self.x_shape
        if x.shape[-1] != height * width:
            raise UsageError(f"images of {x.shape[-1]} pixels for a model of images of {height} x {width}")
        images = x.reshape(-1, height, width)
        parts = [images] if self.training else images.split(_AT_ONCE)
        return torch.cat([self.net(chunk) for chunk in parts]).reshape(*x.shape[:-1], self.features)
