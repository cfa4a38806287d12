"""Run the searches of `iclbench tune`, and print a line when a trial finishes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from iclbench.cli.sweep_run import worker_pool
from iclbench.cli.sweep_view import duration_text
from iclbench.cli.terminal import say
from iclbench.cli.tune_tables import SETTING_LABELS, settings_text
from iclbench.config.cards import card_names, load_task
from iclbench.core.context import Context
from iclbench.core.errors import DataError, Interrupted, UsageError
from iclbench.core.formats import canonical, fixed, plural
from iclbench.tuning.curves import Curve, Point
from iclbench.tuning.optuna_search import OptunaSearch, check_optuna
from iclbench.tuning.search import RateSearch, Search
from iclbench.tuning.trials import Trial
from iclbench.tuning.tune import TuningPair, objective_and_curves
from iclbench.tuning.tune import tune as tune_pairs

_RATES = "1e-3,3e-3,1e-2"


def search_of(rates: str | None, trials: int | None) -> Callable[[Curve, int], Search]:
    """Return a function that creates the search for these options, given a curve and the sign of the objective."""
    if trials is None:
        requested_rates = _rates(rates or _RATES)
        return lambda curve, sign: RateSearch(requested_rates, sign)
    if rates is not None:
        raise UsageError("--trials draws the learning rates; remove --rates", code="conflict")
    check_optuna()
    return lambda curve, sign: OptunaSearch(trials, curve.base.train, sign)


def _rates(text: str) -> list[float]:
    """Parse the learning rates in the value of `--rates`."""
    try:
        numbers = sorted({float(word) for word in text.split(",")})
    except ValueError:
        numbers = []
    if not numbers or not all(rate > 0 and math.isfinite(rate) for rate in numbers):
        raise UsageError(
            f"--rates takes learning rates above 0, separated by commas, like 1e-3,3e-3,1e-2; got {text!r}",
            code="bad-value",
        )
    return numbers


def pairs_of(
    contestants: Sequence[str],
    tasks: str | None,
    preset: str,
    seeds: int,
    steps: int | None,
    search: Callable[[Curve, int], Search],
    context: Context,
) -> list[TuningPair]:
    """Return one pair per contestant and task (default: all tasks with this preset and readable data)."""
    requested_tasks = [word.strip() for word in tasks.split(",") if word.strip()] if tasks else []
    task_names = requested_tasks or [name for name in card_names("tasks") if preset in load_task(name)[1].presets]
    contestant_names = list(dict.fromkeys(name if ":" in name else canonical(name) for name in contestants))
    pairs: list[TuningPair] = []
    for task in dict.fromkeys(task_names):
        try:
            objective, all_curves = objective_and_curves(task, contestant_names, preset, seeds, context, steps)
        except DataError as error:
            if requested_tasks:
                raise
            say(f"skipped {task}: {error}")
            continue
        pairs += [TuningPair(curve, objective, search(curve, objective.sign)) for curve in all_curves]
    if not pairs:
        raise UsageError(
            f"no task has preset '{preset}' and readable data; name tasks with --tasks", code="nothing-to-do"
        )
    return pairs


def run_trials(pairs: Sequence[TuningPair], worker_gpus: Sequence[str | None], context: Context) -> None:
    """Run all trials. Raise `Interrupted` on Ctrl-C."""
    view, workers = _View(), worker_pool(worker_gpus, context.threads)
    try:
        tune_pairs(pairs, workers, context, view)
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; {plural(view.done, 'trial')} stored; the same command runs the rest") from None
    finally:
        workers.shutdown()


class _View:
    """An observer that prints a line for each trial and each choice."""

    def __init__(self) -> None:
        self.done = self._total = 0
        self._start = time.monotonic()

    def on_schedule(self, pair: TuningPair, todo: Sequence[Trial]) -> None:
        rates = sorted({trial.config.train.lr for trial in todo})
        tried_rates = [point.lr for point in pair.points()]
        if tried_rates and isinstance(pair.search, RateSearch) and not set(rates) & set(pair.search.rates):
            edge = "smallest" if max(rates) < min(tried_rates) else "largest"
            reason = f"the {edge} rate is best" if pair.choice_of_search() else "every rate diverged"
            say(f"{pair.name}: {reason}; trying {', '.join(f'{rate:g}' for rate in rates)}")
        self._total += len(todo)

    def on_finish(self, pair: TuningPair, trial: Trial, row: dict[str, Any]) -> None:
        self.done += 1
        outcome = row["reason"] if row["status"] == "failed" else f"{row['metric']} {fixed(row['value'], 4)}"
        seconds_per_trial = (time.monotonic() - self._start) / self.done
        seconds_left = seconds_per_trial * (self._total - self.done)
        remaining = f", {duration_text(seconds_left)} left" if self.done < self._total else ""
        say(f"{self.done}/{self._total} {_trial_name(pair, trial)}: {outcome}{remaining}")

    def on_retry(self, pair: TuningPair, trial: Trial, reason: str) -> None:
        say(f"trying again: {_trial_name(pair, trial)}: {reason}")

    def on_failure(self, pair: TuningPair, trial: Trial, reason: str) -> None:
        self._total -= 1
        say(f"failed: {_trial_name(pair, trial)}: {reason}")

    def on_choice(self, pair: TuningPair, choice: Point | None) -> None:
        followers = pair.follower_tasks
        tasks = f"; used for {', '.join([pair.task, *followers])}" if choice and followers else ""
        say(
            f"{pair.name}: "
            + ("no settings give finite scores" if choice is None else settings_text(choice.settings) + tasks)
        )


def _trial_name(pair: TuningPair, trial: Trial) -> str:
    train = trial.config.train.model_dump(mode="json")
    settings = {key: train[key] for key in SETTING_LABELS if key == "lr" or train[key] != pair.preset_settings[key]}
    return f"{pair.name} {settings_text(settings)} seed {trial.config.seed}"
