"""What was tried, `RESULTS/rates/PRESET/TASK-CONTESTANT.trials.parquet`, and what was chosen,
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
from iclbench.config.rates import Chosen, RateTable, Tuning, own_path, read_table, shipped_path
from iclbench.config.resolution import RunConfig
from iclbench.core import locks
from iclbench.core.files import write_text
from iclbench.core.formats import slug
from iclbench.core.settings import validate
from iclbench.store.runs import writing
from iclbench.tuning.trials import Trial

_HEADER = """\
# Learning rates that `iclbench tune` chose; they go over what the task cards and the shipped table say. What was tried
# stands in the folder of the same name.

"""


@dataclass(frozen=True)
class Point:
    """What came of some settings, over all seeds.

    Attributes:
        settings: of training.
        value: mean over seeds; None: a training diverged, or its scores failed.
        sd: standard deviation over seeds; None with one.
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
        base: the contestant on the task as no table of rates speaks of it.
        prompt_set: the validation episodes.
        seeds: trainings of every choice.
        budget: parameters of every backbone at the preset; None: it names none.
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
        """What is there, of other settings of the preset too.

        Raises:
            TableError: the file cannot be read; hours of trials may be in it.
        """
        return tables.read("trials", self.path) if self.path.is_file() else tables.frame("trials", [])

    def add(self, row: Mapping[str, Any]) -> None:
        """Keep a trial."""
        with _alone(self.results):
            new = tables.frame("trials", [dict(row)])
            together = tables.union("trials", [new, self.rows()])
            tables.write("trials", together.sort_values(["lr", "variant", "seed"], ignore_index=True), self.path, {})

    def trials(self, settings: Mapping[str, Any]) -> list[Trial]:
        """The trials of some settings, one for every seed."""
        return [Trial.of(self.base, settings, seed) for seed in range(self.seeds)]

    def missing(self, settings: Mapping[str, Any]) -> list[Trial]:
        """Those of them that are still to do."""
        done = self._known()
        return [trial for trial in self.trials(settings) if (trial.variant, trial.config.seed) not in done]

    def point(self, settings: Mapping[str, Any]) -> Point | None:
        """What came of some settings; None: a trial is missing."""
        return self._point(settings, self._known())

    def _point(self, settings: Mapping[str, Any], known: Mapping[tuple[str, int], tuple[float | None]]) -> Point | None:
        found = [known.get((trial.variant, trial.config.seed)) for trial in self.trials(settings)]
        if any(each is None for each in found):
            return None
        values = [value for each in found if each is not None and (value := each[0]) is not None]
        if len(values) < len(found):
            return Point(settings, None)
        return Point(settings, fmean(values), stdev(values) if len(values) > 1 else None)

    def points(self) -> list[Point]:
        """Everything that was tried on these episodes, by learning rate; settings are those that are not the
        preset's, and the rate."""
        known = self._known()
        found = (self._point(settings, known) for settings in self._tried())
        return [point for point in found if point is not None]

    def rates(self) -> list[Point]:
        """The points at which nothing but the learning rate differs from the preset."""
        return [point for point in self.points() if point.settings.keys() == {"lr"}]

    def _tried(self) -> list[dict[str, Any]]:
        """All choices of settings that the file names, those of other steps or sizes of the preset among them."""
        plain, found = self.base.train.model_dump(mode="json"), []
        columns = ["lr", "optimiser", "warmup", "weight_decay", "beta_1", "beta_2"]
        for *settings, first, second in self.rows()[columns].drop_duplicates().itertuples(index=False):
            lr, optimiser, warmup, decay = settings
            others = {"optimiser": str(optimiser), "warmup": int(warmup), "weight_decay": float(decay)}
            others["betas"] = [float(first), float(second)]
            found.append({"lr": float(lr)} | {key: value for key, value in others.items() if value != plain[key]})
        return sorted(found, key=lambda each: (each["lr"], str(each)))

    def _known(self) -> dict[tuple[str, int], tuple[float | None]]:
        """By variant and seed, the value of every trial on these episodes."""
        rows = self.rows()
        rows = rows[rows["prompt_set"].eq(self.prompt_set)]
        values = [(None if pd.isna(value) else float(value),) for value in rows["value"]]
        return dict(zip(zip(rows["variant"], rows["seed"].astype(int), strict=True), values, strict=True))


def choose(curve: Curve, chosen: Chosen, how: str) -> None:
    """Write what was chosen for a contestant on a task into the table of the results folder, in the place of what
    stands there, for all tasks that this one stands for; `how` says what decided."""
    base = curve.base
    path, task, contestant = own_path(curve.results, base.preset), base.task.name, base.backbone.name
    tasks = [task, *stands_for(curve)]
    new = Tuning(
        tasks=tasks,
        on=task if len(tasks) > 1 else "",
        steps=base.train.steps,
        budget=curve.budget,
        seeds=curve.seeds,
        how=how,
        train={contestant: chosen},
    )
    with _alone(curve.results):
        kept = read_table(path).tuned
        for each in tasks:
            kept = [part for tuning in kept for part in _without(tuning, each, contestant)]
        together = _merged([*kept, new])
        table = validate(RateTable, {"tuned": [each.model_dump(exclude_defaults=True) for each in together]}, str(path))
        plain = table.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
        write_text(path, _HEADER + tomli_w.dumps(plain))


def stands_for(curve: Curve) -> list[str]:
    """The other tasks that go by the rate of this one in the shipped table, as linear functions stand for other classes
    of functions; none of those on which the contestant itself was tuned."""
    base, preset = curve.base, curve.base.preset
    task, contestant = base.task.name, base.backbone.name
    shipped = read_table(shipped_path(preset)).tuned
    if not any(each.on == task for each in shipped) or load_task(task)[1].hash != base.task.card:
        return []
    follow = {name: None for each in shipped if each.on == task for name in each.tasks}
    every = [*shipped, *read_table(own_path(curve.results, preset)).tuned]
    alone = {name for each in every if each.on != task and contestant in each.train for name in each.tasks}
    return [name for name in follow if name not in alone | {task}]


def _without(tuning: Tuning, task: str, contestant: str) -> list[Tuning]:
    """A group without one contestant on one task."""
    if task not in tuning.tasks or contestant not in tuning.train:
        return [tuning]
    others = [each for each in tuning.tasks if each != task]
    left = {who: chosen for who, chosen in tuning.train.items() if who != contestant}
    parts = [tuning.model_copy(update={"tasks": others})] if others else []
    return parts + ([tuning.model_copy(update={"tasks": [task], "train": left})] if left else [])


def _merged(tunings: Sequence[Tuning]) -> list[Tuning]:
    """Groups that differ in their contestants alone as one, by task and name."""
    found: dict[str, Tuning] = {}
    for each in tunings:
        key = each.model_copy(update={"train": {}}).model_dump_json()
        before = found[key].train if key in found else {}
        found[key] = each.model_copy(update={"train": dict(sorted((before | each.train).items()))})
    return sorted(found.values(), key=lambda each: each.tasks)


@contextmanager
def _alone(results: Path) -> Iterator[None]:
    """No other command writes to the folder of rates within the block."""
    folder = results / "rates"
    with writing(results):
        folder.mkdir(parents=True, exist_ok=True)
        lock = locks.lock(folder / ".lock")
        lock.acquire(wait=True)
        try:
            yield
        finally:
            lock.release()
