"""The tables that end `iclbench lm eval`: contestants by task, tasks by family, and what further passes did."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from iclbench import tables
from iclbench.cli.lm.overview import models_of, overview_board
from iclbench.cli.result_rows import named
from iclbench.cli.terminal import out, print_rows, table
from iclbench.core.metrics import metric
from iclbench.evaluation.cells import CellResult
from iclbench.language.summary import summary_path

# With more tasks than these, one line each is enough.
DETAILED = 6
# Passes that stand side by side.
_COLUMNS = 8


def print_language(results: Path, cells: Sequence[CellResult], json: bool = False) -> None:
    """Print what an evaluation found, or all its rows as JSON: of every cell, and means over demonstration seeds."""
    own = [results / "tables" / cell.prompts.id / f"{cell.contestant.run}.values.parquet" for cell in cells]
    means = _read(_summaries(results, cells))
    if json:
        print_rows(pd.concat([_read(own), means]))
        return
    orders = {cell.prompts.order for cell in cells}
    sets = len({cell.prompts.demo_seed for cell in cells if cell.prompts.shots})
    print_summaries(means, sets, _read(own) if len(orders) > 1 else None)


def _summaries(results: Path, cells: Sequence[CellResult]) -> list[Path]:
    """The files with the means over these cells' demonstration seeds."""
    return list(dict.fromkeys(summary_path(results, cell.contestant.run, cell.prompts) for cell in cells))


def _read(paths: Sequence[Path]) -> pd.DataFrame:
    frames = [tables.read("values", path) for path in paths if path.is_file()]
    return pd.concat(frames, ignore_index=True) if frames else tables.frame("values", [])


def print_summaries(values: pd.DataFrame, sets: int, by_order: pd.DataFrame | None = None) -> None:
    """Print the tables of means over `sets` sets of demonstrations; `by_order`: the rows of cells of several orders."""
    ok = values[values["status"].eq("ok") & values["prompt_set"].isna()]
    tasks = list(dict.fromkeys(map(str, ok["task"])))
    for task in tasks if len(tasks) <= DETAILED else []:
        mine = ok[ok["task"].eq(task)]
        columns, lines = task_board(mine)
        table(task_title(mine), columns, lines, range(1, len(columns)))
        for contestant, rows in mine[mine["axis"].eq("passes")].groupby("contestant", sort=False):
            for shots, of_shots in rows.groupby("n_context", sort=True):
                columns, lines = passes_board(of_shots)
                table(f"{contestant}, {shots} shots, after so many passes", columns, lines, range(1, len(columns)))
        if by_order is not None:
            columns, lines = orders_board(by_order[by_order["task"].eq(task)])
            table("the same demonstrations in other orders", columns, lines, range(1, len(columns)))
        out.print()
    if len(tasks) > 1:
        for model in models_of(ok):
            columns, lines = overview_board(ok, model)
            table(f"{model}: accuracy", columns, lines, range(1, len(columns)))
            out.print()
    lost = values[values["status"].eq("failed") & values["prompt_set"].isna() & values["metric"].eq("accuracy")]
    for row in lost[lost["axis"].isna()].to_dict("records"):
        shots = "" if pd.isna(row["n_context"]) else f" at {row['n_context']} shots"
        out.print(f"missing: {row['contestant']} on {row['task']}{shots} ({row['shift']}): {row['reason']}")
    if len(tasks) > DETAILED:
        over = f"means over {sets} sets of demonstrations; " if sets > 1 else ""
        out.print(f"{over}with intervals: iclbench report, --json, or {DETAILED} tasks at a time")
    elif tasks:
        spread = f"± standard deviation over {sets} sets of demonstrations" if sets > 1 else "[ ] 95 % interval"
        gain = "; gain: over plain ICL on the same prompts, with its 95 % interval"
        out.print(spread + gain * bool(ok["metric"].eq("accuracy_gain").any()))


def task_title(values: pd.DataFrame) -> str:
    """The task, its family and how answers are taken."""
    first = values.iloc[0]
    return f"{first['task']} ({first['family']}, {first['evaluator']})"


def task_board(values: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Column names and rows of one task: contestants by numbers of demonstrations, the majority label last.

    Args:
        values: means over demonstration seeds.
    """
    plain = values[values["axis"].isna()]
    asked = plain[plain["shift"].eq("none")]
    at = {name: _by_key(asked[asked["metric"].eq(name)]) for name in dict.fromkeys(asked["metric"])}
    shuffled = _by_key(plain[plain["shift"].eq("shuffled-labels") & plain["metric"].eq("accuracy")])
    further = {"first token": "accuracy_first_token", "balanced": "balanced_accuracy"}
    further = {title: metric for title, metric in further.items() if metric in at}
    accuracies = at.get("accuracy", {})  # none where a set of demonstrations failed for everybody
    always = [key for key, row in accuracies.items() if row["kind"] == "baseline"]
    models = [key for name in models_of(asked) for key in sorted(accuracies) if accuracies[key]["model"] == name]
    lines = []
    for key in [*models, *always[:1]]:  # what is always said knows of no demonstrations
        row = accuracies[key]
        cells = [_accuracy(row, at.get("accuracy_sd", {}).get(key), "accuracy_sd" in at)]
        cells += [_number(at[metric].get(key)) for metric in further.values()]
        cells += [_number(shuffled.get(key))] if shuffled else []
        cells += [_gain(at["accuracy_gain"].get(key))] if "accuracy_gain" in at else []
        lines.append([named(key[0], str(row["kind"])), _shots(row), *cells])
    columns = ["contestant", "shots", "accuracy", *further, *(["shuffled"] if shuffled else [])]
    return columns + (["gain"] if "accuracy_gain" in at else []), lines


def passes_board(values: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Column names and rows: accuracy, distance to plain ICL and change of the memory after 1, 2, ... passes."""
    counts = sorted(int(t) for t in values["axis_value"].unique())
    step = -(-len(counts) // _COLUMNS)
    shown = counts[::-1][::step][::-1]
    lines = []
    traced = values[values["shift"].eq("none") & values["metric"].isin(["accuracy", "kl_to_icl", "memory_change"])]
    for (evaluator, name), rows in traced.groupby(["evaluator", "metric"], sort=False):
        of = metric(str(name))
        by_pass = rows.set_index(rows["axis_value"].astype(int))["value"]
        form = ".1e" if of.logarithmic else ".3f"
        title = of.label + (", development" if evaluator == "development" else "")
        lines.append([title, *(f"{by_pass[t]:{form}}" if t in by_pass.index else "" for t in shown)])
    return ["passes", *map(str, shown)], lines


def orders_board(values: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Column names and rows: accuracy over the orders of the same demonstrations.

    Args:
        values: rows of cells, of which those with the axis `order` are of further orders.
    """
    of_sets = values["axis"].isin(["demo_seed", "order"]) & values["shift"].eq("none") & values["n_context"].gt(0)
    asked = values[
        of_sets & values["metric"].eq("accuracy") & values["status"].eq("ok") & values["kind"].eq("backbone")
    ]
    order = asked["axis_value"].where(asked["axis"].eq("order"), 0)
    by_order = asked.assign(order=order).groupby(["contestant", "n_context", "order"])["value"].mean()
    lines = []
    for (contestant, shots), rows in by_order.groupby(["contestant", "n_context"]):
        if len(rows) > 1:
            spread = [f"{rows.mean():.3f} ±{rows.std():.3f}", f"{rows.min():.3f}", f"{rows.max():.3f}"]
            lines.append([named(str(contestant), "backbone"), str(shots), str(len(rows)), *spread])
    return ["contestant", "shots", "orders", "accuracy", "worst", "best"], lines


def _by_key(values: pd.DataFrame) -> dict[tuple[str, int], pd.Series]:
    """Rows by contestant and number of demonstrations."""
    shots = values["n_context"].fillna(-1).astype(int)
    rows = (row for _, row in values.iterrows())
    return dict(zip(zip(values["contestant"].astype(str), shots, strict=True), rows, strict=True))


def _accuracy(row: pd.Series, spread: pd.Series | None, spreads: bool) -> str:
    """With its standard deviation over sets of demonstrations; with its interval where no other row has one."""
    if spread is not None and row["kind"] != "baseline":
        return f"{row['value']:.3f} ±{spread['value']:.3f}"
    if spreads or row["kind"] == "baseline" or pd.isna(row["low"]):
        return _number(row)
    return f"{row['value']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"


def _gain(row: pd.Series | None) -> str:
    return "" if row is None else f"{row['value']:+.3f} [{row['low']:.3f}, {row['high']:.3f}]"


def _shots(row: pd.Series) -> str:
    return "" if row["kind"] == "baseline" or pd.isna(row["n_context"]) else str(row["n_context"])


def _number(row: pd.Series | None) -> str:
    return "" if row is None else f"{row['value']:.3f}"
