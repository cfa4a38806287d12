"""Learning-rate schedules."""

import math

from iclbench.config.cards import TrainSettings, decay_start


def learning_rate(settings: TrainSettings, step: int, end: int | None = None) -> float:
    """Return the learning rate at a step.

    All schedules begin with a linear warm-up. It is followed by a constant rate, a cosine decay to 0, an inverse square
    root, or a constant rate with a linear decay to 0 over the last fifth of the steps.

    The inverse square root starts from the peak rate at the end of the warm-up (Chan et al. 2022). The last schedule,
    `warmup-stable-decay`, is that of Hu et al. 2024 (MiniCPM, section 4). With this schedule, a shorter run equals the
    first part of a longer run, except during its decay (Hägele et al. 2024). If warm-up and decay overlap, the lower
    rate applies.

    Args:
        settings: rate, warm-up, schedule and number of steps.
        step: number of the step, from 0.
        end: for a branch, the number of steps at which its decay ends (default: all steps).
    """
    if settings.schedule == "warmup-stable-decay":
        end = settings.steps if end is None else end
        remaining = (end - step) / max(1, end - decay_start(end))
        return settings.lr * min(1.0, (step + 1) / max(1, settings.warmup), remaining)
    if step < settings.warmup:
        return settings.lr * (step + 1) / settings.warmup
    match settings.schedule:
        case "cosine":
            progress = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
            return settings.lr * 0.5 * (1 + math.cos(math.pi * progress))
        case "inverse-sqrt":
            return settings.lr * math.sqrt(max(1, settings.warmup) / max(1, step + 1))
    return settings.lr
