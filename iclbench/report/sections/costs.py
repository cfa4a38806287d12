"""Measured costs: seconds, bytes, FLOPs and parameters by contestant, phase and number of points."""

from __future__ import annotations

import pandas as pd

from iclbench.core.formats import integer, slug
from iclbench.core.metrics import metric
from iclbench.report.blocks import Block, Column, Section, Table
from iclbench.report.cost_table import BATCH_KEYS, CALL_COLUMNS, COLUMNS, call_cost_table, cost_table, measured_rows
from iclbench.report.data import Results
from iclbench.report.figures import costs as figures
from iclbench.tables.means import means_over_seeds

_MACHINE_NOTE = "Compare only rows with the same batch size, device and number of threads."
_MACHINE_COLUMNS = (
    Column("device", "device"),
    Column("threads", "threads", integer, numeric=True),
    Column("n_episodes", "batch", integer, numeric=True),
)


def section(results: Results) -> Section | None:
    costs = results.costs
    if costs.empty:
        return None
    blocks: list[Block] = []
    for (task, preset), rows in costs.groupby(["task", "preset"]):
        if (measured_rows(rows)["phase"] != "train_step").any():
            blocks += [_by_run(str(task), str(preset), rows), *figures.against_points(results, rows)]
            if rows["n_at_once"].notna().any():
                blocks.append(_call_table(str(task), str(preset), rows))
        blocks.append(_all_costs(str(task), str(preset), rows))
    return Section("costs", "Costs", tuple(blocks), rules=("Costs",))


def _by_run(task: str, preset: str, rows: pd.DataFrame) -> Table:
    frame = cost_table(rows).sort_values([*BATCH_KEYS, "run", "n_points"], ignore_index=True)
    return Table(
        name=f"{slug(task, preset)}-costs-by-run",
        title=f"{task} · {preset}: costs by run",
        caption="Cost of a training step (per batch), and cost of conditioning on n points, of one query and of an "
        f"update with one point (per episode). {_MACHINE_NOTE}",
        frame=frame,
        columns=(*COLUMNS, *_MACHINE_COLUMNS),
        group="run",
    )


def _call_table(task: str, preset: str, rows: pd.DataFrame) -> Table:
    return Table(
        name=f"{slug(task, preset)}-costs-at-once",
        title=f"{task} · {preset}: several queries or new points in one call",
        caption=f"Cost of one call with several queries or several new points, after n points. {_MACHINE_NOTE}",
        frame=call_cost_table(rows),
        columns=(*CALL_COLUMNS, *_MACHINE_COLUMNS),
        group="run",
    )


def _all_costs(task: str, preset: str, costs: pd.DataFrame) -> Table:
    keys = ["contestant", "phase", "n_points", "n_at_once", "metric", *BATCH_KEYS]
    means = means_over_seeds(costs, keys)[[*keys, "value", "runs"]]
    frame = means.sort_values(keys, ignore_index=True).assign(task=task, preset=preset)
    texts = [metric(name).show(value) for name, value in zip(frame["metric"], frame["value"], strict=True)]
    return Table(
        name=f"{slug(task, preset)}-costs",
        title=f"{task} · {preset}: all costs",
        caption="Means over runs, by phase and number of points.",
        frame=frame.assign(shown=texts),
        columns=(
            Column("contestant", "contestant"),
            Column("phase", "phase", lambda phase: str(phase).replace("_", " ")),
            Column("n_points", "points", integer, numeric=True),
            Column("n_at_once", "at once", integer, numeric=True),
            Column("metric", "quantity", lambda name: str(name).replace("_", " ")),
            Column("shown", "value", numeric=True),
            Column("runs", "runs", integer, numeric=True),
            *_MACHINE_COLUMNS,
        ),
        group="contestant",
        linked=True,
    )
