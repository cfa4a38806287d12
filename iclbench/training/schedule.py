"""Learning rates over a run."""

import math

from iclbench.config.cards import TrainSettings


def learning_rate(settings: TrainSettings, step: int) -> float:
    """The learning rate of `step` (from 0): linear warm-up, then constant, cosine to 0, or inverse square root.

    The inverse square root starts from the peak at the end of the warm-up (Chan et al. 2022).
    """
    if step < settings.warmup:
        return settings.lr * (step + 1) / settings.warmup
    match settings.schedule:
        case "cosine":
            done = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
            return settings.lr * 0.5 * (1 + math.cos(math.pi * done))
        case "inverse-sqrt":
            return settings.lr * math.sqrt(max(1, settings.warmup) / max(1, step + 1))
    return settings.lr
