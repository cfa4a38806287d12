"""Tables of costs: a row per run and number of points, with the memory, time and FLOPs of each phase."""

from __future__ import annotations

import pandas as pd

from iclbench.core.formats import integer
from iclbench.core.metrics import metric
from iclbench.report.blocks import Column

MACHINE_KEYS = ["device", "threads"]
# Values per episode are comparable within the same machine and batch size.
BATCH_KEYS = [*MACHINE_KEYS, "n_episodes"]

# Column -> phase and metric of a cost. `_RUN_COSTS` are costs per run, `_SIZE_COSTS` are costs per run and number of
# points.
_RUN_COSTS = {
    "parameters": ("model", "parameters"),
    "step_flops": ("train_step", "flops"),
    "step_seconds": ("train_step", "seconds"),
    "step_bytes": ("train_step", "bytes"),
}
_PHASES = ("condition", "query", "update")
_SIZE_COSTS = {"state_bytes": ("condition", "state_bytes")} | {
    f"{phase}_{metric}": (phase, metric) for phase in _PHASES for metric in ("seconds", "flops")
}


def _column(key: str, subject: str = "") -> Column:
    """The column of a cost. If `subject` (the name of a phase) is given, it is the header of the column of FLOPs, and
    the headers of the other columns of the phase begin with "its"."""
    cost = metric({**_RUN_COSTS, **_SIZE_COSTS}[key][1])
    header = subject if cost.name == "flops" else cost.label if not subject else f"its {cost.label}"
    return Column(key, header, cost.show, numeric=True)


COLUMNS = (
    Column("run", "run"),
    _column("parameters"),
    *(_column(key, "training step") for key in ("step_flops", "step_seconds", "step_bytes")),
    Column("n_points", "n", integer, numeric=True),
    _column("state_bytes"),
    *(_column(f"{phase}_{cost}", phase) for phase in _PHASES for cost in ("flops", "seconds")),
)
# The costs that are measured for several queries or updates at once.
_CALL_COSTS = ("flops", "seconds", "bytes")
CALL_COLUMNS = (
    Column("run", "run"),
    Column("phase", "phase"),
    Column("n_points", "n", integer, numeric=True),
    Column("n_at_once", "at once", integer, numeric=True),
    *(Column(name, metric(name).label, metric(name).show, numeric=True) for name in _CALL_COSTS),
)


def measured_rows(costs: pd.DataFrame) -> pd.DataFrame:
    """The rows of `iclbench cost` for each phase and number of points, with one query or update at a time."""
    is_phase = costs["phase"].isin(["train_step", *_PHASES])
    return costs[is_phase & costs["n_points"].notna() & costs["n_at_once"].isna()]


def call_cost_table(costs: pd.DataFrame) -> pd.DataFrame:
    """The frame for the columns `CALL_COLUMNS`: a row per run, machine, batch, number of points, phase and number of
    queries or new points at once. Calls with a single query or point are included if calls with several of them were
    measured."""
    keys = ["run", *BATCH_KEYS, "n_points", "phase"]
    rows = costs[costs["metric"].isin(_CALL_COSTS)]
    call_keys = rows.loc[rows["n_at_once"].notna(), keys].drop_duplicates()
    rows = rows.merge(call_keys, on=keys)
    rows = rows.assign(n_at_once=rows["n_at_once"].fillna(1)).set_index([*keys, "n_at_once"])
    columns = {name: rows.loc[rows["metric"] == name, "value"] for name in _CALL_COSTS}
    table = pd.DataFrame(columns, index=rows.index.unique()).reset_index()
    return table.sort_values([*BATCH_KEYS, "run", "phase", "n_points", "n_at_once"], ignore_index=True)


def cost_table(costs: pd.DataFrame) -> pd.DataFrame:
    """The frame for `COLUMNS`: a row per run, machine, batch and number of points of `iclbench cost`."""
    run_keys, size_keys = ["run", *MACHINE_KEYS], ["run", *BATCH_KEYS, "n_points"]
    phases = measured_rows(costs)
    sizes = phases.loc[phases["phase"] != "train_step", size_keys].drop_duplicates()
    table = phases[run_keys].drop_duplicates().merge(sizes, "left", run_keys)
    all_costs = pd.concat([costs[costs["phase"] == "model"], phases])
    for group_keys, quantities in ((run_keys, _RUN_COSTS), (size_keys, _SIZE_COSTS)):
        for name, (phase, cost) in quantities.items():
            rows = all_costs[(all_costs["phase"] == phase) & (all_costs["metric"] == cost)]
            keys = ["run"] if phase == "model" else group_keys  # the size of a model is the same on every machine
            column = rows.drop_duplicates(keys)[[*keys, "value"]].rename(columns={"value": name})
            table = table.merge(column, "left", keys)
    return table


def rows_of_one_machine(costs: pd.DataFrame) -> pd.DataFrame:
    """The rows of the machine (device and threads) with the most runs. Seconds and bytes of different machines are not
    comparable."""
    if costs.empty:
        return costs
    machines = costs.groupby(MACHINE_KEYS)["run"].nunique().sort_values(ascending=False, kind="stable")
    return costs.merge(machines.index[:1].to_frame(index=False), on=MACHINE_KEYS)
