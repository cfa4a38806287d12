"""Runs that were trained on another task: shown under a name that says so, and in no ranking, heat map or duty."""

import pandas as pd
import pytest

from iclbench import tables
from iclbench.report import normalised
from iclbench.report.blocks import Table
from iclbench.report.comparable import name_variants
from iclbench.report.data import Results, load
from iclbench.report.sections import heat_map, leaderboard, missing, overview
from tests.report.synthetic_grid import Grid


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
    assert mixed.trained_lengths == plain.trained_lengths
    assert missing.gaps(mixed) == missing.gaps(plain)


def test_variants_of_it_keep_the_task_in_their_names(both: tuple[Results, Results]) -> None:
    rows = both[1].rows[both[1].rows["trained_on"].notna()]
    assert set(rows["contestant"]) == {"gpt2@linear"} and set(rows["backbone"]) == {"gpt2"}
    varied = both[1].rows.assign(variant=both[1].rows["run"].str[::-1], contestant=both[1].rows["backbone"])
    varied["contestant"] = varied["contestant"].where(varied["trained_on"].isna(), varied["contestant"] + "@linear")
    named = name_variants(varied)
    named = named[named["trained_on"].notna()]
    assert named["contestant"].str.endswith("@linear").all() and named["contestant"].nunique() == 2
