"""Gradient descent and GD++, compared with the layers of a model, where the functions are linear in x.

As many steps as the paper's Mamba has layers. GD++ comes in the paper's two readings: the step 2/(L + mu) from the
covariance of the raw inputs (its code) or of the transformed ones (theoretically optimal, its text). Its gamma is
searched for the smallest mean error after the last step (figure 11). The paper searches on the tasks that it then
scores; here the search has as many tasks of its own, drawn independently, so that the scored ones stay unseen.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from iclbench.estimators.gradient_descent import DescentSettings, GradientDescent, StepSize, descent_curve, search_gamma
from iclbench.evaluation.contestants import PredictorContestant
from iclbench.probing.probe_set import ProbeSet
from iclbench.store import identity

STEPS = 24
# The stated search: 300 candidates from 1e-6 to 1e-3, a hundred per decade. It was made for d = 20 and 40 examples;
# with smaller X'X the best gamma is larger, and the grid goes on by decades until the best lies below its end. With far
# larger X'X it would be smaller than the first candidate, which is used instead.
_DECADES = (-6, -3)
_LAST_DECADE = 2
_PER_DECADE = 100


@dataclass(frozen=True)
class Descent:
    """GD (`step_size` None) or GD++ with one of its step sizes, under its name in the tables."""

    name: str
    step_size: StepSize | None = None

    @property
    def contestant(self) -> PredictorContestant:
        """A baseline; gamma belongs to the probe set and is found there."""
        return PredictorContestant(
            self.name,
            self.name,
            "baseline",
            identity.descent_id(STEPS, self.step_size, [*_DECADES, _LAST_DECADE, _PER_DECADE]),
            libraries={"torch": torch.__version__},
            predictor=GradientDescent(DescentSettings(steps=STEPS)),
        )


DESCENTS = (
    Descent("gd"),
    Descent("gd-plus-plus", "raw"),
    Descent("gd-plus-plus-transformed", "transformed"),
)


def step_errors(prompts: ProbeSet, gamma: float = 0.0, step_size: StepSize = "raw") -> Float[Tensor, "B steps"]:
    """Squared error over the normaliser on the test queries after 1, 2, ... steps, without scale and shift."""
    episodes, test = prompts.episodes, slice(prompts.fit, None)
    answers = descent_curve(episodes.context, episodes.asked.x[:, test], STEPS, gamma, step_size)
    return (answers - episodes.asked.y[:, test].double()).square().mean(1) / prompts.family.normaliser


@dataclass(frozen=True)
class GammaSearch:
    """The best gamma, the candidates and their errors over the normaliser, `(candidates,)` each."""

    best: float
    grid: Float[Tensor, " G"]
    errors: Float[Tensor, " G"]


def tune_gamma(prompts: ProbeSet, step_size: StepSize) -> GammaSearch:
    """Search on the tuning episodes of a probe set."""
    context, targets = prompts.tuning.context, prompts.tuning.asked.span(prompts.fit)
    low, high = _DECADES
    while True:
        grid = torch.logspace(low, high, _PER_DECADE * (high - low), dtype=torch.float64)
        best, errors = search_gamma(context, targets, STEPS, step_size, grid)
        if best < float(grid[-1]) or high == _LAST_DECADE:
            return GammaSearch(best, grid, errors / prompts.family.normaliser)
        high += 1
