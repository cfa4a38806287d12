"""Charts of result tables: the figures of the report, as Altair charts for a notebook.

Every function takes rows of the table `values`: from `icl.evaluate(...)` or `icl.open_results(...).values()`.
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
from iclbench.analysis.evaluators import in_order, meaning
from iclbench.api import arguments
from iclbench.core.errors import UnknownNameError, UsageError
from iclbench.core.formats import canonical
from iclbench.core.metrics import metric as known_metric
from iclbench.report.blocks import Figure, Section
from iclbench.report.data import Results, Slice, of_values
from iclbench.report.figures import board
from iclbench.report.sections import extrapolation as extrapolation_section
from iclbench.report.sections import heat_map as heat_map_section
from iclbench.report.sections import learning_curves as curves_section
from iclbench.report.sections import probing as probing_section
from iclbench.report.sections import shifts as shifts_section
from iclbench.tables.evaluators import INSIDE, QUESTIONS

# What a specification of several figures has once.
_OF_THE_WHOLE = ("$schema", "config", "params")

# Calls between a warning and the notebook's line.
_CALLER = 4

__all__ = ["extrapolation", "heat_map", "leaderboard", "learning_curves", "probe", "shifts"]


def learning_curves(
    values: pd.DataFrame, task: str | None = None, preset: str | None = None, metric: str | None = None
) -> alt.Chart:
    """Errors against the number of examples in context, on the training distribution, with 95 % bands of backbones.

    Args:
        values: rows of the table `values`.
        task, preset: which, where there are several.
        metric: of the column `metric`; None: squared error where it was measured.

    Raises:
        UsageError: there is nothing to draw, or it is not said of which task.

    >>> from iclbench.api.score import evaluate
    >>> from iclbench.api.tasks import task
    >>> learning_curves(evaluate(["ridge", "zero"], task("linear", "smoke", episodes=16))).to_dict()["title"]["text"]
    'linear: learning curves'
    """
    return _chart(
        curves_section.section(_slice(_of_metric(_rows(values), metric), task, preset)),
        "rows of learning curves (question: next)",
    )


def extrapolation(
    values: pd.DataFrame, task: str | None = None, preset: str | None = None, metric: str | None = None
) -> alt.Chart:
    """The same beyond the trained length: `evaluate(..., extrapolate=N)`. Arguments as in `learning_curves`.

    >>> from iclbench.api.score import evaluate
    >>> from iclbench.api.tasks import task
    >>> scores = evaluate(["ridge", "zero"], task("linear", "smoke", episodes=16), extrapolate=20)
    >>> extrapolation(scores).to_dict()["title"]["text"]
    'linear: up to 20 examples'
    """
    return _chart(
        extrapolation_section.section(_slice(_of_metric(_rows(values), metric), task, preset)),
        "rows with more examples than in training (extrapolate=N)",
    )


def shifts(
    values: pd.DataFrame, task: str | None = None, preset: str | None = None, metric: str | None = None
) -> alt.Chart:
    """The same under shifts, a panel for each. Arguments as in `learning_curves`.

    >>> from iclbench.api.score import evaluate
    >>> from iclbench.api.tasks import task
    >>> scores = evaluate(["ridge", "zero"], task("linear", "smoke", episodes=16), shifts=["none", "orthants"])
    >>> shifts(scores).to_dict()["title"]["text"]
    'linear: shifted prompts'
    """
    return _chart(shifts_section.section(_slice(_of_metric(_rows(values), metric), task, preset)), "rows under a shift")


def probe(values: pd.DataFrame, task: str | None = None, preset: str | None = None) -> alt.Chart:
    """What linear probes read off every layer: of `iclbench probe`, from `open_results(...).values()`. Arguments as in
    `learning_curves`."""
    return _chart(probing_section.section(_slice(_rows(values), task, preset)), "rows of a probe")


def heat_map(values: pd.DataFrame) -> alt.Chart:
    """Every task against every backbone: one normalised score each.

    Raises:
        UsageError: there are no scores; they need the baseline zero among the contestants.

    >>> from iclbench.api.architectures import GPT2
    >>> from iclbench.api.score import evaluate
    >>> from iclbench.api.tasks import task
    >>> small = task("linear", "smoke", episodes=16)
    >>> heat_map(evaluate([GPT2(small), "ridge", "zero"], small)).to_dict()["title"]["text"]
    'smoke: scores by family and model'
    """
    results = _read(_rows(values))
    return _chart(
        heat_map_section.section(results),
        "scores of a backbone (evaluate it with the baselines zero, for events poisson, and another one)",
        [
            "Score 0: as good as always predicting zero, or guessing; of events a Poisson process, of images the mean.",
            "1: as the oracle or the best baseline.",
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
    """All contestants of one task by one number, best first, with 95 % intervals.

    Args:
        values: rows of the table `values`.
        task, preset: which, where there are several.
        shift: the distribution that they are asked on.
        evaluator: the question, or a test that the family has of its own; None: the question of the task.
        metric: what they are ranked by; None: the area under the learning curve, and of targets the log-likelihood, the
            squared error or the accuracy, the first of these that was measured.

    Raises:
        UsageError: there is nothing to draw, or it is not said of which task.

    >>> from iclbench.api.score import evaluate
    >>> from iclbench.api.tasks import task
    >>> board = leaderboard(evaluate(["ridge", "zero"], task("linear", "smoke", episodes=16)))
    >>> type(board).__name__
    'LayerChart'
    """
    slice_ = _slice(_rows(values), task, preset)
    v = slice_.rows
    rows = v[v["axis"].isna() & v["n_context"].isna() & v["status"].eq("ok") & v["kind"].ne("published")]
    rows = rows[~rows["evaluator"].isin(["train", *INSIDE])]
    picked, title = {}, f"{slice_.title}"
    for column, asked, preferred in (
        ("evaluator", evaluator, [*QUESTIONS, *in_order(rows["evaluator"])]),
        ("shift", shift, []),
        ("metric", metric, scores.HEADLINES),
    ):
        picked[column] = _picked(rows, column, asked, preferred)
        rows = rows[rows[column].eq(picked[column])]
    compared = scores.leaderboard(slice_, picked["evaluator"], picked["shift"], picked["metric"], partial=True)
    means = compared[compared["metric"].eq(picked["metric"]) & compared["failed_seeds"].eq(0)]
    means = means.sort_values("n_related").drop_duplicates("contestant", keep="last")
    if means.empty:
        raise UsageError(f"nothing to rank: everybody failed on task '{slice_.task}'")
    title += "" if picked["evaluator"] in QUESTIONS else f" · {meaning(picked['evaluator']).title}"
    title += "" if picked["shift"] == "none" else f" · shift {picked['shift']}"
    return board.chart(means, known_metric(picked["metric"]), slice_.looks, title)


def _picked(rows: pd.DataFrame, column: str, asked: str | None, preferred: Sequence[str]) -> str:
    """The value of a column that was asked for, in either spelling, or the first of the preferred ones that occurs.

    Raises:
        UsageError: there are no rows, or none of this value.
    """
    known = {canonical(name): name for name in map(str, rows[column].unique())}
    if not known:
        raise UsageError("nothing to rank: there are no finished rows of one number per contestant")
    if asked is None:
        return next((name for name in preferred if name in known.values()), next(iter(known.values())))
    if (name := known.get(canonical(arguments.text(column, asked)))) is None:
        raise UnknownNameError(column, asked, known.values())
    return name


def _rows(values: Any) -> pd.DataFrame:
    """The rows that a chart was given, each of them once.

    Raises:
        UsageError: they are none of the table `values`.
    """
    advice = "give rows as icl.evaluate(...) or icl.open_results(...).values() have them"
    if not isinstance(values, pd.DataFrame):
        raise UsageError(f"values: expected a frame, got {arguments.shown(values)}; {advice}")
    if values.empty:
        return tables.frame("values", [])
    try:
        rows = tables.validate("values", values.drop_duplicates(), np.arange(len(values.drop_duplicates())))
    except tables.TableError as error:
        raise UsageError(f"{error}; {advice}, with all their columns") from None
    twice = rows.duplicated(tables.keys("values"))
    # Who was evaluated twice among different others has two scores; the first of them counts.
    if len(others := rows[twice & ~rows["metric"].isin(tables.COMPARING)]):
        name = others["run"].iloc[0]
        raise UsageError(f"two are called '{name}': name them apart, icl.evaluate({{'one': model, ...}}, task)")
    return _runs_apart(rows[~twice])


def _runs_apart(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with a name of its own for every run: models of several calls of `evaluate` may share one."""
    keys = ["task", "preset", "run"]
    trained = rows[rows["variant"].notna()].drop_duplicates([*keys, "variant", "seed"])
    shared = pd.MultiIndex.from_frame(trained.loc[trained.duplicated(keys), keys])
    of_them = rows["variant"].notna() & pd.MultiIndex.from_frame(rows[keys]).isin(shared)
    own = rows["run"] + "-" + rows["variant"].str[:4] + ("-s" + rows["seed"].astype("string")).fillna("")
    return rows.assign(run=rows["run"].mask(of_them, own))


def _read(rows: pd.DataFrame, task: str | None = None) -> Results:
    """What a report can say of the rows; of those that it leaves out, which are not on the prompts of the others, there
    is a warning."""
    found = of_values(rows)
    for line in found.set_aside:
        if task is None or line.startswith(f"{task} "):
            warnings.warn(f"not in the chart: {line}", stacklevel=_CALLER)
    return found


def _of_metric(values: pd.DataFrame, metric: str | None) -> pd.DataFrame:
    """The rows of one metric; the training's own stay."""
    measured = values.loc[values["n_context"].notna(), "metric"].unique()
    if metric is None:
        metric = next((name for name in ("nll", "squared_error", "log_likelihood") if name in measured), None)
    elif arguments.text("metric", metric) not in measured:
        raise UnknownNameError("metric", metric, map(str, measured))
    return values if metric is None else values[values["metric"].eq(metric) | values["n_context"].isna()]


def _slice(rows: pd.DataFrame, task: str | None, preset: str | None) -> Slice:
    """The rows of one task; raises `UsageError` where it is not said which, or there is none."""
    task = None if task is None else canonical(arguments.text("task", task))
    preset = None if preset is None else canonical(arguments.text("preset", preset))
    found = _read(rows, task).slices
    for kind, asked in (("task", task), ("preset", preset)):
        if asked is not None:
            known = {str(getattr(each, kind)) for each in found}
            if asked not in known:
                raise UnknownNameError(kind, asked, known)
            found = [each for each in found if getattr(each, kind) == asked]
    if len(found) != 1:
        each = ", ".join(one.title for one in found) or "none"
        raise UsageError(f"say which with task= and preset=, or give the rows of one trained length; there are: {each}")
    return found[0]


def _chart(section: Section | None, what: str, reading: Sequence[str] = ()) -> alt.Chart:
    """The figures of a section, one below the other, with lines on how to read them."""
    figures = [] if section is None else list(_figures(section))
    if not figures:
        raise UsageError(f"nothing to draw: there are no finished {what}")
    titles = [{"text": figure.title} | ({"subtitle": list(reading)} if reading else {}) for figure in figures]
    drawn = [figure.printed() | {"title": title} for figure, title in zip(figures, titles, strict=True)]
    if len(drawn) == 1:
        return alt.Chart.from_dict(drawn[0])
    whole = {key: drawn[0][key] for key in _OF_THE_WHOLE if key in drawn[0]}
    whole["resolve"] = {"scale": dict.fromkeys(("color", "strokeDash"), "independent")}
    parts = [{key: part for key, part in each.items() if key not in _OF_THE_WHOLE} for each in drawn]
    return alt.Chart.from_dict({**whole, "vconcat": parts})


def _figures(section: Section) -> Iterator[Figure]:
    return (block for block in section.walk() if isinstance(block, Figure))
