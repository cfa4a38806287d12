"""The tables that end `iclbench lm eval`: contestants by task, tasks by family, and what further passes did."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import typer

from iclbench import tables
from iclbench.cli.summary import named

if TYPE_CHECKING:
    from iclbench.language.evaluate import Cell

# With more tasks than these, one line each is enough.
DETAILED = 4
# Passes that stand side by side.
_COLUMNS = 8


def print_language(results: Path, cells: Sequence[Cell], json: bool = False) -> None:
    """Print what an evaluation found, or all its rows as JSON: of every cell, and means over demonstration seeds."""
    from iclbench.language.summary import summary_path

    if json:
        own = {results / "tables" / cell.prompts.id / f"{cell.contestant}.values.parquet": None for cell in cells}
        paths = own | {summary_path(results, cell.contestant, cell.prompts): None for cell in cells}
        rows = _read(list(paths))
        typer.echo(rows.to_json(orient="records", indent=2))
        return
    found = _read(list({summary_path(results, cell.contestant, cell.prompts): None for cell in cells}))
    sets = len({(cell.prompts.demo_seed, cell.prompts.order) for cell in cells if cell.prompts.shots})
    print_summaries(found, sets)


def _read(paths: Sequence[Path]) -> pd.DataFrame:
    frames = [tables.read("values", path) for path in paths if path.is_file()]
    return pd.concat(frames, ignore_index=True) if frames else tables.frame("values", [])


def print_summaries(values: pd.DataFrame, sets: int) -> None:
    """Print the tables of means over `sets` sets of demonstrations."""
    from iclbench.cli.terminal import out, table

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
        out.print()
    if len(tasks) > 1:
        for model in _models(ok):
            columns, lines = overview_board(ok, model)
            table(f"{model}: accuracy", columns, lines, range(1, len(columns)))
            out.print()
    if not ok.empty:
        spread = f"± standard deviation over {sets} sets of demonstrations" if sets > 1 else "[ ] 95 % interval"
        gain = "; gain: over plain ICL on the same prompts, with its 95 % interval"
        out.print(spread + gain * bool(ok["metric"].eq("accuracy_gain").any()), markup=False, soft_wrap=True)


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
    lines = []
    for key, row in sorted(at["accuracy"].items(), key=lambda item: str(item[1]["kind"]) == "baseline"):
        spread = at.get("accuracy_sd", {}).get(key)
        cells = [_accuracy(row, spread)]
        cells += [_number(at[metric].get(key)) for metric in further.values()]
        cells += [_number(shuffled.get(key))] if shuffled else []
        cells += [_gain(at["accuracy_gain"].get(key))] if "accuracy_gain" in at else []
        lines.append([named(key[0], str(row["kind"])), _shots(row), *cells])
    columns = ["contestant", "shots", "accuracy", *further, *(["shuffled"] if shuffled else [])]
    return columns + (["gain"] if "accuracy_gain" in at else []), lines


def overview_board(values: pd.DataFrame, model: str) -> tuple[list[str], list[list[str]]]:
    """Column names and rows of one model: tasks, means of their families, the mean of all; shuffled labels at the
    largest number of shots."""
    of_model = values["contestant"].eq(model) | values["contestant"].str.startswith(model + "+")
    plain = values[(of_model | values["kind"].eq("baseline")) & values["axis"].isna() & values["metric"].eq("accuracy")]
    shuffled = plain["shift"].eq("shuffled-labels")
    label = plain["contestant"].str.removeprefix(model).replace("", "plain")
    several = len(set(plain.loc[~shuffled & plain["kind"].eq("backbone"), "n_context"]) - {0}) > 1
    shots = plain["n_context"].map(lambda n: f", {n}" if several and n else "")
    column = label + shots
    column = column.mask(plain["kind"].eq("backbone") & plain["n_context"].eq(0), "zero-shot")
    column = column.mask(plain["kind"].eq("baseline"), plain["contestant"])
    column = column.mask(shuffled, "shuffled" + label.where(label.ne("plain"), "") + shots)
    wide = plain.assign(column=column).pivot_table("value", ["family", "task"], "column", sort=False)
    columns = list(dict.fromkeys(column[~shuffled])) + list(dict.fromkeys(column[shuffled]))
    wide = wide.reindex(columns=columns)
    lines, families = [], list(dict.fromkeys(wide.index.get_level_values("family")))
    for family in families:
        own = wide.loc[[family]]
        lines += [[str(task), *_row(row)] for task, row in own.droplevel("family").iterrows()]
        if len(own) > 1 and len(families) > 1:
            lines.append([f"[bold]mean of {family}, {len(own)} tasks[/bold]", *_row(own.mean())])
    lines.append([f"[bold]mean of {len(wide)} tasks[/bold]", *_row(wide.mean())])
    return ["task", *columns], lines


def passes_board(values: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Column names and rows: accuracy, distance to plain ICL and change of the memory after 1, 2, ... passes."""
    counts = sorted(int(t) for t in values["axis_value"].unique())
    step = -(-len(counts) // _COLUMNS)
    shown = counts[::-1][::step][::-1]
    titles = {"accuracy": "accuracy", "kl_to_icl": "KL to plain ICL", "memory_change": "change of the memory"}
    lines = []
    for (evaluator, metric), rows in values[values["shift"].eq("none")].groupby(["evaluator", "metric"], sort=False):
        if metric not in titles:
            continue
        by_pass = rows.set_index(rows["axis_value"].astype(int))["value"]
        form = ".3f" if metric == "accuracy" else ".1e"
        title = titles[str(metric)] + (", development" if evaluator == "development" else "")
        lines.append([title, *(f"{by_pass[t]:{form}}" if t in by_pass.index else "" for t in shown)])
    return ["passes", *map(str, shown)], lines


def _models(values: pd.DataFrame) -> list[str]:
    """Contestants without a method: those that are no other's name with a method added."""
    every = list(dict.fromkeys(map(str, values.loc[values["kind"].eq("backbone"), "contestant"])))
    return [name for name in every if not any(name.startswith(f"{other}+") for other in every)]


def _by_key(values: pd.DataFrame) -> dict[tuple[str, int], pd.Series]:
    """Rows by contestant and number of demonstrations."""
    shots = values["n_context"].fillna(-1).astype(int)
    rows = (row for _, row in values.iterrows())
    return dict(zip(zip(values["contestant"].astype(str), shots, strict=True), rows, strict=True))


def _accuracy(row: pd.Series, spread: pd.Series | None) -> str:
    if spread is not None:
        return f"{row['value']:.3f} ±{spread['value']:.3f}"
    return f"{row['value']:.3f}" + ("" if pd.isna(row["low"]) else f" [{row['low']:.3f}, {row['high']:.3f}]")


def _gain(row: pd.Series | None) -> str:
    return "" if row is None else f"{row['value']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]"


def _shots(row: pd.Series) -> str:
    return "" if row["kind"] == "baseline" or pd.isna(row["n_context"]) else str(row["n_context"])


def _number(row: pd.Series | None) -> str:
    return "" if row is None else f"{row['value']:.3f}"


def _row(row: pd.Series) -> list[str]:
    return ["" if pd.isna(value) else f"{value:.3f}" for value in row]
