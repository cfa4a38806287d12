"""A small classification family (noisy copies of class prototypes) with two tests, and a network with batch
norm."""

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
    """The family has no parameters."""


class Prototypes(Family):
    """Training classes have fixed prototypes and labels. Test `icl` draws two new prototypes with labels 0 and 1."""

    Parameters = Parameters
    questions = frozenset({"targets"})
    classes = CLASSES
    x_dim = DIM

    def evaluators(self) -> dict[str, Evaluator]:
        return {"icl": Evaluator(0.5), "icl_paired": Evaluator(0.25, group_size=2)}

    def sample(self, request: Request) -> Episodes:
        episodes, points, generator = request.episodes, request.points, request.generator
        prototypes = torch.randn(CLASSES, DIM, generator=torch.Generator().manual_seed(0))
        labels = torch.rand(episodes, CLASSES, generator=generator).argsort(1)[:, :2]
        return self._episodes(prototypes[labels], labels, points, generator)

    def sample_test(self, evaluator, episodes, generator) -> Episodes:
        if evaluator == "icl":
            prototypes = torch.randn(episodes, 2, DIM, generator=generator)
            return self._episodes(prototypes, torch.arange(2).expand(episodes, 2), 6, generator)
        if evaluator == "icl_paired":
            repeated = self.sample_test("icl", episodes // 2, generator).map(lambda t: t.repeat_interleave(2, 0))
            has_exchanged_labels = (torch.arange(episodes) % 2).bool().unsqueeze(1)
            return replace(
                repeated,
                **{
                    name: replace(points, y=torch.where(has_exchanged_labels, 1 - points.y, points.y))
                    for name, points in {"context": repeated.context, "targets": repeated.queries}.items()
                },
            )
        return super().sample_test(evaluator, episodes, generator)

    def _episodes(
        self, prototypes: Float[Tensor, "B 2 D"], labels: Int[Tensor, "B 2"], points: int, generator: torch.Generator
    ) -> Episodes:
        batch = len(labels)
        indices = torch.randint(2, (batch, points + 1), generator=generator)
        x = prototypes.gather(1, indices.unsqueeze(-1).expand(-1, -1, DIM))
        x = x + NOISE * torch.randn(x.shape, generator=generator)
        all_points = Points.full(x, labels.gather(1, indices))
        targets = all_points.span(points)
        choices = torch.zeros(batch, CLASSES, dtype=torch.bool).scatter(1, labels, True)
        return Episodes(all_points.span(0, points), targets.mask, targets, classes=CLASSES, choices=choices)


class Net(Backbone):
    """A network that reads the features of the target and the mean features of the context.

    Batch normalisation differs between train and eval mode.
    """

    Settings = Parameters

    def __init__(self, settings, shape) -> None:
        super().__init__(settings, shape)
        self.features = nn.Sequential(nn.Linear(DIM, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.read_out = nn.Linear(32, shape.raw_dim)

    def predict_targets(self, context, x_target, related=None):
        x = torch.cat([context.x, x_target], 1)
        hidden = self.features(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        context_features, target_features = hidden.split([context.count, x_target.shape[1]], 1)
        mean = context_features.mean(1, keepdim=True).expand_as(target_features)
        return self.read(self.read_out(torch.cat([target_features, mean], -1)))


def prototype_card(**changes: object) -> dict[str, object]:
    """Return a card of `Prototypes` whose smoke preset trains in about a second."""
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
