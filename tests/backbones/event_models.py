"""Small models, masked events, and Poisson processes of unknown rate, for the tests of `thp` and `cmhp`."""

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
# Largest rate of the Poisson processes; the smallest is its inverse. Rates are log-uniform.
MAX_RATE = 10.0


def model(cls: type[EventBackbone], dtype: torch.dtype = torch.float64, **settings: object) -> EventBackbone:
    """Build a model and perturb all parameters, so that norms scale and shift."""
    torch.manual_seed(0)
    backbone = cls(cls.Settings(**settings), SHAPE).eval()
    with torch.no_grad():
        for p in backbone.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return backbone.to(dtype)


def events(count: int = COUNT, batch: int = 2, masked: bool = True, dtype: torch.dtype = torch.float64) -> Points:
    """Return random events. If `masked`, some of them are invalid."""
    generator = torch.Generator().manual_seed(1)
    gaps = 0.1 + 2 * torch.rand(batch, count, generator=generator, dtype=torch.float64)
    marks = torch.randint(MARKS, gaps.shape, generator=generator)
    y = torch.stack([gaps, marks.to(gaps), gaps.cumsum(1)], -1).to(dtype)
    valid = torch.rand(batch, count, generator=generator) > 0.25
    return Points(y[..., :0], y, valid | (not masked))


def empty_queries(batch: int = 2, queries: int = 1) -> Tensor:
    """Return queries for events. Their inputs x have no dimensions."""
    return torch.zeros(batch, queries, 0)


def assert_same(actual: Prediction, expected: Prediction, tolerance: float) -> None:
    for a, b in zip(actual.tensors().values(), expected.tensors().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def poisson(episodes: int, count: int, generator: torch.Generator) -> tuple[Episodes, Tensor]:
    """Sample Poisson processes and their rates `(B, 1)`."""
    rates = (math.log(MAX_RATE) * (2 * torch.rand(episodes, 1, generator=generator) - 1)).exp()
    gaps = torch.empty(episodes, count).exponential_(generator=generator) / rates
    y = torch.stack([gaps, torch.zeros_like(gaps), gaps.cumsum(1)], -1)
    points = Points.full(y[..., :0], y)
    return Episodes(context=points, scored=points.mask), rates


def train_and_measure_skill(cls: type[EventBackbone], steps: int, lr: float, **settings: object) -> float:
    """Train a model and return its skill on the second half of 10 events. The skill is linear in nats per event: 0 for
    a predictor that knows only the distribution of rates, and 1 for a predictor with the true rate."""
    torch.manual_seed(0)
    backbone = cls(cls.Settings(**settings), TaskShape(x_dim=0, points=12, y_dim=3, marks=1, head="event")).train()
    optimiser, generator = torch.optim.Adam(backbone.parameters(), lr=lr), torch.Generator().manual_seed(0)
    for _ in range(steps):
        loss, _ = backbone.loss(poisson(24, 10, generator)[0], 0.5, generator)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    episodes, rates = poisson(512, 10, generator)
    y = episodes.context.y
    with torch.no_grad():
        model_loss = backbone.eval().predict_next(episodes.context).loss(y)[:, 5:].mean()
    gaps = y[:, 5:, 0]
    optimal_loss = (rates * gaps - rates.log()).mean()
    # The predictive density without a context, by the trapezoidal rule over the logarithm of the rate.
    logs = np.linspace(-math.log(MAX_RATE), math.log(MAX_RATE), 400)
    density = np.trapezoid(np.exp(logs - np.exp(logs) * gaps.numpy()[..., None]), logs) / (logs[-1] - logs[0])
    prior_loss = -np.log(density).mean()
    return float((prior_loss - model_loss) / (prior_loss - optimal_loss))
