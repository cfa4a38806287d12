"""The table that `iclbench eval` prints for tasks with class labels."""

import json
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from iclbench import tables
from iclbench.cli.accuracy_table import accuracy_board, has_labels, print_accuracies
from iclbench.cli.main import app
from iclbench.cli.summary import print_summary
from tests.tables.rows import complete_row

SHARED = {
    "task": "bursty",
    "family": "bursty",
    "preset": "smoke",
    "status": "ok",
    "axis": None,
    "tuned": None,
    "card": "c",
    "version": "1",
    "n_related": 0,
    "metric": "accuracy_within_choices",
}


def row(run: str, evaluator: str, value: float, kind: str = "backbone", **changes: object) -> dict[str, object]:
    columns = SHARED | {
        "run": run,
        "contestant": run,
        "model": run,
        "kind": kind,
        "evaluator": evaluator,
        "shift": "none",
    }
    return columns | {"value": value, "low": value - 0.05, "high": value + 0.03, "prompt_set": evaluator} | changes


def frame(*rows: dict[str, object]) -> pd.DataFrame:
    return tables.frame("values", [complete_row(row) for row in rows])


ROWS = [
    row("worse", "targets", 0.9),
    row("better", "targets", 0.2),
    row("worse", "icl", 0.4),
    row("better", "icl", 0.6),
    row("better", "icl", 0.8, metric="accuracy"),
    row("better", "icl", 0.99, axis="train_step"),
    row("pixel-1nn", "icl", 0.7, "baseline"),
    row("chance", "icl", 0.5, "baseline", low=None, high=None),
    row("better", "targets", 0.1, shift="blur"),
    row("trained", "targets", 0.95),
]


def test_contestants_are_ordered_by_their_accuracy_on_the_first_test_and_then_on_the_others() -> None:
    columns, lines = accuracy_board(frame(*ROWS))
    assert columns == ["contestant", "icl", "as trained", "blur"]
    assert lines == [
        ["pixel-1nn", "0.700 ±0.040", "", ""],
        ["[bold]better[/bold]", "0.600 ±0.040", "0.200 ±0.040", "0.100 ±0.040"],
        ["chance", "0.500", "", ""],
        ["[bold]worse[/bold]", "0.400 ±0.040", "0.900 ±0.040", ""],
        ["[bold]trained[/bold]", "", "0.950 ±0.040", ""],
    ]


def test_rows_with_accuracies_are_recognised_as_rows_with_labels() -> None:
    assert has_labels(pd.DataFrame(ROWS))
    assert not has_labels(pd.DataFrame([row("m", "targets", 1.0, metric="squared_error")]))


def test_all_prompt_sets_of_a_task_share_one_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failure = {"value": None, "low": None, "high": None, "status": "failed", "reason": "a reason"}
    failed = row("broken", "icl", 0.0) | failure
    sets = {"targets": ROWS[:2], "icl": [*ROWS[2:5], *ROWS[6:8], failed]}
    for name, rows in sets.items():
        tables.write("values", rows, tmp_path / "tables" / name / "all.values.parquet", {})
    print_summary(tmp_path, list(sets))
    out = capsys.readouterr().out
    assert out.count("bursty, smoke") == 1
    assert "broken: a reason" in out
    order = [line.split()[0] for line in out.splitlines() if "±" in line]
    assert order == ["pixel-1nn", "better", "worse"]
    print_summary(tmp_path, list(sets), json=True)
    assert len(json.loads(capsys.readouterr().out)) == 8


def test_runs_on_different_prompts_of_the_same_task_have_separate_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Runs with different task parameters have different prompts. Both tables list the baselines and chance."""
    first = [row("a", "icl", 0.4), row("a", "targets", 0.1), row("c", "icl", 0.3)]
    second = [row("b", "icl", 0.9, prompt_set="other"), row("b", "targets", 0.8, prompt_set="others")]
    sets = ("icl", "other")
    baselines = [row(name, "icl", 0.5, "baseline", prompt_set=p) for name in ("majority", "chance") for p in sets]
    print_accuracies(tmp_path, [frame(*first, *second, *baselines)])
    out = capsys.readouterr().out
    assert out.count("bursty, smoke") == 2
    order = [line.split()[0] for line in out.splitlines() if "0." in line]
    assert order == ["chance", "majority", "a", "c", "b", "chance", "majority"]


def test_a_table_without_successful_rows_is_empty() -> None:
    failed = row("broken", "icl", 0.0, status="failed", reason="a reason")
    assert accuracy_board(frame(failed)) == (["contestant"], [])


def test_without_prompt_sets_no_table_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_accuracies(tmp_path, [])
    assert not capsys.readouterr().out


def test_the_list_of_tasks_contains_their_evaluators() -> None:
    result = CliRunner().invoke(app, ["list", "tasks", "--json"])
    assert '"evaluators": "icl icl_paired iwl flip"' in result.output
