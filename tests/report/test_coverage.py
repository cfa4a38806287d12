"""What a sweep did: every cell is counted once, and every one that is not done stands with its reason."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from iclbench import tables
from iclbench.report.blocks import Table, Text
from iclbench.report.data import Results, load, of_values
from iclbench.report.sections import coverage, missing
from tests.report.synthetic_grid import FAILED, SKIPPED, TASKS, Grid


def test_all_cells_are_counted_and_those_without_numbers_have_their_reason(grid: Grid, grid_results: Results) -> None:
    section = coverage.section(grid_results)
    assert section is not None
    found = {block.name: block.frame for block in section.walk() if isinstance(block, Table)}
    cells = tables.read_all("cells", grid.folder)
    counted = found["coverage"].set_index("kind")
    assert counted[["done", "failed", "skipped"]].to_numpy().sum() == len(cells)
    assert counted.loc["train", "failed"] == 3
    assert counted.loc["train", "skipped"] == 2 * (len(TASKS) - 1)
    assert counted.loc["evaluate", "seconds"] == pytest.approx(5.0 * counted.loc["evaluate", "done"])
    rest = found["not-done"].set_index("contestant")
    assert rest["cells"].sum() == (cells["status"] != "done").sum()
    assert rest.loc["tnp", "reason"] == FAILED and rest.loc["tnp", "tasks"] == "quadratic"
    assert rest.loc["icicl-tnp", "reason"] == SKIPPED
    machine = found["machines"].iloc[0]
    assert machine["cells"] == (cells["status"] == "done").sum()
    assert machine["seconds"] == pytest.approx(cells["seconds"].sum())


def test_what_is_said_of_many_runs_in_the_same_words_stands_once(grid: Grid) -> None:
    cells = tables.read_all("cells", grid.folder)
    some = cells[cells["status"].eq("done") & cells["kind"].eq("train")].head(2)
    runs = [f"run '{run}' has no layers to probe" for run in some["run"]]
    found = coverage.without_results(some.assign(status="skipped", contestant="cnp", reason=runs))
    assert found is not None
    assert found.frame[["cells", "reason"]].to_numpy().tolist() == [[2, "the run has no layers to probe"]]


def test_what_diverged_is_counted_and_said_as_such(grid: Grid) -> None:
    cells = tables.read_all("cells", grid.folder)
    some = cells[cells["kind"].eq("train")].head(3).assign(status=["diverged", "failed", "done"], preset="smoke")
    counted = coverage.by_kind(some).frame.iloc[0]
    assert counted[["done", "failed", "diverged", "skipped"]].tolist() == [1, 1, 1, 0]
    assert "diverged" not in coverage.by_kind(cells).frame
    found = coverage.without_results(some)
    assert found is not None
    assert set(found.frame["status"]) == {"diverged", "failed"}


def test_without_a_sweep_there_is_no_section(grid: Grid, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("alone")
    tables.write("values", tables.read_all("values", grid.folder), folder / "all.values.parquet", {})
    assert coverage.section(load(folder)) is None


def test_what_makes_no_sense_is_not_asked_for(grid_results: Results) -> None:
    frames = [block.frame for block in missing.section(grid_results).walk() if isinstance(block, Table)]
    assert not any({"icicl-tnp", "tnp"} & set(frame["contestant"]) for frame in frames)


def test_of_what_diverged_no_evaluation_is_asked_for(grid: Grid, tmp_path: Path) -> None:
    values = tables.read_all("values", grid.folder)
    row = values[values["kind"].eq("backbone") & values["evaluator"].eq("next")].head(1)
    row = row.assign(contestant="new", model="new", run="new-s0", evaluator="train", axis="train_step", metric="loss")

    def asked(**changed: object) -> list[str]:
        both = pd.concat([values, row.assign(**changed)], ignore_index=True)
        tables.write("values", both.to_dict("records"), tmp_path / "all.values.parquet", {})
        found = missing.gaps(load(tmp_path))
        return [command for *_, contestant, _, command in found if contestant == "new" and "eval" in command]

    assert "iclbench eval new-s0" in asked()
    assert asked(status="failed", reason="diverged at step 3: the loss is nan") == []


def test_a_shift_beyond_the_trained_length_is_asked_for_as_a_shift(grid: Grid, tmp_path: Path) -> None:
    values = tables.read_all("values", grid.folder)
    row = values[values["kind"].eq("backbone") & values["evaluator"].eq("next")].head(1)
    both = pd.concat([values, row.assign(shift="orthants+points-80")], ignore_index=True)
    tables.write("values", both.to_dict("records"), tmp_path / "all.values.parquet", {})
    commands = [command for *_, command in missing.gaps(load(tmp_path)) if "points-80" in command]
    assert commands and all(command.endswith(" --shift orthants+points-80") for command in commands)


def test_nothing_is_missing_only_where_no_cell_is(grid: Grid) -> None:
    values, cells = tables.read_all("values", grid.folder), tables.read_all("cells", grid.folder)
    alone = of_values(values[values["run"].eq("knn-3") & values["task"].eq("linear")])
    done = cells[cells["status"].eq("done")].head(2)
    for statuses, said in ((["done", "skipped"], "Nothing is missing"), (["done", "failed"], "under Coverage")):
        (text,) = missing.section(replace(alone, cells=done.assign(status=statuses))).blocks
        assert isinstance(text, Text) and said in text.text


@pytest.mark.slow
def test_a_model_that_the_summary_leaves_out_is_missing(grid: Grid, tmp_path: Path) -> None:
    values = tables.read_all("values", grid.folder)
    run = values.loc[values["kind"].eq("backbone") & values["metric"].eq("score"), "run"].iloc[0]

    def missing_summaries(values: pd.DataFrame) -> list[str]:
        tables.write("values", values.to_dict("records"), tmp_path / "all.values.parquet", {})
        return [command for *_, what, command in missing.gaps(load(tmp_path)) if what == "summary"]

    assert missing_summaries(values) == []
    without = values[values["run"].ne(run) | values["metric"].ne("score")]
    assert missing_summaries(without) == [f"iclbench eval {run}"]
    # Without the zero predictor no model has a score.
    unscored = values[values["kind"].eq("backbone") & values["metric"].ne("score")]
    of_curves = unscored.loc[unscored["evaluator"].eq("next") & unscored["metric"].eq("squared_error"), "run"]
    assert {f"iclbench eval {each}" for each in of_curves} <= set(missing_summaries(unscored))
