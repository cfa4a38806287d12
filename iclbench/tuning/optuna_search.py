"""Joint search over learning rate, warm-up, weight decay and Adam's second decay rate, by Optuna's tree-structured
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

# The ranges of a draw: learning rate, warm-up as a share of the steps, AdamW's weight decay, 1 - beta_2.
RANGES = {"lr": (1e-4, 3e-2), "warmup": (0.0, 0.2), "weight_decay": (1e-4, 0.3), "forgetting": (1e-3, 1e-1)}
# Number of choices before the estimator proposes one: the preset's settings, then random ones.
STARTUP_CHOICES = 10
# If this number of proposals has been tried before, a choice is drawn at random.
_MAX_PROPOSALS = 10


@dataclass(frozen=True)
class OptunaSearch:
    """A number of choices of settings, each trained from every seed. The preset's settings are one of them.

    No study is stored, and every choice is a function of the set of points. So an interrupted search continues as if
    it had not been interrupted, and a search with more trials continues one with fewer. Points of earlier commands
    count, and the estimator learns from them.

    Attributes:
        trials: number of choices.
        base: the preset's training settings.
        sign: 1 if lower is better, else -1.
    """

    trials: int
    base: TrainSettings
    sign: int

    def points(self, curve: Curve) -> list[Point]:
        """All points on these episodes with the preset's steps, including those of learning rates alone."""
        return curve.points()

    def next(self, points: Sequence[Point]) -> list[dict[str, Any]]:
        """The first `STARTUP_CHOICES` choices in parallel, then one after the other."""
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
        """A random choice."""
        from optuna.samplers import RandomSampler

        return self._settings(_study(RandomSampler(seed=seed)).ask(_distributions()).params)

    def _propose(self, points: Sequence[Point], seed: int) -> dict[str, Any]:
        """The estimator's choice, given the points."""
        from optuna.samplers import TPESampler
        from optuna.trial import TrialState, create_trial

        study = _study(TPESampler(seed=seed, n_startup_trials=0))
        for point in sorted(points, key=lambda each: sorted(map(str, each.settings.items()))):
            # A failed choice has no value but is worse than all others. Optuna treats pruned trials like this.
            outcome = {"state": TrialState.PRUNED} if point.value is None else {"value": self.sign * point.value}
            inputs = {"params": self._parameters(point.settings), "distributions": _distributions()}
            study.add_trial(create_trial(**inputs, **outcome))
        return self._settings(study.ask(_distributions()).params)

    def _settings(self, parameters: Mapping[str, float]) -> dict[str, Any]:
        """Rounded settings: the rate, and those that differ from the preset."""
        others = {
            "optimiser": "adamw",
            "warmup": round(parameters["warmup"] * self.base.steps),
            "weight_decay": float(f"{parameters['weight_decay']:.3g}"),
            "betas": [self.base.betas[0], round(1 - parameters["forgetting"], 4)],
        }
        preset_settings = self.base.model_dump(mode="json")
        return {"lr": float(f"{parameters['lr']:.3g}")} | {k: v for k, v in others.items() if v != preset_settings[k]}

    def _parameters(self, settings: Mapping[str, Any]) -> dict[str, float]:
        """The inverse of `_settings`, with each parameter clipped to its range."""
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
