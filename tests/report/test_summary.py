"""The first screen: its tiles are the heat map's, its findings the largest paired differences, and it hides no gap."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from iclbench.core.formats import fixed
from iclbench.report import awaiting
from iclbench.report.blocks import Figure, Glance, Table
from iclbench.report.data import Results
from iclbench.report.figures.heat_map import label
from iclbench.report.sections import coverage, heat_map, summary
from tests.report.synthetic_grid import FAILED, TASKS, Grid, score
from tests.report.test_heat_map import title

CAUSAL, SETS = ("gpt2", "mamba", "transformer", "s4d"), ("cnp", "tnp", "icicl-tnp")
WHY = "mamba's scan computes other numbers since version 2"


@pytest.fixture(scope="module")
def glance(grid_results: Results) -> Glance:
    (block,) = summary.section(grid_results).blocks
    assert isinstance(block, Glance)
    return block


@pytest.fixture(scope="module")
def awaited(grid_results: Results) -> Results:
    """The rows of mamba on linear were taken out."""
    cells, rows = grid_results.cells.copy(), grid_results.rows
    own = cells["task"].eq("linear") & cells["contestant"].eq("mamba")
    cells.loc[own, ["status", "reason"]] = ["awaiting", WHY]
    return replace(grid_results, cells=cells, rows=rows[~(rows["task"].eq("linear") & rows["contestant"].eq("mamba"))])


def test_what_was_compared_is_counted(glance: Glance) -> None:
    """One backbone has a single seed on a task."""
    assert glance.compared == ("Preset grid: 7 backbones and 3 classical methods on 10 tasks, up to 2 seeds.",)


def test_every_tile_is_the_heat_maps_cell(glance: Glance, grid_results: Results) -> None:
    section = heat_map.section(grid_results)
    assert section is not None
    figure = next(block for block in section.walk() if isinstance(block, Figure))
    cells = figure.data.set_index(["row", "contestant"])
    assert [row for row, _ in glance.rows] == list(dict.fromkeys(figure.data["row"]))
    for row, tiles in glance.rows:
        for name, tile in zip(glance.columns, tiles, strict=True):
            assert tile.text == cells.loc[(row, name), "label"]
    assert dict(glance.rows)["linear"][glance.columns.index("gpt2")].text == label(
        cells.loc[("linear", "gpt2"), "score"]
    )


def test_findings_are_the_largest_differences_that_paired_intervals_tell(glance: Glance, grid: Grid) -> None:
    """By SciPy's paired t-test on what the tables were made of: the best causal model against the best set model."""
    expected = {}
    for task, evaluators in TASKS.items():
        for evaluator in evaluators:
            means = {}
            for name in (*CAUSAL, *SETS):
                runs = [
                    score(grid.raw[key], evaluator) for s in (0, 1) if (key := (task, evaluator, name, s)) in grid.raw
                ]
                if runs:
                    means[name] = np.mean(runs, axis=0)
            a, b = (max((n for n in names if n in means), key=lambda n: means[n].mean()) for names in (CAUSAL, SETS))
            ends = stats.ttest_rel(means[a], means[b]).confidence_interval(0.95)
            if ends.low > 0 or ends.high < 0:
                expected[title(task, evaluator)] = (a, b, means[a].mean() - means[b].mean(), ends)
    largest = sorted(expected, key=lambda row: -abs(expected[row][2]))[: summary.FINDINGS]
    assert [line.split(":")[0] for line in glance.findings] == largest
    for row, line in zip(largest, glance.findings, strict=True):
        a, b, gap, ends = expected[row]
        assert (
            f"{a}, the best causal model, scores {fixed(abs(gap), 2)} {'above' if gap > 0 else 'below'} {b}, " in line
        )
        low, high = sorted((abs(ends.low), abs(ends.high)))
        assert f"(95 % interval {fixed(low, 2)} to {fixed(high, 2)}, paired by episode)" in line


def test_what_is_missing_is_counted(glance: Glance, grid_results: Results) -> None:
    counts = grid_results.cells["status"].value_counts()
    assert glance.missing[:2] == (
        f"{counts['failed']} cells failed in the sweep.",
        f"{counts['skipped']} cells make no sense and were skipped.",
    )


def test_cells_that_await_recomputation_say_so_everywhere(awaited: Results) -> None:
    (block,) = summary.section(awaited).blocks
    assert isinstance(block, Glance)
    tile = dict(block.rows)["linear"][block.columns.index("mamba")]
    assert tile.text == "…" and tile.tooltip == f"mamba on linear: awaiting: {WHY}"
    section = heat_map.section(awaited)
    assert section is not None
    figure = next(block for block in section.walk() if isinstance(block, Figure))
    cell = figure.data.set_index(["row", "contestant"]).loc[("linear", "mamba")]
    assert (cell["status"], cell["reason"]) == ("awaiting", WHY)
    assert "…: awaiting recomputation" in figure.caption
    found = coverage.section(awaited)
    assert found is not None
    tables = {block.name: block.frame for block in found.walk() if isinstance(block, Table)}
    assert tables["coverage"]["awaiting"].sum() == 4, "two seeds, trained and evaluated"
    assert set(tables["not-done"].query("status == 'awaiting'")["reason"]) == {WHY}
    assert awaiting(awaited) == [f"4 cells awaiting recomputation: {WHY}"]
    assert FAILED in set(tables["not-done"]["reason"])


def test_a_task_of_which_all_cells_await_recomputation_keeps_its_row(grid_results: Results) -> None:
    cells, rows = grid_results.cells.copy(), grid_results.rows
    cells.loc[cells["task"].eq("linear") & cells["status"].eq("done"), ["status", "reason"]] = ["awaiting", WHY]
    knn = cells[cells["task"].eq("linear") & cells["status"].eq("awaiting")].head(1)
    knn = knn.assign(cell="of-knn", kind="evaluate", run="knn-3", contestant="knn-3", seed=pd.NA)
    cells = pd.concat([cells, knn], ignore_index=True)
    results = replace(grid_results, cells=cells, rows=rows[rows["task"].ne("linear")])
    (block,) = summary.section(results).blocks
    assert isinstance(block, Glance)
    tiles = dict(zip(block.columns, dict(block.rows)["linear"], strict=True))
    assert tiles["mamba"].text == "…" and tiles["mamba"].tooltip == f"mamba on linear: awaiting: {WHY}"
    section = heat_map.section(results)
    assert section is not None
    figure = next(block for block in section.walk() if isinstance(block, Figure))
    shown = figure.data[figure.data["row"].eq("linear") & figure.data["panel"].eq("backbones")]
    assert set(shown["status"]) == {"awaiting", "skipped"} and set(shown["label"]) == {"…", "n/a"}
    best = figure.data.set_index(["row", "contestant"]).loc[("linear", "best baseline")]
    assert (best["label"], best["reason"]) == ("…", WHY), "a baseline awaits, so the best one is not unasked"


def test_nothing_awaited_is_not_mentioned(grid_results: Results) -> None:
    assert awaiting(grid_results) == []
    section = heat_map.section(grid_results)
    assert section is not None
    assert "awaiting" not in "".join(block.caption for block in section.walk() if isinstance(block, Figure))
