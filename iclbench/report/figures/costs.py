"""Figures of costs against the number of points: time, memory and FLOPs of each phase, and bytes of the state.

Each run has a line. The figures show the quantities of table 1 and figure 2 of the CMAB paper for all contestants.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from iclbench.core.formats import plural, slug
from iclbench.core.metrics import metric
from iclbench.report.blocks import Figure, Panel
from iclbench.report.cost_table import BATCH_KEYS, measured_rows
from iclbench.report.data import Results
from iclbench.report.figures import curves

_PHASES = {
    "condition": "conditioning on n points",
    "query": "a query after n points",
    "update": "an update after n points",
}
# The last sentence of the caption, by metric.
_LAST_SENTENCES = {
    "seconds": "A flat line means a constant cost per query or update.",
    "bytes": "Inputs, state and weights are not included.",
    "flops": "A flat line means a constant cost per query or update.",
    "state_bytes": "A flat line means a state of constant size.",
}


def against_points(results: Results, costs: pd.DataFrame) -> Iterator[Figure]:
    """Yield up to four figures for one task and preset. They show the machine and batch size with the most rows."""
    rows = measured_rows(costs)
    rows = rows[(rows["phase"] != "train_step") & rows["contestant"].isin(list(results.looks))]
    if rows["n_points"].nunique() < 2:
        return
    batches = rows.groupby(BATCH_KEYS, dropna=False).size().sort_values(ascending=False, kind="stable")
    device, threads, batch = batches.index[0]
    rows = rows.merge(batches.index[:1].to_frame(index=False), on=BATCH_KEYS)
    looks = {name: results.looks[name] for name in sorted(rows["contestant"].unique())}
    kinds = results.rows.drop_duplicates("contestant").set_index("contestant")["kind"]
    data = rows.assign(
        kind=rows["contestant"].map(kinds),
        low=np.nan,
        high=np.nan,
        label=rows["run"],
        series=rows["run"],
        width=[looks[name].width for name in rows["contestant"]],
        sparse=True,
        panel=rows["phase"].map(_PHASES),
    ).sort_values(["run", "n_points"])
    conditions = f"{device}, {plural(int(threads), 'thread')}"
    if pd.notna(batch):
        conditions += f", {plural(int(batch), 'episode')} per batch"
    if len(batches) > 1:
        conditions += f"; not shown: {plural(int(batches.iloc[1:].sum()), 'row')} of other machines or batch sizes"
    for name, last_sentence in _LAST_SENTENCES.items():
        cost = metric(name)
        title, unit = cost.label, f"{cost.unit} per episode"
        drawn = data[data["metric"].eq(name) & (data["value"] > 0 if cost.logarithmic else True)]
        if drawn["n_points"].nunique() < 2:
            continue
        by_phase = name != "state_bytes"
        panels = [name for name in _PHASES.values() if name in set(drawn["panel"])] if by_phase else []
        drawn = drawn[[*curves.COLUMNS, "n_points", "panel"]].reset_index(drop=True)
        values = drawn["value"].astype(float)
        axes = curves.Axes(
            "points",
            unit,
            curves.extent(drawn["n_points"]),
            (values.min() / 1.5, values.max() * 1.5),
            log_y=cost.logarithmic,
            field="n_points",
            x_name="points",
            log_x=True,
        )
        panel_rows = [(panel, drawn[drawn["panel"] == panel]) for panel in panels] or [("", drawn)]
        make_static, make_live = curves.specifications(panel_rows, axes, looks)
        task, preset = str(rows["task"].iloc[0]), str(rows["preset"].iloc[0])
        yield Figure(
            name=f"{slug(task, preset)}-costs-{slug(title)}",
            title=f"{task}, {preset}: {title} against the number of points",
            caption=f"{unit[0].upper()}{unit[1:]} against the number of points, one line per run ({conditions}). "
            f"{last_sentence}",
            alt=f"{task}, {preset}: {unit} of {', '.join(looks)} against the number of points.",
            data=drawn,
            make_static=make_static,
            make_live=make_live,
            panels=tuple(Panel(panel, {"panel": panel}) for panel in panels) or (Panel(""),),
            legend=looks,
        )
