"""Expansion of a grid card into cells that train, evaluate, probe or measure costs.

The table rows that a cell writes depend only on its frozen configuration.

The hash of a cell covers all inputs of its rows: the run's name, the configuration of the training run, the evaluated
task, the options of the cell, and the code of samplers and estimators. It does not cover notes on cards or the order
of a grid. For data sets, the hash covers the paths of the files but not their content, so that a grid can be planned
without the files. A sweep refuses runs whose data have changed (`iclbench.sweep.outlook.check_data`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
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

# Name of the cell that summarises the scores of all contestants of a task.
SUMMARY = "summary"


@dataclass(frozen=True)
class GridCell:
    """One unit of work of a grid.

    Attributes:
        kind: train, evaluate, probe or cost.
        run: name of the run or the baseline, or `summary`.
        contestant: name of the backbone or baseline in tables.
        task_config: configuration of the task at the preset.
        preset: the preset.
        config: configuration of the training run; None for baselines and summaries.
        options: options of the cell as plain values: `shifts`, `evaluators`, `seed` and, if there are any, `loops`
            (evaluate), `probe` and `contexts` (probe), `points` (cost).
        needs: hashes of the cells that must have an outcome before this cell starts.
        reason: why the cell is not applicable; None if it is applicable.
        baseline: name or path of the baseline's card; None if the cell does not evaluate a baseline.
        packs_weights: whether packed results include the weights.
    """

    kind: Kind
    run: str
    contestant: str
    task_config: TaskConfig
    preset: str
    config: RunConfig | None = None
    options: dict[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    reason: str | None = None
    baseline: str | None = None
    packs_weights: bool = False

    @property
    def task(self) -> str:
        return self.task_config.name

    @property
    def seed(self) -> int | None:
        return None if self.config is None else self.config.seed

    @property
    def work(self) -> str:
        """The kind of work: `kind`, except for cells of language models."""
        return self.kind

    def read_data(self, data_dir: Path | None) -> None:
        """Read the data set of the cell's task, if the task needs one. Raise `DataError` if it cannot be read."""
        family = self.task_config.build(data_dir)
        _ = family.needs_data and family.fingerprint  # the fingerprint reads the data

    @property
    def group(self) -> str:
        """The task and the preset as one string, as in file names."""
        return f"{self.task}-{self.preset}"

    @property
    def affinity(self) -> str:
        """A key by which cells are ordered: cells with the same key are computed one after the other."""
        return self.group

    @property
    def is_summary(self) -> bool:
        """Whether the cell summarises the scores of all contestants of a task."""
        return self.run == SUMMARY

    @cached_property
    def hash(self) -> str:
        """Hash of all inputs of the cell's rows."""
        return identity.cell_id(self)


def grid_cells(
    names: Iterable[str],
    added_backbones: Sequence[str] = (),
    results: Path | None = None,
    tasks: Collection[str] | None = None,
) -> list[GridCell]:
    """Return all cells of these grids, or those of some tasks, without duplicates.

    Cells of the same task and preset follow each other: first the baselines, then the runs, then the summary.

    Args:
        names: names of grids, or paths to their cards.
        added_backbones: backbones that are added to each grid, as in `grid_runs`.
        results: as in `grid_runs`.
        tasks: as in `grid_runs`.

    Raises:
        UsageError: a card is not valid, or does not fit its tasks.
    """
    groups: dict[tuple[str, str], list[GridRun]] = {}
    for name in names:
        for run in grid_runs(name, added_backbones=added_backbones, results=results, tasks=tasks):
            groups.setdefault((run.config.task.name, run.config.preset), []).append(run)
    cells: dict[str, GridCell] = {}
    for cell in (cell for runs in groups.values() for cell in _group_cells(runs)):
        duplicate = cells.get(cell.hash)
        cells[cell.hash] = (
            cell
            if duplicate is None
            else replace(duplicate, packs_weights=duplicate.packs_weights or cell.packs_weights)
        )
    return list(cells.values())


def _group_cells(runs: Sequence[GridRun]) -> Iterator[GridCell]:
    """Yield the cells of one task at one preset."""
    evaluations: list[GridCell] = []
    for cells in (list(_baseline_cells(runs)), *(list(_run_cells(run)) for run in runs)):
        evaluations += [cell for cell in cells if cell.kind == "evaluate" and not cell.reason]
        yield from cells
    yield from _summary_cells(evaluations)


def _run_cells(run: GridRun) -> Iterator[GridCell]:
    config = run.config
    contestant = config.backbone.name
    fields: dict[str, Any] = {
        "run": run.name,
        "contestant": contestant,
        "task_config": config.task,
        "preset": config.preset,
        "config": config,
        "reason": run.exclusion,
    }
    train = GridCell("train", packs_weights=run.packs_weights, **fields)
    yield train
    if run.cost_points:  # the costs of a backbone do not depend on its weights
        yield GridCell("cost", options={"points": list(run.cost_points)}, **fields)
    fields["needs"] = (train.hash,)
    if run.evaluate:
        loops = {"loops": list(run.loops)} if run.loops else {}
        yield GridCell("evaluate", options=_evaluation_options(run) | loops, **fields)
    for probe in run.probes:
        contexts = [] if probe == "representation" else list(run.contexts or ())
        yield GridCell("probe", options={"probe": probe, "contexts": contexts}, **fields)


def _baseline_cells(runs: Sequence[GridRun]) -> Iterator[GridCell]:
    """Yield one cell for each baseline and set of episodes, with the union of the options of all runs.

    A regression baseline is not applicable to classification tasks, and a classification baseline is not applicable to
    regression tasks.
    """
    from iclbench.evaluation.contestants import output_mismatch  # needs torch

    card_name = cache(lambda name: load_baseline(name)[0])
    evaluations: dict[tuple[str, str], tuple[str, TaskConfig, dict[str, Any]]] = {}
    for run in runs:
        if not run.evaluate or run.exclusion:
            continue
        options, task = _evaluation_options(run), run.config.task
        episodes = identity.episodes_id(task, options["seed"])
        for card in run.baseline_names:
            key = (card_name(card), episodes)
            earlier_options = evaluations.setdefault(key, (card, task, options))[2]
            evaluations[key] = (card, task, _merged_options(earlier_options, options))
    for (name, _), (card, task, options) in evaluations.items():
        preset, reason = runs[0].config.preset, output_mismatch(card, task)
        yield GridCell("evaluate", name, name, task, preset, options=options, reason=reason, baseline=card)


def _summary_cells(evaluations: Sequence[GridCell]) -> Iterator[GridCell]:
    """Yield one summary of all contestants for each set of episodes."""
    groups: dict[str, list[GridCell]] = {}
    for cell in evaluations:
        groups.setdefault(identity.episodes_id(cell.task_config, cell.options["seed"]), []).append(cell)
    for cells in groups.values():
        options: dict[str, Any] = {}
        for cell in cells:
            options = _merged_options(options or cell.options, cell.options)
        needs = tuple(sorted(cell.hash for cell in cells))
        yield GridCell(
            "evaluate", SUMMARY, SUMMARY, cells[0].task_config, cells[0].preset, options=options, needs=needs
        )


def _evaluation_options(run: GridRun) -> dict[str, Any]:
    """Return the options of a run's evaluation. The evaluation always includes the training distribution."""
    from iclbench.families.shifts import Shift  # needs torch

    extrapolations = [] if run.extrapolate is None else [Shift().with_examples(run.extrapolate).name]
    shifts = list(dict.fromkeys(["none", *extrapolations, *run.shifts]))
    return {"shifts": shifts, "evaluators": list(run.config.task.evaluators), "seed": run.evaluation_seed}


def _merged_options(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    """Return the union of the options of two evaluations with the same seed."""
    lists = {key: list(dict.fromkeys([*a[key], *b[key]])) for key in ("shifts", "evaluators")}
    return {**lists, "seed": a["seed"]}
