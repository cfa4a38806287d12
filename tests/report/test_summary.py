"""The summary at the top of the page: tiles of the heat map, largest differences, and missing results."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from iclbench import tables
from iclbench.core.formats import fixed
from iclbench.report import page
from iclbench.report.blocks import Figure, FirstScreen, Section
from iclbench.report.data import Results, load_results
from iclbench.report.figures.heat_map import score_label
from iclbench.report.sections import heat_map, missing, report_sections, summary
from tests.analysis.hand_made import MODEL
from tests.report.synthetic_grid import BACKBONES, TASKS, Grid, score
from tests.report.test_heat_map import row_title

CAUSAL, SETS = ("gpt2", "mamba", "transformer", "s4d"), ("cnp", "tnp", "icicl-tnp")


@pytest.fixture(scope="module")
def first_screen(grid_results: Results) -> FirstScreen:
    (block,) = summary.section(grid_results).blocks
    assert isinstance(block, FirstScreen)
    return block


def without_linear(results: Results, *contestants: str) -> Results:
    """Return the results without the cells and rows of these contestants on `linear`."""

    def others(table: pd.DataFrame) -> pd.DataFrame:
        return table[table["task"].ne("linear") | ~table["contestant"].isin(contestants)]

    return replace(results, cells=others(results.cells), rows=others(results.rows))


def heat_map_data(results: Results) -> pd.DataFrame:
    section = heat_map.section(results)
    assert section is not None
    return next(block for block in section.walk() if isinstance(block, Figure)).data


@pytest.mark.slow
def test_models_methods_tasks_and_seeds_are_counted(first_screen: FirstScreen) -> None:
    """One backbone has a single seed on a task; the largest number of seeds is given."""
    (scope,) = first_screen.scope
    n_models, n_methods = len(BACKBONES), 3  # ridge, knn-3 and zero
    assert re.findall(r"\d+", scope) == [str(n) for n in (n_models, n_methods, len(TASKS), 2)]
    assert "grid" in scope


@pytest.mark.slow
def test_tiles_equal_the_cells_of_the_heat_map(first_screen: FirstScreen, grid_results: Results) -> None:
    data = heat_map_data(grid_results)
    cells = data.set_index(["row", "contestant"])
    assert [row for row, _ in first_screen.rows] == list(dict.fromkeys(data["row"]))
    for row, tiles in first_screen.rows:
        for name, tile in zip(first_screen.columns, tiles, strict=True):
            assert tile.text == cells.loc[(row, name), "label"]
    assert dict(first_screen.rows)["linear"][first_screen.columns.index("gpt2")].text == score_label(
        cells.loc[("linear", "gpt2"), "score"]
    )


def test_findings_are_the_largest_significant_differences(first_screen: FirstScreen, grid: Grid) -> None:
    """On each row, the best causal model is compared with the best set model by SciPy's paired t-test."""
    expected = {}
    for task, evaluators in TASKS.items():
        for evaluator in evaluators:
            means = {}
            for name in (*CAUSAL, *SETS):
                by_seed = [
                    score(grid.raw[key], evaluator) for s in (0, 1) if (key := (task, evaluator, name, s)) in grid.raw
                ]
                if by_seed:
                    means[name] = np.mean(by_seed, axis=0)
            a, b = (max((n for n in names if n in means), key=lambda n: means[n].mean()) for names in (CAUSAL, SETS))
            interval = stats.ttest_rel(means[a], means[b]).confidence_interval(0.95)
            if interval.low > 0 or interval.high < 0:
                expected[row_title(task, evaluator)] = (a, b, means[a].mean() - means[b].mean(), interval)
    largest = sorted(expected, key=lambda row: -abs(expected[row][2]))[: summary.MAX_FINDINGS]
    assert [line.split(":")[0] for line in first_screen.findings] == largest
    for row, line in zip(largest, first_screen.findings, strict=True):
        a, b, gap, interval = expected[row]
        subject, _, object_ = line.partition(f" scores {fixed(abs(gap), 2)} {'above' if gap > 0 else 'below'} ")
        assert f" {a}, " in subject and object_.startswith(f"{b}, ")
        low, high = sorted((abs(interval.low), abs(interval.high)))
        assert f" {fixed(low, 2)} to {fixed(high, 2)}," in object_


def test_missing_results_are_counted(first_screen: FirstScreen, grid_results: Results) -> None:
    counts = grid_results.cells["status"].value_counts()
    failed, skipped = first_screen.missing[:2]
    assert failed.startswith(f"{counts['failed']} cells ") and skipped.startswith(f"{counts['skipped']} cells ")


@pytest.mark.slow
def test_cells_that_were_not_run_are_marked_and_listed_as_missing(
    first_screen: FirstScreen, grid_results: Results
) -> None:
    """As in an unfinished sweep, only one model has the row, so all models remain in the front panel."""
    results = without_linear(grid_results, *(set(BACKBONES) - {"gpt2"}))
    (block,) = summary.section(results).blocks
    assert isinstance(block, FirstScreen)
    assert set(block.columns) == set(first_screen.columns)
    tile = dict(block.rows)["linear"][block.columns.index("mamba")]
    assert tile.text == "?" and "not run" in tile.tooltip
    assert heat_map_data(results).set_index(["row", "contestant"]).loc[("linear", "mamba"), "status"] == "not run"
    gaps = {(task, contestant, what) for task, _, contestant, what, _ in missing.missing_results(results)}
    assert ("linear", "mamba", "everything") in gaps


def test_models_without_a_row_of_most_models_are_not_in_the_front_panel(
    first_screen: FirstScreen, grid_results: Results
) -> None:
    results = without_linear(grid_results, "mamba", "s4d")
    (block,) = summary.section(results).blocks
    assert isinstance(block, FirstScreen)
    assert set(block.columns) == set(first_screen.columns) - {"mamba", "s4d"}
    data = heat_map_data(results)
    assert set(data.loc[data["panel"].eq("models on some tasks"), "contestant"]) >= {"mamba", "s4d"}
    assert not data["label"].eq("?").any()


@pytest.mark.parametrize("metric", ["squared_error", "log_likelihood", "nll", "cross_entropy"])
def test_a_backbone_without_a_score_lacks_a_summary(metric: str) -> None:
    row = {"prompt_set": "p", "shift": "none", "evaluator": "next", "metric": metric, "kind": "backbone"}
    rows = tables.frame("values", []).reindex(range(1)).assign(status="ok", contestant="gpt2", run="gpt2-s0", **row)
    assert missing._missing_summaries(rows) == [("gpt2", "gpt2-s0")]


def test_runs_next_to_packed_results_are_linked(tmp_path: Path) -> None:
    packed = MODEL | {
        "task": "linear",
        "preset": "grid",
        "evaluator": "next",
        "metric": "squared_error",
        "n_context": 3,
    }
    local = packed | {"preset": "smoke", "run": "my-run"}
    tables.write("values", [packed], tmp_path / "reference" / "linear-grid.values.parquet", {})
    assert not load_results(tmp_path).local_runs
    tables.write("values", [local], tmp_path / "runs" / "my-run" / "values.parquet", {})
    (first_screen,) = summary.section(load_results(tmp_path)).blocks
    assert isinstance(first_screen, FirstScreen)
    assert first_screen.local_runs == (("linear-smoke", "linear · smoke", ("my-run",)),)
    html = page.render_section(Section("summary", "", (first_screen,)), (), {}, frozenset()).html
    assert '<a href="#linear-smoke">linear · smoke</a> (my-run).' in html

    (only_summary,) = report_sections(load_results(tmp_path), ["summary"])
    assert isinstance(only_summary.blocks[0], FirstScreen)
    assert not only_summary.blocks[0].local_runs
