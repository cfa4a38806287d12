"""A tiny classification family with tests of its own, noisy copies of class prototypes, and a net with batch
normalisation for it."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from iclbench.backbones.base import Backbone
from iclbench.core.episodes import Episodes, Points
from iclbench.core.settings import BaseSettings
from iclbench.families.base import Evaluator, Family
from iclbench.families.request import Request

CLASSES, DIM, NOISE = 6, 4, 0.3


class Parameters(BaseSettings):
    """Nothing can be set."""


class Prototypes(Family):
    """Training classes have fixed prototypes and labels; `icl` draws two new ones and calls them 0 and 1."""

    Parameters = Parameters
    questions = frozenset({"targets"})
    classes = CLASSES
    x_dim = DIM

    def evaluators(self) -> dict[str, Evaluator]:
        return {"icl": Evaluator(0.5), "icl_paired": Evaluator(0.25, group_size=2)}

    def sample(self, request: Request) -> Episodes:
        episodes, points, generator = request.episodes, request.points, request.generator
        fixed = torch.randn(CLASSES, DIM, generator=torch.Generator().manual_seed(0))
        labels = torch.rand(episodes, CLASSES, generator=generator).argsort(1)[:, :2]
        return self._episodes(fixed[labels], labels, points, generator)

    def sample_test(self, evaluator, episodes, generator) -> Episodes:
        if evaluator == "icl":
            new = torch.randn(episodes, 2, DIM, generator=generator)
            return self._episodes(new, torch.arange(2).expand(episodes, 2), 6, generator)
        if evaluator == "icl_paired":
            once = self.sample_test("icl", episodes // 2, generator).map(lambda t: t.repeat_interleave(2, 0))
            exchanged = (torch.arange(episodes) % 2).bool().unsqueeze(1)
            return replace(
                once,
                **{
                    name: replace(points, y=torch.where(exchanged, 1 - points.y, points.y))
                    for name, points in {"context": once.context, "targets": once.asked}.items()
                },
            )
        return super().sample_test(evaluator, episodes, generator)

    def _episodes(
        self, prototypes: Float[Tensor, "B 2 D"], labels: Int[Tensor, "B 2"], points: int, generator: torch.Generator
    ) -> Episodes:
        batch = len(labels)
        which = torch.randint(2, (batch, points + 1), generator=generator)
        x = prototypes.gather(1, which.unsqueeze(-1).expand(-1, -1, DIM))
        x = x + NOISE * torch.randn(x.shape, generator=generator)
        every = Points.full(x, labels.gather(1, which))
        asked = every.span(points)
        choices = torch.zeros(batch, CLASSES, dtype=torch.bool).scatter(1, labels, True)
        return Episodes(every.span(0, points), asked.mask, asked, classes=CLASSES, choices=choices)


class Net(Backbone):
    """Features of target and context through a layer that knows of train and eval mode."""

    Settings = Parameters

    def __init__(self, settings, shape) -> None:
        super().__init__(settings, shape)
        self.features = nn.Sequential(nn.Linear(DIM, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.read_out = nn.Linear(32, shape.raw_dim)

    def predict_targets(self, context, x_target, related=None):
        every = torch.cat([context.x, x_target], 1)
        hidden = self.features(every.flatten(0, 1)).unflatten(0, every.shape[:2])
        seen, asked = hidden.split([context.count, x_target.shape[1]], 1)
        return self.read(self.read_out(torch.cat([asked, seen.mean(1, keepdim=True).expand_as(asked)], -1)))


def prototype_card(**changes: object) -> dict[str, object]:
    """A card on it whose smoke preset trains in about a second."""
    preset = {
        "points": 6,
        "episodes": 70,
        "train": {
            "steps": 12,
            "batch": 8,
            "lr": 1e-3,
            "log_every": 4,
            "checkpoint_every": 3,
            "evaluate_every": 5,
        },
        "backbones": {"gpt2": {"layers": 2, "width": 16, "heads": 2}},
    }
    card: dict[str, object] = {
        "family": "tests.prototypes:Prototypes",
        "summary": "noisy copies of prototypes",
        "question": "targets",
        "head": "categorical",
        "baselines": ["pixel-1nn", "nearest-class-mean", "majority"],
        "evaluators": ["icl", "icl_paired"],
        "presets": {"smoke": preset},
    }
    return card | changes
