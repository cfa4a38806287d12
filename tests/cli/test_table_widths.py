"""Tables of all commands are printed without truncated cells at every width of the terminal."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.table import Table

from iclbench import tables
from iclbench.cli import accuracy_table, cost_runs, doctor, probe_tables, summary, sweep_results, terminal
from iclbench.cli.layout import ColumnWidth, blocks
from iclbench.cli.lm import demo_model
from iclbench.cli.lm import tables as lm_tables
from iclbench.cli.main import main
from iclbench.config.resolution import resolve_task
from iclbench.core.context import Context
from iclbench.store.cells import CellStore
from iclbench.store.outcome import Outcome
from iclbench.sweep.cells import GridCell
from iclbench.sweep.verify import VerifiedCell
from tests.conftest import small_card
from tests.tables.rows import complete_row

LONG_NAME = "my-own-linear-in-twenty-dimensions-gpt2-with-rotary-positions-small-s0"


class RecordingTable(Table):
    """A table that records its cells."""

    cells: list[tuple[str, bool]] = []

    def add_column(self, header: Any = "", *args: Any, **kwargs: Any) -> None:
        self.cells.append((header.plain, False))
        super().add_column(header, *args, **kwargs)

    def add_row(self, *cells: Any, **kwargs: Any) -> None:
        pairs = zip(cells, self.columns, strict=True)
        self.cells.extend((cell.plain, column.justify == "right") for cell, column in pairs)
        super().add_row(*cells, **kwargs)


def assert_uncut(out: str, cells: Sequence[tuple[str, bool]]) -> None:
    """Check that the output contains every word of the cells as often as the cells do, and that numbers are on one line
    with their units."""
    assert not Counter(word for cell, _ in cells for word in cell.split()) - Counter(out.split())
    assert all(line.strip() in out for cell, numeric in cells if numeric for line in cell.splitlines())


def values(**columns: Any) -> pd.DataFrame:
    """Rows of the table `values` of one prompt set."""
    rows = len(max((v for v in columns.values() if isinstance(v, list)), key=len))
    shared = {
        "run": LONG_NAME,
        "task": "my-own-linear-in-twenty-dimensions",
        "family": "linear",
        "contestant": LONG_NAME,
        "kind": "backbone",
        "preset": "small",
        "shift": "none",
        "evaluator": "next",
        "axis": None,
        "axis_value": None,
        "n_context": None,
        "n_related": None,
        "metric": "auc",
        "low": 0.1,
        "high": 12345.25,
        "n_episodes": 64,
        "status": "ok",
        "reason": None,
        "prompt_set": "set",
        "card": "c",
        "version": "0",
    }
    all_columns = {key: v if isinstance(v, list) else [v] * rows for key, v in (shared | columns).items()}
    return tables.frame("values", [complete_row(row) for row in pd.DataFrame(all_columns).to_dict("records")])


def leaderboard() -> pd.DataFrame:
    curves = [values(run=[run] * 41, metric="squared_error", n_context=list(range(41)), value=1.5) for run in RUNS]
    scores = [values(run=[run, run], metric=["auc", "score"], value=[1234.5, -0.123]) for run in RUNS]
    return pd.concat([*curves, *scores])


RUNS = (LONG_NAME, "least-squares", "gd-plus-plus-transformed")


def targets() -> pd.DataFrame:
    return pd.concat(
        values(run=[run] * 6, evaluator="targets", metric=metric, n_related=list(range(6)), value=[-1234.567] * 6)
        for run in RUNS
        for metric in ("log_likelihood", "squared_error", "gap")
    )


def accuracies() -> pd.DataFrame:
    tests = ["icl", "iwl", "icl-new-drawings", "targets", "copied-query", "far-away-context", "one-more-of-them"]
    return pd.concat(
        values(run=[run] * 7, evaluator=tests, metric="accuracy_within_choices", value=[0.12345] * 7, n_related=0)
        for run in RUNS
    )


def depths() -> pd.DataFrame:
    metrics = ["squared_error", "scale", "scale_std", "shift", "shift_std"]
    rows = [
        values(
            run=[LONG_NAME] * 12,
            evaluator="probe",
            axis="layer",
            axis_value=list(range(1, 13)),
            n_context=[500] * 12,
            metric=metric,
            value=[243.25 + i for i in range(12)],
        )
        for metric in metrics
    ]
    return pd.concat(rows)


def ranks() -> pd.DataFrame:
    counts = [2**i for i in range(2, 12)]
    return pd.concat(
        values(
            run=[LONG_NAME] * 10, evaluator="rank", axis="contexts", axis_value=counts, metric=m, value=[1234.5] * 10
        )
        for m in ("rank", "effective_rank")
    )


def features() -> pd.DataFrame:
    by_feature = values(
        run=[LONG_NAME] * 9, evaluator="representation", axis="feature", axis_value=[*range(9)], value=-12.3
    )
    return pd.concat([by_feature, values(run=[LONG_NAME], evaluator="representation", value=[0.5])])


def language() -> pd.DataFrame:
    names = [f"my-own-language-task-{number}" for number in range(3)]
    common = {"family": "algorithmic", "evaluator": "greedy", "prompt_set": None, "n_context": 12345}
    kinds = ("accuracy", "accuracy_sd", "accuracy_gain", "accuracy_first_token", "balanced_accuracy")
    means = [values(task=names, metric=metric, value=0.12345, **common) for metric in kinds]
    shuffled = values(task=names, metric="accuracy", shift="shuffled-labels", value=0.5, **common)
    thinking = values(
        task=names, metric="accuracy", contestant=f"{LONG_NAME}+deep-thinking-passes-15", value=0.5, **common
    )
    passes = [
        values(task=names, metric="kl_to_icl", axis="passes", axis_value=[t] * 3, value=1.25e-10, **common)
        for t in range(1, 9)
    ]
    return pd.concat([*means, shuffled, thinking, *passes])


def costs() -> pd.DataFrame:
    metrics = [("model", "parameters"), *[("train_step", m) for m in ("flops", "seconds", "bytes")]]
    metrics += [(phase, m) for phase in ("condition", "query", "update") for m in ("flops", "seconds", "state_bytes")]
    rows = [
        {
            "run": LONG_NAME,
            "task": "t",
            "contestant": "c",
            "preset": "small",
            "phase": phase,
            "n_points": n,
            "metric": metric,
            "value": 243e6 + n,
            "device": "cpu",
            "threads": 1,
            "n_episodes": 64,
            "version": "0",
        }
        for phase, metric in metrics
        for n in (40, 500)
    ]
    return tables.frame("costs", rows)


def verified_cells(*_: Any) -> list[VerifiedCell]:
    task = resolve_task("linear", "smoke")[0].model_copy(update={"name": "my-own-linear-in-twenty-dimensions"})
    cell = GridCell("evaluate", LONG_NAME, "gpt2", task, "small")
    environment = ("AVX512 instead of AVX2", "torch 2.6.0 instead of 2.7.1")
    return [VerifiedCell(cell, 123456, None, None, environment, 12345.0)]


def set_tables(frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("read", "read_all"):
        monkeypatch.setattr(tables, name, lambda *_: frame)


def summary_table(
    frame: Callable[[], pd.DataFrame], lines_of: Callable[..., Any], sizes_of: Callable[..., str] = lambda v: ""
) -> Any:
    def show(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        set_tables(frame(), monkeypatch)
        summary.print_tables(folder, ["set"], False, lines_of, sizes_of)

    return show


def show_costs(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    set_tables(costs(), monkeypatch)
    cost_runs.print_costs([folder], json=False)


def show_verified(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(sweep_results, "verify", verified_cells)
    sweep_results.print_verified([], CellStore(folder), 1, 0, Context(folder))


def show_doctor(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(
        doctor, "_facts", lambda *_: {"results folder": LONG_NAME, "backbone classes": "14 load; " * 20}
    )
    doctor.command(folder, None, json=False)


def show_demo_model(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    model = SimpleNamespace(path=folder, parameters=1, steps=1)
    monkeypatch.setattr("iclbench.language.demo_model.train", lambda *_: model)
    monkeypatch.setattr(demo_model, "_accuracies", lambda *_: [[LONG_NAME, "0.12", "1.00"]])
    demo_model.command(folder, 0, steps=1)


def grid(folder: Path) -> Path:
    task = folder / "my-own-linear-in-twenty-dimensions.toml"
    task.write_text(tomli_w.dumps(small_card()))
    path = folder / "tiny.toml"
    path.write_text(
        tomli_w.dumps(
            {
                "summary": "tiny",
                "tasks": [str(task)],
                "backbones": ["gpt2", "cnp"],
                "presets": ["smoke"],
                "seeds": [0],
                "evaluate": {},
                "probe": {},
            }
        )
    )
    return path


def show_outcomes(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    from iclbench.cli.sweep_summary import print_outcomes
    from iclbench.sweep import plan as plans
    from iclbench.sweep.cells import grid_cells

    plan = plans.make_plan(grid_cells([str(grid(folder))]), CellStore(folder))
    print_outcomes(plan, {c.hash: Outcome("failed", f"{c.run} [of 12345] " * 9) for c in plan.cells})


def command(*arguments: str) -> Callable[..., None]:
    def show(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        monkeypatch.setattr("iclbench.cli.sweep_summary.measure_step", lambda *_, **__: 0.25)
        words = [str(grid(folder)) if argument == "GRID" else argument for argument in arguments]
        assert main([*words, *(["--results", str(folder)] if arguments[0] != "lm" else [])]) == 0

    return show


TABLES = {
    "eval next": summary_table(leaderboard, summary.leaderboard),
    "eval targets": summary_table(targets, summary.leaderboard),
    "eval labels": lambda m, f: accuracy_table.print_accuracies(Path("missing"), [accuracies()]),
    "probe": summary_table(depths, probe_tables.depth_table, probe_tables.examples_in_context),
    "probe --rank": summary_table(ranks, probe_tables.rank_table, probe_tables.rank_title),
    "probe --representation": summary_table(
        features, probe_tables.representation_table, probe_tables.representation_title
    ),
    "cost": show_costs,
    "sweep --verify": show_verified,
    "sweep --dry-run": command("sweep", "GRID", "--dry-run"),
    "sweep": show_outcomes,
    "doctor": show_doctor,
    "lm eval": lambda m, f: lm_tables.print_summaries(language(), 2),
    "lm tasks": command("lm", "tasks"),
    "lm demo-model": show_demo_model,
    **{f"list {kind}": command("list", kind) for kind in ("tasks", "backbones", "baselines", "families", "grids")},
}


@pytest.mark.slow
@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("name", TABLES)
def test_commands_print_no_truncated_cells(
    name: str, width: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(RecordingTable, "cells", [])
    monkeypatch.setattr(terminal, "Table", RecordingTable)
    monkeypatch.setenv("COLUMNS", str(width))
    TABLES[name](monkeypatch, tmp_path)
    assert len(RecordingTable.cells) > 3
    assert_uncut(capsys.readouterr().out, RecordingTable.cells)


WORDS = st.text("abc[]/019.±-", min_size=1, max_size=30)
CELLS = st.lists(WORDS, max_size=12).map(" ".join)
ROWS = st.integers(1, 9).flatmap(lambda n: st.lists(st.lists(CELLS, min_size=n, max_size=n), min_size=2, max_size=4))


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS, numeric=st.sets(st.integers(0, 8)), width=st.sampled_from([20, 80, 200]))
def test_random_tables_are_printed_without_truncated_cells(
    rows: list[list[str]],
    numeric: set[int],
    width: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    header, *lines = rows
    terminal.print_table("", header, lines, sorted(numeric))
    cells = [(cell, index in numeric) for line in lines for index, cell in enumerate(line)]
    assert_uncut(capsys.readouterr().out, [*cells, *((name, False) for name in header)])


@pytest.mark.parametrize("kind", ["tasks", "backbones", "baselines", "families", "grids", "runs", "all"])
def test_lists_in_a_pipe_are_at_most_80_columns_wide(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert main(["list", kind, "--results", str(tmp_path / "r")]) == 0
    assert max(len(line.replace(str(tmp_path), "").rstrip()) for line in capsys.readouterr().out.splitlines()) <= 80


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 90), st.integers(0, 30)), min_size=1, max_size=9), st.integers(64, 200))
def test_columns_are_distributed_over_blocks_that_fit_into_the_width(needs: list[tuple[int, int]], width: int) -> None:
    columns = [ColumnWidth(max(natural, word), word) for natural, word in needs]
    table_blocks = blocks(columns, width)
    assert all(block.width <= width for block in table_blocks)
    assert sorted({index for block in table_blocks for index in block.columns}) == list(range(len(columns)))
    for block in table_blocks:
        assert all(w >= columns[i].word_width for i, w in zip(block.columns, block.widths, strict=True))


def test_tables_with_many_rows_have_the_same_layout_as_tables_with_few_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [["a-run", "finished", "1.25"], ["[bold]a-longer-run[/bold]", "step 1/2", "-"], ["", "漢字", "12.5"]]
    outputs = []
    for limit in (len(rows) + 1, 0):
        monkeypatch.setattr(terminal, "_FAST_ROWS", limit)
        terminal.print_table("", ["run", "state", "loss"], rows, [2])
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    assert outputs[0].splitlines()[2].startswith("a-longer-run  step 1/2")
