"""The residual network of Chan et al. 2022 (He et al. 2016, version 1, bottleneck blocks), without its classifier.

    7x7 convolution, stride 2, to 64 channels    BatchNorm, ReLU    3x3 max-pooling, stride 2
    four groups of two blocks, strides 1, 2, 2, 2                   mean over positions

The inner width of a block is a quarter of its channels, and the first block of every group has a linear shortcut. The
last group has 64 channels in Chan et al., and 256 and 512 in CoQE. The initial scale of the last BatchNorm of a block
is 0, so that every block is initially its shortcut. The initial weights of convolutions are truncated normal with
variance 1 / fan-in. Both are Haiku's defaults. Padding is symmetric; Haiku's "SAME" padding at stride 2 is shifted by
one pixel.

Because of BatchNorm, features in training depend on the other images of the batch; in evaluation mode they do not.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn

# Channels of the four groups, by the width of the last group.
CHANNELS = {64: (16, 32, 32, 64), 256: (64, 128, 128, 256), 512: (64, 128, 256, 512)}

_STEM = 64
_BOTTLENECK = 4
# Standard deviation of a standard normal distribution truncated at two standard deviations.
_TRUNCATED_STD = 0.87962566103423978


class Bottleneck(nn.Module):
    """A 1x1 convolution to a quarter of the channels, a 3x3 convolution with the stride and a 1x1 convolution back.
    Their output is added to the shortcut, followed by ReLU."""

    def __init__(self, inputs: int, channels: int, stride: int, project: bool) -> None:
        super().__init__()
        inner = channels // _BOTTLENECK
        self.branch = nn.Sequential(
            *_conv_and_norm(inputs, inner, 1),
            nn.ReLU(),
            *_conv_and_norm(inner, inner, 3, stride),
            nn.ReLU(),
            *_conv_and_norm(inner, channels, 1),
        )
        last_norm = self.branch[-1]
        assert isinstance(last_norm, nn.BatchNorm2d)
        nn.init.zeros_(last_norm.weight)
        self.shortcut = nn.Sequential(*_conv_and_norm(inputs, channels, 1, stride)) if project else nn.Identity()

    def forward(self, x: Float[Tensor, "images C H W"]) -> Float[Tensor, "images C2 H2 W2"]:
        return torch.relu(self.branch(x) + self.shortcut(x))


class ResNet(nn.Module):
    """Maps greyscale images to features.

    Args:
        features: E, one of `CHANNELS`.
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.stem, norm = _conv_and_norm(1, _STEM, 7, 2)
        self.pool = nn.Sequential(norm, nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        blocks = []
        for group, (inputs, channels) in enumerate(pairwise((_STEM, *CHANNELS[features]))):
            blocks.append(Bottleneck(inputs, channels, 2 if group else 1, project=True))
            blocks.append(Bottleneck(channels, channels, 1, project=False))
        self.blocks = nn.Sequential(*blocks)

    def forward(self, images: Float[Tensor, "images H W"]) -> Float[Tensor, "images E"]:
        # On a CPU, the memory format "channels last" takes a third less time than the default.
        hidden = self.stem(images.unsqueeze(1)).contiguous(memory_format=torch.channels_last)
        return self.blocks(self.pool(hidden)).mean((2, 3))


def _conv_and_norm(inputs: int, outputs: int, size: int, stride: int = 1) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    convolution = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
    std = (inputs * size * size) ** -0.5 / _TRUNCATED_STD
    nn.init.trunc_normal_(convolution.weight, std=std, a=-2 * std, b=2 * std)
    return convolution, nn.BatchNorm2d(outputs)
