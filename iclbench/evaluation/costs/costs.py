"""What a contestant costs: parameters, bytes of its state, time, memory and floating-point operations (FLOPs) of
training, conditioning and answering.

Rows of `costs`: phase `model` (parameters), `train_step` (a whole batch of the trained size, its episodes already
drawn), `condition` on n points (also state_bytes), one `query` from that state and its `update` by one point, or by as
many at once as the column `n_at_once` tells. The last three are measured on a batch of episodes side by side and
divided by their number, which the column `n_episodes` tells; only values of equal batches compare. Seconds and
bytes are medians over repeats after a warm-up; bytes are the peak beyond what was there before, inputs, state and
weights not counted. What needs less than some pages reads 0 and is left out.

FLOPs are counted and not measured (`iclbench.evaluation.costs.flops`), on the CPU wherever the rest runs, and so
the same on every machine. Those of a training step are loss and gradients, without the optimiser, whose work is
some ten per parameter; those of a whole training (phase `train`) are as many steps of full size, branches included,
which a curriculum's beginning stays below. Where a method computes by other means than torch there is no row of them.
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
from iclbench.core.memory import IN_COSTS, OutOfMemoryError, advised
from iclbench.core.plugins import named
from iclbench.core.predictor import State
from iclbench.core.seeds import generator
from iclbench.evaluation.contestants import PredictorContestant
from iclbench.evaluation.costs.flops import UncountedError, count_flops
from iclbench.families.base import Family
from iclbench.families.request import Request
from iclbench.families.shifts import Shift
from iclbench.store import identity
from iclbench.store.runs import writing
from iclbench.training.step import TrainingData, autocast, descend, make_optimiser

# Repeats of a measurement: as many as fit into the time given, within these bounds; of memory the fewest.
_LEAST, _MOST = 3, 20


@dataclass(frozen=True)
class Cost:
    """One measured value; `n_points`, `n_episodes` and `n_at_once` as in the table."""

    phase: str
    metric: str
    value: float
    n_points: int | None = None
    n_episodes: int | None = None
    n_at_once: int | None = None


@dataclass(frozen=True)
class Sizes:
    """What a contestant is asked while its costs are measured.

    Attributes:
        points: numbers of points to be conditioned on.
        queries: queries answered at once, besides a single one.
        updates: points that an update takes in at once, besides a single one.
        episodes: episodes side by side.
    """

    points: Sequence[int]
    queries: Sequence[int] = ()
    updates: Sequence[int] = ()
    episodes: int = 64

    def at_once(self) -> list[tuple[str, int]]:
        """Queries and updates of several at once, by phase."""
        sizes = {"query": self.queries, "update": self.updates}
        return [(phase, many) for phase, several in sizes.items() for many in sorted(set(several)) if many > 1]


@dataclass(frozen=True)
class _Work:
    """Work to be measured: its phase, the points in the state, how often it is done at once (None: once), the episodes
    side by side (None: those of a training step), and what does it."""

    phase: str
    n_points: int
    n_at_once: int | None
    n_episodes: int | None
    do: Callable[[], object]

    def cost(self, metric: str, total: int | float) -> Cost:
        """A value of the batch divided by its number of episodes; that of a training step unchanged."""
        return Cost(self.phase, metric, total / (self.n_episodes or 1), self.n_points, self.n_episodes, self.n_at_once)


class Measured(NamedTuple):
    """The outcome of measuring a contestant.

    Attributes:
        path: the file written.
        lines: a line for every size that had to be left out and for old rows that were dropped.
        failed: how many of the sizes left out are so for want of memory; the contestant takes in the others never.
    """

    path: Path
    lines: list[str]
    failed: int


@guarded
@advised(IN_COSTS)
def measure_costs(
    context: Context,
    contestant: PredictorContestant,
    task: TaskConfig,
    preset: str,
    sizes: Sizes,
    *,
    seconds: float = 1.0,
    train: TrainSettings | None = None,
) -> Measured:
    """Measure one contestant and put the rows into its file.

    What was measured again replaces the old rows. The others (of other sizes and batches) stay if they are of the same
    configuration, task and version of iclbench; those of another device or thread count have a file of their own.

    Args:
        context: results folder and data sets.
        contestant: a backbone on its device, or a baseline.
        task: whose family draws the points.
        preset: its preset.
        sizes: what it is asked.
        seconds: that the repeats of one measurement of time may take, three of them at least.
        train: how a backbone is trained; None: no training step is measured.

    Raises:
        OutOfMemoryError: a training step or counting does not fit into memory.
    """
    family = task.build(context.data_dir)
    costs: list[Cost] = []
    lines: list[str] = []
    if isinstance(contestant.predictor, Backbone):
        costs.append(Cost("model", "parameters", float(contestant.predictor.parameter_count)))
        if encoder := contestant.predictor.encoder_parameter_count:
            costs.append(Cost("model", "encoder_parameters", float(encoder)))
        if train is not None:
            costs += training_costs(contestant, family, task, train, seconds)
    measured, failed = [], 0
    for n in sorted(set(sizes.points)):
        try:
            with advised(IN_COSTS), named(contestant.predictor):
                answering, left_out = answering_costs(contestant, family, n, sizes, seconds)
            costs += answering
            lines += [f"'{contestant.run}' at {n} points: {line}" for line in left_out]
            measured.append(n)
        except IclbenchError as error:
            failed += isinstance(error, OutOfMemoryError)
            lines.append(f"'{contestant.run}' at {n} points left out: {error}")
    counted, reasons = counted_costs(contestant, family, task, train, replace(sizes, points=measured))
    costs += counted
    lines += [f"'{contestant.run}': FLOPs of {reason}" for reason in reasons]
    device, threads = devices.label(contestant.device), torch.get_num_threads()
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
        if tables.metadata(path).get("of") == costs_id:
            frame = _replace_measured(tables.read("costs", path), frame)
        else:
            lines.append(
                f"'{contestant.run}': older costs dropped, not known to be of this configuration, task and version"
            )
    with writing(context.results):
        tables.write("costs", frame, path, {"of": costs_id})
    return Measured(path, lines, failed)


def _replace_measured(old: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    """The new rows, and the old ones that were not measured again (a quantity may have become too small)."""
    keys = ["phase", "n_points", "n_at_once", "n_episodes"]
    is_remeasured = pd.MultiIndex.from_frame(old[keys]).isin(pd.MultiIndex.from_frame(new[keys]))
    return pd.concat([old[~is_remeasured], new], ignore_index=True)


def training_costs(
    contestant: PredictorContestant, family: Family, task: TaskConfig, settings: TrainSettings, seconds: float = 1.0
) -> list[Cost]:
    """Time and memory of a training step of the trained size, on a copy of the backbone: loss, gradients, optimiser."""
    backbone, batch = _to_train(contestant, family, task, settings)
    optimiser = make_optimiser(backbone, settings)
    loss_of = torch.compile(backbone.loss) if settings.compile else backbone.loss

    def step() -> None:
        with autocast(settings, contestant.device):
            loss, _ = loss_of(batch, 0.5, generator(0, "costs", device=contestant.device))
        descend(loss, backbone, optimiser, settings.clip)

    return list(_repeated(_Work("train_step", task.points, None, None, step), contestant.device, seconds))


def answering_costs(
    contestant: PredictorContestant, family: Family, n: int, sizes: Sizes, seconds: float = 1.0
) -> tuple[list[Cost], list[str]]:
    """Time and memory of conditioning on n points, a query from the state, an update of the state, those of several at
    once, and the size of the state; and why updates were left out.

    Raises:
        IclbenchError: so many points cannot be drawn or taken in.
    """
    state, works, left_out = _to_answer(contestant, family, n, sizes)
    costs = [Cost("condition", "state_bytes", state.nbytes / sizes.episodes, n, sizes.episodes)]
    for work in works:
        costs += _repeated(work, contestant.device, seconds)
    return costs, left_out


def counted_costs(
    contestant: PredictorContestant,
    family: Family,
    task: TaskConfig,
    settings: TrainSettings | None,
    sizes: Sizes,
) -> tuple[list[Cost], list[str]]:
    """FLOPs of the same phases, done on the CPU by torch operations alone, and the phases that cannot be counted with
    the reason."""
    on_cpu = contestant
    if on_cpu.device != "cpu" and isinstance(on_cpu.predictor, Backbone):
        on_cpu = replace(on_cpu, predictor=copy.deepcopy(on_cpu.predictor).to("cpu"))
    on_cpu = replace(on_cpu, device="cpu")
    works: list[_Work] = []
    if settings is not None and isinstance(on_cpu.predictor, Backbone):
        backbone, batch = _to_train(on_cpu, family, task, settings)

        def step() -> None:
            backbone.loss(batch, 0.5, generator(0, "costs"))[0].backward()

        works.append(_Work("train_step", task.points, None, None, step))
    for n in sizes.points:
        works += _to_answer(on_cpu, family, n, sizes)[1]
    costs: list[Cost] = []
    reasons: dict[str, None] = {}
    for work in works:
        try:
            flops = count_flops(work.do)
            costs.append(work.cost("flops", flops))
            if work.phase == "train_step" and settings is not None:
                costs.append(Cost("train", "flops", float(flops) * settings.all_steps))
        except UncountedError as error:
            reasons[f"{work.phase} {error}"] = None
    return costs, list(reasons)


def _to_train(
    contestant: PredictorContestant, family: Family, task: TaskConfig, settings: TrainSettings
) -> tuple[Backbone, Episodes]:
    """A copy of the backbone in training, and a batch of the trained size."""
    backbone = copy.deepcopy(contestant.predictor)
    assert isinstance(backbone, Backbone)
    batch = TrainingData.of(task, family).batch(settings.without_curriculum(), 0, 0, contestant.device)
    return backbone.train(), batch


def _to_answer(
    contestant: PredictorContestant, family: Family, n: int, sizes: Sizes
) -> tuple[State, list[_Work], list[str]]:
    """The state after n points, what is done to get and to use it, and why updates are left out."""
    predictor, episodes = contestant.predictor, sizes.episodes
    if reason := predictor.too_long(n):
        raise IclbenchError(reason)
    drawn = _points(family, episodes, n + 1).to(contestant.device)
    predictor = predictor.informed(drawn.truth)
    context, new, related = drawn.context.span(0, n), drawn.context.span(n), drawn.related
    untracked = torch.inference_mode()
    condition = untracked(lambda: predictor.condition(context, related))
    state = condition()
    use: dict[str, Callable[[Points], object]] = {
        "query": lambda points: predictor.query(state, points.x),
        "update": lambda points: predictor.update(state, points),
    }
    works = [_Work("condition", n, None, episodes, condition)]
    works += [_Work(phase, n, None, episodes, untracked(partial(done, new))) for phase, done in use.items()]
    left_out = []
    for phase, many in sizes.at_once():
        if phase == "update" and (reason := predictor.too_long(n + many)):
            left_out.append(f"an update by {many} left out: {reason}")
            continue
        # What they say does not matter to what they cost, and a family may not have so many different ones.
        several = new.map(partial(torch.repeat_interleave, repeats=many, dim=1))
        works.append(_Work(phase, n, many, episodes, untracked(partial(use[phase], several))))
    return state, works, left_out


def _points(family: Family, episodes: int, n: int) -> Episodes:
    """Episodes of exactly n points, with all related datasets that the family ever gives."""
    shift = Shift() if "next" in family.questions else Shift().with_examples(n)
    return family.sample_all_related(Request(episodes, n, generator(0, "costs", n - 1), shift=shift.name))


def _repeated(work: _Work, device: str, seconds: float) -> Iterator[Cost]:
    """Seconds and bytes of the work."""
    duration = seconds_of(work.do, device)
    repeats = min(_MOST, max(_LEAST, int(seconds / duration)))
    yield work.cost("seconds", statistics.median(seconds_of(work.do, device) for _ in range(repeats)))
    # Apart, since handing back free pages before the work makes it wait for new ones.
    if peak := statistics.median(peak_of(work.do, device) or 0 for _ in range(_LEAST)):
        yield work.cost("bytes", peak)
