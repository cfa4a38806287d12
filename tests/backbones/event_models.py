"""What the tests of `thp` and `cmhp` share: small models, events with holes, and Poisson processes of unknown rate."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from iclbench.backbones.event_backbone import EventBackbone
from iclbench.core.episodes import Episodes, Points
from iclbench.core.predictions import Prediction
from iclbench.core.task import TaskShape

MARKS, COUNT = 3, 9
SHAPE = TaskShape(x_dim=0, points=12, y_dim=3, marks=MARKS, head="event")
# Rates of the Poisson processes are log-uniform between its inverse and this.
FASTEST = 10.0


def model(cls: type[EventBackbone], dtype: torch.dtype = torch.float64, **settings: object) -> EventBackbone:
    """Norms scale and shift too, unlike at the start of training."""
    torch.manual_seed(0)
    own = cls(cls.Settings(**settings), SHAPE).eval()
    with torch.no_grad():
        for p in own.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return own.to(dtype)


def events(count: int = COUNT, batch: int = 2, holes: bool = True, dtype: torch.dtype = torch.float64) -> Points:
    """Random events; with holes some of them are masked."""
    draw = torch.Generator().manual_seed(1)
    gaps = 0.1 + 2 * torch.rand(batch, count, generator=draw, dtype=torch.float64)
    marks = torch.randint(MARKS, gaps.shape, generator=draw)
    y = torch.stack([gaps, marks.to(gaps), gaps.cumsum(1)], -1).to(dtype)
    there = torch.rand(batch, count, generator=draw) > 0.25
    return Points(y[..., :0], y, there | (not holes))


def nothing_asked(batch: int = 2, queries: int = 1) -> Tensor:
    """Queries about events, which have no x."""
    return torch.zeros(batch, queries, 0)


def assert_same(found: Prediction, expected: Prediction, tolerance: float) -> None:
    for a, b in zip(found.tensors().values(), expected.tensors().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def poisson(episodes: int, count: int, draw: torch.Generator) -> tuple[Episodes, Tensor]:
    """Poisson processes, and their rates `(B, 1)`."""
    rates = (math.log(FASTEST) * (2 * torch.rand(episodes, 1, generator=draw) - 1)).exp()
    gaps = torch.empty(episodes, count).exponential_(generator=draw) / rates
    y = torch.stack([gaps, torch.zeros_like(gaps), gaps.cumsum(1)], -1)
    points = Points.full(y[..., :0], y)
    return Episodes(context=points, scored=points.mask), rates


def share_learned_in_context(cls: type[EventBackbone], steps: int, lr: float, **settings: object) -> float:
    """Of what is lost by whoever knows the distribution of rates and nothing of the episode, in nats per event to the
    true rate, the share that a model has got back after some steps of training, on the second half of 10 events."""
    torch.manual_seed(0)
    own = cls(cls.Settings(**settings), TaskShape(x_dim=0, points=12, y_dim=3, marks=1, head="event")).train()
    optimiser, draw = torch.optim.Adam(own.parameters(), lr=lr), torch.Generator().manual_seed(0)
    for _ in range(steps):
        loss, _ = own.loss(poisson(24, 10, draw)[0], 0.5, draw)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    episodes, rates = poisson(512, 10, draw)
    y = episodes.context.y
    with torch.no_grad():
        found = own.eval().predict_next(episodes.context).loss(y)[:, 5:].mean()
    gaps = y[:, 5:, 0]
    known = (rates * gaps - rates.log()).mean()
    # The density without a context, by the trapezoidal rule over the logarithm of the rate.
    logs = np.linspace(-math.log(FASTEST), math.log(FASTEST), 400)
    density = np.trapezoid(np.exp(logs - np.exp(logs) * gaps.numpy()[..., None]), logs) / (logs[-1] - logs[0])
    blind = -np.log(density).mean()
    return float((blind - found) / (blind - known))
