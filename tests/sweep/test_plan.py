"""The plan of a grid: cells that are not computed yet and the cells that they need, in the order of the grid."""

from dataclasses import replace
from pathlib import Path

import pytest

from iclbench import tables
from iclbench.config.resolution import resolve_run
from iclbench.core.context import Context
from iclbench.store.cells import CellStore, record
from iclbench.store.outcome import Outcome
from iclbench.store.runs import Run
from iclbench.sweep.cells import SUMMARY, GridCell
from iclbench.sweep.plan import Plan, make_plan, weights_path

CONFIG = resolve_run("linear", "gpt2", "smoke")
OPTIONS = {"shifts": ["none"], "evaluators": [], "seed": 0}
TRAIN = GridCell("train", "a", "gpt2", CONFIG.task, "smoke", CONFIG)
EVALUATE = GridCell("evaluate", "a", "gpt2", CONFIG.task, "smoke", CONFIG, OPTIONS, (TRAIN.hash,))
ZERO = GridCell("evaluate", "zero", "zero", CONFIG.task, "smoke", options=OPTIONS, baseline="zero")
SUMMARY_CELL = GridCell(
    "evaluate", SUMMARY, SUMMARY, CONFIG.task, "smoke", options=OPTIONS, needs=(ZERO.hash, EVALUATE.hash)
)
CELLS = (ZERO, TRAIN, EVALUATE, SUMMARY_CELL)


def record_all(results: Path, status: str, *cells: GridCell) -> None:
    for cell in cells:
        reason = None if status == "done" else "why"
        record(results, cell, Outcome(status, reason), Context(results))  # type: ignore[arg-type]


def plan_of(results: Path) -> Plan:
    return make_plan(CELLS, CellStore(results))


def test_in_an_empty_folder_all_cells_are_planned_in_grid_order(tmp_path: Path) -> None:
    assert plan_of(tmp_path).todo == CELLS
    assert plan_of(tmp_path).repeated == ()


def test_finished_cells_are_not_repeated_even_without_weights(tmp_path: Path) -> None:
    record_all(tmp_path, "done", *CELLS)
    assert not weights_path(tmp_path, TRAIN).exists()
    assert plan_of(tmp_path).todo == ()


@pytest.mark.parametrize("has_weights", [False, True])
def test_a_run_is_retrained_only_if_a_cell_needs_its_missing_weights(tmp_path: Path, has_weights: bool) -> None:
    record_all(tmp_path, "done", TRAIN, ZERO, SUMMARY_CELL)
    if has_weights:
        weights_path(tmp_path, TRAIN).parent.mkdir(parents=True)
        weights_path(tmp_path, TRAIN).touch()
    assert plan_of(tmp_path).todo == (() if has_weights else (TRAIN,)) + (EVALUATE, SUMMARY_CELL)
    assert plan_of(tmp_path).repeated == (() if has_weights else (TRAIN,)) + (SUMMARY_CELL,)


@pytest.mark.parametrize("has_branches", [False, True])
def test_a_run_unpacked_from_an_archive_is_retrained_if_its_branches_are_evaluated(
    tmp_path: Path, has_branches: bool
) -> None:
    """Archives of weights do not contain branches."""
    settings = ["train.schedule=warmup-stable-decay", "train.branches=[0.5]"] if has_branches else []
    config = resolve_run("linear", "gpt2", "smoke", overrides=settings)
    train, evaluate = (replace(cell, config=config) for cell in (TRAIN, EVALUATE))
    evaluate = replace(evaluate, needs=(train.hash,))
    record_all(tmp_path, "done", train)
    weights_path(tmp_path, train).parent.mkdir(parents=True)
    weights_path(tmp_path, train).touch()
    assert make_plan((train, evaluate), CellStore(tmp_path)).todo == (evaluate,)
    (weights_path(tmp_path, train).parent / Run.UNPACKED).touch()
    assert make_plan((train, evaluate), CellStore(tmp_path)).todo == ((train,) if has_branches else ()) + (evaluate,)


@pytest.mark.parametrize(("task", "is_repeated"), [("linear", False), ("gp-mixture", True)])
def test_packed_evaluations_are_repeated_only_if_a_summary_compares_episodes(
    tmp_path: Path, task: str, is_repeated: bool
) -> None:
    """Packed files contain all values, but only the errors that a report needs."""
    config = resolve_run(task, "gpt2", "smoke")
    train, evaluate, zero = (
        replace(cell, task_config=config.task, config=cell.config and config) for cell in CELLS[:3]
    )
    evaluate = replace(evaluate, needs=(train.hash,))
    summary = replace(SUMMARY_CELL, task_config=config.task, needs=(zero.hash, evaluate.hash))
    (tmp_path / "reference").mkdir()
    tables.write("cells", [], tmp_path / "reference" / "packed.parquet", {})
    for cell in (train, evaluate, zero):
        record(tmp_path, cell, Outcome("done", files=("reference/packed.parquet",)), Context(tmp_path))
    cells = (zero, train, evaluate, summary)
    assert make_plan(cells, CellStore(tmp_path)).todo == (cells if is_repeated else (summary,))
    assert make_plan(cells, CellStore(tmp_path)).repeated == ((zero, train, evaluate) if is_repeated else ())
    record(tmp_path, summary, Outcome("done"), Context(tmp_path))
    assert make_plan(cells, CellStore(tmp_path)).todo == ()


def test_a_failed_cell_and_its_summary_are_repeated(tmp_path: Path) -> None:
    record_all(tmp_path, "done", TRAIN, EVALUATE, SUMMARY_CELL)
    record_all(tmp_path, "failed", ZERO)
    assert plan_of(tmp_path).todo == (ZERO, SUMMARY_CELL)


def test_a_skipped_cell_is_not_repeated(tmp_path: Path) -> None:
    record_all(tmp_path, "done", TRAIN, ZERO, SUMMARY_CELL)
    record_all(tmp_path, "skipped", EVALUATE)
    assert plan_of(tmp_path).todo == ()
    assert plan_of(tmp_path).states[EVALUATE.hash] == "skipped"
