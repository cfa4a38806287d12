"""Costs with a row per run and number of points: what is in memory, and what each phase takes."""

from __future__ import annotations

import pandas as pd

from iclbench.core.formats import count, flops, integer, nbytes, seconds
from iclbench.report.blocks import Column

MACHINE = ["device", "threads"]
# What per-episode values are comparable within.
BATCH = [*MACHINE, "n_episodes"]

# Per run, and per run and number of points.
_OF_RUN = {
    "parameters": ("model", "parameters"),
    "step_flops": ("train_step", "flops"),
    "step_seconds": ("train_step", "seconds"),
    "step_bytes": ("train_step", "bytes"),
}
_ANSWERING = ("condition", "query", "update")
_OF_SIZE = {"state_bytes": ("condition", "state_bytes")} | {
    f"{phase}_{metric}": (phase, metric) for phase in _ANSWERING for metric in ("seconds", "flops")
}
COLUMNS = (
    Column("run", "run"),
    Column("parameters", "parameters", count, numeric=True),
    Column("step_flops", "training step", flops, numeric=True),
    Column("step_seconds", "its time", seconds, numeric=True),
    Column("step_bytes", "its memory", nbytes, numeric=True),
    Column("n_points", "n", integer, numeric=True),
    Column("state_bytes", "state", nbytes, numeric=True),
    *(
        column
        for phase in _ANSWERING
        for column in (
            Column(f"{phase}_flops", phase, flops, numeric=True),
            Column(f"{phase}_seconds", "its time", seconds, numeric=True),
        )
    ),
)
# Queries and updates of several at once: what grows with them, and what does not.
_SHOWN = {"flops": ("work", flops), "seconds": ("time", seconds), "bytes": ("memory", nbytes)}
AT_ONCE = (
    Column("run", "run"),
    Column("phase", "phase"),
    Column("n_points", "n", integer, numeric=True),
    Column("n_at_once", "at once", integer, numeric=True),
    *(Column(metric, header, show, numeric=True) for metric, (header, show) in _SHOWN.items()),
)


def measured(costs: pd.DataFrame) -> pd.DataFrame:
    """The rows of single phases at a number of points, one query and one update, as `iclbench cost` measures them."""
    phases = costs["phase"].isin(["train_step", "condition", "query", "update"])
    return costs[phases & costs["n_points"].notna() & costs["n_at_once"].isna()]


def at_once_table(costs: pd.DataFrame) -> pd.DataFrame:
    """A row per run, machine, batch, number of points, phase and number of queries or new points at once, beside those
    of one wherever several were measured: the frame that `AT_ONCE` show."""
    keys = ["run", *BATCH, "n_points", "phase"]
    rows = costs[costs["metric"].isin([*_SHOWN])]
    several = rows.loc[rows["n_at_once"].notna(), keys].drop_duplicates()
    rows = rows.merge(several, on=keys).assign(n_at_once=lambda found: found["n_at_once"].fillna(1))
    table = rows.set_index([*keys, "n_at_once"])
    columns = {metric: table.loc[table["metric"] == metric, "value"] for metric in _SHOWN}
    found = pd.DataFrame(columns, index=table.index.unique()).reset_index()
    return found.sort_values([*BATCH, "run", "phase", "n_points", "n_at_once"], ignore_index=True)


def cost_table(costs: pd.DataFrame) -> pd.DataFrame:
    """A row per run, machine, batch and number of points measured by `iclbench cost`: the frame that `COLUMNS` show."""
    run, size = ["run", *MACHINE], ["run", *BATCH, "n_points"]
    phases = measured(costs)
    answered = phases.loc[phases["phase"] != "train_step", size].drop_duplicates()
    table = phases[run].drop_duplicates().merge(answered, "left", run)
    known = pd.concat([costs[costs["phase"] == "model"], phases])
    for keys, quantities in ((run, _OF_RUN), (size, _OF_SIZE)):
        for name, (phase, metric) in quantities.items():
            rows = known[(known["phase"] == phase) & (known["metric"] == metric)]
            found = rows.drop_duplicates(keys)[[*keys, "value"]].rename(columns={"value": name})
            table = table.merge(found, "left", keys)
    return table


def of_one_machine(costs: pd.DataFrame) -> pd.DataFrame:
    """The rows of the machine (device and threads) that most runs have: seconds and bytes of another do not compare."""
    if costs.empty:
        return costs
    machines = costs.groupby(MACHINE)["run"].nunique().sort_values(ascending=False, kind="stable")
    return costs.merge(machines.index[:1].to_frame(index=False), on=MACHINE)
