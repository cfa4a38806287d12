"""Models and episodes for the tests of two-path neural processes."""

from dataclasses import replace

import numpy as np
import torch

from iclbench.backbones.base import Backbone, TaskShape
from iclbench.core.episodes import Episodes, Points
from iclbench.registry import BACKBONES

SMALL = {"width": 8, "decoder_width": 6}
# The number of context points of every episode of a batch.
SIZES = (5, 1, 7, 0)
Rows = tuple[np.ndarray, np.ndarray]


def build(name: str, head: str = "gaussian", **settings: object) -> Backbone:
    """Build a model in double precision whose biases are not 0 and whose gains are not 1."""
    cls = BACKBONES.get(name)
    torch.manual_seed(0)
    attention = {"heads": 2} if "heads" in cls.Settings.model_fields else {}
    classes = 4 if head == "categorical" else None
    shape = TaskShape(x_dim=2, points=9, y_dim=2, classes=classes, head=head, question="targets")
    model = cls(cls.Settings(**SMALL | attention | settings), shape)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.4 * torch.randn_like(parameter))
    return model.double()


def batch(sizes: tuple[int, ...] = SIZES, targets: int = 4) -> Episodes:
    """Return masked episodes of these sizes. Masked values are large."""
    generator = torch.Generator().manual_seed(0)

    def points(count: int) -> Points:
        x, y = (torch.randn(len(sizes), count, 2, generator=generator, dtype=torch.float64) for _ in range(2))
        return Points.full(x, y)

    context, target_points = points(max(sizes) + 1), points(targets)
    mask = torch.arange(context.count) < torch.tensor(sizes).unsqueeze(1)
    offset = 50 * ~mask.unsqueeze(-1)
    return Episodes(Points(context.x + offset, context.y - offset, mask), target_points.mask, target_points)


def rows(points: Points, episode: int) -> Rows:
    """Return the valid points of one episode."""
    valid = points.mask[episode]
    return points.x[episode][valid].numpy(), points.y[episode][valid].numpy()


def reordered_and_padded(points: Points) -> Points:
    """Return the points in reverse order, each followed by a masked copy of it."""
    doubled = points.map(lambda t: t.flip(1).repeat_interleave(2, 1))
    is_original = torch.arange(doubled.count) % 2 == 0
    return replace(doubled, mask=doubled.mask & is_original)
