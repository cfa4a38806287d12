"""The page in one look: how to read it, and the score of every contestant on every task."""

from __future__ import annotations

import pandas as pd

from iclbench.report.blocks import Column, Section, Table, Text
from iclbench.report.data import PROBES, Results
from iclbench.report.formats import Number, fixed

_KIND_ORDER = {"backbone": 0, "oracle": 1, "baseline": 2}


def section(results: Results) -> Section:
    table = scores(results)
    return Section("overview", "Overview", (reading(results), *([table] if table is not None else [])))


def reading(results: Results) -> Text:
    """How to read the numbers, with the normaliser and the interval spelt out."""
    v = results.rows
    own = v[(v["shift"] == "none") & ~v["evaluator"].isin(PROBES)]
    episodes = sorted(int(n) for n in own["n_episodes"].dropna().unique())
    counted = (
        f"{episodes[0]:,}" if len(episodes) == 1 else f"{episodes[0]:,} to {episodes[-1]:,}" if episodes else "all"
    )
    return Text(
        "How to read this. Every contestant meets the same frozen prompts and predicts each output from the examples "
        "before it.",
        (
            "Error: squared error divided by the task's normaliser, the variance of the noiseless outputs under the "
            f"training distribution ({normalisers(results)}). Always predicting zero scores about 1; lower is better.",
            f"Value and interval: the mean over {counted} episodes and its 95 % bootstrap interval over episodes. With "
            "several seeds of a backbone: the mean over seeds, and an interval from the lowest to the highest end.",
            "Score: (error − zero) / (best − zero), on areas under the learning curve, where best is the oracle or, "
            "without one, the best baseline. 0 is as good as always predicting zero, 1 as good as that best.",
        ),
    )


def normalisers(results: Results) -> str:
    """The normaliser of the squared error on every task."""
    parts = []
    for task in results.slices:
        of_error = task.rows.loc[task.rows["metric"] == "squared_error", "normaliser"].dropna()
        if len(of_error):
            parts.append(f"{task.task} {', '.join(f'{n:g}' for n in sorted(of_error.unique()))}")
    return "; ".join(dict.fromkeys(parts)) or "not recorded"


def scores(results: Results) -> Table | None:
    """Contestants x tasks."""
    parts = []
    for task in results.slices:
        s = task.summaries
        rows = s[(s["metric"] == "score") & (s["shift"] == "none") & (s["evaluator"] == s["evaluator"].min())]
        parts.append(rows[["contestant", "kind", "value"]].assign(column=task.id))
    rows = pd.concat(parts, ignore_index=True)
    if rows.empty:
        return None
    # What is an oracle on one task may be a baseline on another; it gets one row.
    kinds = rows.groupby("contestant")["kind"].agg(lambda k: min(k, key=lambda kind: _KIND_ORDER[kind]))
    wide = rows.pivot_table("value", index="contestant", columns="column")
    columns = [task.id for task in results.slices if task.id in wide.columns]
    frame = wide[columns].assign(kind=kinds, order=kinds.map(_KIND_ORDER), best=wide.mean(axis=1)).reset_index()
    frame = frame.sort_values(["order", "best", "contestant"], ascending=[True, False, True], ignore_index=True)
    titles = {task.id: task.title for task in results.slices}
    return Table(
        name="scores",
        title="Scores",
        caption="Score on the training distribution of each task: 1 is as good as the oracle or the best baseline, 0 "
        "as good as always predicting zero. Darker is better. A dash: not evaluated, or failed.",
        frame=frame[["contestant", "kind", *columns]],
        columns=(
            Column("contestant", "contestant"),
            Column("kind", "kind"),
            *(Column(c, titles[c], lambda v: fixed(v, 2), numeric=True, shade=shade) for c in columns),
        ),
        group="kind",
    )


def shade(score: Number) -> float:
    """Scores below zero are as white as zero, beyond one as dark as one."""
    return min(max(float(score), 0.0), 1.0)
