"""Joint search over learning rate, warm-up, weight decay and Adam's second decay rate, with Optuna's tree-structured
Parzen estimator (Bergstra et al., 2011)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from iclbench.config.cards import TrainSettings
from iclbench.core.errors import UsageError
from iclbench.tuning.curves import Curve, Point

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.study import Study

# The ranges of the parameters: learning rate, warm-up as a share of the steps, AdamW's weight decay, 1 - beta_2.
RANGES = {"lr": (1e-4, 3e-2), "warmup": (0.0, 0.2), "weight_decay": (1e-4, 0.3), "forgetting": (1e-3, 1e-1)}
# Number of choices before the estimator's first proposal: the preset's settings, then random settings.
STARTUP_CHOICES = 10
# If this number of proposals in a row have already been tried, the next choice is random.
_MAX_PROPOSALS = 10


@dataclass(frozen=True)
class OptunaSearch:
    """A search over a given number of choices of settings, which include the preset's settings.

    Each choice is trained with all seeds. Choices depend only on the set of points, so no study needs to be stored: an
    interrupted search continues as if it had not been interrupted, and a search with more trials continues a search
    with fewer trials. Points from earlier commands count as trials, and the estimator learns from them.

    Attributes:
        trials: number of choices.
        base: the preset's training settings.
        sign: 1 if lower is better, otherwise -1.
    """

    trials: int
    base: TrainSettings
    sign: int

    def points(self, curve: Curve) -> list[Point]:
        """Return all points on these episodes with the preset's steps, including those of rate searches."""
        return curve.points()

    def next(self, points: Sequence[Point]) -> list[dict[str, Any]]:
        """Return the first `STARTUP_CHOICES` choices at once, and then one choice at a time."""
        finished = [dict(point.settings) for point in points]
        if missing := [choice for choice in self._startup() if choice not in finished]:
            return missing
        if len(points) >= self.trials:
            return []
        proposals = (self._propose(points, seed) for seed in range(len(points), len(points) + _MAX_PROPOSALS))
        return [next((choice for choice in proposals if choice not in finished), self._draw(len(points)))]

    def _startup(self) -> list[dict[str, Any]]:
        return [{"lr": self.base.lr}, *(self._draw(seed) for seed in range(1, min(self.trials, STARTUP_CHOICES)))]

    def _draw(self, seed: int) -> dict[str, Any]:
        """Return a random choice."""
        from optuna.samplers import RandomSampler

        return self._settings(_study(RandomSampler(seed=seed)).ask(_distributions()).params)

    def _propose(self, points: Sequence[Point], seed: int) -> dict[str, Any]:
        """Return the estimator's choice, given the points."""
        from optuna.samplers import TPESampler
        from optuna.trial import TrialState, create_trial

        study = _study(TPESampler(seed=seed, n_startup_trials=0))
        for point in sorted(points, key=lambda each: sorted(map(str, each.settings.items()))):
            # A failed choice has no value and must count as worse than all others, as pruned trials in Optuna do.
            outcome = {"state": TrialState.PRUNED} if point.value is None else {"value": self.sign * point.value}
            inputs = {"params": self._parameters(point.settings), "distributions": _distributions()}
            study.add_trial(create_trial(**inputs, **outcome))
        return self._settings(study.ask(_distributions()).params)

    def _settings(self, parameters: Mapping[str, float]) -> dict[str, Any]:
        """Convert parameters to rounded settings: the learning rate, and all settings that differ from the preset."""
        others = {
            "optimiser": "adamw",
            "warmup": round(parameters["warmup"] * self.base.steps),
            "weight_decay": float(f"{parameters['weight_decay']:.3g}"),
            "betas": [self.base.betas[0], round(1 - parameters["forgetting"], 4)],
        }
        preset_settings = self.base.model_dump(mode="json")
        return {"lr": float(f"{parameters['lr']:.3g}")} | {k: v for k, v in others.items() if v != preset_settings[k]}

    def _parameters(self, settings: Mapping[str, Any]) -> dict[str, float]:
        """Convert settings to parameters, clipped to their ranges; the inverse of `_settings`."""
        train = self.base.model_copy(update=dict(settings))
        parameters = {
            "lr": train.lr,
            "warmup": train.warmup / train.steps,
            "weight_decay": train.weight_decay if train.optimiser == "adamw" else 0.0,
            "forgetting": 1 - train.betas[1],
        }
        return {name: min(max(value, RANGES[name][0]), RANGES[name][1]) for name, value in parameters.items()}


def check_optuna() -> None:
    """Raise `UsageError` if Optuna is not installed."""
    if find_spec("optuna") is None:
        raise UsageError("--trials: optuna is not installed; pip install 'iclbench[optuna]'", code="missing-package")


def _distributions() -> dict[str, BaseDistribution]:
    from optuna.distributions import FloatDistribution

    return {name: FloatDistribution(low, high, log=low > 0) for name, (low, high) in RANGES.items()}


def _study(sampler: BaseSampler) -> Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna.create_study(sampler=sampler)
