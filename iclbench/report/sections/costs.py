"""What was measured on a machine: seconds, bytes, parameters, per contestant, phase and number of points."""

from __future__ import annotations

import pandas as pd

from iclbench.core.formats import integer, slug
from iclbench.core.metrics import metric
from iclbench.report.blocks import Block, Column, Section, Table
from iclbench.report.cost_table import AT_ONCE, BATCH, COLUMNS, at_once_table, cost_table, measured
from iclbench.report.data import Results
from iclbench.report.figures import costs as figures
from iclbench.tables.means import over_seeds

_BATCHES = (
    "A training step is one of a whole batch; all else is per episode, of a batch of episodes side by side: compare "
    "only within one batch, device and thread count."
)
_WITHIN = (
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
        if (measured(rows)["phase"] != "train_step").any():
            blocks += [_overview(str(task), str(preset), rows), *figures.against_points(results, rows)]
            if rows["n_at_once"].notna().any():
                blocks.append(_at_once(str(task), str(preset), rows))
        blocks.append(_everything(str(task), str(preset), rows))
    return Section("costs", "Costs", tuple(blocks))


def _overview(task: str, preset: str, rows: pd.DataFrame) -> Table:
    frame = cost_table(rows).sort_values([*BATCH, "run", "n_points"], ignore_index=True)
    return Table(
        name=f"{slug(task, preset)}-costs-by-run",
        title=f"{task} · {preset}: what a run costs",
        caption="Parameters; floating-point operations (FLOP), seconds and peak memory of a training step; bytes of "
        "the state after n points; FLOP and seconds of conditioning on them, of one query and of an update by one "
        "point. FLOP are counted and the same on every machine; a dash: not computed by torch alone. "
        f"{_BATCHES}",
        frame=frame,
        columns=(*COLUMNS, *_WITHIN),
        group="run",
    )


def _at_once(task: str, preset: str, rows: pd.DataFrame) -> Table:
    return Table(
        name=f"{slug(task, preset)}-costs-at-once",
        title=f"{task} · {preset}: several queries or new points at once",
        caption="FLOP, seconds and peak memory of answering so many queries, or of an update by so many points, all "
        "together, from a state of n points (`iclbench cost --queries --update`; table 1 of the CMAB paper). Memory is "
        "that beyond queries and state, answers included; what is too small to be measured is left out. "
        f"{_BATCHES}",
        frame=at_once_table(rows),
        columns=(*AT_ONCE, *_WITHIN),
        group="run",
    )


def _everything(task: str, preset: str, costs: pd.DataFrame) -> Table:
    keys = ["contestant", "phase", "n_points", "n_at_once", "metric", *BATCH]
    means = over_seeds(costs, keys)[[*keys, "value", "runs"]]
    frame = means.sort_values(keys, ignore_index=True).assign(task=task, preset=preset)
    shown = [metric(m).show(v) for m, v in zip(frame["metric"], frame["value"], strict=True)]
    return Table(
        name=f"{slug(task, preset)}-costs",
        title=f"{task} · {preset}",
        caption=f"Means over runs (seeds). All but parameters, states and FLOPs is measured, so different on every "
        f"machine. {_BATCHES}",
        frame=frame.assign(shown=shown),
        columns=(
            Column("contestant", "contestant"),
            Column("phase", "phase", lambda phase: str(phase).replace("_", " ")),
            Column("n_points", "points", integer, numeric=True),
            Column("n_at_once", "at once", integer, numeric=True),
            Column("metric", "quantity", lambda name: str(name).replace("_", " ")),
            Column("shown", "value", numeric=True),
            Column("runs", "runs", integer, numeric=True),
            *_WITHIN,
        ),
        group="contestant",
        folded=True,
    )
