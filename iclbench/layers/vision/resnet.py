"""The residual network of Chan et al. 2022 (He et al. 2016, version 1, bottleneck blocks), without its classifier.

    7x7 convolution, stride 2, to 64 channels    BatchNorm, ReLU    3x3 max-pooling, stride 2
    four groups of two blocks, strides 1, 2, 2, 2                   mean over positions

A block leads through a quarter of its channels, and the first of every group has a linear shortcut. Widths of the last
group: 64 in Chan et al., 256 and 512 in CoQE. The last BatchNorm of a block starts at scale 0, so that blocks start as
their shortcuts; convolutions start from a truncated normal of variance 1 / fan-in (Haiku's defaults). Padding is
symmetric where Haiku's "SAME" is one pixel off the middle at stride 2.

BatchNorm: while training, features depend on the other images of the batch; in evaluation mode they do not.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn

# Channels of the four groups by the width of the last one.
CHANNELS = {64: (16, 32, 32, 64), 256: (64, 128, 128, 256), 512: (64, 128, 256, 512)}

_STEM = 64
_BOTTLENECK = 4
# Half of the standard normal's mass beyond two deviations is gone: its deviation is this.
_TRUNCATED = 0.87962566103423978


class Bottleneck(nn.Module):
    """1x1 to a quarter of the channels, 3x3 with the stride, 1x1 back; ReLU after the sum with the shortcut."""

    def __init__(self, inputs: int, channels: int, stride: int, project: bool) -> None:
        super().__init__()
        inner = channels // _BOTTLENECK
        self.branch = nn.Sequential(
            *_normed(inputs, inner, 1),
            nn.ReLU(),
            *_normed(inner, inner, 3, stride),
            nn.ReLU(),
            *_normed(inner, channels, 1),
        )
        last_norm = self.branch[-1]
        assert isinstance(last_norm, nn.BatchNorm2d)
        nn.init.zeros_(last_norm.weight)
        self.shortcut = nn.Sequential(*_normed(inputs, channels, 1, stride)) if project else nn.Identity()

    def forward(self, x: Float[Tensor, "images C H W"]) -> Float[Tensor, "images C2 H2 W2"]:
        return torch.relu(self.branch(x) + self.shortcut(x))


class ResNet(nn.Module):
    """Grey images to features.

    Args:
        features: E, one of `CHANNELS`.
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.stem, norm = _normed(1, _STEM, 7, 2)
        self.pool = nn.Sequential(norm, nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        blocks = []
        for group, (inputs, channels) in enumerate(pairwise((_STEM, *CHANNELS[features]))):
            blocks.append(Bottleneck(inputs, channels, 2 if group else 1, project=True))
            blocks.append(Bottleneck(channels, channels, 1, project=False))
        self.blocks = nn.Sequential(*blocks)

    def forward(self, images: Float[Tensor, "images H W"]) -> Float[Tensor, "images E"]:
        # Channels last in memory from here on takes a third less time on a CPU.
        hidden = self.stem(images.unsqueeze(1)).contiguous(memory_format=torch.channels_last)
        return self.blocks(self.pool(hidden)).mean((2, 3))


def _normed(inputs: int, outputs: int, size: int, stride: int = 1) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    convolution = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
    std = (inputs * size * size) ** -0.5 / _TRUNCATED
    nn.init.trunc_normal_(convolution.weight, std=std, a=-2 * std, b=2 * std)
    return convolution, nn.BatchNorm2d(outputs)
