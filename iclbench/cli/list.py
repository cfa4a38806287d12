"""`iclbench list`: list tasks, backbones, baselines, families, grids and runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import typer

from iclbench.cli import completion
from iclbench.cli.options import RESULTS, Json, Results
from iclbench.core.errors import UnknownNameError

# Columns that are shown only in the JSON output, because they are too wide for a terminal. `iclbench show` also prints
# them.
_JSON_COLUMNS = {
    "tasks": {"family", "evaluators"},
    "grids": {"tasks", "backbones"},
    "runs": {"backbone", "preset", "seed"},
}
_NUMERIC_COLUMNS = ("size", "score")
# The line below a table.
_FOOTERS = {
    "tasks": "tasks for language models: iclbench lm tasks",
    "grids": "tasks and backbones of a grid: iclbench show GRID",
    "runs": "score: on the task of the run; backbone and settings of a run: iclbench show RUN",
}


def command(
    what: Annotated[
        str,
        typer.Argument(
            autocompletion=completion.listable_kinds,
            help="What to list: tasks, backbones, baselines, families, grids, runs or all.",
        ),
    ] = "all",
    json: Json = False,
    results: Results = RESULTS,
) -> None:
    """List tasks, backbones, baselines, families, grids and runs."""
    from iclbench.cli.list_rows import sections_of
    from iclbench.cli.terminal import out, print_json, print_table

    sections = sections_of(results)
    if what != "all" and what not in sections:
        raise UnknownNameError("kind of entry", what, [*sections, "all"])
    selected_sections = sections if what == "all" else {what: sections[what]}
    rows_by_name = {name: rows() for name, rows in selected_sections.items()}
    if json:
        print_json(rows_by_name if what == "all" else rows_by_name[what])
        return
    for name, rows in rows_by_name.items():
        if not rows:
            out.print(f"no {name}" + (f" in {results}" if name == "runs" else ""))
            continue
        columns = [column for column in rows[0] if column not in _JSON_COLUMNS.get(name, ())]
        cells = [[_cell(column, row[column]) for column in columns] for row in rows]
        print_table(
            name if what == "all" else "", columns, cells, [columns.index(c) for c in _NUMERIC_COLUMNS if c in columns]
        )
        if name in _FOOTERS:
            out.print(_FOOTERS[name])
        if what == "all":
            out.print()


def _cell(column: str, value: Any) -> str:
    """Format a value for a table."""
    from iclbench.core.formats import fixed, nbytes

    if value is None:
        return "-"
    formats: dict[str, Callable[[Any], str]] = {"size": nbytes, "score": partial(fixed, decimals=2)}
    return formats.get(column, str)(value)
