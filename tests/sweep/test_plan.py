"""The plan: what is left of a grid, with all that it needs, in the grid's order."""

from dataclasses import replace
from pathlib import Path

import pytest

from iclbench import tables
from iclbench.config.resolution import resolve_run
from iclbench.core.context import Context
from iclbench.store.cells import Store, record
from iclbench.store.outcome import Outcome
from iclbench.store.runs import Run
from iclbench.sweep.cells import SUMMARY, GridCell
from iclbench.sweep.plan import Plan, plan, weights

CONFIG = resolve_run("linear", "gpt2", "smoke")
ASKED = {"shifts": ["none"], "evaluators": [], "seed": 0}
TRAIN = GridCell("train", "a", "gpt2", CONFIG.task, "smoke", CONFIG)
EVALUATE = GridCell("evaluate", "a", "gpt2", CONFIG.task, "smoke", CONFIG, ASKED, (TRAIN.hash,))
ZERO = GridCell("evaluate", "zero", "zero", CONFIG.task, "smoke", options=ASKED, baseline="zero")
TOGETHER = GridCell("evaluate", SUMMARY, SUMMARY, CONFIG.task, "smoke", options=ASKED, needs=(ZERO.hash, EVALUATE.hash))
CELLS = (ZERO, TRAIN, EVALUATE, TOGETHER)


def settle(results: Path, status: str, *cells: GridCell) -> None:
    for cell in cells:
        reason = None if status == "done" else "why"
        record(results, cell, Outcome(status, reason), Context(results))  # type: ignore[arg-type]


def planned(results: Path) -> Plan:
    return plan(CELLS, Store(results))


def test_nothing_is_there_and_all_is_to_do_in_the_order_of_the_grid(tmp_path: Path) -> None:
    assert planned(tmp_path).todo == CELLS
    assert planned(tmp_path).repeated == ()


def test_all_is_there_and_nothing_is_to_do_even_without_weights(tmp_path: Path) -> None:
    settle(tmp_path, "done", *CELLS)
    assert not weights(tmp_path, TRAIN).exists()
    assert planned(tmp_path).todo == ()


@pytest.mark.parametrize("there", [False, True])
def test_a_run_is_trained_again_only_for_weights_that_somebody_needs(tmp_path: Path, there: bool) -> None:
    settle(tmp_path, "done", TRAIN, ZERO, TOGETHER)
    if there:
        weights(tmp_path, TRAIN).parent.mkdir(parents=True)
        weights(tmp_path, TRAIN).touch()
    assert planned(tmp_path).todo == (() if there else (TRAIN,)) + (EVALUATE, TOGETHER)
    assert planned(tmp_path).repeated == (() if there else (TRAIN,)) + (TOGETHER,)


@pytest.mark.parametrize("branched", [False, True])
def test_a_run_from_an_archive_is_trained_again_where_branches_are_evaluated(tmp_path: Path, branched: bool) -> None:
    """An archive of weights brings none."""
    settings = ["train.schedule=warmup-stable-decay", "train.branches=[0.5]"] if branched else []
    config = resolve_run("linear", "gpt2", "smoke", overrides=settings)
    train, evaluate = (replace(cell, config=config) for cell in (TRAIN, EVALUATE))
    evaluate = replace(evaluate, needs=(train.hash,))
    settle(tmp_path, "done", train)
    weights(tmp_path, train).parent.mkdir(parents=True)
    weights(tmp_path, train).touch()
    assert plan((train, evaluate), Store(tmp_path)).todo == (evaluate,)
    (weights(tmp_path, train).parent / Run.UNPACKED).touch()
    assert plan((train, evaluate), Store(tmp_path)).todo == ((train,) if branched else ()) + (evaluate,)


@pytest.mark.parametrize(("task", "again"), [("linear", False), ("gp-mixture", True)])
def test_what_is_packed_is_evaluated_again_only_where_a_summary_compares_episodes(
    tmp_path: Path, task: str, again: bool
) -> None:
    """Packed rows hold all values, and of errors only what a report needs."""
    config = resolve_run(task, "gpt2", "smoke")
    train, evaluate, zero = (replace(cell, frozen=config.task, config=cell.config and config) for cell in CELLS[:3])
    evaluate = replace(evaluate, needs=(train.hash,))
    together = replace(TOGETHER, frozen=config.task, needs=(zero.hash, evaluate.hash))
    (tmp_path / "reference").mkdir()
    tables.write("cells", [], tmp_path / "reference" / "packed.parquet", {})
    for cell in (train, evaluate, zero):
        record(tmp_path, cell, Outcome("done", files=("reference/packed.parquet",)), Context(tmp_path))
    cells = (zero, train, evaluate, together)
    assert plan(cells, Store(tmp_path)).todo == (cells if again else (together,))
    assert plan(cells, Store(tmp_path)).repeated == ((zero, train, evaluate) if again else ())
    record(tmp_path, together, Outcome("done"), Context(tmp_path))
    assert plan(cells, Store(tmp_path)).todo == ()


def test_what_failed_is_tried_again_and_summed_up_again(tmp_path: Path) -> None:
    settle(tmp_path, "done", TRAIN, EVALUATE, TOGETHER)
    settle(tmp_path, "failed", ZERO)
    assert planned(tmp_path).todo == (ZERO, TOGETHER)


def test_a_cell_that_turned_out_to_make_no_sense_is_not_tried_again(tmp_path: Path) -> None:
    settle(tmp_path, "done", TRAIN, ZERO, TOGETHER)
    settle(tmp_path, "skipped", EVALUATE)
    assert planned(tmp_path).todo == ()
    assert planned(tmp_path).states[EVALUATE.hash] == "skipped"
