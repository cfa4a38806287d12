"""Tuning: every contestant on every task, trial by trial on an executor, until each has its choice.

What is finished is kept as soon as it is; killed at any moment, the same command goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from iclbench.config.rates import Chosen
from iclbench.config.resolution import resolve_tables, resolve_task
from iclbench.core.context import Context
from iclbench.core.errors import one_line
from iclbench.core.plugins import blamed
from iclbench.sweep.engine import ATTEMPTS, GRACE
from iclbench.sweep.executor import Executor, WorkerDiedError, WorkerStartError
from iclbench.tuning import trials
from iclbench.tuning.curves import Curve, Point, choose, stands_for
from iclbench.tuning.search import Search, best, not_different
from iclbench.tuning.trials import Trial
from iclbench.tuning.validation import Objective


@dataclass
class Pair:
    """A contestant on a task while it is tuned.

    Attributes:
        curve: what was tried.
        objective: what decides.
        search: what to try next.
        problems: why trials could not be done; the pair is left without a choice.
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
    def plain(self) -> dict[str, Any]:
        """Settings of training where nothing is chosen."""
        return self.curve.base.train.model_dump(mode="json")

    def points(self) -> list[Point]:
        """What was found so far."""
        return self.search.points(self.curve)

    def best_found(self) -> Point | None:
        """The best of what this search found so far; None: everything failed."""
        return best(self.points(), self.objective.sign)

    def best(self) -> Point | None:
        """The best of all that was ever tried on these episodes, be it by another search; None: everything failed."""
        return best(self.curve.points(), self.objective.sign)

    def not_different(self) -> list[Point]:
        """What was tried and is not significantly different from the best."""
        found = self.best()
        return [] if found is None else not_different(self.points(), found, self.curve.seeds)

    @property
    def stands_for(self) -> list[str]:
        """The other tasks that go by what is chosen on this one."""
        return stands_for(self.curve)

    def wanted(self) -> list[Trial]:
        """The trials to do now; none: the search is over."""
        settings = self.search.next(self.points())
        return [trial for each in settings for trial in self.curve.missing(each)]

    def choose(self) -> Point | None:
        """Write the best into the table of rates; None: there is none."""
        found = self.best()
        if found is not None:
            tried = sorted({point.lr for point in self.curve.points()})
            choose(self.curve, Chosen(**found.settings, tried=tried), self.objective.words)
        return found


class Report(Protocol):
    """An observer of a tuning."""

    def wanted(self, pair: Pair, todo: Sequence[Trial]) -> None:
        """These trials are to do."""

    def finished(self, pair: Pair, trial: Trial, row: dict[str, Any]) -> None:
        """A trial is done and kept."""

    def again(self, pair: Pair, trial: Trial, reason: str) -> None:
        """Its worker died; it is tried once more."""

    def failed(self, pair: Pair, trial: Trial, reason: str) -> None:
        """It cannot be done."""

    def chosen(self, pair: Pair, point: Point | None) -> None:
        """A pair has its choice, or none where everything failed."""


def curves(
    task: str, contestants: Sequence[str], preset: str, seeds: int, context: Context
) -> tuple[Objective, list[Curve]]:
    """What decides on a task, whose data are read, and where the trials of each contestant are kept.

    Raises:
        UsageError: the task has no such preset, or a contestant cannot have its size there.
        DataError: the task's data are not there.
    """
    config, card = resolve_task(task, preset)
    objective = Objective.of(config, preset, context.data_dir)
    budget = card.preset(preset, config.name).budget
    found = []
    for each in contestants:
        base = resolve_tables(task, each, preset, data_dir=context.data_dir, tuned=False)
        found.append(Curve(context.results, base, objective.id, seeds, budget))
    return objective, found


def tune(pairs: Sequence[Pair], executor: Executor, context: Context, report: Report) -> None:
    """Do all trials that the pairs want, as many at a time as the executor has slots, and write every choice as soon as
    it is made.

    Raises:
        KeyboardInterrupt: after all workers have ended. Finished trials are kept.
        WorkerStartError: no worker can be set up.
    """
    running: dict[Future[dict[str, Any]], tuple[Pair, Trial]] = {}
    attempts: dict[tuple[Path, str, int], int] = {}

    def submit(pair: Pair, trial: Trial) -> None:
        running[executor.submit(trials.run, trial, pair.curve.budget, context)] = (pair, trial)

    def go_on(pair: Pair) -> None:
        """Begin what the pair wants next, once nothing of it is running."""
        if pair.problems:
            return
        if todo := pair.wanted():
            report.wanted(pair, todo)
            for trial in todo:
                submit(pair, trial)
        else:
            report.chosen(pair, pair.choose())

    def settle(future: Future[dict[str, Any]]) -> None:
        pair, trial = running.pop(future)
        try:
            row = future.result()
        except WorkerStartError:
            raise
        except Exception as error:  # whatever it is, it stops no other trial
            reason = one_line(blamed(error))
            tried = (pair.curve.path, trial.variant, trial.config.seed)
            attempts[tried] = attempts.get(tried, 0) + 1
            if isinstance(error, WorkerDiedError) and attempts[tried] < ATTEMPTS:
                report.again(pair, trial, reason)
                submit(pair, trial)
                return
            pair.problems.append(reason)
            report.failed(pair, trial, reason)
        else:
            pair.curve.add(row)
            report.finished(pair, trial, row)
        if not any(other is pair for other, _ in running.values()):
            go_on(pair)

    try:
        for pair in pairs:
            go_on(pair)
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                settle(future)
    except BaseException:
        executor.stop(GRACE)
        for future in [f for f in running if f.done() and not f.cancelled() and f.exception() is None]:
            running[future][0].curve.add(future.result())
        raise
