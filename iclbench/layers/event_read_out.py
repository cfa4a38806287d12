"""The read-out that predicts the next event from a hidden vector (Bae et al. 2023, Meta TPP)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from iclbench.core.task import TaskShape


class EventReadOut(nn.Module):
    """Maps hidden vectors to the parameters of a mixture of log-normals for the gap, with one hidden layer of tanh
    units, and to the logits of the marks, with a separate linear layer.

    Args:
        width: width of the hidden vectors that are decoded.
        hidden: width of the hidden layer.
        shape: a task with events.
    """

    def __init__(self, width: int, hidden: int, shape: TaskShape) -> None:
        super().__init__()
        gaps = shape.raw_dim - shape.outputs
        self.gap = nn.Sequential(nn.Linear(width, hidden), nn.Tanh(), nn.Linear(hidden, gaps))
        self.mark = nn.Linear(width, shape.outputs)

    def forward(self, hidden: Float[Tensor, "*shape width"]) -> Float[Tensor, "*shape raw"]:
        """Return the raw outputs for `LogNormalEvent.from_raw`."""
        return torch.cat([self.gap(hidden), self.mark(hidden)], -1)
