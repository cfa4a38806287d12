"""Layers of models: errors compared with gradient descent, fitted scale and shift, and the gamma of GD++."""

from __future__ import annotations

import pandas as pd

from iclbench.core.formats import fixed, integer, number, slug
from iclbench.report.blocks import Block, Column, Section, Table, Text
from iclbench.report.data import Slice
from iclbench.report.figures import probing

_INTRODUCTION = (
    "Error of each layer's output, decoded by the model's own final norm and read-out. For each task, a scale and a "
    "shift are fitted on some queries and evaluated on others."
)


def section(task: Slice) -> Section | None:
    rows = task.probes[task.probes["n_context"].notna()]
    if not ((rows["axis"] == "layer") & (rows["metric"] == "squared_error")).any():
        return None
    blocks: list[Block] = [Text(_INTRODUCTION)]
    for shift, shift_rows in rows.groupby("shift"):
        layers = shift_rows[(shift_rows["axis"] == "layer") & (shift_rows["metric"] == "squared_error")]
        if layers.empty:
            continue
        sizes = sorted(int(n) for n in layers["n_context"].unique())
        main_size = task.trained_length if task.trained_length in sizes else sizes[0]
        probes, gamma_search = (shift_rows[shift_rows["evaluator"] == name] for name in ("probe", "gamma_search"))
        at_main_size = probes[probes["n_context"] == main_size]
        blocks.append(probing.error_figure(task, str(shift), at_main_size))
        if len(sizes) > 1:
            blocks.append(probing.context_figure(task, str(shift), probes))
        metrics = set(at_main_size["metric"])
        blocks += [
            probing.fit_figure(task, str(shift), at_main_size, name) for name in ("scale", "shift") if name in metrics
        ]
        if len(gamma_search):
            blocks.append(probing.gamma_figure(task, str(shift), gamma_search))
        blocks.append(_table(task, str(shift), shift_rows))
    return Section(f"{task.id}-probing", "Layers", tuple(blocks))


def _table(task: Slice, shift: str, rows: pd.DataFrame) -> Table:
    """A table with a row per context size and run: final and smallest error, scale, shift and gamma."""
    is_error = rows["evaluator"].eq("probe") & rows["metric"].eq("squared_error")
    records = [_record(group) for _, group in rows.groupby(["n_context", "run"]) if is_error[group.index].any()]
    frame = pd.DataFrame(records).sort_values(["n_context", "error", "run"], ignore_index=True)
    return Table(
        name=f"{task.id}-{slug('probe', shift)}",
        title="Numbers behind the figures" + ("" if shift == "none" else f" (shift {shift})"),
        caption="Normalised squared error after the last layer or step (with 95 % intervals over tasks; raw: without "
        "scale and shift), the smallest error and its layer or step, and the fitted parameters.",
        frame=frame,
        columns=(
            Column("run", "run"),
            Column("n_context", "examples", integer, numeric=True),
            Column("depth", "layers or steps", integer, numeric=True),
            Column("error", "error", number, True, "error_low", "error_high"),
            Column("raw", "raw", number, numeric=True),
            Column("best", "smallest error", number, numeric=True),
            Column("best_at", "best at", integer, numeric=True),
            *(
                Column(key, header, fixed, numeric=True)
                for key, header in (
                    ("scale", "scale"),
                    ("scale_std", "± over tasks"),
                    ("shift", "shift"),
                    ("shift_std", "± over tasks"),
                )
            ),
            Column("gamma", "gamma", number, numeric=True),
        ),
        group="n_context",
        folded=True,
    )


def _record(rows: pd.DataFrame) -> dict[str, object]:
    """The row of a run with one context size."""
    errors = rows[(rows["evaluator"] == "probe") & (rows["metric"] == "squared_error")].sort_values("axis_value")
    last, best = errors.iloc[-1], errors.sort_values("value", kind="stable").iloc[0]
    at_last = rows[(rows["axis"] == "layer") & (rows["axis_value"] == last["axis_value"])].set_index("metric")["value"]
    gamma = rows.loc[rows["metric"] == "gamma", "value"]
    fitted = {name: at_last.get(name, pd.NA) for name in ("scale", "scale_std", "shift", "shift_std")}
    has_no_layers = pd.isna(last["axis"])
    return {
        "run": last["run"],
        "n_context": last["n_context"],
        "depth": last["axis_value"],
        "error": last["value"],
        "error_low": last["low"],
        "error_high": last["high"],
        "raw": at_last.get("squared_error_raw", pd.NA),
        "best": pd.NA if has_no_layers else best["value"],
        "best_at": pd.NA if has_no_layers else best["axis_value"],
        **fitted,
        "gamma": gamma.iloc[0] if len(gamma) else pd.NA,
    }
