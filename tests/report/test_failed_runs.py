"""Runs that diverged, or failed at some or all context sizes: their reasons are listed, and means are missing."""

import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from iclbench import tables
from iclbench.analysis import normalised
from iclbench.report.blocks import Figure, Table
from iclbench.report.data import Results, Slice, load_results
from iclbench.report.sections import heat_map, leaderboard, missing, summary
from iclbench.report.sections.equal_budget import _steps
from iclbench.report.sections.heat_map import _reasons
from iclbench.report.sections.summary import missing_sentences

DIVERGED = "diverged at step 2000: loss is nan"
REASON = "squared_error is nan in 42 of 64 episodes, at 3 of 21 context sizes; first in episode 6 after 2 examples"
FAILED_RUN, SIZES = "linear-gpt2-small-s1", (2, 5, 20)


def write_failed(results: Path, folder: Path, at_all_sizes: bool) -> Path:
    """Copy the synthetic results, and mark one of three seeds on a task as failed, at all or some context sizes."""
    shutil.copytree(results, folder, dirs_exist_ok=True)
    table = folder / "tables" / "linear.values.parquet"
    values = tables.read("values", table)
    of_run = values["run"].eq(FAILED_RUN) & values["shift"].eq("none") & values["evaluator"].eq("next")
    has_failed = of_run & (values["n_context"].isin(SIZES) | values["metric"].eq("auc"))
    failure = {"value": pd.NA, "low": pd.NA, "high": pd.NA, "n_episodes": pd.NA, "status": "failed", "reason": REASON}
    if at_all_sizes:
        has_failed = of_run & values["metric"].eq("squared_error") & values["n_context"].eq(2)
        failure |= {"n_context": pd.NA}
    values.loc[has_failed, list(failure)] = list(failure.values())
    values = values[~(of_run & (~has_failed if at_all_sizes else values["metric"].eq("score")))]
    tables.write("values", values, table, {})
    (folder / "tables" / "linear-none" / f"{FAILED_RUN}.errors.parquet").unlink()
    return folder


@pytest.fixture(scope="module", params=[False, True], ids=["some sizes", "all sizes"])
def failed_results(request: pytest.FixtureRequest, results: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    return load_results(write_failed(results, tmp_path_factory.mktemp("failed"), request.param))


@pytest.fixture
def linear_task(failed_results: Results) -> Slice:
    return next(task for task in failed_results.slices if task.task == "linear")


@pytest.mark.slow
def test_a_failed_contestant_is_last_and_has_no_rank(linear_task: Slice) -> None:
    section = leaderboard.section(linear_task)
    assert section is not None
    (board,) = (block for block in section.walk() if isinstance(block, Table) and not block.linked)
    last = board.frame.iloc[-1]
    assert last["contestant"] == "gpt2" and last["reason"] == REASON
    assert pd.isna(last["rank"]) and pd.isna(last["auc"]) and pd.isna(last["score"])
    assert board.frame["contestant"].tolist().count("gpt2") == 1
    assert "failed" in [column.header for column in board.columns]
    assert pd.notna(board.frame.set_index("contestant").loc["mamba", "rank"])


def test_a_mean_is_over_all_seeds_or_missing(linear_task: Slice) -> None:
    curve = linear_task.curves[linear_task.curves["contestant"].eq("gpt2") & linear_task.curves["shift"].eq("none")]
    assert not curve["n_context"].isin(SIZES).any() and (curve["runs"] == 3).all()
    summaries = linear_task.summaries[linear_task.summaries["shift"].eq("none")]
    assert "gpt2" not in set(summaries["contestant"]) and "mamba" in set(summaries["contestant"])


def test_a_score_is_missing_only_on_the_failed_task(failed_results: Results) -> None:
    contests = normalised.contests(failed_results, "small")
    contestants = {contest.task.task: set(contest.scores["contestant"]) for contest in contests}
    assert "gpt2" not in contestants["linear"] and "gpt2" in contestants["sparse-linear"]
    (title,) = (contest.title for contest in contests if contest.task.task == "linear")
    assert _reasons(failed_results, contests)[title, "gpt2"] == {"failed": [f"{FAILED_RUN}: {REASON}"]}


def test_a_failed_run_is_listed_once(failed_results: Results) -> None:
    frames = {block.name: block.frame for block in missing.section(failed_results).walk() if isinstance(block, Table)}
    rows = frames["failed"][frames["failed"]["run"] == FAILED_RUN]
    assert rows["reason"].tolist() == [REASON]


@pytest.fixture(scope="module")
def diverged_results(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The synthetic results, except that one of three seeds on a task diverged and was not evaluated."""
    folder = tmp_path_factory.mktemp("diverged")
    shutil.copytree(results, folder, dirs_exist_ok=True)
    table = folder / "tables" / "linear.values.parquet"
    values = tables.read("values", table)
    in_training = values["evaluator"].eq("train") & values["axis_value"].le(2000)
    values = values[values["run"].ne(FAILED_RUN) | in_training].copy()
    last_step = values["run"].eq(FAILED_RUN) & values["axis_value"].eq(2000)
    values.loc[last_step, ["value", "status", "reason"]] = [pd.NA, "failed", DIVERGED]
    tables.write("values", values, table, {})
    (folder / "tables" / "linear-none" / f"{FAILED_RUN}.errors.parquet").unlink()
    return load_results(folder)


def test_a_contestant_with_a_diverged_seed_has_no_mean(diverged_results: Results) -> None:
    by_name = {task.task: task for task in diverged_results.slices}
    for rows in (by_name["linear"].curves, by_name["linear"].summaries):
        assert "gpt2" not in set(rows["contestant"]) and "mamba" in set(rows["contestant"])
    assert "gpt2" in set(by_name["sparse-linear"].curves["contestant"])
    contests = normalised.contests(diverged_results, "small")
    (linear,) = (contest for contest in contests if contest.task.task == "linear")
    assert "gpt2" not in set(linear.scores["contestant"])
    assert _reasons(diverged_results, contests)[linear.title, "gpt2"] == {"diverged": [f"{FAILED_RUN}: {DIVERGED}"]}


def test_a_diverged_contestant_is_last_and_its_reason_is_listed(diverged_results: Results) -> None:
    section = leaderboard.section(next(task for task in diverged_results.slices if task.task == "linear"))
    assert section is not None
    (board,) = (block for block in section.walk() if isinstance(block, Table) and not block.linked)
    assert board.frame.iloc[-1][["contestant", "reason"]].tolist() == ["gpt2", DIVERGED]


def test_the_number_of_training_steps_ignores_diverged_runs(diverged_results: Results) -> None:
    (linear,) = (task for task in diverged_results.slices if task.task == "linear")
    assert set(_steps(linear)) == {4000}


@pytest.mark.parametrize("length", [None, 20])
def test_a_diverged_run_of_a_different_variant_does_not_remove_the_mean(
    diverged_results: Results, length: int | None
) -> None:
    """A run that diverged with a different learning rate is not a seed of this contestant."""
    rows = diverged_results.rows.copy()
    rows["variant"] = rows["run"].where(rows["run"].eq(FAILED_RUN), "a").where(rows["kind"].eq("backbone"))
    task = Slice(replace(diverged_results, rows=rows), "linear", "small", length)
    assert task.diverged_rows.empty and task.diverged_note == ""
    assert len(Slice(diverged_results, "linear", "small", length).diverged_rows) == 1, (
        "without variants, the run is a seed of this contestant"
    )


def test_a_method_has_no_mean_if_a_seed_of_its_backbone_diverged(diverged_results: Results) -> None:
    rows = diverged_results.rows[
        diverged_results.rows["contestant"].eq("gpt2") & diverged_results.rows["status"].eq("ok")
    ]
    with_method = rows.assign(contestant="gpt2+deep-thinking", method="+deep-thinking")
    all_rows = pd.concat([diverged_results.rows, with_method], ignore_index=True)
    task = Slice(replace(diverged_results, rows=all_rows), "linear", "small")
    assert task.without_diverged(rows).empty and task.without_diverged(with_method).empty
    assert task.diverged_note.endswith(": gpt2, gpt2+deep-thinking.")


@pytest.mark.slow
def test_skipped_context_sizes_are_listed_as_skipped(results: Path, tmp_path: Path) -> None:
    table = write_failed(results, tmp_path, at_all_sizes=False) / "tables" / "linear.values.parquet"
    values = tables.read("values", table)
    has_failed = values["run"].eq(FAILED_RUN) & values["status"].eq("failed")
    tables.write("values", values.assign(status=values["status"].mask(has_failed, "skipped")), table, {})
    with_skipped = load_results(tmp_path)
    failures = missing.failure_table(with_skipped)
    assert failures is not None
    rows = failures.frame[failures.frame["run"].eq(FAILED_RUN)]
    assert rows[["status", "reason"]].to_numpy().tolist() == [["skipped", REASON]]
    assert any(line.startswith("1 evaluation ") for line in missing_sentences(with_skipped))


@pytest.mark.slow
def test_a_model_that_failed_on_all_tasks_has_a_column_in_the_heat_map(results: Path, tmp_path: Path) -> None:
    shutil.copytree(results, tmp_path, dirs_exist_ok=True)
    for table in (tmp_path / "tables").glob("*.values.parquet"):
        values = tables.read("values", table)
        of_gpt2 = values["contestant"].eq("gpt2") & values["evaluator"].ne("train")
        empty = dict.fromkeys(("value", "low", "high", "n_episodes", "n_context"), pd.NA)
        first = values[of_gpt2 & values["metric"].eq("squared_error")].drop_duplicates(["run", "shift", "evaluator"])
        failures = first.assign(**empty, status="failed", reason=REASON)
        tables.write("values", pd.concat([values[~of_gpt2], failures], ignore_index=True), table, {})
    loaded = load_results(tmp_path)
    section = heat_map.section(loaded)
    assert section is not None
    figure = next(block for block in section.walk() if isinstance(block, Figure))
    cells = figure.data[figure.data["contestant"].eq("gpt2")]
    assert set(cells["status"]) == {"failed"} and cells["reason"].str.contains("42 of 64").all()
    names, rows = summary.tiles_by_family(loaded, normalised.contests(loaded, "small"))
    assert "gpt2" in names and all(tiles[names.index("gpt2")].text == "×" for _, tiles in rows)
