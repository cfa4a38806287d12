"""Learning rate, warm-up, weight decay and Adam's second rate of decay together, by Optuna's tree-structured Parzen
estimator (Bergstra et al., 2011)."""

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

# What is drawn: the learning rate, the share of the steps that is warm-up, AdamW's weight decay, 1 - beta_2.
RANGES = {"lr": (1e-4, 3e-2), "warmup": (0.0, 0.2), "weight_decay": (1e-4, 0.3), "forgetting": (1e-3, 1e-1)}
# Choices that are drawn before any is looked at, the preset's own settings the first.
STARTUP = 10
# How often a choice that was tried before is proposed, until one is drawn at random.
_DRAWS = 10


@dataclass(frozen=True)
class OptunaSearch:
    """So many choices of settings, each trained from every seed; the preset's own are one of them.

    No study is kept: every choice follows from the points alone, in whatever order they were found, so that a search
    that was killed goes on as if it had not been, and one for more trials goes on from one for fewer. Points of
    earlier commands count and are learned from.

    Attributes:
        trials: how many choices.
        base: what the preset trains with.
        sign: 1 where less is better, else -1.
    """

    trials: int
    base: TrainSettings
    sign: int

    def points(self, curve: Curve) -> list[Point]:
        """All that was tried on these episodes with the preset's steps, learning rates alone among it."""
        return curve.points()

    def next(self, points: Sequence[Point]) -> list[dict[str, Any]]:
        """The first `STARTUP` choices side by side, then one after the other."""
        tried = [dict(point.settings) for point in points]
        if missing := [each for each in self._startup() if each not in tried]:
            return missing
        if len(points) >= self.trials:
            return []
        proposed = (self._proposed(points, seed) for seed in range(len(points), len(points) + _DRAWS))
        return [next((each for each in proposed if each not in tried), self._drawn(len(points)))]

    def _startup(self) -> list[dict[str, Any]]:
        return [{"lr": self.base.lr}, *(self._drawn(seed) for seed in range(1, min(self.trials, STARTUP)))]

    def _drawn(self, seed: int) -> dict[str, Any]:
        """A choice at random."""
        from optuna.samplers import RandomSampler

        return self._settings(_study(RandomSampler(seed=seed)).ask(_distributions()).params)

    def _proposed(self, points: Sequence[Point], seed: int) -> dict[str, Any]:
        from optuna.samplers import TPESampler
        from optuna.trial import TrialState, create_trial

        study = _study(TPESampler(seed=seed, n_startup_trials=0))
        for point in sorted(points, key=lambda each: sorted(map(str, each.settings.items()))):
            # What failed is worse than all else, and by how much is not known: as Optuna takes what was given up.
            found = {"state": TrialState.PRUNED} if point.value is None else {"value": self.sign * point.value}
            known = {"params": self._parameters(point.settings), "distributions": _distributions()}
            study.add_trial(create_trial(**known, **found))
        return self._settings(study.ask(_distributions()).params)

    def _settings(self, parameters: Mapping[str, float]) -> dict[str, Any]:
        """Rounded to what a person would type; but for the rate, only what the preset has not."""
        others = {
            "optimiser": "adamw",
            "warmup": round(parameters["warmup"] * self.base.steps),
            "weight_decay": float(f"{parameters['weight_decay']:.3g}"),
            "betas": [self.base.betas[0], round(1 - parameters["forgetting"], 4)],
        }
        plain = self.base.model_dump(mode="json")
        return {"lr": float(f"{parameters['lr']:.3g}")} | {k: v for k, v in others.items() if v != plain[k]}

    def _parameters(self, settings: Mapping[str, Any]) -> dict[str, float]:
        """What `_settings` makes of them, each within its range."""
        train = self.base.model_copy(update=dict(settings))
        given = {
            "lr": train.lr,
            "warmup": train.warmup / train.steps,
            "weight_decay": train.weight_decay if train.optimiser == "adamw" else 0.0,
            "forgetting": 1 - train.betas[1],
        }
        return {name: min(max(value, RANGES[name][0]), RANGES[name][1]) for name, value in given.items()}


def check_optuna() -> None:
    """Raise `UsageError` where Optuna is not installed."""
    if find_spec("optuna") is None:
        raise UsageError("--trials: optuna is not installed; pip install 'iclbench[optuna]'")


def _distributions() -> dict[str, BaseDistribution]:
    from optuna.distributions import FloatDistribution

    return {name: FloatDistribution(low, high, log=low > 0) for name, (low, high) in RANGES.items()}


def _study(sampler: BaseSampler) -> Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna.create_study(sampler=sampler)
