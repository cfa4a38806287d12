"""From a grid card to cells: train, evaluate, probe and cost, each a pure function of its frozen configuration.

A cell's hash is taken over all that its rows depend on and say: the run's name, what was trained, the task as it is
evaluated, what is asked, which samplers and estimators answer. Notes on cards, names of files and the order of a grid
are no part of it. Of data sets it contains where the files are and not what they hold: a grid can be planned without
them, and a sweep refuses runs whose data have changed (`iclbench.sweep.outlook.check_data`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from iclbench.config.cards import load_baseline
from iclbench.config.resolution import RunConfig, TaskConfig
from iclbench.store import identity
from iclbench.sweep.grids import GridRun, grid_runs

Kind = Literal["train", "evaluate", "probe", "cost"]
KINDS: tuple[Kind, ...] = ("train", "evaluate", "probe", "cost")

# The cell that sums up what all contestants of a task did on its prompts.
SUMMARY = "summary"


@dataclass(frozen=True)
class GridCell:
    """One unit of work of a grid.

    Attributes:
        kind: train, evaluate, probe or cost.
        run: the run's name; a baseline's own name, or `summary`, where nothing is trained.
        contestant: backbone or baseline, as the tables call it.
        task: the task at its preset.
        preset: that preset.
        config: what is trained; None for baselines and summaries.
        asked: what is asked, in plain values: `shifts`, `evaluators` and `seed` (evaluate), `probe` and `contexts`
            (probe), `points` (cost).
        needs: hashes of the cells that must have come to an end before this one begins.
        reason: why the cell makes no sense; None: it does.
        baseline: name or path of a baseline's card; None for all others.
        weights: whether packed results bring along what is trained.
    """

    kind: Kind
    run: str
    contestant: str
    frozen: TaskConfig
    preset: str
    config: RunConfig | None = None
    asked: dict[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    reason: str | None = None
    baseline: str | None = None
    weights: bool = False

    @property
    def task(self) -> str:
        return self.frozen.name

    @property
    def seed(self) -> int | None:
        return None if self.config is None else self.config.seed

    @property
    def work(self) -> str:
        """Which work it is: the kind, but for cells of language models."""
        return self.kind

    def read_data(self, data_dir: Path | None) -> None:
        """Read the data set that the cell's task needs, if it needs one; raises `DataError` where that fails."""
        family = self.frozen.build(data_dir)
        _ = family.needs_data and family.fingerprint  # of the data, which are read for it

    @property
    def group(self) -> str:
        """Task and preset, as they stand in names of files."""
        return f"{self.task}-{self.preset}"

    @property
    def affinity(self) -> str:
        """What cells have in common that are worked on one after the other: the group, but for language models."""
        return self.group

    @property
    def is_summary(self) -> bool:
        """Whether the cell sums up the scores of all contestants of a task."""
        return self.run == SUMMARY

    @cached_property
    def hash(self) -> str:
        """The identity of everything that the cell's rows depend on."""
        return identity.cell_id(self)


def grid_cells(names: Iterable[str], added: Sequence[str] = (), results: Path | None = None) -> list[GridCell]:
    """All cells of these grids, by name or path, each once: the runs of one task and preset together, its baselines
    before and its summary behind them; `added` are further backbones for each of them, `results` as in `grid_runs`.

    Raises:
        UsageError: a card does not hold, or does not fit its tasks.
    """
    groups: dict[tuple[str, str], list[GridRun]] = {}
    for name in names:
        for run in grid_runs(name, added=added, results=results):
            groups.setdefault((run.config.task.name, run.config.preset), []).append(run)
    found: dict[str, GridCell] = {}
    for cell in (cell for runs in groups.values() for cell in _group(runs)):
        known = found.get(cell.hash)
        found[cell.hash] = cell if known is None else replace(known, weights=known.weights or cell.weights)
    return list(found.values())


def _group(runs: Sequence[GridRun]) -> Iterator[GridCell]:
    """The cells of one task at one preset."""
    evaluated: list[GridCell] = []
    for cells in (list(_baselines(runs)), *(list(_of_run(run)) for run in runs)):
        evaluated += [cell for cell in cells if cell.kind == "evaluate" and not cell.reason]
        yield from cells
    yield from _summaries(evaluated)


def _of_run(run: GridRun) -> Iterator[GridCell]:
    config = run.config
    contestant = config.backbone.name
    of_run: dict[str, Any] = {
        "run": run.name,
        "contestant": contestant,
        "frozen": config.task,
        "preset": config.preset,
        "config": config,
        "reason": run.without,
    }
    train = GridCell("train", weights=run.weights, **of_run)
    yield train
    if run.cost:  # needs no weights: they do not matter to what a backbone costs
        yield GridCell("cost", asked={"points": list(run.cost)}, **of_run)
    of_run["needs"] = (train.hash,)
    if run.evaluate:
        yield GridCell("evaluate", asked=_asked(run), **of_run)
    for probe in run.probes:
        contexts = [] if probe == "representation" else list(run.contexts or ())
        yield GridCell("probe", asked={"probe": probe, "contexts": contexts}, **of_run)


def _baselines(runs: Sequence[GridRun]) -> Iterator[GridCell]:
    """One cell for every baseline and everything that any run beside it is asked; one of numbers makes no sense where
    labels are asked for, nor the other way round."""
    from iclbench.evaluation.contestants import misfit  # needs torch

    own_name = cache(lambda name: load_baseline(name)[0])
    wanted: dict[tuple[str, str], tuple[str, TaskConfig, dict[str, Any]]] = {}
    for run in runs:
        if not run.evaluate or run.without:
            continue
        asked, task = _asked(run), run.config.task
        episodes = identity.episodes_id(task, asked["seed"])
        for name in run.beside:
            key = (own_name(name), episodes)
            known = wanted.setdefault(key, (name, task, asked))[2]
            wanted[key] = (name, task, _united(known, asked))
    for (own, _), (name, task, asked) in wanted.items():
        preset, reason = runs[0].config.preset, misfit(name, task)
        yield GridCell("evaluate", own, own, task, preset, asked=asked, reason=reason, baseline=name)


def _summaries(evaluated: Sequence[GridCell]) -> Iterator[GridCell]:
    """One cell for every set of episodes: what follows from all contestants together."""
    groups: dict[str, list[GridCell]] = {}
    for cell in evaluated:
        groups.setdefault(identity.episodes_id(cell.frozen, cell.asked["seed"]), []).append(cell)
    for cells in groups.values():
        asked: dict[str, Any] = {}
        for cell in cells:
            asked = _united(asked or cell.asked, cell.asked)
        needs = tuple(sorted(cell.hash for cell in cells))
        yield GridCell("evaluate", SUMMARY, SUMMARY, cells[0].frozen, cells[0].preset, asked=asked, needs=needs)


def _asked(run: GridRun) -> dict[str, Any]:
    """What a run is put to, in-distribution always."""
    from iclbench.families.shifts import Shift  # needs torch

    beyond = [] if run.extrapolate is None else [Shift().with_examples(run.extrapolate).name]
    shifts = list(dict.fromkeys(["none", *beyond, *run.shifts]))
    return {"shifts": shifts, "evaluators": list(run.config.task.evaluators), "seed": run.evaluation_seed}


def _united(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    """Everything that either is asked; both on prompts of one seed."""
    both = {key: list(dict.fromkeys([*a[key], *b[key]])) for key in ("shifts", "evaluators")}
    return {**both, "seed": a["seed"]}
