"""The tables of `iclbench lm eval`: one table per task, an overview of all tasks, and tables of values by number of
passes and by order of the demonstrations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from iclbench import tables
from iclbench.cli.lm.overview import models_of, overview_board
from iclbench.cli.result_rows import styled_name
from iclbench.cli.terminal import out, print_rows, print_table
from iclbench.core.metrics import metric
from iclbench.evaluation.cells import CellResult
from iclbench.language.summary import summary_path

# Maximum number of evaluated tasks for which each task gets its own table.
_MAX_DETAILED_TASKS = 6
# Maximum number of columns in a table of passes.
_MAX_PASS_COLUMNS = 8


def print_language(results: Path, cells: Sequence[CellResult], json: bool = False) -> None:
    """Print the tables of an evaluation. With `json`, print the rows of its cells and the means over demonstration
    seeds."""
    paths = [results / "tables" / cell.prompts.id / f"{cell.contestant.run}.values.parquet" for cell in cells]
    means = _read(_summaries(results, cells))
    if json:
        print_rows(pd.concat([_read(paths), means]))
        return
    orders = {cell.prompts.order for cell in cells}
    demo_set_count = len({cell.prompts.demo_seed for cell in cells if cell.prompts.shots})
    print_summaries(means, demo_set_count, _read(paths) if len(orders) > 1 else None)


def _summaries(results: Path, cells: Sequence[CellResult]) -> list[Path]:
    """Return the files with means over the demonstration seeds of these cells."""
    return list(dict.fromkeys(summary_path(results, cell.contestant.run, cell.prompts) for cell in cells))


def _read(paths: Sequence[Path]) -> pd.DataFrame:
    frames = [tables.read("values", path) for path in paths if path.is_file()]
    return pd.concat(frames, ignore_index=True) if frames else tables.frame("values", [])


def print_summaries(values: pd.DataFrame, demo_set_count: int, by_order: pd.DataFrame | None = None) -> None:
    """Print the tables of means over `demo_set_count` sets of demonstrations. If demonstrations were evaluated in
    several orders, `by_order` has the rows of all cells."""
    ok_rows = values[values["status"].eq("ok") & values["prompt_set"].isna()]
    tasks = list(dict.fromkeys(map(str, ok_rows["task"])))
    for task in tasks if len(tasks) <= _MAX_DETAILED_TASKS else []:
        task_rows = ok_rows[ok_rows["task"].eq(task)]
        columns, lines = task_board(task_rows)
        print_table(task_title(task_rows), columns, lines, range(1, len(columns)))
        for contestant, rows in task_rows[task_rows["axis"].eq("passes")].groupby("contestant", sort=False):
            for shots, shots_rows in rows.groupby("n_context", sort=True):
                columns, lines = passes_board(shots_rows)
                print_table(f"{contestant}, {shots} shots, by number of passes", columns, lines, range(1, len(columns)))
        if by_order is not None:
            columns, lines = orders_board(by_order[by_order["task"].eq(task)])
            print_table("the same demonstrations in other orders", columns, lines, range(1, len(columns)))
        out.print()
    if len(tasks) > 1:
        for model in models_of(ok_rows):
            columns, lines = overview_board(ok_rows, model)
            print_table(f"{model}: accuracy", columns, lines, range(1, len(columns)))
            out.print()
    failures = values[values["status"].eq("failed") & values["prompt_set"].isna() & values["metric"].eq("accuracy")]
    for row in failures[failures["axis"].isna()].to_dict("records"):
        shots = "" if pd.isna(row["n_context"]) else f" at {row['n_context']} shots"
        out.print(f"missing: {row['contestant']} on {row['task']}{shots} ({row['shift']}): {row['reason']}")
    if len(tasks) > _MAX_DETAILED_TASKS:
        scope = f"Means over {demo_set_count} sets of demonstrations. " if demo_set_count > 1 else ""
        out.print(
            f"{scope}For intervals, use iclbench report or --json, or evaluate at most {_MAX_DETAILED_TASKS} tasks at "
            "a time."
        )
    elif tasks:
        spread = "[ ] 95 % interval"
        if demo_set_count > 1:
            spread = f"± standard deviation over {demo_set_count} sets of demonstrations"
        gain = "; gain: accuracy minus that of plain ICL, with 95 % interval"
        out.print(spread + gain * bool(ok_rows["metric"].eq("accuracy_gain").any()))


def task_title(values: pd.DataFrame) -> str:
    """Return a title with the task, its family and its evaluator."""
    first_row = values.iloc[0]
    return f"{first_row['task']} ({first_row['family']}, {first_row['evaluator']})"


def task_board(values: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Return the column names and the rows for one task: a row per contestant and number of demonstrations, and the
    majority label last.

    Args:
        values: means over demonstration seeds.
    """
    main_rows = values[values["axis"].isna()]
    unshuffled_rows = main_rows[main_rows["shift"].eq("none")]
    by_metric = {
        name: _by_key(unshuffled_rows[unshuffled_rows["metric"].eq(name)])
        for name in dict.fromkeys(unshuffled_rows["metric"])
    }
    shuffled_rows = _by_key(main_rows[main_rows["shift"].eq("shuffled-labels") & main_rows["metric"].eq("accuracy")])
    extra_columns = {"first token": "accuracy_first_token", "balanced": "balanced_accuracy"}
    extra_columns = {title: name for title, name in extra_columns.items() if name in by_metric}
    accuracies = by_metric.get("accuracy", {})  # empty if a set of demonstrations failed for all models
    majority_keys = [key for key, row in accuracies.items() if row["kind"] == "baseline"]
    models = [
        key for name in models_of(unshuffled_rows) for key in sorted(accuracies) if accuracies[key]["model"] == name
    ]
    lines = []
    for key in [*models, *majority_keys[:1]]:  # the majority label does not depend on demonstrations
        row = accuracies[key]
        cells = [_accuracy(row, by_metric.get("accuracy_sd", {}).get(key), "accuracy_sd" in by_metric)]
        cells += [_number(by_metric[name].get(key)) for name in extra_columns.values()]
        cells += [_number(shuffled_rows.get(key))] if shuffled_rows else []
        cells += [_gain(by_metric["accuracy_gain"].get(key))] if "accuracy_gain" in by_metric else []
        lines.append([styled_name(key[0], str(row["kind"])), _shots(row), *cells])
    columns = ["contestant", "shots", "accuracy", *extra_columns, *(["shuffled"] if shuffled_rows else [])]
    return columns + (["gain"] if "accuracy_gain" in by_metric else []), lines


def passes_board(values: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Return the column names and the rows: accuracy, distance to plain ICL and change of the memory after 1, 2, ...
    passes."""
    counts = sorted(int(t) for t in values["axis_value"].unique())
    step = -(-len(counts) // _MAX_PASS_COLUMNS)
    pass_counts = counts[::-1][::step][::-1]
    lines = []
    passes = values[values["shift"].eq("none") & values["metric"].isin(["accuracy", "kl_to_icl", "memory_change"])]
    for (evaluator, name), rows in passes.groupby(["evaluator", "metric"], sort=False):
        row_metric = metric(str(name))
        by_pass = rows.set_index(rows["axis_value"].astype(int))["value"]
        number_format = ".1e" if row_metric.logarithmic else ".3f"
        title = row_metric.label + (", development" if evaluator == "development" else "")
        lines.append([title, *(f"{by_pass[t]:{number_format}}" if t in by_pass.index else "" for t in pass_counts)])
    return ["passes", *map(str, pass_counts)], lines


def orders_board(values: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Return the column names and the rows: mean, worst and best accuracy over different orders of the same
    demonstrations.

    Args:
        values: rows of cells. Rows with the axis `order` belong to orders other than the sampled one.
    """
    is_counted = values["axis"].isin(["demo_seed", "order"]) & values["shift"].eq("none") & values["n_context"].gt(0)
    accuracies = values[
        is_counted & values["metric"].eq("accuracy") & values["status"].eq("ok") & values["kind"].eq("backbone")
    ]
    order = accuracies["axis_value"].where(accuracies["axis"].eq("order"), 0)
    by_order = accuracies.assign(order=order).groupby(["contestant", "n_context", "order"])["value"].mean()
    lines = []
    for (contestant, shots), rows in by_order.groupby(["contestant", "n_context"]):
        if len(rows) > 1:
            spread = [f"{rows.mean():.3f} ±{rows.std():.3f}", f"{rows.min():.3f}", f"{rows.max():.3f}"]
            lines.append([styled_name(str(contestant), "backbone"), str(shots), str(len(rows)), *spread])
    return ["contestant", "shots", "orders", "accuracy", "worst", "best"], lines


def _by_key(values: pd.DataFrame) -> dict[tuple[str, int], pd.Series]:
    """Return the rows by contestant and number of demonstrations (-1 if the number is missing)."""
    shots = values["n_context"].fillna(-1).astype(int)
    rows = (row for _, row in values.iterrows())
    return dict(zip(zip(values["contestant"].astype(str), shots, strict=True), rows, strict=True))


def _accuracy(row: pd.Series, spread: pd.Series | None, has_spreads: bool) -> str:
    """Format an accuracy with its standard deviation over sets of demonstrations, or with its interval if no row has a
    standard deviation."""
    if spread is not None and row["kind"] != "baseline":
        return f"{row['value']:.3f} ±{spread['value']:.3f}"
    if has_spreads or row["kind"] == "baseline" or pd.isna(row["low"]):
        return _number(row)
    return f"{row['value']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"


def _gain(row: pd.Series | None) -> str:
    return "" if row is None else f"{row['value']:+.3f} [{row['low']:.3f}, {row['high']:.3f}]"


def _shots(row: pd.Series) -> str:
    return "" if row["kind"] == "baseline" or pd.isna(row["n_context"]) else str(row["n_context"])


def _number(row: pd.Series | None) -> str:
    return "" if row is None else f"{row['value']:.3f}"
