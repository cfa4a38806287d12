"""Tables for papers: scores, seeds and prompts of a task."""

from pathlib import Path

import pytest

from iclbench.report import exports
from iclbench.report.data import Results, load_results
from iclbench.report.sections import leaderboard
from tests.report.synthetic_grid import BACKBONES, EPISODES, Grid


def test_a_table_for_a_paper_has_scores_and_names_prompts_and_seeds(grid_results: Results, tmp_path: Path) -> None:
    task = next(task for task in grid_results.slices if task.task == "linear")
    (table,) = leaderboard.paper_tables(task)
    frame = table.frame.set_index("contestant")
    rows = task.rows[task.rows["metric"] == "score"]
    models = rows[rows["kind"] == "backbone"].groupby("contestant")
    assert set(frame.index) == set(models.groups) | {"ridge", "knn-3"}, "the predictor that scores 0 is omitted"
    for name, model_rows in models:
        assert frame.loc[name, "score"] == pytest.approx(model_rows["value"].mean(), rel=1e-12)
        assert frame.loc[name, "seeds"] == 2
    assert table.linked and table.frame["score"].is_monotonic_decreasing
    exports.write_table(table, tmp_path)
    lines = (tmp_path / "linear-grid-paper.tex").read_text(encoding="utf-8").splitlines()
    assert r"\toprule" in lines and r"model & seeds & score \\" in lines
    (caption,) = (line for line in lines if line.startswith(r"\caption"))
    assert f"n = {EPISODES} prompts" in caption and "n = 2 seeds" in caption


def test_each_test_has_a_group_of_rows(grid_results: Results) -> None:
    task = next(task for task in grid_results.slices if task.task == "bursty")
    (table,) = leaderboard.paper_tables(task)
    assert table.frame["row"].nunique() == 2
    assert sum(table.starts_group()) == 1
    assert [column.key for column in table.columns] == ["contestant", "row", "seeds", "score"]


def test_selected_baselines_are_all_in_the_table(grid: Grid) -> None:
    task = load_results(grid.folder, ["linear"], ["zero", "knn-3", "mamba"]).slices[0]
    (table,) = leaderboard.paper_tables(task)
    assert set(table.frame["contestant"]) == {"zero", "knn-3", "mamba"} and "mamba" in BACKBONES
