"""The first screen: its tiles are the heat map's, its findings the largest paired differences, and it hides no gap."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from iclbench.core.formats import fixed
from iclbench.report.blocks import Figure, Glance
from iclbench.report.data import Results
from iclbench.report.figures.heat_map import label
from iclbench.report.sections import heat_map, missing, summary
from tests.report.synthetic_grid import TASKS, Grid, score
from tests.report.test_heat_map import title

CAUSAL, SETS = ("gpt2", "mamba", "transformer", "s4d"), ("cnp", "tnp", "icicl-tnp")


@pytest.fixture(scope="module")
def glance(grid_results: Results) -> Glance:
    (block,) = summary.section(grid_results).blocks
    assert isinstance(block, Glance)
    return block


@pytest.fixture(scope="module")
def not_computed(grid_results: Results) -> Results:
    """Without the cells and the rows of mamba on linear."""
    cells, rows = grid_results.cells, grid_results.rows
    cells, rows = (table[~(table["task"].eq("linear") & table["contestant"].eq("mamba"))] for table in (cells, rows))
    return replace(grid_results, cells=cells, rows=rows)


@pytest.mark.slow
def test_what_was_compared_is_counted(glance: Glance) -> None:
    """One backbone has a single seed on a task."""
    assert glance.scope == ("Preset grid: 7 models and 3 classical methods on 10 tasks, up to 2 seeds.",)


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
        f"{counts['skipped']} cells not applicable.",
    )


@pytest.mark.slow
def test_cells_that_are_not_computed_yet_are_not_run(not_computed: Results) -> None:
    (block,) = summary.section(not_computed).blocks
    assert isinstance(block, Glance)
    tile = dict(block.rows)["linear"][block.columns.index("mamba")]
    assert tile.text == "?" and "not run" in tile.tooltip
    section = heat_map.section(not_computed)
    assert section is not None
    figure = next(block for block in section.walk() if isinstance(block, Figure))
    assert figure.data.set_index(["row", "contestant"]).loc[("linear", "mamba"), "status"] == "not run"
    gaps = {(task, contestant, what) for task, _, contestant, what, _ in missing.gaps(not_computed)}
    assert ("linear", "mamba", "everything") in gaps
