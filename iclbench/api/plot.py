"""Charts of result tables: the figures of the report, as Altair charts for notebooks.

All functions take rows of the table `values`, from `icl.evaluate(...)` or `icl.open_results(...).values()`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from iclbench import tables
from iclbench.analysis import scores
from iclbench.analysis.evaluators import meaning, sorted_evaluators
from iclbench.api import arguments
from iclbench.core.errors import UnknownNameError, UsageError
from iclbench.core.formats import canonical
from iclbench.core.metrics import curve_metric
from iclbench.core.metrics import metric as metric_of
from iclbench.report.blocks import Figure, Section
from iclbench.report.data import Results, Slice, results_from_values
from iclbench.report.figures import board
from iclbench.report.sections import extrapolation as extrapolation_section
from iclbench.report.sections import heat_map as heat_map_section
from iclbench.report.sections import learning_curves as curves_section
from iclbench.report.sections import probing as probing_section
from iclbench.report.sections import shifts as shifts_section
from iclbench.report.sections import solutions as solutions_section
from iclbench.tables.evaluators import DIAGNOSTICS, QUESTIONS

# Vega-Lite keys that are only allowed at the top level.
_TOP_LEVEL = ("$schema", "config", "params")

# Stack level at which a warning points to the user's code.
_STACK_LEVEL = 4

__all__ = ["extrapolation", "heat_map", "leaderboard", "learning_curves", "probe", "shifts", "solutions"]


def learning_curves(
    values: pd.DataFrame, task: str | None = None, preset: str | None = None, metric: str | None = None
) -> alt.Chart:
    """Plot errors against the number of examples in context, on the training distribution, with 95 % bands.

    Args:
        values: rows of the table `values`.
        task, preset: the task and the preset to draw, if the rows contain several.
        metric: a value of the column `metric` (default: the metric whose area `auc` summarises, such as `squared_error`
            or, for tokens, `cross_entropy`).

    Raises:
        UsageError: the rows contain nothing to draw, or the task is ambiguous.

    >>> from iclbench.api.score import evaluate
    >>> from iclbench.api.tasks import task
    >>> learning_curves(evaluate(["ridge", "zero"], task("linear", "smoke", episodes=16))).to_dict()["title"]["text"]
    'linear: learning curves'
    """
    return _chart(
        curves_section.section(_slice(_rows_of_metric(_checked_rows(values), metric, task, preset), task, preset)),
        "successful rows of learning curves (question: next)",
    )


def extrapolation(
    values: pd.DataFrame, task: str | None = None, preset: str | None = None, metric: str | None = None
) -> alt.Chart:
    """Plot learning curves beyond the training length, from `evaluate(..., extrapolate=N)`.

    The arguments are the same as in `learning_curves`.

    >>> from iclbench.api.score import evaluate
    >>> from iclbench.api.tasks import task
    >>> scores = evaluate(["ridge", "zero"], task("linear", "smoke", episodes=16), extrapolate=20)
    >>> extrapolation(scores).to_dict()["title"]["text"]
    'linear: up to 20 examples'
    """
    return _chart(
        extrapolation_section.section(
            _slice(_rows_of_metric(_checked_rows(values), metric, task, preset), task, preset)
        ),
        "successful rows with more examples than in training (extrapolate=N)",
    )


def shifts(
    values: pd.DataFrame, task: str | None = None, preset: str | None = None, metric: str | None = None
) -> alt.Chart:
    """Plot learning curves under shifts, with one panel per shift. The arguments are the same as in `learning_curves`.

    >>> from iclbench.api.score import evaluate
    >>> from iclbench.api.tasks import task
    >>> scores = evaluate(["ridge", "zero"], task("linear", "smoke", episodes=16), shifts=["none", "orthants"])
    >>> shifts(scores).to_dict()["title"]["text"]
    'linear: shifted prompts'
    """
    return _chart(
        shifts_section.section(_slice(_rows_of_metric(_checked_rows(values), metric, task, preset), task, preset)),
        "successful rows under a shift",
    )


def probe(values: pd.DataFrame, task: str | None = None, preset: str | None = None) -> alt.Chart:
    """Plot the error of each layer's output, decoded by the read-out of the model.

    The rows come from `iclbench probe`, via `open_results(...).values()`. The arguments are the same as in
    `learning_curves`.
    """
    return _chart(probing_section.section(_slice(_checked_rows(values), task, preset)), "successful rows of a probe")


def solutions(values: pd.DataFrame, task: str | None = None, preset: str | None = None) -> alt.Chart:
    """Plot the distance of each model from known solutions of the task during training.

    The rows come from runs that were trained with `evaluate_every`, via `open_results(...).values()`. The arguments are
    the same as in `learning_curves`.
    """
    return _chart(
        solutions_section.section(_slice(_checked_rows(values), task, preset)),
        "distances from known solutions at several training steps (train.evaluate_every)",
    )


def heat_map(values: pd.DataFrame) -> alt.Chart:
    """Plot the normalised score of each backbone on each task.

    Raises:
        UsageError: scores cannot be computed, for example without the baseline zero.

    >>> from iclbench.api.architectures import GPT2
    >>> from iclbench.api.score import evaluate
    >>> from iclbench.api.tasks import task
    >>> small = task("linear", "smoke", episodes=16)
    >>> heat_map(evaluate([GPT2(small), "ridge", "zero"], small)).to_dict()["title"]["text"]
    'smoke: scores by family and model'
    """
    results = _results_of(_checked_rows(values))
    return _chart(
        heat_map_section.section(results),
        "scores of a backbone; evaluate it together with a baseline that scores 0 (zero, or poisson for events) and "
        "with an oracle or another baseline",
        [
            "Score 0: always predicting zero, or guessing; for events a Poisson process, for images the mean image.",
            "Score 1: the oracle or the best baseline.",
        ],
    )


def leaderboard(
    values: pd.DataFrame,
    task: str | None = None,
    preset: str | None = None,
    shift: str = "none",
    evaluator: str | None = None,
    metric: str | None = None,
) -> alt.LayerChart:
    """Plot all contestants on one task, ranked by one metric, with 95 % intervals.

    Args:
        values: rows of the table `values`.
        task, preset: the task and the preset to draw, if the rows contain several.
        shift: shift of the prompts; "none" is the training distribution.
        evaluator: the question, or a test of the family (default: the question of the task).
        metric: the metric of the ranking (default: the area under the learning curve; for the question `targets`, the
            first of log-likelihood, squared error and accuracy that was measured).

    Raises:
        UsageError: the rows contain nothing to draw, or the task is ambiguous.

    >>> from iclbench.api.score import evaluate
    >>> from iclbench.api.tasks import task
    >>> board = leaderboard(evaluate(["ridge", "zero"], task("linear", "smoke", episodes=16)))
    >>> type(board).__name__
    'LayerChart'
    """
    slice_ = _slice(_checked_rows(values), task, preset)
    rows = slice_.rows
    rows = rows[rows["axis"].isna() & rows["n_context"].isna() & rows["status"].eq("ok")]
    rows = rows[rows["kind"].ne("published") & ~rows["evaluator"].isin(["train", *DIAGNOSTICS])]
    selection, title = {}, slice_.title
    for column, value, preferred_values in (
        ("evaluator", evaluator, [*QUESTIONS, *sorted_evaluators(rows["evaluator"])]),
        ("shift", shift, []),
        ("metric", metric, scores.FALLBACK_METRICS),
    ):
        selection[column] = _selected_value(rows, column, value, preferred_values)
        rows = rows[rows[column].eq(selection[column])]
    ranking = scores.leaderboard(slice_, selection["evaluator"], selection["shift"], selection["metric"], partial=True)
    means = ranking[ranking["metric"].eq(selection["metric"]) & ranking["failed_seeds"].eq(0)]
    # A contestant is drawn with the largest number of related datasets. The order is that of the leaderboard.
    means = means.sort_values("n_related").drop_duplicates("contestant", keep="last").sort_index()
    if means.empty:
        raise UsageError(
            f"nothing to rank: all contestants failed on task '{slice_.task}'; see the column 'reason'",
            code="nothing-to-do",
        )
    title += "" if selection["evaluator"] in QUESTIONS else f" · {meaning(selection['evaluator']).title}"
    title += "" if selection["shift"] == "none" else f" · shift {selection['shift']}"
    return board.chart(means, metric_of(selection["metric"]), slice_.looks, title)


def _selected_value(rows: pd.DataFrame, column: str, value: str | None, preferred_values: Sequence[str]) -> str:
    """Return the given value in the spelling of the rows; by default, the first preferred value that occurs.

    Raises:
        UsageError: the frame is empty, or no row has the value.
    """
    names = {canonical(name): name for name in map(str, rows[column].unique())}
    if not names:
        raise UsageError("nothing to rank: no successful row contains an overall score", code="nothing-to-do")
    if value is None:
        return next((name for name in preferred_values if name in names.values()), next(iter(names.values())))
    if (name := names.get(canonical(arguments.text(column, value)))) is None:
        raise UnknownNameError(column, value, names.values())
    return name


def _checked_rows(values: Any) -> pd.DataFrame:
    """Return the rows without duplicates, after validation.

    Raises:
        UsageError: the argument does not consist of rows of the table `values`, or two contestants have the same name.
    """
    advice = "pass rows of icl.evaluate(...) or icl.open_results(...).values()"
    if not isinstance(values, pd.DataFrame):
        raise UsageError(f"values: expected a frame, got {arguments.brief_repr(values)}; {advice}", code="bad-value")
    if values.empty:
        return tables.frame("values", [])
    try:
        rows = tables.validate("values", values.drop_duplicates(), np.arange(len(values.drop_duplicates())))
    except tables.TableError as error:
        raise UsageError(f"{error}; {advice}, with all their columns", code=error.code) from None
    is_repeated = rows.duplicated(tables.key_columns("values"))
    # Metrics that compare contestants may differ between two calls of `evaluate`. The first value is used.
    if len(conflicts := rows[is_repeated & ~rows["metric"].isin(tables.COMPARISON_METRICS)]):
        name = conflicts["run"].iloc[0]
        raise UsageError(
            f"two contestants are named '{name}': use icl.evaluate({{'one': model, ...}}, task)", code="duplicate"
        )
    return _with_unique_runs(rows[~is_repeated])


def _with_unique_runs(rows: pd.DataFrame) -> pd.DataFrame:
    """Make the names of runs unique, because models from several calls of `evaluate` may have the same name."""
    keys = ["task", "preset", "run"]
    trained_rows = rows[rows["variant"].notna()].drop_duplicates([*keys, "variant", "seed"])
    shared_names = pd.MultiIndex.from_frame(trained_rows.loc[trained_rows.duplicated(keys), keys])
    has_shared_name = rows["variant"].notna() & pd.MultiIndex.from_frame(rows[keys]).isin(shared_names)
    unique_names = rows["run"] + "-" + rows["variant"].str[:4] + ("-s" + rows["seed"].astype("string")).fillna("")
    return rows.assign(run=rows["run"].mask(has_shared_name, unique_names))


def _results_of(rows: pd.DataFrame, task: str | None = None) -> Results:
    """Convert the rows to results. Warn about each group of rows that is omitted because it is not comparable with the
    other rows. If a task is given, warn only about its rows."""
    results = results_from_values(rows)
    for line in results.excluded_rows:
        if task is None or line.startswith(f"{task} "):
            warnings.warn(f"not in the chart: {line}", stacklevel=_STACK_LEVEL)
    return results


def _rows_of_metric(values: pd.DataFrame, metric: str | None, task: str | None, preset: str | None) -> pd.DataFrame:
    """Return the rows of one metric, and all rows without a number of examples. The default is the main metric of the
    task."""
    rows = values
    for column, name in (("task", task), ("preset", preset)):
        if name is not None:
            rows = rows[rows[column].eq(canonical(arguments.text(column, name)))]
    metrics = rows.loc[rows["n_context"].notna(), "metric"].unique()
    if metric is None:
        metric = next((name for name in (curve_metric(metrics), "log_likelihood") if name in metrics), None)
    elif arguments.text("metric", metric) not in metrics and len(rows):
        raise UnknownNameError("metric", metric, map(str, metrics))
    return values if metric is None else values[values["metric"].eq(metric) | values["n_context"].isna()]


def _slice(rows: pd.DataFrame, task: str | None, preset: str | None) -> Slice:
    """Return the rows of one task and preset; raise `UsageError` unless exactly one matches."""
    task = None if task is None else canonical(arguments.text("task", task))
    preset = None if preset is None else canonical(arguments.text("preset", preset))
    slices = _results_of(rows, task).slices
    for attribute, name in (("task", task), ("preset", preset)):
        if name is not None:
            names = {str(getattr(slice_, attribute)) for slice_ in slices}
            if name not in names:
                raise UnknownNameError(attribute, name, names)
            slices = [slice_ for slice_ in slices if getattr(slice_, attribute) == name]
    if len(slices) != 1:
        titles = ", ".join(slice_.title for slice_ in slices) or "none"
        raise UsageError(
            f"expected the rows of one task, preset and training length, got {titles}; choose a task and a preset with "
            "task= and preset=, or pass fewer rows",
            code="missing-value" if slices else "nothing-to-do",
        )
    return slices[0]


def _chart(section: Section | None, rows_name: str, caption: Sequence[str] = ()) -> alt.Chart:
    """Combine the figures of a section in one column, with a caption."""
    figures = [] if section is None else list(_figures(section))
    if not figures:
        raise UsageError(f"nothing to draw: no {rows_name}", code="nothing-to-do")
    titles = [{"text": figure.title} | ({"subtitle": list(caption)} if caption else {}) for figure in figures]
    specs = [figure.make_static() | {"title": title} for figure, title in zip(figures, titles, strict=True)]
    if len(specs) == 1:
        return alt.Chart.from_dict(specs[0])
    combined_chart = {key: specs[0][key] for key in _TOP_LEVEL if key in specs[0]}
    combined_chart["resolve"] = {"scale": dict.fromkeys(("color", "strokeDash"), "independent")}
    panels = [{key: value for key, value in spec.items() if key not in _TOP_LEVEL} for spec in specs]
    return alt.Chart.from_dict({**combined_chart, "vconcat": panels})


def _figures(section: Section) -> Iterator[Figure]:
    return (block for block in section.walk() if isinstance(block, Figure))
