"""Reports on selected contestants."""

from pathlib import Path

import pandas as pd
import pytest

from iclbench.analysis import normalised
from iclbench.cli.main import main
from iclbench.core.errors import UnknownNameError
from iclbench.report import build
from iclbench.report.blocks import Figure, Table
from iclbench.report.data import Results, load_results
from iclbench.report.sections import heat_map, leaderboard, learning_curves
from tests.report.synthetic_grid import Grid

NAMES = ["mamba", "gpt2", "xgboost"]


@pytest.fixture(scope="module")
def selected_results(results: Path) -> Results:
    return load_results(results, ["linear"], NAMES)


def test_only_selected_contestants_are_in_figures_and_tables(selected_results: Results) -> None:
    task = next(task for task in selected_results.slices if task.task == "linear")
    for section in (learning_curves.section(task), leaderboard.section(task)):
        assert section is not None
        for block in section.walk():
            frame = block.frame if isinstance(block, Table) else block.data if isinstance(block, Figure) else None
            assert frame is None or set(frame["contestant"]) == set(NAMES)


@pytest.mark.slow
def test_the_heat_map_has_only_selected_contestants_with_unchanged_scores(grid: Grid, grid_results: Results) -> None:
    def cells(results: Results) -> pd.DataFrame:
        section = heat_map.section(results)
        assert section is not None
        (figure,) = (block for block in section.blocks if isinstance(block, Figure))
        return figure.data.set_index(["row", "contestant"])

    selected_cells, all_cells = (
        cells(load_results(grid.folder, contestants=["mamba", "gpt2", "ridge"])),
        cells(grid_results),
    )
    assert set(selected_cells.index.get_level_values("contestant")) <= {"mamba", "gpt2", "ridge"}
    assert len(selected_cells) >= 20
    columns = ["score", "low", "high", "reason"]
    expected = all_cells.loc[selected_cells.index, columns]
    pd.testing.assert_frame_equal(selected_cells[columns], expected, check_dtype=False)


def test_scores_do_not_require_selecting_the_contestant_that_scores_0(grid: Grid) -> None:
    results = load_results(grid.folder, ["linear"], ["mamba"])
    (contest,) = normalised.contests(results, "grid")
    assert contest.scores["contestant"].tolist() == ["mamba"]
    assert contest.guessing_method == "zero"


@pytest.mark.slow
def test_trained_lengths_do_not_depend_on_the_selection(results: Path) -> None:
    full, subset = load_results(results), load_results(results, contestants=["xgboost"])
    assert subset.slice_keys == [key for key in full.slice_keys if key[:2] in {k[:2] for k in subset.slice_keys}]
    lengths = full.trained_lengths[full.rows["contestant"].eq("xgboost")]
    assert subset.trained_lengths.tolist() == lengths.tolist()


@pytest.mark.slow
def test_the_name_of_a_baseline_selects_all_its_variants(results: Path) -> None:
    names = {name for name in load_results(results).rows["contestant"] if name.startswith("lasso-")}
    assert names
    assert set(load_results(results, contestants=["lasso"]).rows["contestant"]) == names


def test_the_name_of_a_run_selects_only_its_rows(results: Path) -> None:
    all_rows = load_results(results, ["linear"]).rows
    run = next(run for run in all_rows["run"] if run.startswith("linear-gpt2-"))
    selected = load_results(results, ["linear"], [run.replace("-", "_"), "xgboost"])
    is_measured = selected.rows["kind"].ne("published")
    assert set(selected.rows.loc[is_measured, "run"]) == {run, "xgboost"}
    gpt2_runs = set(all_rows.loc[all_rows["contestant"].eq("gpt2") & all_rows["kind"].eq("backbone"), "run"])
    assert gpt2_runs > {run}
    expected = all_rows.loc[all_rows["run"].eq(run), "value"]
    assert selected.rows.loc[selected.rows["run"].eq(run), "value"].tolist() == expected.tolist()
    assert set(selected.costs["run"]) <= {run, "xgboost"} and run in set(selected.costs["run"])


def test_error_for_unknown_run_suggests_similar_runs(results: Path) -> None:
    with pytest.raises(UnknownNameError) as error:
        load_results(results, contestants=["linear-gpt2-smal-s0"])
    assert "'linear-gpt2-small-s0'" in str(error.value) and "\n" not in str(error.value)


def test_error_for_unknown_contestant_suggests_similar_names(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UnknownNameError) as error:
        build(results, tmp_path / "a", contestants=["mamba", "gtp2"])
    assert error.value.code == "unknown-name" and "'gpt2'" in str(error.value)
    assert main(["report", "--results", str(results), "--out", str(tmp_path), "--contestants", "mamba,gtp2"]) == 2
    err = capsys.readouterr().err
    assert "'gtp2'" in err and "'gpt2'" in err
    assert not (tmp_path / "a").exists()
