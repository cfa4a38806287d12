"""Runs that were trained on another task: shown under a name that says so, and in no ranking, heat map or duty."""

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

# What gpt2 is called on two tasks.
NAMES = {"linear": "gpt2", "quadratic": "gpt2@linear"}


@pytest.fixture(scope="module")
def both(grid: Grid, tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, Results]:
    """The values of a grid as they are, and where runs of gpt2 that were trained on linear functions are asked about
    quadratic ones, too."""
    values = tables.read_all("values", grid.folder)
    values = values[values["task"].isin(["linear", "quadratic", "bursty"])]
    here = values["task"].eq("quadratic") & values["contestant"].eq("gpt2") & values["evaluator"].eq("next")
    asked = values[here].copy()
    asked["run"] = asked["run"].str.replace("quadratic", "linear")
    asked = asked.assign(contestant="gpt2@linear", trained_on="linear", variant="of linear")
    folder = tmp_path_factory.mktemp("mixed")
    for name, rows in (("plain", values), ("mixed", pd.concat([values, asked], ignore_index=True))):
        tables.write("values", rows, folder / name / "all.values.parquet", {})
    return load(folder / "plain"), load(folder / "mixed")


def test_what_it_drew_and_cost_there_goes_by_that_name(tmp_path: Path, grid: Grid) -> None:
    values = tables.read_all("values", grid.folder)
    values = values[values["task"].isin(["linear", "quadratic"]) & values["contestant"].eq("gpt2")]
    run = str(values.loc[values["task"].eq("linear"), "run"].iloc[0])
    there = values[values["task"].eq("quadratic") & values["evaluator"].eq("next")].copy()
    there = there.assign(run=run, contestant="gpt2@linear", trained_on="linear", variant="of linear")
    tables.write("values", pd.concat([values, there]), tmp_path / "tables" / "all.values.parquet", {})
    preset = str(values["preset"].iloc[0])
    about = {"run": run, "preset": preset, "kind": "backbone", "shift": "none", "role": "predicted"}
    about |= {"episode": 0, "point": 0, "x1": 0.0, "output": 0, "value": 0.0, "version": "0"}
    drawn = [about | {"task": task, "contestant": who, "prompt_set": task} for task, who in NAMES.items()]
    tables.write("examples", drawn, tmp_path / "tables" / "all.examples.parquet", {})
    assert load(tmp_path).examples.set_index("task")["contestant"].to_dict() == NAMES


def test_a_leaderboard_says_where_it_was_trained(both: tuple[Results, Results]) -> None:
    for results, lines in zip(both, ([], [("gpt2@linear: trained on linear",)]), strict=True):
        (task,) = (each for each in results.slices if each.task == "quadratic")
        said = [each.items for each in leaderboard.remarks(task, "next") if "another task" in each.text]
        assert said == lines
    assert not both[1].looks["gpt2@linear"].own, "a backbone of the package"


def test_it_counts_nowhere_as_a_contestant_of_the_task(both: tuple[Results, Results]) -> None:
    plain, mixed = both

    def contests(results: Results) -> list[object]:
        found = normalised.contests(results, "grid")
        return [(each.task.title, each.evaluator, sorted(each.scores["contestant"])) for each in found]

    assert contests(mixed) == contests(plain)
    for section in (heat_map.section(mixed), overview.section(mixed)):
        assert section is not None
        frames = [block.frame for block in section.walk() if isinstance(block, Table)]
        assert frames and not any("gpt2@linear" in str(frame.to_dict()) for frame in frames)
    assert mixed.backbones == plain.backbones
    assert mixed.trained_lengths_by_run == plain.trained_lengths_by_run
    assert missing.gaps(mixed) == missing.gaps(plain)


def test_variants_of_it_keep_the_task_in_their_names(both: tuple[Results, Results]) -> None:
    rows = both[1].rows[both[1].rows["trained_on"].notna()]
    assert set(rows["contestant"]) == {"gpt2@linear"} and set(rows["backbone"]) == {"gpt2"}
    varied = both[1].rows.assign(variant=both[1].rows["run"].str[::-1], contestant=both[1].rows["backbone"])
    varied["contestant"] = varied["contestant"].where(varied["trained_on"].isna(), varied["contestant"] + "@linear")
    named = name_variants(varied)
    named = named[named["trained_on"].notna()]
    assert named["contestant"].str.endswith("@linear").all() and named["contestant"].nunique() == 2
