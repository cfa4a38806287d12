"""Estimates of the time and the disk space that a plan needs.

The time of a training run is the time of a step times the number of remaining steps. The time of a step is recorded
with earlier runs of the same task, backbone and preset, or measured now. The time of any other cell is the mean over
similar cells that were recorded, of the same contestant if possible. It is unknown if no similar cell was recorded.
Disk space follows from parameter counts and from the sizes of existing tables.
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
from iclbench.core import machine
from iclbench.core.errors import IclbenchError
from iclbench.store.cells import CellStore
from iclbench.store.runs import Run
from iclbench.sweep.cells import SUMMARY, GridCell
from iclbench.sweep.plan import Plan

# No further steps are measured after this many seconds.
MEASUREMENT_SECONDS = 20.0
# Bytes per parameter in float32: of finished weights, and of a checkpoint (weights and the two moments of Adam).
_WEIGHT_BYTES, _CHECKPOINT_BYTES = 4, 12

TrainingKey = tuple[str, ...]  # task, contestant, preset
StepTimer = Callable[[RunConfig], float]
ParameterCounter = Callable[[RunConfig], int]


@dataclass(frozen=True)
class Amount:
    """Time and disk space that cells need on one worker.

    Attributes:
        seconds: sum over the cells whose time is known; None if it is known for no cell.
        unknown: number of cells whose time is unknown, by kind.
        bytes: bytes of weights, checkpoints and tables. Cells of unknown size count as 0.
    """

    seconds: float | None
    unknown: dict[str, int]
    bytes: float


class Estimates:
    """Estimates of the seconds, parameters and bytes of cells.

    Args:
        store: the recorded cells.
        device: `cpu` or another device. Steps that were recorded on a CPU are used only for CPUs, others only for GPUs.
        measure: function that measures the seconds of a training step (default: only recorded seconds are used).
        count: function that counts the parameters of a backbone (default: only recorded counts are used).
        on_measure: function that is called before each measurement with a description of the measurement.
    """

    def __init__(
        self,
        store: CellStore,
        device: str = "cpu",
        measure: StepTimer | None = None,
        count: ParameterCounter | None = None,
        on_measure: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._store, self._device, self._measure, self._count = store, device, measure, count
        self._on_measure = on_measure
        self._deadline = time.monotonic() + MEASUREMENT_SECONDS
        self._means_cache: dict[tuple[str, str], dict[TrainingKey, float]] = {}
        self._counts: dict[TrainingKey, int | None] = {}
        self._devices: dict[str, None] = {}
        self.measured_seconds: dict[TrainingKey, float] = {}

    def seconds(self, cell: GridCell) -> float | None:
        """Return the expected seconds of one cell on one worker; None if unknown."""
        if cell.kind == "train" and cell.config is not None:
            run = self._run(cell)
            if run.is_intact:  # trained outside of a sweep; the sweep only adds its row
                return 0.0
            step = self._step_seconds(cell)
            return None if step is None else step * (cell.config.train.total_steps - run.checkpoint_step)
        mean_seconds = next((self._cell_means[key] for key in _similar_keys(cell) if key in self._cell_means), None)
        if mean_seconds is not None:
            self._devices |= dict.fromkeys(self._cell_devices)
        return mean_seconds

    @property
    def devices(self) -> list[str]:
        """The devices on which the seconds of all estimates so far were measured."""
        return list(self._devices)

    def parameters(self, cell: GridCell) -> int | None:
        """Return the number of parameters of a cell's backbone; None if unknown."""
        key = _training_key(cell)
        recorded = self._recorded_means("model", "parameters").get(key)
        if recorded is not None:
            return int(recorded)
        if key not in self._counts and self._count and cell.config:
            try:
                self._counts[key] = self._count(cell.config)
            except IclbenchError:  # the sweep reports it
                self._counts[key] = None
        return self._counts.get(key)

    def bytes(self, cell: GridCell) -> float:
        """Return the bytes that a cell needs on disk: for a training run, its weights and checkpoints; for other cells,
        the mean size of existing tables of the same kind."""
        from iclbench.training.checkpoint import MAX_CHECKPOINTS

        if cell.kind != "train" or cell.config is None:
            return self._table_bytes.get(cell.kind, 0.0)
        run = self._run(cell)
        if run.is_intact:
            return 0.0
        train = cell.config.train
        weights = 1 + len(train.branches)
        checkpoints = min(MAX_CHECKPOINTS, -(-train.steps // train.checkpoint_every))
        return float((self.parameters(cell) or 0) * (weights * _WEIGHT_BYTES + checkpoints * _CHECKPOINT_BYTES))

    def amount(self, cells: Iterable[GridCell]) -> Amount:
        """Return the time and disk space that these cells need. Cells that are not applicable need none."""
        unknown: Counter[str] = Counter()
        durations, size = [], 0.0
        for cell in cells:
            if cell.reason is not None:
                continue
            size += self.bytes(cell)
            seconds = self.seconds(cell)
            if seconds is None:
                unknown[cell.kind] += 1
            else:
                durations.append(seconds)
        return Amount(sum(durations) if durations else None, dict(unknown), size)

    def _run(self, cell: GridCell) -> Run:
        return Run(self._store.results / "runs" / cell.run)

    def _step_seconds(self, cell: GridCell) -> float | None:
        recorded = self._recorded_means("train_step", "seconds").get(_training_key(cell))
        if recorded is None:
            return self._measured_step(cell)
        self._devices |= dict.fromkeys(self._step_devices)
        return recorded

    def _measured_step(self, cell: GridCell) -> float | None:
        """Return the measured seconds of a training step, or None if they cannot be measured or the time for
        measurements is used up. They are measured once for each task, backbone and preset."""
        key = _training_key(cell)
        if key not in self.measured_seconds and self._measure and cell.config and time.monotonic() < self._deadline:
            self._on_measure(f"a training step of {cell.contestant} on {cell.task}, {cell.preset}")
            try:
                self.measured_seconds[key] = self._measure(cell.config)
                self._devices[machine.device_label(self._device)] = None
            except IclbenchError:  # the sweep reports it
                return None
        return self.measured_seconds.get(key)

    def _recorded_means(self, phase: str, metric: str) -> dict[TrainingKey, float]:
        """Return the mean of a recorded cost over all runs of the same task, backbone and preset."""
        if (phase, metric) not in self._means_cache:
            rows = self._costs[self._costs["phase"].eq(phase) & self._costs["metric"].eq(metric)]
            if phase != "model":
                rows = rows[self._is_same_kind(rows["device"])]
            self._means_cache[phase, metric] = _means_by(rows, ["task", "contestant", "preset"], "value")
        return self._means_cache[phase, metric]

    @cached_property
    def _costs(self) -> pd.DataFrame:
        """The cost rows of training runs, from run folders and packed tables. The files of evaluations are not read,
        since there may be thousands."""
        results = self._store.results
        folders = sorted(p for p in results.iterdir() if p.is_dir() and p.name != "tables") if results.is_dir() else []
        rows = pd.concat([tables.frame("costs", []), *(tables.read_all("costs", folder) for folder in folders)])
        return rows[rows["n_points"].isna()]

    def _is_same_kind(self, devices: pd.Series) -> pd.Series:
        """Return a mask of the devices that are of the same kind (CPU or not) as the device of these estimates."""
        return devices.eq("cpu") == (self._device == "cpu")

    @cached_property
    def _step_devices(self) -> list[str]:
        """The devices of the recorded training steps."""
        devices = self._costs.loc[self._costs["phase"].eq("train_step"), "device"]
        return sorted(devices[self._is_same_kind(devices)].dropna().unique())

    @cached_property
    def _cell_devices(self) -> list[str]:
        """The devices of the recorded cells."""
        return sorted(self._finished_rows["device"].dropna().unique())

    @cached_property
    def _finished_rows(self) -> pd.DataFrame:
        """The rows of finished cells."""
        rows = self._store.rows
        return rows[rows["status"].eq("done")]

    @cached_property
    def _cell_means(self) -> dict[tuple[str, ...], float]:
        """Mean seconds of recorded cells, by the keys that `_similar_keys` returns."""
        rows = self._finished_rows
        runs = zip(rows["run"], rows["seed"], strict=True)
        rows = rows.assign(contestant_kind=[_contestant_kind(run, pd.isna(seed)) for run, seed in runs])
        means: dict[tuple[str, ...], float] = {}
        for columns in _SIMILAR_COLUMNS:
            means |= _means_by(rows, ["kind", *columns], "seconds")
        return means

    @cached_property
    def _table_bytes(self) -> dict[str, float]:
        """Mean total size of a cell's files, by kind. The size of a file that several cells share is divided equally
        between them."""
        rows = self._finished_rows
        cell_files = [json.loads(text) for text in rows["files"].fillna("[]")]
        counts = Counter(file for files in cell_files for file in files)
        size = {file: _size(self._store.results / file) / count for file, count in counts.items()}
        by_kind: dict[str, list[float]] = {}
        for kind, files in zip(rows["kind"], cell_files, strict=True):
            by_kind.setdefault(kind, []).append(sum(size[file] for file in files))
        return {kind: mean(sizes) for kind, sizes in by_kind.items()}


# Sets of columns, most specific first. Recorded cells with the same values in these columns estimate a new cell.
_SIMILAR_COLUMNS = (
    ["task", "preset", "contestant"],
    ["preset", "contestant"],
    ["task", "preset", "contestant_kind"],
    ["preset", "contestant_kind"],
)


def _similar_keys(cell: GridCell) -> list[tuple[str, ...]]:
    """Return the keys of the recorded cells that are similar to a cell, most similar first."""
    values = {
        "task": cell.task,
        "preset": cell.preset,
        "contestant": cell.contestant,
        "contestant_kind": _contestant_kind(cell.run, cell.config is None),
    }
    return [(cell.kind, *(values[column] for column in columns)) for columns in _SIMILAR_COLUMNS]


def _contestant_kind(run: str, untrained: bool) -> str:
    return SUMMARY if run == SUMMARY else "baseline" if untrained else "backbone"


def _training_key(cell: GridCell) -> TrainingKey:
    return cell.task, cell.contestant, cell.preset


def _means_by(rows: pd.DataFrame, columns: Sequence[str], value: str) -> dict[tuple[str, ...], float]:
    means = rows.dropna(subset=[value]).groupby(list(columns))[value].mean()
    return {tuple(map(str, key)): float(mean_value) for key, mean_value in zip(means.index, means, strict=True)}


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def parameter_range(plan: Plan, estimates: Estimates) -> dict[str, tuple[int, int]]:
    """Return the smallest and the largest number of parameters of the backbones trained on each task and preset."""
    counts: dict[str, list[int]] = {}
    for cell in plan.cells:
        if cell.kind == "train" and cell.reason is None and (count := estimates.parameters(cell)) is not None:
            counts.setdefault(cell.group, []).append(count)
    return {group: (min(group_counts), max(group_counts)) for group, group_counts in counts.items()}


def count_parameters(config: RunConfig, data_dir: Path | None = None) -> int:
    """Build the backbone of a configuration and return its number of parameters."""
    return config.build(config.task.build(data_dir)).parameter_count


def measure_step(config: RunConfig, data_dir: Path | None = None, device: str = "cpu", steps: int = 2) -> float:
    """Return the mean seconds of a training step, including the sampling of its episodes.

    The step has the full size of the curriculum. One step before the measured ones warms up the caches.
    """
    from iclbench.training.fit import Training
    from iclbench.training.step import TrainingData

    family = config.task.build(data_dir)
    settings = config.train.without_curriculum().model_copy(update={"compile": False})
    training = Training(config.build(family), TrainingData.of(config.task, family), settings, config.seed, device)
    start = 0.0
    for step in range(1 + steps):
        if step == 1:
            start = time.perf_counter()
        training.step()
        float(training.progress.pending)  # waits for the device
    return (time.perf_counter() - start) / steps
