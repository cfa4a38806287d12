"""Costs of a contestant: parameters, state size, and the time, memory and floating-point operations (FLOPs) of
training, conditioning and answering.

The phases in the table `costs` are:

- `model`: the number of parameters;
- `train_step`: one training step on a batch of full size, without sampling the episodes;
- `condition`: conditioning on n points (also `state_bytes`, the size of the resulting state);
- `query`: answering one query from this state, or the number of queries in the column `n_at_once`;
- `update`: updating this state with one point, or with the number of points in the column `n_at_once`.

The last three phases are measured on a batch of episodes and divided by its size, which is in the column `n_episodes`.
Compare only values with the same batch size. Seconds and bytes are medians over repetitions after a warm-up. Bytes are
the peak increase of memory, without inputs, state and weights. If the work requires less than a few pages of memory,
bytes are omitted.

FLOPs are counted, not measured (`iclbench.evaluation.costs.flops`). They are always counted on the CPU, so they are the
same on all machines. FLOPs of a training step include the loss and the gradients, but not the optimiser (about ten per
parameter). FLOPs of a training run (phase `train`) are the FLOPs of one step times the number of steps, including the
steps of branches. With a curriculum, this is an upper bound. Methods that compute outside torch have no FLOPs.
"""

from __future__ import annotations

import copy
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch

from iclbench import __version__, tables
from iclbench.backbones.base import Backbone
from iclbench.config.cards import TrainSettings
from iclbench.config.resolution import TaskConfig
from iclbench.core import devices
from iclbench.core.context import Context
from iclbench.core.episodes import Episodes, Points
from iclbench.core.errors import IclbenchError
from iclbench.core.guard import guarded
from iclbench.core.measure import peak_of, seconds_of
from iclbench.core.memory import COST_REMEDY, OutOfMemoryError, memory_advice
from iclbench.core.plugins import plugin_errors
from iclbench.core.predictor import State
from iclbench.core.seeds import generator
from iclbench.evaluation.contestants import PredictorContestant
from iclbench.evaluation.costs.flops import UncountedError, count_flops
from iclbench.families.base import Family
from iclbench.families.request import Request
from iclbench.families.shifts import Shift
from iclbench.store import identity
from iclbench.store.runs import write_errors
from iclbench.store.state import is_current
from iclbench.training.step import TrainingData, autocast, descend, make_optimiser

# Bounds on the number of repetitions within the requested time. Memory is measured `_MIN_REPEATS` times.
_MIN_REPEATS, _MAX_REPEATS = 3, 20


@dataclass(frozen=True)
class Cost:
    """One measured value, with the columns of the table `costs`."""

    phase: str
    metric: str
    value: float
    n_points: int | None = None
    n_episodes: int | None = None
    n_at_once: int | None = None


@dataclass(frozen=True)
class CostSizes:
    """The sizes at which costs are measured.

    Attributes:
        points: numbers of context points.
        queries: numbers of queries in one call; a single query is always measured.
        updates: numbers of points in one update; an update with a single point is always measured.
        episodes: number of episodes in a batch.
    """

    points: Sequence[int]
    queries: Sequence[int] = ()
    updates: Sequence[int] = ()
    episodes: int = 64

    def multi_point_phases(self) -> list[tuple[str, int]]:
        """Return pairs of a phase and a number, above 1, of queries or points that are processed in one call."""
        sizes = {"query": self.queries, "update": self.updates}
        return [(phase, n) for phase, numbers in sizes.items() for n in sorted(set(numbers)) if n > 1]


@dataclass(frozen=True)
class _Work:
    """Work to be measured.

    Attributes:
        phase: phase in the table `costs`.
        n_points: number of points in the state.
        n_at_once: number of queries, or number of points in an update; None means one.
        n_episodes: number of episodes in the batch; None for a training step.
        call: the function that does the work.
    """

    phase: str
    n_points: int
    n_at_once: int | None
    n_episodes: int | None
    call: Callable[[], object]

    def cost(self, metric: str, total: int | float) -> Cost:
        """Return the cost per episode, or per batch for a training step."""
        return Cost(self.phase, metric, total / (self.n_episodes or 1), self.n_points, self.n_episodes, self.n_at_once)


class Measurement(NamedTuple):
    """The outcome of measuring a contestant.

    Attributes:
        path: the written file.
        messages: a message for each size that was not measured, and a message if old rows were removed.
        failed: number of sizes that were not measured because memory was insufficient. The contestant does not support
            the other sizes that were not measured.
    """

    path: Path
    messages: list[str]
    failed: int


@guarded
@memory_advice(COST_REMEDY)
def measure_costs(
    context: Context,
    contestant: PredictorContestant,
    task: TaskConfig,
    preset: str,
    sizes: CostSizes,
    *,
    seconds: float = 1.0,
    train: TrainSettings | None = None,
) -> Measurement:
    """Measure the costs of one contestant and write them to its file.

    New rows replace old rows with the same sizes. Old rows with other sizes are kept if they were measured with the
    same configuration, task and version of iclbench. Each combination of device and number of threads has its own file.

    Args:
        context: results folder and data sets.
        contestant: a backbone on its device, or a baseline.
        task: task whose family samples the points.
        preset: preset of the task.
        sizes: sizes to measure.
        seconds: time for the repetitions of one measurement. At least three repetitions are made.
        train: training settings of a backbone; None to skip the training step.

    Raises:
        OutOfMemoryError: memory is insufficient for a training step or for counting FLOPs.
    """
    family = task.build(context.data_dir)
    costs: list[Cost] = []
    messages: list[str] = []
    if isinstance(contestant.predictor, Backbone):
        costs.append(Cost("model", "parameters", float(contestant.predictor.parameter_count)))
        if encoder := contestant.predictor.encoder_parameter_count:
            costs.append(Cost("model", "encoder_parameters", float(encoder)))
        if train is not None:
            costs += training_costs(contestant, family, task, train, seconds)
    measured_points, failed = [], 0
    for n in sorted(set(sizes.points)):
        try:
            with memory_advice(COST_REMEDY), plugin_errors(contestant.predictor):
                new_costs, reasons = answering_costs(contestant, family, n, sizes, seconds)
            costs += new_costs
            messages += [f"'{contestant.run}' at {n} points: {reason}" for reason in reasons]
            measured_points.append(n)
        except IclbenchError as error:
            failed += isinstance(error, OutOfMemoryError)
            messages.append(f"'{contestant.run}' at {n} points was skipped: {error}")
    flop_costs, reasons = count_costs(contestant, family, task, train, replace(sizes, points=measured_points))
    costs += flop_costs
    messages += [f"'{contestant.run}': FLOPs of {reason}" for reason in reasons]
    device, threads = devices.device_label(contestant.device), torch.get_num_threads()
    shared: dict[str, object] = {
        "run": contestant.run,
        "task": task.name,
        "contestant": contestant.name,
        "preset": preset,
        "device": device,
        "threads": threads,
        "version": __version__,
    }
    machine = re.sub(r"[^a-z0-9]+", "-", f"{device}-{threads}".lower())
    path = context.results / "tables" / "costs" / f"{task.name}-{preset}" / machine / f"{contestant.run}.costs.parquet"
    rows = [shared | {k: v for k, v in vars(cost).items() if v is not None} for cost in costs]
    costs_id = identity.costs_id(contestant, task, family.fingerprint)
    frame = tables.frame("costs", rows)
    if path.exists():
        if is_current(tables.metadata(path), {"costs_id": costs_id}):
            frame = _replace_measured(tables.read("costs", path), frame)
        else:
            messages.append(f"'{contestant.run}': older costs of another configuration, task or version were removed")
    with write_errors(context.results):
        tables.write("costs", frame, path, {"costs_id": costs_id})
    return Measurement(path, messages, failed)


def _replace_measured(old: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    """Return the new rows and those old rows that were not measured again."""
    keys = ["phase", "n_points", "n_at_once", "n_episodes"]
    is_remeasured = pd.MultiIndex.from_frame(old[keys]).isin(pd.MultiIndex.from_frame(new[keys]))
    return pd.concat([old[~is_remeasured], new], ignore_index=True)


def training_costs(
    contestant: PredictorContestant, family: Family, task: TaskConfig, settings: TrainSettings, seconds: float = 1.0
) -> list[Cost]:
    """Measure time and memory of a training step of full size (loss, gradients, optimiser) on a copy of the model."""
    backbone, batch = _training_setup(contestant, family, task, settings)
    optimiser = make_optimiser(backbone, settings)
    loss_of = torch.compile(backbone.loss) if settings.compile else backbone.loss

    def step() -> None:
        with autocast(settings, contestant.device):
            loss, _ = loss_of(batch, 0.5, generator(0, "costs", device=contestant.device))
        descend(loss, backbone, optimiser, settings.clip)

    return list(_measure_repeatedly(_Work("train_step", task.points, None, None, step), contestant.device, seconds))


def answering_costs(
    contestant: PredictorContestant, family: Family, n: int, sizes: CostSizes, seconds: float = 1.0
) -> tuple[list[Cost], list[str]]:
    """Measure time and memory of conditioning on n points, of queries and of updates, and the size of the state.

    Returns:
        The costs, and a message for each update that was not measured.

    Raises:
        IclbenchError: the family cannot sample n points, or the contestant does not support n points.
    """
    state, works, messages = _answering_setup(contestant, family, n, sizes)
    costs = [Cost("condition", "state_bytes", state.nbytes / sizes.episodes, n, sizes.episodes)]
    for work in works:
        costs += _measure_repeatedly(work, contestant.device, seconds)
    return costs, messages


def count_costs(
    contestant: PredictorContestant,
    family: Family,
    task: TaskConfig,
    settings: TrainSettings | None,
    sizes: CostSizes,
) -> tuple[list[Cost], list[str]]:
    """Count the FLOPs of a training step, of conditioning, of queries and of updates on the CPU.

    Returns:
        The costs, and a message for each phase that cannot be counted.
    """
    cpu_contestant = contestant
    if contestant.device != "cpu" and isinstance(contestant.predictor, Backbone):
        cpu_contestant = replace(contestant, predictor=copy.deepcopy(contestant.predictor).to("cpu"))
    cpu_contestant = replace(cpu_contestant, device="cpu")
    works: list[_Work] = []
    if settings is not None and isinstance(cpu_contestant.predictor, Backbone):
        backbone, batch = _training_setup(cpu_contestant, family, task, settings)

        def step() -> None:
            backbone.loss(batch, 0.5, generator(0, "costs"))[0].backward()

        works.append(_Work("train_step", task.points, None, None, step))
    for n in sizes.points:
        works += _answering_setup(cpu_contestant, family, n, sizes)[1]
    costs: list[Cost] = []
    reasons: dict[str, None] = {}
    for work in works:
        try:
            flops = count_flops(work.call)
            costs.append(work.cost("flops", flops))
            if work.phase == "train_step" and settings is not None:
                costs.append(Cost("train", "flops", float(flops) * settings.total_steps))
        except UncountedError as error:
            reasons[f"{work.phase} {error}"] = None
    return costs, list(reasons)


def _training_setup(
    contestant: PredictorContestant, family: Family, task: TaskConfig, settings: TrainSettings
) -> tuple[Backbone, Episodes]:
    """Return a copy of the backbone in training mode, and a batch of full size."""
    backbone = copy.deepcopy(contestant.predictor)
    assert isinstance(backbone, Backbone)
    batch = TrainingData.of(task, family).batch(settings.without_curriculum(), 0, 0, contestant.device)
    return backbone.train(), batch


def _answering_setup(
    contestant: PredictorContestant, family: Family, n: int, sizes: CostSizes
) -> tuple[State, list[_Work], list[str]]:
    """Return the state after n points, the work to measure (conditioning, queries and updates), and a message for each
    update that is not measured."""
    predictor, n_episodes = contestant.predictor, sizes.episodes
    if reason := predictor.too_long(n):
        raise IclbenchError(reason, code="not-applicable")
    episodes = _episodes(family, n_episodes, n + 1).to(contestant.device)
    predictor = predictor.informed(episodes.truth)
    context, new_point, related = episodes.context.span(0, n), episodes.context.span(n), episodes.related
    inference_mode = torch.inference_mode()
    condition = inference_mode(lambda: predictor.condition(context, related))
    state = condition()
    calls: dict[str, Callable[[Points], object]] = {
        "query": lambda points: predictor.query(state, points.x),
        "update": lambda points: predictor.update(state, points),
    }
    works = [_Work("condition", n, None, n_episodes, condition)]
    works += [
        _Work(phase, n, None, n_episodes, inference_mode(partial(call, new_point))) for phase, call in calls.items()
    ]
    messages = []
    for phase, n_at_once in sizes.multi_point_phases():
        if phase == "update" and (reason := predictor.too_long(n + n_at_once)):
            messages.append(f"an update by {n_at_once} points was skipped: {reason}")
            continue
        # The same point is repeated, because the family may not have enough different points, and costs do not depend
        # on values.
        new_points = new_point.map(partial(torch.repeat_interleave, repeats=n_at_once, dim=1))
        works.append(_Work(phase, n, n_at_once, n_episodes, inference_mode(partial(calls[phase], new_points))))
    return state, works, messages


def _episodes(family: Family, episodes: int, n: int) -> Episodes:
    """Sample episodes with exactly n points and with the family's largest number of related datasets."""
    shift = Shift() if "next" in family.questions else Shift().with_examples(n)
    return family.sample_all_related(Request(episodes, n, generator(0, "costs", n - 1), shift=shift.name))


def _measure_repeatedly(work: _Work, device: str, seconds: float) -> Iterator[Cost]:
    """Measure seconds and bytes of the work, in separate repetitions."""
    duration = seconds_of(work.call, device)
    repeats = min(_MAX_REPEATS, max(_MIN_REPEATS, int(seconds / duration)))
    yield work.cost("seconds", statistics.median(seconds_of(work.call, device) for _ in range(repeats)))
    # Memory is measured separately, because free pages are returned to the kernel first, which slows down the work.
    if peak := statistics.median(peak_of(work.call, device) or 0 for _ in range(_MIN_REPEATS)):
        yield work.cost("bytes", peak)
