"""Scores, ranks and significant differences of all contestants: the frame that leaderboards and charts read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pandas as pd

from iclbench import tables
from iclbench.analysis.comparable import drop_other_prompt_sets, drop_other_scales, name_variants
from iclbench.analysis.episode_scores import EpisodeScores
from iclbench.analysis.pairs import Difference, difference, ranks, score_difference
from iclbench.analysis.slices import Results, Slice
from iclbench.analysis.target_scores import main_counts, over_all_episodes
from iclbench.core.formats import integer, signed, text
from iclbench.core.metrics import BASELINES_GIVEN_TRUTH, curve_metric, metric
from iclbench.tables.evaluators import DIAGNOSTICS, MAIN_ACCURACY
from iclbench.tables.means import means_over_seeds
from iclbench.tables.runs import are_tuned

# If some contestants lack the chosen metric, a leaderboard uses the first of these metrics that was measured.
FALLBACK_METRICS = ("auc", "log_likelihood", "squared_error", MAIN_ACCURACY, "accuracy")


@dataclass(frozen=True)
class Column:
    """A column of `scores`, and how leaderboards show it.

    Attributes:
        dtype: pandas' type.
        title: heading in leaderboards; leaderboards do not show a column without a title.
        show: formats a value.
        help: meaning of the column, for the caption of a leaderboard; empty if the title is clear.
        interval: whether the columns `NAME_low` and `NAME_high` are the ends of an interval.
        on_terminal: whether `iclbench eval` prints the column too.
    """

    dtype: str
    title: str = ""
    show: Callable[[Any], str] = text
    help: str = ""
    interval: bool = False
    on_terminal: bool = False


# The columns are in the order of leaderboards. Instead of `value`, a leaderboard has a column named after its metric.
# It omits empty columns.
COLUMNS = {
    "task": Column("string"),
    "preset": Column("string"),
    "length": Column("Int64"),
    "evaluator": Column("string"),
    "shift": Column("string"),
    "contestant": Column("string", "contestant"),
    "n_related": Column("Int64", "related datasets", integer),
    "rank": Column("Int64", "rank", integer, "equal ranks are not significantly different"),
    "kind": Column("string", "kind"),
    "seeds": Column("Int64", "seeds", integer),
    "tuned": Column("boolean", "tuned", help="trained at the tuned learning rate", on_terminal=True),
    "metric": Column("string"),
    "value": Column("Float64"),
    "low": Column("Float64"),
    "high": Column("Float64"),
    "n_episodes": Column("Int64"),
    "behind": Column(
        "Float64",
        "behind the row above",
        signed,
        "mean paired difference, positive if worse",
        interval=True,
    ),
    "behind_low": Column("Float64"),
    "behind_high": Column("Float64"),
    "different": Column("boolean"),
    "failed_seeds": Column("Int64"),
    "reason": Column("string", "failed", help="no value if any seed failed"),
}
_TYPES = {name: column.dtype for name, column in COLUMNS.items()}
# The columns that identify a row of a leaderboard.
_KEYS = ["contestant", "n_related"]
# The columns of `metric_columns` are named after the metric and have these suffixes.
_SUFFIXES = {"value": "", "low": "_low", "high": "_high", "n_episodes": "_episodes"}


def scores(values: pd.DataFrame, errors: pd.DataFrame | None = None, by: str = "score") -> pd.DataFrame:
    """Scores, ranks and differences of all contestants, as a frame that holds all leaderboards.

    Args:
        values: rows of the table `values`.
        errors: rows of the table `errors`, the scores of single episodes. Without them, differences are missing and no
            rank is shared.
        by: the metric of the leaderboards. If a contestant of a leaderboard lacks this metric, the leaderboard uses the
            first of `FALLBACK_METRICS` that was measured.

    Returns:
        Leaderboards, best contestant first; one for each task, preset, training length (`length`, missing if all runs
        have the same length), evaluator and shift. For the question `targets`, a contestant has a row for each number
        of related datasets in `target_scores.main_counts`. Columns, in the order and with the meaning of `COLUMNS`:

        - contestant, kind, n_related, metric: contestants without the leaderboard's metric come last and show the
          first of `FALLBACK_METRICS` that they have;
        - value, low, high, n_episodes: mean over seeds and 95 % interval over episodes; the interval over several
          seeds is the envelope of their intervals;
        - seeds: the number of trained runs; missing for classical methods;
        - different: whether the interval of `behind` excludes 0. Normalised scores are compared in the metric from
          which they are computed;
        - failed_seeds, reason: the number of runs that failed or diverged, and the reasons.

    Raises:
        TableError: `values` does not match the schema of the table.
    """
    rows, _ = comparable_rows(tables.validate("values", values))
    episodes = EpisodeScores(() if errors is None else (errors,), set(rows["prompt_set"].dropna()))
    slices = Results(rows, episodes, tables.frame("costs", [])).slices
    boards = [leaderboard(task, *question, by) for task in slices for question in _questions(task)]
    return pd.concat(boards, ignore_index=True) if boards else _frame(pd.DataFrame())


def comparable_rows(values: pd.DataFrame) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """The comparable rows, in which each variant of a backbone is a contestant, and one line of text for each group of
    removed rows."""
    rows, other_prompts = drop_other_prompt_sets(name_variants(values))
    rows, other_scales = drop_other_scales(rows)
    return rows, (*other_prompts, *other_scales)


def leaderboard(
    task: Slice, evaluator: str, shift: str = "none", by: str = "score", partial: bool = False
) -> pd.DataFrame:
    """The rows of `scores` for one question under one shift.

    Args:
        task: the results of one task at one preset.
        evaluator: the question or test.
        shift: the shift of the prompts.
        by: the metric, as in `scores`.
        partial: whether to use the metric even if some contestants lack it.
    """
    means = _means(task, evaluator, shift)
    frame = _best_first(means, by if partial else _shared_metric(means, by))
    frame = pd.concat([frame, _failures(task, evaluator, shift, set(frame["contestant"]))], ignore_index=True)
    failed_seeds = _failed_rows(task, evaluator, shift).groupby("contestant")["run"].nunique()
    return _frame(
        frame.assign(
            task=task.task,
            preset=task.preset,
            length=task.length,
            evaluator=evaluator,
            shift=shift,
            seeds=frame["runs"].where(frame["kind"].eq("backbone")),
            tuned=frame["contestant"].map(are_tuned(task.rows, "contestant")),
            failed_seeds=frame["contestant"].map(failed_seeds).fillna(0),
            **_differences(task, evaluator, shift, frame),
        )
    )


def metric_columns(
    task: Slice,
    evaluator: str,
    metrics: Iterable[str],
    shift: str = "none",
    fields: Sequence[str] = ("value", "low", "high"),
) -> pd.DataFrame:
    """Several metrics of the contestants of a leaderboard.

    Args:
        task, evaluator, shift: as in `leaderboard`.
        metrics: the metrics.
        fields: the columns of `scores` to return for each metric: `value`, `low`, `high` and `n_episodes`.

    Returns:
        A frame with the columns contestant and n_related, which identify a row of the leaderboard, and for each metric
        the columns `METRIC`, `METRIC_low`, `METRIC_high` and `METRIC_episodes`.
    """
    means = _means(task, evaluator, shift)
    frame = means[_KEYS].drop_duplicates()
    for name in metrics:
        names = {field: name + _SUFFIXES[field] for field in fields}
        rows = means.loc[means["metric"].eq(name), [*_KEYS, *fields]]
        frame = frame.merge(rows.rename(columns=names), "left", _KEYS)
    return frame


def run_leaderboard(
    values: pd.DataFrame, evaluator: str, by: str = "score", metrics: Iterable[str] = ()
) -> pd.DataFrame:
    """The leaderboard of single runs on one prompt set, without averaging over seeds, and the `metric_columns` of these
    runs."""
    task, shift = slice_of_runs(values), str(values["shift"].iloc[0])
    return leaderboard(task, evaluator, shift, by).merge(metric_columns(task, evaluator, metrics, shift), "left", _KEYS)


def slice_of_runs(values: pd.DataFrame) -> Slice:
    """The results of one task at one preset, in which each run is a contestant."""
    rows = values.assign(contestant=values["run"])
    results = Results(rows, EpisodeScores((), set()), tables.frame("costs", []))
    return Slice(results, str(rows["task"].iloc[0]), str(rows["preset"].iloc[0]))


def displayed_columns(frame: pd.DataFrame) -> pd.DataFrame:
    """The columns of a leaderboard that have a title, and the ends of their intervals. The values of the column `tuned`
    become "yes" and "no", or missing if they are the same for all contestants."""
    ends = [f"{name}_{end}" for name, column in COLUMNS.items() if column.interval for end in ("low", "high")]
    frame = frame[[name for name in COLUMNS if name in frame and (COLUMNS[name].title or name in ends)]]
    words = frame["tuned"].map({True: "yes", False: "no"}).astype("string")
    return frame.assign(tuned=words if {"yes", "no"} <= set(words) else words.mask(words.notna()))


def metric_of_curves(task: Slice, evaluator: str, shift: str = "none") -> str:
    """The metric of the learning curves whose areas are compared."""
    curves = task.curves[task.curves["shift"].eq(shift) & task.curves["evaluator"].eq(evaluator)]
    measured_metrics = curves["metric"].unique()
    name = curve_metric(measured_metrics)
    return name if name in measured_metrics else next(iter(measured_metrics), name)


def _questions(task: Slice) -> list[tuple[str, str]]:
    """The pairs of evaluator and shift that have a leaderboard. Published results, training, diagnostics and rows with
    a further coordinate (`axis`) are not in leaderboards."""
    rows = task.rows
    rows = rows[rows["kind"].ne("published") & rows["axis"].isna() & ~rows["evaluator"].isin(["train", *DIAGNOSTICS])]
    questions = rows[["evaluator", "shift"]].drop_duplicates().sort_values(["evaluator", "shift"])
    return [(str(evaluator), str(shift)) for evaluator, shift in questions.itertuples(index=False)]


def _means(task: Slice, evaluator: str, shift: str) -> pd.DataFrame:
    """Means over seeds, a row per contestant, number of related datasets and metric."""
    if evaluator == "targets":
        rows = over_all_episodes(task.targets)
        rows = rows[rows["shift"].eq(shift)]
        return rows[rows["n_related"].isin(main_counts(rows))]
    rows = _question_rows(task, evaluator, shift)
    keys = ["evaluator", "metric", "shift", "kind", "contestant", "n_related"]
    return task.without_failed(means_over_seeds(rows[rows["n_context"].isna()], keys))


def _question_rows(task: Slice, evaluator: str, shift: str) -> pd.DataFrame:
    rows = task.rows
    is_question = rows["evaluator"].eq(evaluator) & rows["shift"].eq(shift) & rows["kind"].ne("published")
    return rows[is_question & rows["axis"].isna() & rows["status"].eq("ok")]


def _shared_metric(means: pd.DataFrame, by: str) -> str:
    """The metric `by` if all contestants have it; otherwise the first of `FALLBACK_METRICS` that was measured."""
    if means["metric"].eq(by).sum() == len(means[_KEYS].drop_duplicates()):
        return by
    measured_metrics = set(means["metric"])
    return next((name for name in FALLBACK_METRICS if name in measured_metrics), min(measured_metrics, default=by))


def _best_first(means: pd.DataFrame, wanted_metric: str) -> pd.DataFrame:
    """A row per contestant and number of related datasets, the best first, with the wanted metric or, if missing, the
    first of `FALLBACK_METRICS` that the contestant has."""
    order = [wanted_metric, *(name for name in FALLBACK_METRICS if name != wanted_metric)]
    rows = means[means["metric"].isin(order)]
    wide = rows.pivot_table("value", _KEYS, "metric", dropna=False).reindex(columns=order)
    wide = wide.dropna(how="all").reset_index()
    wide = wide.sort_values(
        [*order, *_KEYS],
        ascending=[*(metric(name).lower_is_better for name in order), True, True],
    )
    priority = rows["metric"].map({name: priority for priority, name in enumerate(order)})
    best_metric = rows.assign(priority=priority).sort_values("priority").drop_duplicates(_KEYS).drop(columns="priority")
    return wide[_KEYS].merge(best_metric, "left", _KEYS)


def _failed_rows(task: Slice, evaluator: str, shift: str) -> pd.DataFrame:
    """Rows of failed evaluations and of training runs that diverged."""
    rows = task.failed_rows[task.failed_rows["shift"].eq(shift) & task.failed_rows["evaluator"].eq(evaluator)]
    return pd.concat([rows, task.diverged_rows])


def _failures(task: Slice, evaluator: str, shift: str, ranked: set[str]) -> pd.DataFrame:
    """A row with the reason for every failed contestant that is not ranked."""
    rows = _failed_rows(task, evaluator, shift)
    rows = rows[~rows["contestant"].isin(ranked)]
    return rows.groupby("contestant", as_index=False).agg(
        kind=("kind", "first"), reason=("reason", lambda reasons: "; ".join(dict.fromkeys(reasons)))
    )


def _differences(task: Slice, evaluator: str, shift: str, frame: pd.DataFrame) -> dict[str, pd.Series]:
    """The columns rank, behind, behind_low, behind_high and different."""
    shared_metric = frame["metric"].iloc[0] if len(frame) else ""
    has_shared_metric = frame["metric"].eq(shared_metric)
    compared_rows = frame[has_shared_metric]
    row_keys = [f"{name} {n}" for name, n in zip(compared_rows["contestant"], compared_rows["n_related"], strict=True)]
    episodes, worse_by = _paired_scores(task, evaluator, shift, str(shared_metric), compared_rows, row_keys)
    is_ranked = compared_rows["kind"].ne("oracle") & ~compared_rows["contestant"].isin(BASELINES_GIVEN_TRUTH)
    ranked_keys = [key for key, ranked in zip(row_keys, is_ranked, strict=True) if ranked]
    ranks_by_key = ranks(ranked_keys, episodes, worse_by)
    gaps: list[Difference | None] = [None] * min(1, len(row_keys))
    for upper, lower in pairwise(row_keys):
        better, worse = episodes.get(upper), episodes.get(lower)
        gaps.append(worse_by(worse, better) if better is not None and worse is not None else None)
    columns = {
        "rank": [ranks_by_key.get(key) for key in row_keys],
        "behind": [gap and gap.value for gap in gaps],
        "behind_low": [gap and gap.low for gap in gaps],
        "behind_high": [gap and gap.high for gap in gaps],
        "different": [gap and gap.is_significant for gap in gaps],
    }
    return {
        name: pd.Series(column, index=compared_rows.index, dtype=_TYPES[name]).reindex(frame.index)
        for name, column in columns.items()
    }


def _paired_scores(
    task: Slice, evaluator: str, shift: str, shared_metric: str, rows: pd.DataFrame, row_keys: Sequence[str]
) -> tuple[dict[str, Any], Any]:
    """The scores of single episodes by row key, and a function for the paired difference of two rows, which is positive
    if the first row is worse."""
    answers = _question_rows(task, evaluator, shift)
    answers = answers[answers["prompt_set"].notna()]
    runs = {
        str(contestant): sorted(contestant_rows["run"].unique())
        for contestant, contestant_rows in answers.groupby("contestant")
    }
    prompt_sets = answers.drop_duplicates("contestant").set_index("contestant")["prompt_set"].to_dict()
    requested_rows = list(zip(row_keys, rows["contestant"], rows["n_related"], strict=True))
    requested_rows = [(key, contestant, n) for key, contestant, n in requested_rows if contestant in runs]
    errors = task.results.errors
    if evaluator == "next":
        metric_name = metric_of_curves(task, evaluator, shift)
        compared_rows = requested_rows if shared_metric in ("score", "auc") else []
        curves = {
            key: errors.curves(runs[contestant], prompt_sets[contestant], metric_name)
            for key, contestant, _ in compared_rows
        }
        return curves, difference
    score_metrics = answers.loc[answers["metric"].eq("score"), "score_of"].dropna()
    metric_name = str(next(iter(score_metrics), shared_metric)) if shared_metric == "score" else shared_metric
    episode_scores = {
        key: errors.targets(runs[contestant], prompt_sets[contestant], metric_name, 0 if pd.isna(n) else int(n))
        for key, contestant, n in requested_rows
    }
    if metric(metric_name).lower_is_better:
        return episode_scores, score_difference
    return episode_scores, lambda worse, better: score_difference(better, worse)


def _frame(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.reindex(columns=list(_TYPES)).astype(_TYPES)
