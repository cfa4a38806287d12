"""Costs with a row per run and number of points: what is in memory, and what each phase takes."""

from __future__ import annotations

import pandas as pd

from iclbench.core.formats import integer
from iclbench.core.metrics import metric
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


def _column(key: str, subject: str = "") -> Column:
    """What a phase costs: the work under the name of the phase, all else as its own."""
    cost = metric({**_OF_RUN, **_OF_SIZE}[key][1])
    own = subject if cost.name == "flops" else cost.label if not subject else f"its {cost.label}"
    return Column(key, own, cost.show, numeric=True)


COLUMNS = (
    Column("run", "run"),
    _column("parameters"),
    *(_column(key, "training step") for key in ("step_flops", "step_seconds", "step_bytes")),
    Column("n_points", "n", integer, numeric=True),
    _column("state_bytes"),
    *(_column(f"{phase}_{cost}", phase) for phase in _ANSWERING for cost in ("flops", "seconds")),
)
# Queries and updates of several at once: what grows with them, and what does not.
_SHOWN = ("flops", "seconds", "bytes")
AT_ONCE = (
    Column("run", "run"),
    Column("phase", "phase"),
    Column("n_points", "n", integer, numeric=True),
    Column("n_at_once", "at once", integer, numeric=True),
    *(Column(name, metric(name).label, metric(name).show, numeric=True) for name in _SHOWN),
)


def measured(costs: pd.DataFrame) -> pd.DataFrame:
    """The rows of single phases at a number of points, one query and one update, as `iclbench cost` measures them."""
    phases = costs["phase"].isin(["train_step", "condition", "query", "update"])
    return costs[phases & costs["n_points"].notna() & costs["n_at_once"].isna()]


def at_once_table(costs: pd.DataFrame) -> pd.DataFrame:
    """A row per run, machine, batch, number of points, phase and number of queries or new points at once, beside those
    of one wherever several were measured: the frame that `AT_ONCE` show."""
    keys = ["run", *BATCH, "n_points", "phase"]
    rows = costs[costs["metric"].isin(_SHOWN)]
    several = rows.loc[rows["n_at_once"].notna(), keys].drop_duplicates()
    rows = rows.merge(several, on=keys).assign(n_at_once=lambda found: found["n_at_once"].fillna(1))
    table = rows.set_index([*keys, "n_at_once"])
    columns = {name: table.loc[table["metric"] == name, "value"] for name in _SHOWN}
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
        for name, (phase, cost) in quantities.items():
            rows = known[(known["phase"] == phase) & (known["metric"] == cost)]
            own = ["run"] if phase == "model" else keys  # a model is as large on every machine
            found = rows.drop_duplicates(own)[[*own, "value"]].rename(columns={"value": name})
            table = table.merge(found, "left", own)
    return table


def of_one_machine(costs: pd.DataFrame) -> pd.DataFrame:
    """The rows of the machine (device and threads) that most runs have: seconds and bytes of another do not compare."""
    if costs.empty:
        return costs
    machines = costs.groupby(MACHINE)["run"].nunique().sort_values(ascending=False, kind="stable")
    return costs.merge(machines.index[:1].to_frame(index=False), on=MACHINE)
