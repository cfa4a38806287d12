"""Small set models, masked episodes of different sizes, and parameter counts of layers."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from iclbench.core.episodes import Episodes, Points
from iclbench.core.task import TaskShape
from iclbench.registry import BACKBONES

SMALL: dict[str, Any] = {"layers": 2, "width": 8, "heads": 2}
# The numbers of context points and targets of each episode of a batch.
SIZES = [(5, 4), (0, 2), (3, 1)]


def build(name: str, settings: dict[str, Any] | None = None, head: str = "gaussian", **task: Any) -> Any:
    """Build a model with perturbed parameters, so that no bias is 0 and norms scale and shift their inputs."""
    cls = BACKBONES.get(name)
    torch.manual_seed(0)
    defaults = {"x_dim": 2, "points": 9, "y_dim": 2, "question": "targets", "floor": 0.1}
    shape = TaskShape(head=head, **defaults | task)  # type: ignore[arg-type]
    model = cls(cls.Settings(**SMALL | (settings or {})), shape)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return model.double()


def batch(sizes: list[tuple[int, int]] = SIZES) -> Episodes:
    """Return masked episodes of these sizes. Masked values are large, and the first target is masked."""
    generator = torch.Generator().manual_seed(1)

    def points(count: int, mask: Tensor) -> Points:
        x, y = (torch.randn(len(sizes), count, 2, generator=generator, dtype=torch.float64) for _ in range(2))
        offset = 50 * ~mask.unsqueeze(-1)
        return Points(x + offset, y - offset, mask)

    context = points(5, torch.tensor([[i < n for i in range(5)] for n, _ in sizes]))
    targets = points(6, torch.tensor([[0 < i <= n for i in range(6)] for _, n in sizes]))
    return Episodes(context=context, targets=targets, scored=targets.mask)


def unpadded_episode(episodes: Episodes, b: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the valid context points and targets of one episode."""
    context, targets = episodes.context, episodes.queries
    return (
        context.x[b, context.mask[b]],
        context.y[b, context.mask[b]],
        targets.x[b, targets.mask[b]],
        targets.y[b, targets.mask[b]],
    )


def mlp_parameters(*widths: int) -> int:
    """Return the number of parameters of consecutive linear layers."""
    return sum(a * b + b for a, b in pairwise(widths))


def encoder_parameters(layers: int) -> int:
    """Return the number of parameters of encoder layers of the published width."""
    return layers * sum(p.numel() for p in nn.TransformerEncoderLayer(64, 4, 128).parameters())


def default_parameters(name: str, dx: int, dy: int, **settings: Any) -> int:
    """Return the number of parameters of a backbone with a Gaussian head. Unspecified settings have their defaults."""
    cls = BACKBONES.get(name)
    shape = TaskShape(x_dim=dx, points=50, y_dim=dy, head="gaussian", question="targets")
    return int(cls(cls.Settings(**settings), shape).parameter_count)
