"""The table that ends an evaluation of class labels."""

import json
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from iclbench import tables
from iclbench.cli.accuracy_table import accuracy_board, has_labels, print_accuracies
from iclbench.cli.main import app
from iclbench.cli.summary import print_summary

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


def row(run: str, evaluator: str, value: float, kind: str = "backbone", **other: object) -> dict[str, object]:
    one = SHARED | {"run": run, "contestant": run, "model": run, "kind": kind, "evaluator": evaluator, "shift": "none"}
    return one | {"value": value, "low": value - 0.05, "high": value + 0.03, "prompt_set": evaluator} | other


ROWS = [
    row("worse", "targets", 0.9),
    row("better", "targets", 0.2),
    row("worse", "icl", 0.4),
    row("better", "icl", 0.6),
    row("better", "icl", 0.8, metric="accuracy"),
    row("better", "icl", 0.99, axis="train_step"),
    row("pixel-1nn", "icl", 0.7, "baseline"),
    row("chance", "icl", 0.5, "baseline"),
    row("better", "targets", 0.1, shift="blur"),
]


def test_contestants_stand_by_the_first_test_and_chance_comes_last() -> None:
    columns, lines = accuracy_board(pd.DataFrame(ROWS))
    assert columns == ["contestant", "icl", "as trained", "blur"]
    assert lines == [
        ["pixel-1nn", "0.700 ±0.040", "", ""],
        ["[bold]better[/bold]", "0.600 ±0.040", "0.200 ±0.040", "0.100 ±0.040"],
        ["[bold]worse[/bold]", "0.400 ±0.040", "0.900 ±0.040", ""],
        ["chance", "0.500", "", ""],
    ]


def test_prompt_sets_of_labels_are_told_from_those_of_numbers() -> None:
    assert has_labels(pd.DataFrame(ROWS))
    assert not has_labels(pd.DataFrame([row("m", "targets", 1.0, metric="squared_error")]))


def test_one_table_over_all_prompt_sets_of_a_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nothing = {"value": None, "low": None, "high": None, "status": "failed", "reason": "out of luck"}
    failed = row("broken", "icl", 0.0) | nothing
    sets = {"targets": ROWS[:2], "icl": [*ROWS[2:5], *ROWS[6:8], failed]}
    for name, rows in sets.items():
        tables.write("values", rows, tmp_path / "tables" / name / "all.values.parquet", {})
    print_summary(tmp_path, list(sets))
    shown = capsys.readouterr().out
    assert shown.count("bursty, smoke") == 1
    assert "failed: broken: out of luck" in shown
    order = [line.split()[0] for line in shown.splitlines() if "±" in line]
    assert order == ["pixel-1nn", "better", "worse"]
    print_summary(tmp_path, list(sets), json=True)
    assert len(json.loads(capsys.readouterr().out)) == 8


def test_runs_on_other_prompts_of_the_same_task_have_a_table_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of two runs that differ in a parameter of the task; baselines and chance stand in both tables."""
    first = [row("a", "icl", 0.4), row("a", "targets", 0.1), row("c", "icl", 0.3)]
    second = [row("b", "icl", 0.9, prompt_set="other"), row("b", "targets", 0.8, prompt_set="others")]
    sets = ("icl", "other")
    beside = [row(name, "icl", 0.5, "baseline", prompt_set=p) for name in ("majority", "chance") for p in sets]
    print_accuracies(tmp_path, [pd.DataFrame([*first, *second, *beside])])
    shown = capsys.readouterr().out
    assert shown.count("bursty, smoke") == 2
    order = [line.split()[0] for line in shown.splitlines() if "0." in line]
    assert order == ["majority", "a", "c", "chance", "b", "majority", "chance"]


def test_where_everything_failed_there_is_only_the_reason() -> None:
    assert accuracy_board(pd.DataFrame([row("broken", "icl", 0.0, status="failed")])) == (["contestant"], [])


def test_nothing_is_printed_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_accuracies(tmp_path, [])
    assert not capsys.readouterr().out


def test_tasks_are_listed_with_their_tests() -> None:
    shown = CliRunner().invoke(app, ["list", "tasks", "--json"])
    assert '"evaluators": "icl icl_paired iwl flip"' in shown.output
