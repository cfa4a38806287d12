"""A run that failed, as a whole or at some context sizes: named with its reason, and no mean is over the others."""

import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from iclbench import tables
from iclbench.analysis import normalised
from iclbench.report.blocks import Figure, Table
from iclbench.report.data import Results, Slice, load
from iclbench.report.sections import heat_map, leaderboard, missing, summary
from iclbench.report.sections.footing import _steps
from iclbench.report.sections.heat_map import _reasons
from iclbench.report.sections.summary import lacking

DIVERGED = "diverged at step 2000: loss is nan"
REASON = "squared_error is nan in 42 of 64 episodes, at 3 of 21 context sizes; first in episode 6 after 2 examples"
BROKEN, SIZES = "linear-gpt2-small-s1", (2, 5, 20)


def folder(honest: Path, path: Path, whole: bool) -> Path:
    """The synthetic results, in which one of three seeds failed on one task, altogether or at some context sizes."""
    shutil.copytree(honest, path, dirs_exist_ok=True)
    table = path / "tables" / "linear.values.parquet"
    values = tables.read("values", table)
    own = values["run"].eq(BROKEN) & values["shift"].eq("none") & values["evaluator"].eq("next")
    bad = own & (values["n_context"].isin(SIZES) | values["metric"].eq("auc"))
    missing = {"value": pd.NA, "low": pd.NA, "high": pd.NA, "n_episodes": pd.NA, "status": "failed", "reason": REASON}
    if whole:
        bad = own & values["metric"].eq("squared_error") & values["n_context"].eq(2)
        missing |= {"n_context": pd.NA}
    values.loc[bad, list(missing)] = list(missing.values())
    kept = values[~(own & (~bad if whole else values["metric"].eq("score")))]
    tables.write("values", kept, table, {})
    (path / "tables" / "linear-none" / f"{BROKEN}.errors.parquet").unlink()
    return path


@pytest.fixture(scope="module", params=[False, True], ids=["at some sizes", "as a whole"])
def broken(request: pytest.FixtureRequest, results: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    return load(folder(results, tmp_path_factory.mktemp("failed"), request.param))


@pytest.fixture
def task(broken: Results) -> Slice:
    return next(each for each in broken.slices if each.task == "linear")


def test_who_failed_holds_no_rank_and_stands_last_with_the_reason(task: Slice) -> None:
    section = leaderboard.section(task)
    assert section is not None
    (board,) = (block for block in section.walk() if isinstance(block, Table))
    last = board.frame.iloc[-1]
    assert last["contestant"] == "gpt2" and last["reason"] == REASON
    assert pd.isna(last["rank"]) and pd.isna(last["auc"]) and pd.isna(last["score"])
    assert board.frame["contestant"].tolist().count("gpt2") == 1
    assert "failed" in [column.header for column in board.columns]
    assert pd.notna(board.frame.set_index("contestant").loc["mamba", "rank"])


def test_no_mean_over_seeds_leaves_one_out(task: Slice) -> None:
    curve = task.curves[task.curves["contestant"].eq("gpt2") & task.curves["shift"].eq("none")]
    assert not curve["n_context"].isin(SIZES).any() and (curve["runs"] == 3).all()
    summaries = task.summaries[task.summaries["shift"].eq("none")]
    assert "gpt2" not in set(summaries["contestant"]) and "mamba" in set(summaries["contestant"])


def test_the_score_is_missing_for_that_reason_and_nowhere_else(broken: Results) -> None:
    contests = normalised.contests(broken, "small")
    found = {contest.task.task: set(contest.scores["contestant"]) for contest in contests}
    assert "gpt2" not in found["linear"] and "gpt2" in found["sparse-linear"]
    reasons = _reasons(broken, contests)
    assert reasons[next(c.title for c in contests if c.task.task == "linear"), "gpt2"] == {
        "failed": [f"{BROKEN}: {REASON}"]
    }


def test_the_page_names_it_once(broken: Results) -> None:
    frames = {block.name: block.frame for block in missing.section(broken).walk() if isinstance(block, Table)}
    rows = frames["failed"][frames["failed"]["run"] == BROKEN]
    assert rows["reason"].tolist() == [REASON]


@pytest.fixture(scope="module")
def diverged(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The synthetic results, in which the training of one of three seeds diverged on one task: nothing was asked."""
    path = tmp_path_factory.mktemp("diverged")
    shutil.copytree(results, path, dirs_exist_ok=True)
    table = path / "tables" / "linear.values.parquet"
    values = tables.read("values", table)
    values = values[values["run"].ne(BROKEN) | (values["evaluator"].eq("train") & values["axis_value"].le(2000))].copy()
    end = values["run"].eq(BROKEN) & values["axis_value"].eq(2000)
    values.loc[end, ["value", "status", "reason"]] = [pd.NA, "failed", DIVERGED]
    tables.write("values", values, table, {})
    (path / "tables" / "linear-none" / f"{BROKEN}.errors.parquet").unlink()
    return load(path)


def test_no_mean_is_over_the_seeds_that_did_not_diverge(diverged: Results) -> None:
    found = {task.task: task for task in diverged.slices}
    for rows in (found["linear"].curves, found["linear"].summaries):
        assert "gpt2" not in set(rows["contestant"]) and "mamba" in set(rows["contestant"])
    assert "gpt2" in set(found["sparse-linear"].curves["contestant"])
    contests = normalised.contests(diverged, "small")
    (linear,) = (contest for contest in contests if contest.task.task == "linear")
    assert "gpt2" not in set(linear.scores["contestant"])
    assert _reasons(diverged, contests)[linear.title, "gpt2"] == {"diverged": [f"{BROKEN}: {DIVERGED}"]}


def test_who_diverged_stands_last_with_the_reason(diverged: Results) -> None:
    section = leaderboard.section(next(task for task in diverged.slices if task.task == "linear"))
    assert section is not None
    (board,) = (block for block in section.walk() if isinstance(block, Table))
    assert board.frame.iloc[-1][["contestant", "reason"]].tolist() == ["gpt2", DIVERGED]


def test_a_training_that_diverged_was_to_have_as_many_steps(diverged: Results) -> None:
    (linear,) = (task for task in diverged.slices if task.task == "linear")
    assert set(_steps(linear)) == {4000}


@pytest.mark.parametrize("length", [None, 20])
def test_who_diverged_at_other_settings_is_left_in(diverged: Results, length: int | None) -> None:
    """Its run does not repeat those of this name: a rate that was too high spoils no lower one."""
    rows = diverged.rows.copy()
    rows["variant"] = rows["run"].where(rows["run"].eq(BROKEN), "a").where(rows["kind"].eq("backbone"))
    other = Slice(replace(diverged, rows=rows), "linear", "small", length)
    assert other.diverged.empty and other.diverged_note == ""
    assert len(Slice(diverged, "linear", "small", length).diverged) == 1, "unless it is not known"


def test_a_method_has_no_mean_over_the_seeds_that_did_not_diverge_either(diverged: Results) -> None:
    rows = diverged.rows[diverged.rows["contestant"].eq("gpt2") & diverged.rows["status"].eq("ok")]
    thinks = rows.assign(contestant="gpt2+deep-thinking", method="+deep-thinking")
    task = Slice(replace(diverged, rows=pd.concat([diverged.rows, thinks], ignore_index=True)), "linear", "small")
    assert task.without_diverged(rows).empty and task.without_diverged(thinks).empty
    assert task.diverged_note == " Not shown, as a training run diverged: gpt2, gpt2+deep-thinking."


@pytest.mark.slow
def test_sizes_that_were_skipped_are_listed_as_such(results: Path, tmp_path: Path) -> None:
    table = folder(results, tmp_path, whole=False) / "tables" / "linear.values.parquet"
    values = tables.read("values", table)
    skipped = values["run"].eq(BROKEN) & values["status"].eq("failed")
    tables.write("values", values.assign(status=values["status"].mask(skipped, "skipped")), table, {})
    found = load(tmp_path)
    listed = missing.failed(found)
    assert listed is not None
    own = listed.frame[listed.frame["run"].eq(BROKEN)]
    assert own[["status", "reason"]].to_numpy().tolist() == [["skipped", REASON]]
    assert "1 evaluation with more examples than the model supports." in list(lacking(found))


@pytest.mark.slow
def test_who_failed_on_every_task_keeps_a_column_of_the_heat_map(results: Path, tmp_path: Path) -> None:
    shutil.copytree(results, tmp_path, dirs_exist_ok=True)
    for table in (tmp_path / "tables").glob("*.values.parquet"):
        values = tables.read("values", table)
        own = values["contestant"].eq("gpt2") & values["evaluator"].ne("train")
        missing = dict.fromkeys(("value", "low", "high", "n_episodes", "n_context"), pd.NA)
        first = values[own & values["metric"].eq("squared_error")].drop_duplicates(["run", "shift", "evaluator"])
        lost = first.assign(**missing, status="failed", reason=REASON)
        tables.write("values", pd.concat([values[~own], lost], ignore_index=True), table, {})
    found = load(tmp_path)
    section = heat_map.section(found)
    assert section is not None
    figure = next(block for block in section.walk() if isinstance(block, Figure))
    cells = figure.data[figure.data["contestant"].eq("gpt2")]
    assert set(cells["status"]) == {"failed"} and cells["reason"].str.contains("in 42 of 64 episodes").all()
    names, rows = summary.heat_map(found, normalised.contests(found, "small"))
    assert "gpt2" in names and all(tiles[names.index("gpt2")].text == "×" for _, tiles in rows)
