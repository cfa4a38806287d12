"""The sections on coverage and missing results: each cell is counted once, and each missing result has a reason or a
command.
"""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from iclbench import tables
from iclbench.report.blocks import Table, Text
from iclbench.report.data import Results, load_results, results_from_values
from iclbench.report.sections import coverage, missing
from tests.report.synthetic_grid import FAILED, SKIPPED, TASKS, Grid


def test_all_cells_are_counted_and_cells_without_results_have_reasons(grid: Grid, grid_results: Results) -> None:
    section = coverage.section(grid_results)
    assert section is not None
    frames = {block.name: block.frame for block in section.walk() if isinstance(block, Table)}
    cells = tables.read_all("cells", grid.folder)
    counts = frames["coverage"].set_index("kind")
    assert counts[["done", "failed", "skipped"]].to_numpy().sum() == len(cells)
    assert counts.loc["train", "failed"] == 3
    assert counts.loc["train", "skipped"] == 2 * (len(TASKS) - 1)
    assert counts.loc["evaluate", "seconds"] == pytest.approx(5.0 * counts.loc["evaluate", "done"])
    not_done = frames["not-done"].set_index("contestant")
    assert not_done["cells"].sum() == (cells["status"] != "done").sum()
    assert not_done.loc["tnp", "reason"] == FAILED and not_done.loc["tnp", "tasks"] == "quadratic"
    assert not_done.loc["icicl-tnp", "reason"] == SKIPPED
    machine = frames["machines"].iloc[0]
    assert machine["cells"] == (cells["status"] == "done").sum()
    assert machine["seconds"] == pytest.approx(cells["seconds"].sum())


def test_cells_with_reasons_that_differ_only_in_the_run_share_a_row(grid: Grid) -> None:
    cells = tables.read_all("cells", grid.folder)
    two_cells = cells[cells["status"].eq("done") & cells["kind"].eq("train")].head(2)
    reasons = [f"run '{run}' has no layers to probe" for run in two_cells["run"]]
    table = coverage.missing_table(two_cells.assign(status="skipped", contestant="cnp", reason=reasons))
    assert table is not None
    assert table.frame[["cells", "reason"]].to_numpy().tolist() == [[2, "the run has no layers to probe"]]


def test_diverged_cells_have_a_separate_status(grid: Grid) -> None:
    cells = tables.read_all("cells", grid.folder)
    statuses = ["diverged", "failed", "done"]
    three_cells = cells[cells["kind"].eq("train")].head(3).assign(status=statuses, preset="smoke")
    counts = coverage.kind_table(three_cells).frame.iloc[0]
    assert counts[["done", "failed", "diverged", "skipped"]].tolist() == [1, 1, 1, 0]
    assert "diverged" not in coverage.kind_table(cells).frame
    table = coverage.missing_table(three_cells)
    assert table is not None
    assert set(table.frame["status"]) == {"diverged", "failed"}


def test_the_section_is_omitted_without_a_sweep(grid: Grid, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("values-only")
    tables.write("values", tables.read_all("values", grid.folder), folder / "all.values.parquet", {})
    assert coverage.section(load_results(folder)) is None


def test_skipped_and_failed_runs_are_not_listed_as_missing(grid_results: Results) -> None:
    frames = [block.frame for block in missing.section(grid_results).walk() if isinstance(block, Table)]
    assert not any({"icicl-tnp", "tnp"} & set(frame["contestant"]) for frame in frames)


@pytest.mark.slow
def test_the_evaluation_of_a_diverged_run_is_not_listed_as_missing(grid: Grid, tmp_path: Path) -> None:
    values = tables.read_all("values", grid.folder)
    row = values[values["kind"].eq("backbone") & values["evaluator"].eq("next")].head(1)
    row = row.assign(contestant="new", model="new", run="new-s0", evaluator="train", axis="train_step", metric="loss")

    def eval_commands(**changes: object) -> list[str]:
        rows = pd.concat([values, row.assign(**changes)], ignore_index=True)
        tables.write("values", rows.to_dict("records"), tmp_path / "all.values.parquet", {})
        gaps = missing.missing_results(load_results(tmp_path))
        return [command for *_, contestant, _, command in gaps if contestant == "new" and "eval" in command]

    assert "iclbench eval new-s0" in eval_commands()
    assert eval_commands(status="failed", reason="diverged at step 3: the loss is nan") == []


def test_only_models_that_can_read_the_elements_are_suggested_for_a_stream(grid: Grid) -> None:
    values = tables.read_all("values", grid.folder)
    row = values[values["kind"].eq("backbone") & values["evaluator"].eq("next") & values["shift"].eq("none")].head(1)

    def rows_of(name: str, **columns: object) -> pd.DataFrame:
        return row.assign(contestant=name, model=name, run=f"{name}-s0", variant=name, **columns)

    stream = {"task": "recall", "family": "recall", "prompt_set": "r"}
    names = ("gpt2", "tnp", "mamba", "coqe", "thp")
    rows = pd.concat([*(rows_of(name) for name in names), rows_of("gpt2", **stream)], ignore_index=True)
    gaps = missing.missing_results(results_from_values(tables.frame("values", rows)))
    assert [name for task, _, name, what, _ in gaps if (task, what) == ("recall", "everything")] == ["mamba"]


@pytest.mark.slow
def test_the_command_for_a_missing_shift_with_more_examples_has_the_option_shift(grid: Grid, tmp_path: Path) -> None:
    values = tables.read_all("values", grid.folder)
    row = values[values["kind"].eq("backbone") & values["evaluator"].eq("next")].head(1)
    rows = pd.concat([values, row.assign(shift="orthants+points-80")], ignore_index=True)
    tables.write("values", rows.to_dict("records"), tmp_path / "all.values.parquet", {})
    commands = [command for *_, command in missing.missing_results(load_results(tmp_path)) if "points-80" in command]
    assert commands and all(command.endswith(" --shift orthants+points-80") for command in commands)


def test_missing_results_refer_to_the_section_on_coverage_if_cells_failed(grid: Grid) -> None:
    values, cells = tables.read_all("values", grid.folder), tables.read_all("cells", grid.folder)
    one_baseline = results_from_values(values[values["run"].eq("knn-3") & values["task"].eq("linear")])
    done = cells[cells["status"].eq("done")].head(2)
    for statuses, has_reference in ((["done", "skipped"], False), (["done", "failed"], True)):
        (text,) = missing.section(replace(one_baseline, cells=done.assign(status=statuses))).blocks
        assert isinstance(text, Text) and ("Coverage" in text.text) == has_reference


@pytest.mark.slow
def test_a_run_without_a_score_is_listed_with_a_missing_summary(grid: Grid, tmp_path: Path) -> None:
    values = tables.read_all("values", grid.folder)
    run = values.loc[values["kind"].eq("backbone") & values["metric"].eq("score"), "run"].iloc[0]

    def missing_summaries(values: pd.DataFrame) -> list[str]:
        tables.write("values", values.to_dict("records"), tmp_path / "all.values.parquet", {})
        return [command for *_, what, command in missing.missing_results(load_results(tmp_path)) if what == "summary"]

    assert missing_summaries(values) == []
    without_one_score = values[values["run"].ne(run) | values["metric"].ne("score")]
    assert missing_summaries(without_one_score) == [f"iclbench eval {run}"]
    # Without the zero predictor, no model has a score.
    unscored = values[values["kind"].eq("backbone") & values["metric"].ne("score")]
    runs = unscored.loc[unscored["evaluator"].eq("next") & unscored["metric"].eq("squared_error"), "run"]
    assert {f"iclbench eval {name}" for name in runs} <= set(missing_summaries(unscored))
