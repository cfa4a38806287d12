"""What an estimator is: a predictor without weights that is fitted inside each episode, for every prefix at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from iclbench.cards import Strict
from iclbench.predictor import Predictor


@dataclass(frozen=True)
class TaskFacts:
    """What an estimator may know of the task beside the points.

    Attributes:
        noise_to_signal: label noise variance over the prior variance of a weight; the Bayes-optimal ridge penalty.
        hidden_width: width of the task's own networks.
    """

    noise_to_signal: float = 0.0
    hidden_width: int = 100


class NoSettings(Strict):
    """An estimator that has nothing to set."""


class Estimator(Predictor, abstract=True):
    """A classical method. The answer from an empty context is 0.

    Attributes:
        Settings: what a baseline card may set.
        costly: whether it is fitted prefix by prefix, so that small presets ask it on a geometric grid of prefixes only.
    """

    Settings: ClassVar[type[Strict]] = NoSettings
    costly: ClassVar[bool] = False

    def __init__(self, settings: Any = None, facts: TaskFacts | None = None, seed: int = 0) -> None:
        self.settings = self.Settings() if settings is None else settings
        self.facts = facts or TaskFacts()
        self.seed = seed
