"""How to read the numbers of a report, and accuracies in context on all tasks."""

from __future__ import annotations

from functools import partial

import pandas as pd

from iclbench.analysis import accuracies
from iclbench.core.formats import Number, fixed
from iclbench.report.blocks import Column, Section, Table, Text
from iclbench.report.data import Results
from iclbench.tables.evaluators import HEADLINE, INSIDE

_KIND_ORDER = {"backbone": 0, "oracle": 1, "baseline": 2}
_LIKELIHOOD = (
    "Log-likelihood: of a target under the predicted distribution, in nats, the mean over targets; higher is better. "
    "Gap: the oracle's log-likelihood minus the model's; lower is better."
)
_SCORE = (
    "Score: (error − zero) / (best − zero) on areas under the learning curve, where best is the oracle or, without "
    "one, the best baseline. 0 is as good as always predicting zero (events: a Poisson process; images: the mean "
    "training image), 1 as good as the best."
)
_ACCURACY = (
    "Accuracy: the share of queries with the right label among the admitted ones (ICL: the two labels of the sequence; "
    "IWL: all training labels); higher is better. Guessing gets 1/2 on ICL."
)
# Metrics of classification.
_OF_CLASSES = (HEADLINE, "accuracy", "cross_entropy")


def section(results: Results) -> Section | None:
    if results.rows.empty:
        return None
    accuracies_in_context = in_context(results)
    tables = () if accuracies_in_context is None else (accuracies_in_context,)
    return Section("overview", "Overview", (reading(results), *tables))


def reading(results: Results) -> Text:
    """How to read the numbers, with the normaliser and the interval spelt out."""
    v = results.rows
    own = v[(v["shift"] == "none") & ~v["evaluator"].isin(INSIDE) & v["axis"].isna()]
    episodes = sorted(int(n) for n in own["n_episodes"].dropna().unique())
    counted = (
        f"{episodes[0]:,}" if len(episodes) == 1 else f"{episodes[0]:,} to {episodes[-1]:,}" if episodes else "all"
    )
    asked = own[own["kind"] != "published"]
    of_classes = asked["evaluator"].ne("next") & asked["metric"].isin(_OF_CLASSES)
    of_targets = asked["evaluator"].eq("targets") & asked["n_related"].notna() & ~of_classes
    of_next = asked.empty or not (of_targets | of_classes).all()
    questions = (
        ("each output from the examples before it", of_next),
        ("a set of targets from one context", of_targets.any()),
        ("the class of a query from labelled examples", of_classes.any()),
    )
    question = "predicts " + ", or ".join(words for words, is_asked in questions if is_asked)
    items = [_LIKELIHOOD] if of_targets.any() else []
    if of_classes.any():
        items.append(_ACCURACY)
    if of_next or of_targets.any():
        items.append(
            "Error: squared error divided by the task's normaliser, the variance of the noiseless outputs under the "
            f"training distribution ({normalisers(results)}). Predicting zero gives about 1; lower is better."
        )
    items.append(
        f"Value and interval: the mean over {counted} episodes and its 95 % bootstrap interval. With several seeds: "
        "the mean over seeds, and the range of their intervals."
    )
    if of_next:
        items.append(_SCORE)
    return Text(
        f"All models and baselines have the same prompts; each {question}. How to read the numbers", tuple(items), True
    )


def normalisers(results: Results) -> str:
    """The normaliser of the squared error on every task."""
    parts = []
    for task in results.slices:
        of_error = task.rows.loc[task.rows["metric"] == "squared_error", "normaliser"].dropna()
        if len(of_error):
            parts.append(f"{task.task} {', '.join(f'{n:g}' for n in sorted(of_error.unique()))}")
    return "; ".join(dict.fromkeys(parts)) or "not recorded"


def in_context(results: Results) -> Table | None:
    """Contestants x tasks with a test of learning in context."""
    parts = []
    for task in results.slices:
        ends = accuracies.final(task)
        parts.append(ends[ends["evaluator"].eq("icl")][["contestant", "kind", "value"]].assign(column=task.id))
    rows = pd.concat(parts, ignore_index=True)
    rows = rows[~rows["contestant"].isin(results.other_training_tasks.keys())]
    if rows.empty:
        return None
    frame = _by_task(results, rows)
    tasks = [
        Column(task.id, task.title, partial(fixed, decimals=3), numeric=True, shade=shade_above_half)
        for task in results.slices
        if task.id in frame
    ]
    return Table(
        "icl",
        "Accuracy in context",
        "Accuracy on new classes between the two labels of each sequence (ICL, chance 0.5) at the end of training, "
        "mean over seeds. A dash: not evaluated, or failed.",
        frame,
        (Column("contestant", "contestant"), Column("kind", "kind"), *tasks),
        group="kind",
    )


def _by_task(results: Results, rows: pd.DataFrame) -> pd.DataFrame:
    """Columns contestant, kind and the value on every task; the best of each kind first."""
    # What is an oracle on one task may be a baseline on another; it gets one row.
    kinds = rows.groupby("contestant")["kind"].agg(lambda k: min(k, key=lambda kind: _KIND_ORDER[kind]))
    wide = rows.pivot_table("value", index="contestant", columns="column")
    columns = [task.id for task in results.slices if task.id in wide.columns]
    frame = wide[columns].assign(kind=kinds, order=kinds.map(_KIND_ORDER), best=wide.mean(axis=1)).reset_index()
    frame = frame.sort_values(["order", "best", "contestant"], ascending=[True, False, True], ignore_index=True)
    return frame[["contestant", "kind", *columns]]


def shade_above_half(accuracy: Number) -> float:
    """What guessing gets is as white as less."""
    return shade(2 * float(accuracy) - 1)


def shade(score: Number) -> float:
    """Scores below zero are as white as zero, beyond one as dark as one."""
    return min(max(float(score), 0.0), 1.0)
