"""Tuning: an executor runs the trials of each pair of a contestant and a task, until a choice is made for the pair.

Each finished trial is stored immediately. After an interruption, repeating the command continues the search.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from iclbench.config.cards import TrainSettings
from iclbench.config.rates import TunedSettings
from iclbench.config.resolution import resolve_tables, resolve_task
from iclbench.core.context import Context
from iclbench.core.errors import one_line
from iclbench.core.plugins import as_plugin_error
from iclbench.core.settings import validate
from iclbench.sweep.engine import GRACE_SECONDS, MAX_ATTEMPTS
from iclbench.sweep.executor import Executor, WorkerDiedError, WorkerStartError
from iclbench.tuning import trials
from iclbench.tuning.curves import Curve, Point, follower_tasks, write_choice
from iclbench.tuning.search import Search, find_choice, not_different
from iclbench.tuning.trials import Trial
from iclbench.tuning.validation import Objective


@dataclass
class TuningPair:
    """A contestant that is tuned on a task.

    Attributes:
        curve: the trials so far.
        objective: the objective that determines the choice.
        search: the search, which proposes the next settings.
        problems: errors of trials. No choice is written for a pair with problems.
    """

    curve: Curve
    objective: Objective
    search: Search
    problems: list[str] = field(default_factory=list)

    @property
    def contestant(self) -> str:
        return self.curve.base.backbone.name

    @property
    def task(self) -> str:
        return self.curve.base.task.name

    @property
    def name(self) -> str:
        return f"{self.task} {self.contestant}"

    @property
    def preset_settings(self) -> dict[str, Any]:
        """The preset's training settings."""
        return self.curve.base.train.model_dump(mode="json")

    def points(self) -> list[Point]:
        """Return the points of this search so far."""
        return self.search.points(self.curve)

    def choice_of_search(self) -> Point | None:
        """Return the choice among the points of this search so far; None if all failed."""
        return find_choice(self.points(), self.objective.sign, self.curve.seeds)

    def choice(self) -> Point | None:
        """Return the choice among the points of all searches on these episodes; None if all failed."""
        return find_choice(self.curve.points(), self.objective.sign, self.curve.seeds)

    def not_different(self) -> list[Point]:
        """Return the points that are not significantly different from the choice."""
        chosen_point = self.choice()
        return [] if chosen_point is None else not_different(self.points(), chosen_point, self.curve.seeds)

    @property
    def follower_tasks(self) -> list[str]:
        """The other tasks that use the choice for this task."""
        return follower_tasks(self.curve)

    def next_trials(self) -> list[Trial]:
        """Return the trials to run now; empty if the search is over."""
        settings = self.search.next(self.points())
        return [trial for point_settings in settings for trial in self.curve.missing_trials(point_settings)]

    def write_choice(self) -> Point | None:
        """Write the choice to the table of learning rates and return it; None if all points failed."""
        chosen_point = self.choice()
        if chosen_point is not None:
            tried_rates = sorted({point.lr for point in self.curve.points()})
            write_choice(
                self.curve, TunedSettings(**chosen_point.settings, tried=tried_rates), self.objective.description
            )
        return chosen_point


class TuningObserver(Protocol):
    """An observer of a search."""

    def on_schedule(self, pair: TuningPair, todo: Sequence[Trial]) -> None:
        """Called before some trials are submitted."""

    def on_finish(self, pair: TuningPair, trial: Trial, row: dict[str, Any]) -> None:
        """Called when a trial is finished and stored."""

    def on_retry(self, pair: TuningPair, trial: Trial, reason: str) -> None:
        """Called when the worker of a trial has died, before the trial runs again."""

    def on_failure(self, pair: TuningPair, trial: Trial, reason: str) -> None:
        """Called when a trial cannot be run."""

    def on_choice(self, pair: TuningPair, choice: Point | None) -> None:
        """Called when the choice for a pair has been written; the choice is None if all trials failed."""


def objective_and_curves(
    task: str, contestants: Sequence[str], preset: str, seeds: int, context: Context, steps: int | None = None
) -> tuple[Objective, list[Curve]]:
    """Return the objective of a task and the curve of each contestant. The data of the task are read.

    Args:
        task: name of the task card, or a path to it.
        contestants: names of the contestants.
        preset: the preset of the task.
        seeds: number of training runs for each choice of settings.
        context: results folder and data sets.
        steps: number of steps of each trial; warm-up and curriculum are scaled in proportion (default: the steps of the
            preset).

    Raises:
        UsageError: the task does not have the preset, or a contestant cannot have the preset's size.
        DataError: the data of the task are missing.
    """
    config, card = resolve_task(task, preset)
    objective = Objective.of(config, preset, context.data_dir)
    budget = card.preset(preset, config.name).budget
    contestant_curves = []
    for contestant in contestants:
        base = resolve_tables(task, contestant, preset, data_dir=context.data_dir, tuned=False)
        if steps is not None:
            settings = base.train.model_dump(mode="json") | base.train.scaled_to(steps) | {"branches": []}
            train = validate(TrainSettings, settings, f"task '{task}': train")
            base = base.model_copy(update={"train": train})
        contestant_curves.append(Curve(context.results, base, objective.id, seeds, budget))
    return objective, contestant_curves


def tune(pairs: Sequence[TuningPair], executor: Executor, context: Context, observer: TuningObserver) -> None:
    """Run the trials of all pairs, as many in parallel as the executor allows, and write each choice immediately.

    Raises:
        KeyboardInterrupt: the user pressed Ctrl-C. All workers have ended, and finished trials are stored.
        WorkerStartError: workers cannot be started.
    """
    running: dict[Future[dict[str, Any]], tuple[TuningPair, Trial]] = {}
    attempts: dict[tuple[Path, str, int], int] = {}

    def submit(pair: TuningPair, trial: Trial) -> None:
        running[executor.submit(trials.run, trial, pair.curve.budget, context)] = (pair, trial)

    def advance(pair: TuningPair) -> None:
        """Submit the next trials of a pair that has no running trials, or write its choice if the search is over."""
        if pair.problems:
            return
        if todo := pair.next_trials():
            observer.on_schedule(pair, todo)
            for trial in todo:
                submit(pair, trial)
        else:
            observer.on_choice(pair, pair.write_choice())

    def settle(future: Future[dict[str, Any]]) -> None:
        """Handle the end of a trial: store its row, repeat it, or report its failure.

        If the pair has no other running trials, continue with its next trials.
        """
        pair, trial = running.pop(future)
        try:
            row = future.result()
        except WorkerStartError:
            raise
        except Exception as error:  # an error in one trial must not stop the other trials
            reason = one_line(as_plugin_error(error))
            key = (pair.curve.path, trial.variant, trial.config.seed)
            attempts[key] = attempts.get(key, 0) + 1
            if isinstance(error, WorkerDiedError) and attempts[key] < MAX_ATTEMPTS:
                observer.on_retry(pair, trial, reason)
                submit(pair, trial)
                return
            pair.problems.append(reason)
            observer.on_failure(pair, trial, reason)
        else:
            pair.curve.add(row)
            observer.on_finish(pair, trial, row)
        if not any(other is pair for other, _ in running.values()):
            advance(pair)

    try:
        for pair in pairs:
            advance(pair)
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                settle(future)
    except BaseException:
        executor.stop(GRACE_SECONDS)
        for future in [f for f in running if f.done() and not f.cancelled() and f.exception() is None]:
            running[future][0].curve.add(future.result())
        raise
