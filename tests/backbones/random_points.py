"""Random points for the tests of sequence backbones."""

import torch

from iclbench.core.episodes import Points


def points(batch: int = 3, count: int = 12, dim: int = 5) -> Points:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(batch, count, dim, generator=generator)
    return Points.full(x, torch.randn(batch, count, 1, generator=generator))
