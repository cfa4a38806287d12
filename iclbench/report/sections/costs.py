"""What was measured on a machine: seconds, bytes, parameters, per contestant, phase and number of points."""

from __future__ import annotations

import pandas as pd

from iclbench.report.blocks import Column, Section, Table
from iclbench.report.data import Results
from iclbench.report.formats import Number, count, integer, nbytes, seconds, slug

_SHOW = {"seconds": seconds, "bytes": nbytes, "state_bytes": nbytes}


def section(results: Results) -> Section | None:
    costs = results.costs
    if costs.empty:
        return None
    keys = ["task", "preset", "contestant", "phase", "n_points", "metric", "device", "threads"]
    frame = costs.groupby(keys, as_index=False, dropna=False).agg(value=("value", "mean"), runs=("run", "nunique"))
    frame = frame.sort_values(keys, ignore_index=True).assign(
        shown=[_show(m, v) for m, v in zip(frame["metric"], frame["value"], strict=True)]
    )
    tables = tuple(_table(str(task), str(preset), rows) for (task, preset), rows in frame.groupby(["task", "preset"]))
    return Section("costs", "Costs", tables)


def _table(task: str, preset: str, rows: pd.DataFrame) -> Table:
    return Table(
        name=f"{slug(task, preset)}-costs",
        title=f"{task} · {preset}",
        caption="Means over runs (seeds). Measured, so different on every machine; compare only within one device and "
        "thread count.",
        frame=rows.reset_index(drop=True),
        columns=(
            Column("contestant", "contestant"),
            Column("phase", "phase", lambda phase: str(phase).replace("_", " ")),
            Column("n_points", "points", integer, numeric=True),
            Column("metric", "quantity", lambda name: str(name).replace("_", " ")),
            Column("shown", "value", numeric=True),
            Column("runs", "runs", integer, numeric=True),
            Column("device", "device"),
            Column("threads", "threads", integer, numeric=True),
        ),
        group="contestant",
        folded=True,
    )


def _show(metric: str, value: Number) -> str:
    return _SHOW.get(metric, count)(value)
