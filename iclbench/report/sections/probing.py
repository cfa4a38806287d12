"""Layers of models: errors compared with gradient descent, fitted scale and shift, and the gamma of GD++; for streams,
scores of linear probes of hidden states."""

from __future__ import annotations

import pandas as pd

from iclbench.analysis.probes import layer_scores
from iclbench.core.formats import fixed, integer, number
from iclbench.core.metrics import Metric, metric
from iclbench.report.blocks import Block, Column, Section, Table, Text
from iclbench.report.data import Slice
from iclbench.report.figures import probing

_DECODED = (
    "Error of each layer's output, decoded by the model's own final norm and read-out. For each task, a scale and a "
    "shift are fitted on some queries and evaluated on others."
)
_PROBED = (
    "Targets decoded from the hidden state of the last element at each layer, by a linear map that is fitted on some "
    "episodes and scored on others. The baselines are the models before training."
)


def section(task: Slice) -> Section | None:
    rows = task.probes[task.probes["n_context"].notna()]
    layers = rows[rows["axis"].eq("layer").fillna(False)]
    if layers.empty:
        return None
    introductions = dict.fromkeys(_DECODED if name == "squared_error" else _PROBED for name in layer_scores(layers))
    blocks: list[Block] = [Text(text) for text in introductions]
    for shift, shift_layers in layers.groupby("shift"):
        for name in layer_scores(shift_layers):
            blocks += _score_blocks(task, str(shift), rows[rows["shift"] == shift], name)
    return Section(f"{task.id}-probing", "Layers", tuple(blocks))


def _score_blocks(task: Slice, shift: str, rows: pd.DataFrame, name: str) -> list[Block]:
    """The figures and the table of a score. For the squared error, they include the fitted parameters and gamma."""
    scores = rows[rows["metric"] == name]
    sizes = sorted(int(n) for n in scores.loc[scores["axis"] == "layer", "n_context"].unique())
    main_size = task.trained_length if task.trained_length in sizes else sizes[0]
    probes, gamma_search = (rows[rows["evaluator"] == evaluator] for evaluator in ("probe", "gamma_search"))
    at_main_size = probes[probes["n_context"] == main_size]
    blocks: list[Block] = [probing.score_figure(task, shift, at_main_size, name)]
    if len(sizes) > 1:
        blocks.append(probing.context_figure(task, shift, probes, name))
    if name == "squared_error":
        fitted = [key for key in ("scale", "shift") if key in set(at_main_size["metric"])]
        blocks += [probing.fit_figure(task, shift, at_main_size, key) for key in fitted]
        if len(gamma_search):
            blocks.append(probing.gamma_figure(task, shift, gamma_search))
    return [*blocks, _table(task, shift, rows, metric(name))]


def _table(task: Slice, shift: str, rows: pd.DataFrame, measure: Metric) -> Table:
    """A table with a row per context size and run: final and best score, and for errors scale, shift and gamma.
    Columns without a value are omitted."""
    is_score = rows["evaluator"].eq("probe") & rows["metric"].eq(measure.name)
    records = [
        _record(group, measure) for _, group in rows.groupby(["n_context", "run"]) if is_score[group.index].any()
    ]
    ascending = [True, measure.lower_is_better, True]
    frame = pd.DataFrame(records).sort_values(["n_context", "score", "run"], ascending=ascending, ignore_index=True)
    score, best = ("error", "smallest error") if measure.lower_is_better else (measure.label, "best")
    columns = (
        Column("run", "run"),
        Column("n_context", "examples", integer, numeric=True),
        Column("depth", "layers or steps", integer, numeric=True),
        Column("score", score, number, True, "score_low", "score_high"),
        Column("raw", "raw", number, numeric=True),
        Column("best", best, number, numeric=True),
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
    )
    label = measure.label[0].upper() + measure.label[1:]
    has_raw_errors = frame["raw"].notna().any()
    details = "; raw: without scale and shift" if has_raw_errors else ""
    return Table(
        name=f"{task.id}-{probing.part_names(shift, measure.name)}",
        title="Numbers behind the figures" + ("" if shift == "none" else f" (shift {shift})"),
        caption=f"{label} after the last layer or step (with 95 % intervals over tasks{details}), the {best} and its "
        "layer or step" + (", and the fitted parameters." if has_raw_errors else "."),
        frame=frame,
        columns=tuple(column for column in columns if frame[column.key].notna().any()),
        group="n_context",
        folded=True,
    )


def _record(rows: pd.DataFrame, measure: Metric) -> dict[str, object]:
    """The row of a run at one context size."""
    scores = rows[(rows["evaluator"] == "probe") & (rows["metric"] == measure.name)].sort_values("axis_value")
    by_score = scores.sort_values("value", ascending=measure.lower_is_better, kind="stable")
    last, best = scores.iloc[-1], by_score.iloc[0]
    at_last = rows[(rows["axis"] == "layer") & (rows["axis_value"] == last["axis_value"])].set_index("metric")["value"]
    gamma = rows.loc[rows["metric"] == "gamma", "value"]
    fitted = {name: at_last.get(name, pd.NA) for name in ("scale", "scale_std", "shift", "shift_std")}
    has_no_layers = pd.isna(last["axis"])
    return {
        "run": last["run"],
        "n_context": last["n_context"],
        "depth": last["axis_value"],
        "score": last["value"],
        "score_low": last["low"],
        "score_high": last["high"],
        "raw": at_last.get("squared_error_raw", pd.NA),
        "best": pd.NA if has_no_layers else best["value"],
        "best_at": pd.NA if has_no_layers else best["axis_value"],
        **fitted,
        "gamma": gamma.iloc[0] if len(gamma) else pd.NA,
    }
