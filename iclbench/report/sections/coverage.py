"""Coverage of a sweep: cells by status, the reasons for missing results, machines, libraries and total time."""

from __future__ import annotations

import json

import pandas as pd

from iclbench.core.formats import integer, plural, seconds
from iclbench.report.blocks import Block, Column, Section, Table, Text
from iclbench.report.data import Results
from iclbench.tables import short_name
from iclbench.tables.runs import joined_run_names

_STATUSES = ("done", "failed", "diverged", "skipped")
# Statuses that have a column even if no cell has them.
_FIXED_STATUSES = ("done", "failed", "skipped")


def section(results: Results) -> Section | None:
    cells = results.cells
    if cells.empty:
        return None
    counts = cells["status"].value_counts()
    counts_text = ", ".join(f"{counts[status]:,} {status}" for status in _STATUSES if status in counts)
    total = seconds(float(cells.loc[cells["status"].eq("done"), "seconds"].sum()))
    text = Text(
        f"The sweep has {plural(len(cells), 'cell')} (training runs, evaluations, probes, costs): {counts_text}. The "
        f"finished cells took {total} in all. The next sweep retries failed cells; skipped cells are not applicable."
        + (" Diverged cells are not retried." if "diverged" in counts else "")
    )
    blocks: list[Block] = [text, kind_table(cells)]
    if (table := missing_table(cells)) is not None:
        blocks.append(table)
    blocks.append(machine_table(cells))
    return Section("coverage", "Coverage", tuple(blocks))


def kind_table(cells: pd.DataFrame) -> Table:
    """A table with a row per preset and kind of cell: the number of cells by status, and their total time."""
    keys = ["preset", "kind"]
    statuses = [status for status in _STATUSES if status in _FIXED_STATUSES or cells["status"].eq(status).any()]
    counts = cells.pivot_table("cell", index=keys, columns="status", aggfunc="count", fill_value=0)
    counts = counts.reindex(columns=statuses, fill_value=0).reset_index()
    times = cells.groupby(keys, as_index=False).agg(seconds=("seconds", "sum"))
    frame = counts.merge(times, on=keys).sort_values(keys, ignore_index=True)
    columns = (
        Column("kind", "cells"),
        Column("preset", "preset"),
        *(Column(status, status, integer, numeric=True) for status in statuses),
        Column("seconds", "time", seconds, numeric=True),
    )
    return Table(
        "coverage",
        "Cells by kind",
        "Number of cells by status, and the sum of their times.",
        frame,
        columns,
        group="preset",
    )


def missing_table(cells: pd.DataFrame) -> Table | None:
    """A table with a row per contestant, kind and reason of the cells that are not done; None if all are done."""
    rows = cells[cells["status"] != "done"]
    if rows.empty:
        return None
    # Reasons that differ only in the name of the run share a row.
    reasons = zip(rows["reason"].fillna(""), rows["run"], strict=True)
    rows = rows.assign(reason=[reason.replace(f"run '{run}'", "the run") for reason, run in reasons])
    keys = ["status", "kind", "preset", "contestant", "reason"]
    frame = rows.groupby(keys, as_index=False, dropna=False).agg(
        tasks=("task", lambda names: ", ".join(sorted(set(names)))),
        runs=("run", joined_run_names),
        cells=("cell", "size"),
    )
    return Table(
        "not-done",
        "Cells without results",
        "Cells without a result, with the reason. Failed: ended with an error; diverged: loss or weights are not "
        "finite; skipped: not applicable.",
        frame,
        (
            Column("contestant", "contestant"),
            Column("status", "status"),
            Column("kind", "cells"),
            Column("preset", "preset"),
            Column("cells", "number", integer, numeric=True),
            Column("tasks", "tasks"),
            Column("reason", "reason"),
        ),
        group="status",
    )


def machine_table(cells: pd.DataFrame) -> Table:
    """A table with a row per machine and set of library versions: the number of finished cells and their total time."""
    finished_cells = cells[cells["status"] == "done"]
    keys = ["hardware", "kernels", "device", "threads", "libraries", "version"]
    frame = finished_cells.groupby(keys, as_index=False, dropna=False).agg(
        cells=("cell", "size"), seconds=("seconds", "sum")
    )
    frame = frame.sort_values("cells", ascending=False, kind="stable", ignore_index=True)
    frame["libraries"] = frame["libraries"].map(_libraries, na_action="ignore")
    return Table(
        "machines",
        "Hardware and software",
        "Machines and library versions of the finished cells.",
        frame,
        (
            Column("hardware", "hardware"),
            Column("kernels", "kernels"),
            Column("device", "device"),
            Column("threads", "threads", integer, numeric=True),
            Column("cells", "cells", integer, numeric=True),
            Column("seconds", "time", seconds, numeric=True),
            Column("libraries", "libraries"),
            Column("version", "iclbench"),
        ),
    )


def _libraries(text: str) -> str:
    """Names and versions of libraries as text, from JSON.

    >>> _libraries('{"torch": "2.13.0", "numpy": "2.1.0"}')
    'numpy 2.1.0, torch 2.13.0'
    """
    try:
        versions = dict(json.loads(text))
    except (TypeError, ValueError):  # in a table that iclbench did not write
        return short_name(text)
    return ", ".join(short_name(f"{name} {version}") for name, version in sorted(versions.items()))
