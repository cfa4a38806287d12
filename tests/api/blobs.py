"""A tiny classification family of vectors: noisy copies of one centre per class, with new centres in every episode."""

from __future__ import annotations

import torch

from iclbench.core.episodes import Episodes, Points
from iclbench.core.settings import BaseSettings
from iclbench.families.base import Family
from iclbench.families.request import Request

CLASSES = 5
CARD = {
    "family": "tests.api.blobs:Blobs",
    "summary": "noisy copies of centres",
    "question": "targets",
    "head": "categorical",
    "baselines": ["majority"],
    "presets": {
        "smoke": {
            "points": 20,
            "episodes": 16,
            "train": {"steps": 60, "batch": 16, "lr": 0.003, "log_every": 20},
            "backbones": {"cnp": {"width": 16}},
        }
    },
}


class Parameters(BaseSettings):
    """The parameters of the family: the number of features."""

    dim: int = 10


class Blobs(Family):
    """Vectors around random centres. The label of a vector is the index of its centre."""

    Parameters = Parameters
    questions = frozenset({"targets"})
    classes = CLASSES

    @property
    def x_dim(self) -> int:
        return int(self.parameters.dim)

    def sample(self, request: Request) -> Episodes:
        count, generator = request.points + 4, request.generator
        centres = torch.randn(request.episodes, CLASSES, self.x_dim, generator=generator)
        labels = torch.randint(CLASSES, (request.episodes, count), generator=generator)
        x = centres.gather(1, labels.unsqueeze(-1).expand(-1, -1, self.x_dim))
        points = Points.full(x + 0.3 * torch.randn(x.shape, generator=generator), labels)
        targets = points.span(request.points)
        choices = torch.ones(request.episodes, CLASSES, dtype=torch.bool)
        return Episodes(points.span(0, request.points), targets.mask, targets, classes=CLASSES, choices=choices)
