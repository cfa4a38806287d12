"""Overview: how to read the numbers of a report, and the accuracy in context on all tasks."""

from __future__ import annotations

from functools import partial

import pandas as pd

from iclbench.analysis import accuracies
from iclbench.core.formats import Number, fixed
from iclbench.report.blocks import Column, Section, Table, Text
from iclbench.report.data import Results
from iclbench.tables.evaluators import DIAGNOSTICS, MAIN_ACCURACY

_KIND_ORDER = {"backbone": 0, "oracle": 1, "baseline": 2}
_LIKELIHOOD = (
    "Log-likelihood: the log-density of a target under the predicted distribution, in nats, mean over targets; higher "
    "is better. Gap: the oracle's log-likelihood minus the model's; lower is better."
)
_SCORE = (
    "Score: (error − zero) / (best − zero) on areas under the learning curve, where best is the oracle or, without "
    "one, the best baseline at each context size. 0 is as good as always predicting zero (events: a Poisson process; "
    "tokens: equal probabilities; images: the mean training image), 1 as good as the best."
)
_ACCURACY = (
    "Accuracy: the share of queries for which the most probable of the allowed labels is correct (ICL: the two labels "
    "of the sequence; IWL: all training labels); higher is better. Guessing scores 1/2 on ICL."
)
_CLASSIFICATION_METRICS = (MAIN_ACCURACY, "accuracy", "cross_entropy")


def section(results: Results) -> Section | None:
    if results.rows.empty:
        return None
    table = accuracy_table(results)
    return Section(
        "overview",
        "Overview",
        (reading_guide(results), *([] if table is None else [table])),
        rules=("Normalisation", "Score", "Intervals"),
    )


def reading_guide(results: Results) -> Text:
    """An explanation of the numbers: metrics, the normaliser of the squared error, intervals and scores."""
    rows = results.rows
    rows = rows[(rows["shift"] == "none") & ~rows["evaluator"].isin(DIAGNOSTICS) & rows["axis"].isna()]
    n_episodes = sorted(int(n) for n in rows["n_episodes"].dropna().unique())
    range_text = " to ".join(f"{n:,}" for n in dict.fromkeys([n_episodes[0], n_episodes[-1]])) if n_episodes else "all"
    measured_rows = rows[rows["kind"] != "published"]
    is_class_metric = measured_rows["evaluator"].ne("next") & measured_rows["metric"].isin(_CLASSIFICATION_METRICS)
    is_target_metric = measured_rows["evaluator"].eq("targets") & measured_rows["n_related"].notna() & ~is_class_metric
    has_classes, has_targets = bool(is_class_metric.any()), bool(is_target_metric.any())
    has_next = measured_rows.empty or not (is_target_metric | is_class_metric).all()
    questions = {
        "each output from the examples before it": has_next,
        "a set of targets from one context": has_targets,
        "the class of a query from labelled examples": has_classes,
    }
    question = "predicts " + ", or ".join(text for text, is_present in questions.items() if is_present)
    items = [_LIKELIHOOD] if has_targets else []
    if has_classes:
        items.append(_ACCURACY)
    if has_next or has_targets:
        items.append(
            "Error: squared error divided by the task's normaliser, the variance of the noiseless outputs under the "
            f"training distribution ({normaliser_text(results)}). Predicting zero gives about 1; lower is better."
        )
    items.append(
        f"Value and interval: the mean over {range_text} episodes and its 95 % bootstrap interval. With several seeds: "
        "the mean over seeds, and the envelope of their intervals."
    )
    if has_next:
        items.append(_SCORE)
    return Text(
        f"All models and baselines are evaluated on the same prompts; each {question}. How to read the numbers",
        tuple(items),
        True,
    )


def normaliser_text(results: Results) -> str:
    """The normalisers of the squared error by task, as text."""
    texts = []
    for task in results.slices:
        values = task.rows.loc[task.rows["metric"] == "squared_error", "normaliser"].dropna()
        if len(values):
            texts.append(f"{task.task} {', '.join(f'{n:g}' for n in sorted(values.unique()))}")
    return "; ".join(dict.fromkeys(texts)) or "not recorded"


def accuracy_table(results: Results) -> Table | None:
    """A table of the accuracy in context, contestants x tasks; None if no task has such a test."""
    frames = []
    for task in results.slices:
        final = accuracies.final(task)
        frames.append(final[final["evaluator"].eq("icl")][["contestant", "kind", "value"]].assign(column=task.id))
    rows = pd.concat(frames, ignore_index=True)
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
    """A row per contestant with its kind and its value on each task, the best of each kind first."""
    # A contestant that is an oracle on one task and a baseline on another has one row.
    kinds = rows.groupby("contestant")["kind"].agg(lambda k: min(k, key=lambda kind: _KIND_ORDER[kind]))
    wide = rows.pivot_table("value", index="contestant", columns="column")
    columns = [task.id for task in results.slices if task.id in wide.columns]
    frame = wide[columns].assign(kind=kinds, order=kinds.map(_KIND_ORDER), best=wide.mean(axis=1)).reset_index()
    frame = frame.sort_values(["order", "best", "contestant"], ascending=[True, False, True], ignore_index=True)
    return frame[["contestant", "kind", *columns]]


def shade_above_half(accuracy: Number) -> float:
    """The shade of an accuracy: white up to the accuracy of guessing, 1/2."""
    return shade(2 * float(accuracy) - 1)


def shade(score: Number) -> float:
    """The shade of a score: white up to 0, darkest from 1."""
    return min(max(float(score), 0.0), 1.0)
