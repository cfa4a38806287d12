"""What a plan will take: seconds from measured steps per second and recorded cells, bytes from parameter counts.

Trainings: the seconds of a step as they are recorded beside trained runs of the same task, backbone and preset, or as a
few steps take now, times the steps that are left. Other cells: the mean of recorded ones, of the same contestant if
possible. Nothing is invented: what none of these tells is not known.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean

import pandas as pd

from iclbench import tables
from iclbench.config.resolution import RunConfig
from iclbench.core.errors import IclbenchError
from iclbench.store.cells import Store
from iclbench.store.runs import Run
from iclbench.sweep.cells import SUMMARY, GridCell
from iclbench.sweep.plan import Plan

# Seconds after which no more steps are measured.
BUDGET = 20.0
# float32: finished weights, and what a checkpoint holds (weights and Adam's two moments).
_WEIGHT_BYTES, _CHECKPOINT_BYTES = 4, 12

Trained = tuple[str, ...]  # task, contestant, preset
Measure = Callable[[RunConfig], float]
Count = Callable[[RunConfig], int]


@dataclass(frozen=True)
class Amount:
    """What some cells will take on one worker.

    Attributes:
        seconds: of those that are known; None: of none.
        unknown: cells whose seconds are not known, by kind.
        bytes: of weights, checkpoints and tables, as far as known.
    """

    seconds: float | None
    unknown: dict[str, int]
    bytes: float


class Estimates:
    """Seconds, parameters and bytes of cells.

    Args:
        store: what is recorded.
        device: `cpu` or another; steps recorded on the other kind say nothing.
        measure: seconds of a step of a configuration, measured now; None: only what is recorded.
        count: parameters of a configuration, counted now; None: only what is recorded.
        begins: called with a text before anything is measured.
    """

    def __init__(
        self,
        store: Store,
        device: str = "cpu",
        measure: Measure | None = None,
        count: Count | None = None,
        begins: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._store, self._device, self._measure, self._count = store, device, measure, count
        self._begins = begins
        self._deadline = time.monotonic() + BUDGET
        self._found: dict[tuple[str, str], dict[Trained, float]] = {}
        self._counted: dict[Trained, int | None] = {}
        self.measured: dict[Trained, float] = {}

    def seconds(self, cell: GridCell) -> float | None:
        """Seconds of one cell on one worker; None: not known."""
        if cell.kind == "train" and cell.config is not None:
            run = self._run(cell)
            if run.is_intact:  # outside of any sweep: only its row is missing
                return 0.0
            step = self._step_seconds(cell)
            return None if step is None else step * (cell.config.train.all_steps - run.reached)
        return next((self._means[key] for key in _alike(cell) if key in self._means), None)

    def parameters(self, cell: GridCell) -> int | None:
        """Parameters of the backbone of a cell; None: not known."""
        key = _trained(cell)
        recorded = self._recorded("model", "parameters").get(key)
        if recorded is not None:
            return int(recorded)
        if key not in self._counted and self._count and cell.config:
            try:
                self._counted[key] = self._count(cell.config)
            except IclbenchError:  # the sweep will say why
                self._counted[key] = None
        return self._counted.get(key)

    def bytes(self, cell: GridCell) -> float:
        """On the disk: weights and checkpoints of a training, tables of the others like those that are there."""
        from iclbench.training.checkpoint import KEEP

        if cell.kind != "train" or cell.config is None:
            return self._table_bytes.get(cell.kind, 0.0)
        run = self._run(cell)
        if run.is_intact:
            return 0.0
        train = cell.config.train
        weights = 1 + len(train.branches)
        checkpoints = min(KEEP, -(-train.steps // train.checkpoint_every))
        return float((self.parameters(cell) or 0) * (weights * _WEIGHT_BYTES + checkpoints * _CHECKPOINT_BYTES))

    def of(self, cells: Iterable[GridCell]) -> Amount:
        """What they take together; those that make no sense take nothing."""
        unknown: Counter[str] = Counter()
        known, size = [], 0.0
        for cell in cells:
            if cell.reason is not None:
                continue
            size += self.bytes(cell)
            seconds = self.seconds(cell)
            if seconds is None:
                unknown[cell.kind] += 1
            else:
                known.append(seconds)
        return Amount(sum(known) if known else None, dict(unknown), size)

    def _run(self, cell: GridCell) -> Run:
        return Run(self._store.results / "runs" / cell.run)

    def _step_seconds(self, cell: GridCell) -> float | None:
        recorded = self._recorded("train_step", "seconds").get(_trained(cell))
        return self._now(cell) if recorded is None else recorded

    def _now(self, cell: GridCell) -> float | None:
        """Seconds of a step, measured once for a task, backbone and preset while there is time."""
        key = _trained(cell)
        if key not in self.measured and self._measure and cell.config and time.monotonic() < self._deadline:
            self._begins(f"a training step of {cell.contestant} on {cell.task}, {cell.preset}")
            try:
                self.measured[key] = self._measure(cell.config)
            except IclbenchError:  # the sweep will say why
                return None
        return self.measured.get(key)

    def _recorded(self, phase: str, metric: str) -> dict[Trained, float]:
        """Means over the runs of a task, backbone and preset, as they were recorded when training ended."""
        if (phase, metric) not in self._found:
            rows = self._costs[self._costs["phase"].eq(phase) & self._costs["metric"].eq(metric)]
            if phase != "model":
                rows = rows[rows["device"].eq("cpu") == (self._device == "cpu")]
            self._found[phase, metric] = _means_by(rows, ["task", "contestant", "preset"], "value")
        return self._found[phase, metric]

    @cached_property
    def _costs(self) -> pd.DataFrame:
        """Rows of trainings: beside runs, and in packed tables; those of evaluations, thousands of files, are not."""
        results = self._store.results
        folders = sorted(p for p in results.iterdir() if p.is_dir() and p.name != "tables") if results.is_dir() else []
        rows = pd.concat([tables.frame("costs", []), *(tables.read_all("costs", folder) for folder in folders)])
        return rows[rows["n_points"].isna()]

    @cached_property
    def _done(self) -> pd.DataFrame:
        """The rows of finished cells."""
        rows = self._store.rows
        return rows[rows["status"].eq("done")]

    @cached_property
    def _means(self) -> dict[tuple[str, ...], float]:
        """Seconds of recorded cells, by all that a cell can be likened by."""
        rows = self._done.assign(
            sort=[_sort(run, pd.isna(seed)) for run, seed in zip(self._done["run"], self._done["seed"], strict=True)]
        )
        found: dict[tuple[str, ...], float] = {}
        for columns in _LIKE:
            found |= _means_by(rows, ["kind", *columns], "seconds")
        return found

    @cached_property
    def _table_bytes(self) -> dict[str, float]:
        """Mean size of what a cell leaves, by kind; a file of many cells counts in parts."""
        files = [json.loads(text) for text in self._done["files"].fillna("[]")]
        named = Counter(file for each in files for file in each)
        size = {file: _size(self._store.results / file) / count for file, count in named.items()}
        by_kind: dict[str, list[float]] = {}
        for kind, each in zip(self._done["kind"], files, strict=True):
            by_kind.setdefault(kind, []).append(sum(size[file] for file in each))
        return {kind: mean(sizes) for kind, sizes in by_kind.items()}


# What makes recorded cells like one to do, the most telling first.
_LIKE = (["task", "preset", "contestant"], ["preset", "contestant"], ["task", "preset", "sort"], ["preset", "sort"])


def _alike(cell: GridCell) -> list[tuple[str, ...]]:
    of = {
        "task": cell.task,
        "preset": cell.preset,
        "contestant": cell.contestant,
        "sort": _sort(cell.run, cell.config is None),
    }
    return [(cell.kind, *(of[column] for column in columns)) for columns in _LIKE]


def _sort(run: str, untrained: bool) -> str:
    return SUMMARY if run == SUMMARY else "baseline" if untrained else "backbone"


def _trained(cell: GridCell) -> Trained:
    return cell.task, cell.contestant, cell.preset


def _means_by(rows: pd.DataFrame, columns: Sequence[str], value: str) -> dict[tuple[str, ...], float]:
    found = rows.dropna(subset=[value]).groupby(list(columns))[value].mean()
    return {tuple(map(str, key)): float(each) for key, each in zip(found.index, found, strict=True)}


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def parameter_range(plan: Plan, estimates: Estimates) -> dict[str, tuple[int, int]]:
    """Fewest and most parameters of the trainings of every task and preset."""
    counts: dict[str, list[int]] = {}
    for cell in plan.cells:
        if cell.kind == "train" and cell.reason is None and (count := estimates.parameters(cell)) is not None:
            counts.setdefault(cell.group, []).append(count)
    return {group: (min(each), max(each)) for group, each in counts.items()}


def count_parameters(config: RunConfig, data_dir: Path | None = None) -> int:
    """Parameters of the backbone, which is built for it."""
    return config.build(config.task.build(data_dir)).parameter_count


def measure_step(config: RunConfig, data_dir: Path | None = None, device: str = "cpu", steps: int = 2) -> float:
    """Seconds of a training step of the trained size, its episodes included: the mean of a few steps, after one to warm
    up."""
    from iclbench.training.fit import Training
    from iclbench.training.step import TrainingData

    family = config.task.build(data_dir)
    settings = config.train.at_full_size().model_copy(update={"compile": False})
    training = Training(config.build(family), TrainingData.of(config.task, family), settings, config.seed, device)
    started = 0.0
    for step in range(1 + steps):
        if step == 1:
            started = time.perf_counter()
        training.step()
        float(training.progress.pending)  # the device is waited for
    return (time.perf_counter() - started) / steps
