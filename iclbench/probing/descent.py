"""Gradient descent (GD) and GD++, for comparison with the layers of a model on functions that are linear in x.

The number of steps is the number of Mamba's layers in the paper (Grazzi et al. 2024). GD++ has two variants, whose step
sizes 2/(L + mu) depend on the extreme eigenvalues L and mu of a covariance. The first variant uses the covariance of
the raw inputs, as in the code of the paper. The second one uses the covariance of the transformed inputs, which is
theoretically optimal, as in the text of the paper.

The gamma of GD++ minimises the mean error after the last step (figure 11). The paper searches for gamma on the scored
tasks. We search for it on the same number of independently drawn tasks, so that the scored tasks are held out.
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
# For d = 20 and 40 examples, the paper searches 300 candidates from 1e-6 to 1e-3, 100 per decade. For smaller X'X, the
# best gamma is larger, so decades up to 1e2 are added to the grid until the best candidate is not the last one. For
# much larger X'X, the best gamma could be smaller than all candidates; the first candidate is then used.
_DECADES = (-6, -3)
_LAST_DECADE = 2
_PER_DECADE = 100


@dataclass(frozen=True)
class Descent:
    """GD, or GD++ with one of its step sizes.

    Attributes:
        name: name in the tables.
        step_size: the step size of GD++; None for GD.
    """

    name: str
    step_size: StepSize | None = None

    @property
    def contestant(self) -> PredictorContestant:
        """The contestant in the tables. Its identity does not include gamma, which differs between probe sets."""
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
    """Return the squared error on the test queries after 1, 2, ... steps, divided by the normaliser. Unlike for layers,
    no scale or shift is fitted."""
    episodes, test = prompts.episodes, slice(prompts.fit, None)
    answers = descent_curve(episodes.context, episodes.queries.x[:, test], STEPS, gamma, step_size)
    return (answers - episodes.queries.y[:, test].double()).square().mean(1) / prompts.family.normaliser


@dataclass(frozen=True)
class GammaSearch:
    """The result of a search for gamma.

    Attributes:
        best: the best gamma.
        grid: the candidates.
        errors: the error of each candidate, divided by the normaliser.
    """

    best: float
    grid: Float[Tensor, " G"]
    errors: Float[Tensor, " G"]


def tune_gamma(prompts: ProbeSet, step_size: StepSize) -> GammaSearch:
    """Search for the best gamma on the tuning episodes of a probe set."""
    context, targets = prompts.tuning_episodes.context, prompts.tuning_episodes.queries.span(prompts.fit)
    low, high = _DECADES
    while True:
        grid = torch.logspace(low, high, _PER_DECADE * (high - low), dtype=torch.float64)
        best, errors = search_gamma(context, targets, STEPS, step_size, grid)
        if best < float(grid[-1]) or high == _LAST_DECADE:
            return GammaSearch(best, grid, errors / prompts.family.normaliser)
        high += 1
