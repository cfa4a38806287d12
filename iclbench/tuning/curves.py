"""Storage of the trials of a search, `RESULTS/rates/PRESET/TASK-CONTESTANT.trials.parquet`, and of the chosen settings,
`RESULTS/rates/PRESET.toml`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pandas as pd
import tomli_w

from iclbench import tables
from iclbench.config.cards import load_task
from iclbench.config.rates import RateTable, TunedSettings, Tuning, read_table, shipped_path
from iclbench.config.resolution import RunConfig
from iclbench.core.files import write_text
from iclbench.core.formats import slug
from iclbench.core.settings import validate
from iclbench.store import locks
from iclbench.store.rates import read_rates, results_path
from iclbench.store.runs import write_errors
from iclbench.tuning.trials import Trial

_HEADER = """\
# Learning rates that `iclbench tune` chose. They override the task cards and the shipped table. The trials are in the
# folder of the same name.

"""


@dataclass(frozen=True)
class Point:
    """The score of one choice of settings, over all seeds.

    Attributes:
        settings: training settings.
        value: mean over seeds; None if a training run diverged or its score could not be computed.
        sd: standard deviation over seeds; None for a single seed.
    """

    settings: Mapping[str, Any]
    value: float | None
    sd: float | None = None

    @property
    def lr(self) -> float:
        return float(self.settings["lr"])


@dataclass(frozen=True)
class Curve:
    """All trials of one contestant on one task.

    Attributes:
        results: results folder.
        base: configuration of the contestant on the task, without settings from tables of learning rates.
        prompt_set: name of the validation episodes.
        seeds: number of training runs for each choice of settings.
        budget: number of parameters of each backbone at the preset; None if the preset has no budget.
    """

    results: Path
    base: RunConfig
    prompt_set: str
    seeds: int
    budget: int | None = None

    @property
    def path(self) -> Path:
        name = f"{self.base.task.name}-{slug(self.base.backbone.name)}"
        return self.results / "rates" / self.base.preset / f"{name}.trials.parquet"

    def rows(self) -> pd.DataFrame:
        """Return all trials in the file, including trials with other numbers of training steps or model sizes.

        Raises:
            TableError: the file cannot be read. It is not replaced, because it may contain hours of trials.
        """
        return tables.read("trials", self.path) if self.path.is_file() else tables.frame("trials", [])

    def add(self, row: Mapping[str, Any]) -> None:
        """Store a trial."""
        with _rates_lock(self.results):
            new = tables.frame("trials", [dict(row)])
            rows = tables.union("trials", [new, self.rows()])
            tables.write("trials", rows.sort_values(["lr", "variant", "seed"], ignore_index=True), self.path, {})

    def trials(self, settings: Mapping[str, Any]) -> list[Trial]:
        """Return the trials with the given settings, one per seed."""
        return [Trial.of(self.base, settings, seed) for seed in range(self.seeds)]

    def missing_trials(self, settings: Mapping[str, Any]) -> list[Trial]:
        """Return the unfinished trials with the given settings."""
        scores = self._scores()
        return [trial for trial in self.trials(settings) if (trial.variant, trial.config.seed) not in scores]

    def point(self, settings: Mapping[str, Any]) -> Point | None:
        """Return the score of the given settings; None if a trial is missing."""
        return self._point(settings, self._scores())

    def _point(
        self, settings: Mapping[str, Any], scores: Mapping[tuple[str, int], tuple[float | None]]
    ) -> Point | None:
        by_seed = [scores.get((trial.variant, trial.config.seed)) for trial in self.trials(settings)]
        if any(score is None for score in by_seed):
            return None
        values = [value for score in by_seed if score is not None and (value := score[0]) is not None]
        if len(values) < len(by_seed):
            return Point(settings, None)
        return Point(settings, fmean(values), stdev(values) if len(values) > 1 else None)

    def points(self) -> list[Point]:
        """Return the points without missing trials on the validation episodes, in order of the learning rate.

        The settings of a point are the learning rate and all settings that differ from the preset.
        """
        scores = self._scores()
        points = (self._point(settings, scores) for settings in self._choices())
        return [point for point in points if point is not None]

    def rate_points(self) -> list[Point]:
        """Return the points at which only the learning rate differs from the preset."""
        return [point for point in self.points() if point.settings.keys() == {"lr"}]

    def _choices(self) -> list[dict[str, Any]]:
        """Return all choices of settings in the file, including choices from trials with other numbers of training
        steps or model sizes."""
        preset_settings, choices = self.base.train.model_dump(mode="json"), []
        columns = ["lr", "optimiser", "warmup", "weight_decay", "beta_1", "beta_2"]
        for *settings, beta_1, beta_2 in self.rows()[columns].drop_duplicates().itertuples(index=False):
            lr, optimiser, warmup, decay = settings
            others = {"optimiser": str(optimiser), "warmup": int(warmup), "weight_decay": float(decay)}
            others["betas"] = [float(beta_1), float(beta_2)]
            different = {key: value for key, value in others.items() if value != preset_settings[key]}
            choices.append({"lr": float(lr)} | different)
        return sorted(choices, key=lambda choice: (choice["lr"], str(choice)))

    def _scores(self) -> dict[tuple[str, int], tuple[float | None]]:
        """Return the score of each trial on the validation episodes, by variant and seed. Each score is a tuple with
        one value, which is None if the trial failed."""
        rows = self.rows()
        rows = rows[rows["prompt_set"].eq(self.prompt_set)]
        values = [(None if pd.isna(value) else float(value),) for value in rows["value"]]
        return dict(zip(zip(rows["variant"], rows["seed"].astype(int), strict=True), values, strict=True))


def write_choice(curve: Curve, choice: TunedSettings, objective_text: str) -> None:
    """Write the choice for a contestant on a task to the table in the results folder.

    It replaces earlier choices for this task and for the tasks that use its learning rate. `objective_text` describes
    the objective.
    """
    base = curve.base
    path, task, contestant = results_path(curve.results, base.preset), base.task.name, base.backbone.name
    tasks = [task, *follower_tasks(curve)]
    new = Tuning(
        tasks=tasks,
        on=task if len(tasks) > 1 else "",
        steps=base.train.steps,
        budget=curve.budget,
        seeds=curve.seeds,
        how=objective_text,
        train={contestant: choice},
    )
    with _rates_lock(curve.results):
        tunings = read_rates(curve.results, base.preset).tuned
        for name in tasks:
            tunings = [rest for tuning in tunings for rest in _without(tuning, name, contestant)]
        groups = [tuning.model_dump(exclude_defaults=True) for tuning in _merged([*tunings, new])]
        table = validate(RateTable, {"tuned": groups}, str(path))
        plain = table.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
        write_text(path, _HEADER + tomli_w.dumps(plain))


def follower_tasks(curve: Curve) -> list[str]:
    """Return the other tasks that use the learning rate of this task in the shipped table.

    For example, several function classes use the rate of linear functions. Tasks on which the contestant was tuned
    directly are omitted.
    """
    base, preset = curve.base, curve.base.preset
    task, contestant = base.task.name, base.backbone.name
    shipped = read_table(shipped_path(preset)).tuned
    if not any(tuning.on == task for tuning in shipped) or load_task(task)[1].hash != base.task.card:
        return []
    followers = {name: None for tuning in shipped if tuning.on == task for name in tuning.tasks}
    tunings = [*shipped, *read_rates(curve.results, preset).tuned]
    directly_tuned = {name for each in tunings if each.on != task and contestant in each.train for name in each.tasks}
    return [name for name in followers if name not in directly_tuned | {task}]


def _without(tuning: Tuning, task: str, contestant: str) -> list[Tuning]:
    """Remove a contestant on a task from a group of choices, and return the remaining groups."""
    if task not in tuning.tasks or contestant not in tuning.train:
        return [tuning]
    other_tasks = [name for name in tuning.tasks if name != task]
    other_contestants = {name: choice for name, choice in tuning.train.items() if name != contestant}
    groups = [tuning.model_copy(update={"tasks": other_tasks})] if other_tasks else []
    if other_contestants:
        groups.append(tuning.model_copy(update={"tasks": [task], "train": other_contestants}))
    return groups


def _merged(tunings: Sequence[Tuning]) -> list[Tuning]:
    """Merge groups that differ only in their contestants, and sort the groups by task."""
    groups: dict[str, Tuning] = {}
    for tuning in tunings:
        key = tuning.model_copy(update={"train": {}}).model_dump_json()
        choices = groups[key].train if key in groups else {}
        groups[key] = tuning.model_copy(update={"train": dict(sorted((choices | tuning.train).items()))})
    return sorted(groups.values(), key=lambda tuning: tuning.tasks)


@contextmanager
def _rates_lock(results: Path) -> Iterator[None]:
    """Prevent other commands from writing to the folder of learning rates within the block."""
    folder = results / "rates"
    with write_errors(results):
        folder.mkdir(parents=True, exist_ok=True)
        lock = locks.lock(folder / ".lock")
        lock.acquire(wait=True)
        try:
            yield
        finally:
            lock.release()
