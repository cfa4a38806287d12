"""Runs that are not evaluated on their training task are named after both tasks, and are not ranked."""

from pathlib import Path

import pandas as pd
import pytest

from iclbench import tables
from iclbench.analysis import normalised
from iclbench.analysis.comparable import name_variants
from iclbench.report.blocks import Table
from iclbench.report.data import Results, load_results
from iclbench.report.sections import heat_map, leaderboard, missing, overview
from tests.report.synthetic_grid import Grid

# Names of a run of gpt2 that was trained on `linear`, by task.
NAMES = {"linear": "gpt2", "quadratic": "gpt2@linear"}


@pytest.fixture(scope="module")
def three_tasks(grid: Grid, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The results of three tasks of the grid."""
    values = tables.read_all("values", grid.folder)
    values = values[values["task"].isin(["linear", "quadratic", "bursty"])]
    folder = tmp_path_factory.mktemp("plain")
    tables.write("values", values, folder / "all.values.parquet", {})
    return load_results(folder)


@pytest.fixture(scope="module")
def with_transferred_runs(three_tasks: Results, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The results of `three_tasks`, and evaluations on `quadratic` of the gpt2 runs that were trained on `linear`."""
    folder = tmp_path_factory.mktemp("mixed")
    values = three_tasks.rows.drop(columns="backbone")
    rows = values[values["task"].eq("quadratic") & values["contestant"].eq("gpt2") & values["evaluator"].eq("next")]
    rows = rows.assign(
        run=rows["run"].str.replace("quadratic", "linear"),
        contestant="gpt2@linear",
        trained_on="linear",
        variant="of linear",
    )
    tables.write("values", pd.concat([values, rows], ignore_index=True), folder / "all.values.parquet", {})
    return load_results(folder)


def test_contestants_in_examples_are_named_after_both_tasks(tmp_path: Path, grid: Grid) -> None:
    values = tables.read_all("values", grid.folder)
    values = values[values["task"].isin(["linear", "quadratic"]) & values["contestant"].eq("gpt2")]
    run = str(values.loc[values["task"].eq("linear"), "run"].iloc[0])
    on_quadratic = values[values["task"].eq("quadratic") & values["evaluator"].eq("next")]
    on_quadratic = on_quadratic.assign(run=run, contestant="gpt2@linear", trained_on="linear", variant="of linear")
    tables.write("values", pd.concat([values, on_quadratic]), tmp_path / "tables" / "all.values.parquet", {})
    preset = str(values["preset"].iloc[0])
    shared = {"run": run, "preset": preset, "kind": "backbone", "shift": "none", "role": "predicted"}
    shared |= {"episode": 0, "point": 0, "x1": 0.0, "output": 0, "value": 0.0, "version": "0"}
    examples = [shared | {"task": task, "contestant": name, "prompt_set": task} for task, name in NAMES.items()]
    tables.write("examples", examples, tmp_path / "tables" / "all.examples.parquet", {})
    assert load_results(tmp_path).examples.set_index("task")["contestant"].to_dict() == NAMES


def test_the_leaderboard_names_the_training_task(three_tasks: Results, with_transferred_runs: Results) -> None:
    for results, expected_items in ((three_tasks, []), (with_transferred_runs, [("gpt2@linear: trained on linear",)])):
        (task,) = (task for task in results.slices if task.task == "quadratic")
        assert [text.items for text in leaderboard.remarks(task, "next")] == expected_items
    assert not with_transferred_runs.looks["gpt2@linear"].is_user_defined, "gpt2 is a shipped backbone"


def test_a_run_trained_on_a_different_task_is_neither_ranked_nor_listed_as_missing(
    three_tasks: Results, with_transferred_runs: Results
) -> None:
    def contests(results: Results) -> list[object]:
        return [
            (contest.task.title, contest.evaluator, sorted(contest.scores["contestant"]))
            for contest in normalised.contests(results, "grid")
        ]

    assert contests(with_transferred_runs) == contests(three_tasks)
    for section in (heat_map.section(with_transferred_runs), overview.section(with_transferred_runs)):
        assert section is not None
        frames = [block.frame for block in section.walk() if isinstance(block, Table)]
        assert frames and not any("gpt2@linear" in str(frame.to_dict()) for frame in frames)
    assert with_transferred_runs.backbones == three_tasks.backbones
    assert with_transferred_runs.trained_lengths_by_run == three_tasks.trained_lengths_by_run
    assert missing.missing_results(with_transferred_runs) == missing.missing_results(three_tasks)


def test_names_of_variants_end_with_the_training_task(with_transferred_runs: Results) -> None:
    rows = with_transferred_runs.rows[with_transferred_runs.rows["trained_on"].notna()]
    assert set(rows["contestant"]) == {"gpt2@linear"} and set(rows["backbone"]) == {"gpt2"}
    variants = with_transferred_runs.rows.assign(
        variant=with_transferred_runs.rows["run"].str[::-1], contestant=with_transferred_runs.rows["backbone"]
    )
    names = variants["contestant"]
    variants["contestant"] = names.where(variants["trained_on"].isna(), names + "@linear")
    renamed = name_variants(variants)
    names = renamed.loc[renamed["trained_on"].notna(), "contestant"]
    assert names.str.endswith("@linear").all() and names.nunique() == 2


def test_the_table_for_a_paper_names_no_seeds_if_all_models_were_trained_on_another_task(
    with_transferred_runs: Results, tmp_path: Path
) -> None:
    rows = with_transferred_runs.rows.drop(columns="backbone")
    rows = rows[rows["task"].eq("quadratic") & (rows["kind"].ne("backbone") | rows["trained_on"].notna())]
    tables.write("values", rows, tmp_path / "all.values.parquet", {})
    task = next(each for each in load_results(tmp_path).slices if each.task == "quadratic")
    (table,) = leaderboard.paper_tables(task)
    assert len(table.frame) and table.frame["seeds"].isna().all() and "seed per model" not in table.caption
