"""Runs trained on another task have a special name and do not enter rankings, heat maps and lists of missing runs."""

from pathlib import Path

import pandas as pd
import pytest

from iclbench import tables
from iclbench.analysis import normalised
from iclbench.analysis.comparable import name_variants
from iclbench.report.blocks import Table
from iclbench.report.data import Results, load
from iclbench.report.sections import heat_map, leaderboard, missing, overview
from tests.report.synthetic_grid import Grid

# The name of gpt2 on each task.
NAMES = {"linear": "gpt2", "quadratic": "gpt2@linear"}


@pytest.fixture(scope="module")
def plain_and_mixed(grid: Grid, tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, Results]:
    """The values of a grid without and with evaluations of the linear runs of gpt2 on quadratic functions."""
    values = tables.read_all("values", grid.folder)
    values = values[values["task"].isin(["linear", "quadratic", "bursty"])]
    is_quadratic = values["task"].eq("quadratic") & values["contestant"].eq("gpt2") & values["evaluator"].eq("next")
    transferred = values[is_quadratic].copy()
    transferred["run"] = transferred["run"].str.replace("quadratic", "linear")
    transferred = transferred.assign(contestant="gpt2@linear", trained_on="linear", variant="of linear")
    folder = tmp_path_factory.mktemp("mixed")
    for name, rows in (("plain", values), ("mixed", pd.concat([values, transferred], ignore_index=True))):
        tables.write("values", rows, folder / name / "all.values.parquet", {})
    return load(folder / "plain"), load(folder / "mixed")


def test_examples_have_the_name_of_the_run_on_each_task(tmp_path: Path, grid: Grid) -> None:
    values = tables.read_all("values", grid.folder)
    values = values[values["task"].isin(["linear", "quadratic"]) & values["contestant"].eq("gpt2")]
    run = str(values.loc[values["task"].eq("linear"), "run"].iloc[0])
    transferred = values[values["task"].eq("quadratic") & values["evaluator"].eq("next")].copy()
    transferred = transferred.assign(run=run, contestant="gpt2@linear", trained_on="linear", variant="of linear")
    tables.write("values", pd.concat([values, transferred]), tmp_path / "tables" / "all.values.parquet", {})
    preset = str(values["preset"].iloc[0])
    columns = {"run": run, "preset": preset, "kind": "backbone", "shift": "none", "role": "predicted"}
    columns |= {"episode": 0, "point": 0, "x1": 0.0, "output": 0, "value": 0.0, "version": "0"}
    examples = [columns | {"task": task, "contestant": name, "prompt_set": task} for task, name in NAMES.items()]
    tables.write("examples", examples, tmp_path / "tables" / "all.examples.parquet", {})
    assert load(tmp_path).examples.set_index("task")["contestant"].to_dict() == NAMES


def test_a_leaderboard_names_the_task_of_the_training(plain_and_mixed: tuple[Results, Results]) -> None:
    for results, lines in zip(plain_and_mixed, ([], [("gpt2@linear: trained on linear",)]), strict=True):
        (task,) = (task for task in results.slices if task.task == "quadratic")
        assert [text.items for text in leaderboard.remarks(task, "next")] == lines
    assert not plain_and_mixed[1].looks["gpt2@linear"].is_user_defined


def test_it_is_not_a_contestant_of_the_task(plain_and_mixed: tuple[Results, Results]) -> None:
    plain, mixed = plain_and_mixed

    def contests(results: Results) -> list[object]:
        return [
            (contest.task.title, contest.evaluator, sorted(contest.scores["contestant"]))
            for contest in normalised.contests(results, "grid")
        ]

    assert contests(mixed) == contests(plain)
    for section in (heat_map.section(mixed), overview.section(mixed)):
        assert section is not None
        frames = [block.frame for block in section.walk() if isinstance(block, Table)]
        assert frames and not any("gpt2@linear" in str(frame.to_dict()) for frame in frames)
    assert mixed.backbones == plain.backbones
    assert mixed.trained_lengths_by_run == plain.trained_lengths_by_run
    assert missing.gaps(mixed) == missing.gaps(plain)


def test_variants_have_the_task_in_their_names(plain_and_mixed: tuple[Results, Results]) -> None:
    _, mixed = plain_and_mixed
    rows = mixed.rows[mixed.rows["trained_on"].notna()]
    assert set(rows["contestant"]) == {"gpt2@linear"} and set(rows["backbone"]) == {"gpt2"}
    varied = mixed.rows.assign(variant=mixed.rows["run"].str[::-1], contestant=mixed.rows["backbone"])
    varied["contestant"] = varied["contestant"].where(varied["trained_on"].isna(), varied["contestant"] + "@linear")
    named = name_variants(varied)
    named = named[named["trained_on"].notna()]
    assert named["contestant"].str.endswith("@linear").all() and named["contestant"].nunique() == 2
