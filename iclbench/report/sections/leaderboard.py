"""Leaderboard: area under the learning curve with ranks, errors at a few context sizes, score and costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pandas as pd

from iclbench.analysis import normalised, oracles
from iclbench.analysis.normalised import Contest
from iclbench.analysis.scores import COLUMNS, displayed_columns, leaderboard, metric_columns, metric_of_curves
from iclbench.core.formats import fixed, integer, number, slug
from iclbench.core.metrics import GUESSING_BASELINES, metric
from iclbench.report.blocks import Block, Column, Section, Table, Text
from iclbench.report.cost_table import rows_of_one_machine
from iclbench.report.data import Slice
from iclbench.tables.means import means_over_seeds

# Largest number of baselines in the table for a paper.
PAPER_BASELINES = 3
# Column -> phase and metric of the cost, and the header of the column.
COST_COLUMNS = {
    "parameters": ("model", "parameters", "parameters"),
    "train_seconds": ("train", "seconds", "training"),
    "evaluate_seconds": ("evaluate", "seconds", "evaluation"),
    "evaluate_bytes": ("evaluate", "bytes", "peak memory"),
}


def section(task: Slice) -> Section | None:
    summaries = task.summaries[task.summaries["shift"] == "none"]
    boards = [
        leaderboard_table(task, str(evaluator), rows)
        for evaluator, rows in summaries.groupby("evaluator")
        if (rows["metric"] == "auc").any()
    ]
    blocks: tuple[Block, ...] = (*boards, *paper_tables(task), *remarks(task, "next"))
    return (
        Section(
            f"{task.id}-leaderboard",
            "Leaderboard",
            blocks,
            rules=("Score", "Intervals", "Behind", "Rank in a leaderboard"),
        )
        if boards
        else None
    )


def paper_tables(task: Slice) -> Iterator[Table]:
    """A short table of scores for a paper, if the task has scores: models, oracles and the best baselines."""
    contests = [c for c in normalised.contests(task.results, task.preset) if c.task.id == task.id]
    if not contests:
        return
    # If the user selected contestants, the table contains all of them.
    max_baselines = PAPER_BASELINES if task.results.hidden_rows.empty else None
    frame = pd.concat([_paper_rows(contest, max_baselines) for contest in contests], ignore_index=True)
    question = [Column("row", "question")] * (len(contests) > 1)
    counts = frame["seeds"].dropna()
    unit = "seed" if counts.eq(1).all() else "seeds"
    seeds = f", n = {_range_text(counts)} {unit} per model" if len(counts) else ""
    references = "; ".join(dict.fromkeys(contest.reference for contest in contests))
    yield Table(
        name=f"{task.id}-paper",
        title="Table for a paper",
        caption=f"Scores on {task.task}, preset {task.preset}: 0 is as good as guessing, 1 as good as {references}. "
        "Means over seeds, with intervals that span the 95 % intervals over prompts of all seeds "
        f"(n = {_range_text(frame['n_episodes'])} prompts{seeds}).",
        frame=frame,
        columns=(
            Column("contestant", "model"),
            *question,
            Column("seeds", "seeds", integer, numeric=True),
            Column("score", "score", fixed, True, "low", "high"),
        ),
        group="row",
        linked=True,
    )


def _paper_rows(contest: Contest, max_baselines: int | None) -> pd.DataFrame:
    """The scores of all models and oracles and of the `max_baselines` best baselines that do not guess, best first.

    If `max_baselines` is None, the rows are the scores of all contestants.
    """
    scores = contest.scores.sort_values(["score", "contestant"], ascending=[False, True])
    if max_baselines is not None:
        scores = scores[~scores["contestant"].isin(GUESSING_BASELINES)]
        is_baseline = scores["kind"].eq("baseline").astype(int)
        scores = scores[is_baseline.eq(0) | is_baseline.cumsum().le(max_baselines)]
    seeds = scores["runs"].where(scores["kind"].eq("backbone")).astype("Int64")
    return scores.assign(seeds=seeds)[
        ["row", "contestant", "kind", "run", "seeds", "score", "low", "high", "n_episodes"]
    ]


def _range_text(counts: pd.Series) -> str:
    """The smallest and the largest of the counts as text.

    >>> _range_text(pd.Series([3, None, 2])), _range_text(pd.Series([256, 256]))
    ('2 to 3', '256')
    """
    ends = [integer(n) for n in (counts.min(), counts.max()) if pd.notna(n)]
    return " to ".join(dict.fromkeys(ends))


def remarks(task: Slice, evaluator: str) -> Iterator[Text]:
    """Remarks on a leaderboard: models that were trained on another task, and oracles that are not optimal."""
    trained_on = task.results.other_training_tasks
    if lines := tuple(f"{name}: trained on {trained_on[name]}" for name in sorted(task.kinds) if name in trained_on):
        yield Text("Trained on another task (not in the ranking or the heat map):", lines)
    yield from beaten_oracles(task, evaluator)


def beaten_oracles(task: Slice, evaluator: str) -> Iterator[Text]:
    """A remark that lists the oracles that are not optimal on the training distribution, if there are any."""
    rows = task.without_failed(task.rows[task.rows["shift"].eq("none") & task.rows["evaluator"].eq(evaluator)])
    rows = rows[rows["kind"].ne("published")]
    if lines := tuple(oracle.line for oracle in oracles.beaten_oracles(rows, task.results.errors)):
        yield Text("Oracles that are not optimal on these prompts:", lines)


def leaderboard_table(task: Slice, evaluator: str, summaries: pd.DataFrame) -> Table:
    """The leaderboard of one question: a row per contestant, sorted by area under the learning curve."""
    curves = task.curves[(task.curves["shift"] == "none") & (task.curves["evaluator"] == evaluator)]
    name = metric_of_curves(task, evaluator)
    run_names = summaries.loc[summaries["metric"].eq("auc"), ["contestant", "run"]]
    frame = displayed_columns(leaderboard(task, evaluator, by="auc")).merge(run_names, "left", "contestant")
    # Event sequences have accuracies of their marks, which are not listed.
    metrics = ("auc", "score", *(["accuracy"] if name == "cross_entropy" else []))
    frame = frame.merge(metric_columns(task, evaluator, metrics), "left", ["contestant", "n_related"])
    frame, sizes = _with_errors(frame, curves[curves["metric"] == name])
    frame = with_costs(task, frame)
    columns = shown_columns(
        frame,
        Column("auc", "area under curve", fixed, True, "auc_low", "auc_high"),
        *(Column(f"n{n}", f"n = {n}", number, numeric=True) for n in sizes),
        Column("score", "score", fixed, True, "score_low", "score_high"),
        *(
            [Column("accuracy", "accuracy", fixed, True, "accuracy_low", "accuracy_high")]
            if "accuracy" in frame
            else []
        ),
        *map(cost_column, COST_COLUMNS),
    )
    reason = task.undefined_score(evaluator)
    no_score = "" if reason is None else f" No scores: {reason}."
    return Table(
        name=f"{task.id}-{slug('leaderboard', evaluator)}",
        title=f"{task.task}: leaderboard",
        caption=f"Models and baselines by area under the learning curve ({metric(name).label}, lower is better), with "
        f"95 % intervals over episodes.{column_meanings(columns)}{no_score}",
        frame=frame,
        columns=columns,
        group="rank",
    )


def shown_columns(frame: pd.DataFrame, value: Column, *extra_columns: Column) -> tuple[Column, ...]:
    """The columns of a leaderboard that are not empty: those of `analysis.scores`, and `extra_columns` before the
    reason for a failure. `value` replaces the column "value"."""
    score_columns = {name: _score_column(name) for name, column in COLUMNS.items() if column.title or name == "value"}
    reason = score_columns.pop("reason")
    columns = (*(score_columns | {"value": value}).values(), *extra_columns, reason)
    return tuple(c for c in columns if c.key in ("contestant", value.key) or frame[c.key].notna().any())


def _score_column(name: str) -> Column:
    """A column of `analysis.scores` as a column of the report."""
    column = COLUMNS[name]
    ends = (f"{name}_low", f"{name}_high") if column.interval else (None, None)
    return Column(name, column.title, column.show, column.dtype in ("Int64", "Float64"), *ends)


def column_meanings(columns: Iterable[Column]) -> str:
    """A sentence on the meaning of the columns of `analysis.scores`, with a leading space."""
    header_meanings = ((column.header, COLUMNS[column.key].help) for column in columns if column.key in COLUMNS)
    sentence = "; ".join(f"{header}: {text}" for header, text in header_meanings if text)
    return f" {sentence[0].upper()}{sentence[1:]}." if sentence else ""


def _with_errors(frame: pd.DataFrame, curves: pd.DataFrame) -> tuple[pd.DataFrame, list[int]]:
    """The frame with the errors after k examples in columns `n<k>`, and the values of k: up to three of the context
    sizes for which the most ranked contestants have errors."""
    ranked_contestants = set(frame.loc[frame["auc"].notna(), "contestant"])
    counts = curves[curves["contestant"].isin(ranked_contestants)].groupby("n_context")["contestant"].nunique()
    common = sorted(int(n) for n in counts[counts == counts.max()].index if n > 0)
    largest = common[-1] if common else 0
    sizes = sorted({min(common, key=lambda n: abs(n - largest * share)) for share in (0.25, 0.5, 1) if common})
    wide = curves[curves["n_context"].isin(sizes)].pivot_table("value", index="contestant", columns="n_context")
    wide = wide.rename(columns={n: f"n{n}" for n in sizes}).reset_index()
    return frame.merge(wide, "left", "contestant"), sizes


def cost_column(key: str) -> Column:
    """The column of one of `COST_COLUMNS`, in the format of its metric."""
    _, cost, header = COST_COLUMNS[key]
    return Column(key, header, metric(cost).show, numeric=True)


def with_costs(task: Slice, frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with the columns of `COST_COLUMNS`: means over runs.

    The cost of an evaluation is taken at the smallest number of points. Costs that depend on the machine are taken from
    the machine with the most runs.
    """
    costs = task.costs
    for key, (phase, name, _) in COST_COLUMNS.items():
        rows = costs[(costs["phase"] == phase) & (costs["metric"] == name)]
        if rows.empty:
            frame = frame.assign(**{key: pd.Series(pd.NA, index=frame.index, dtype="Float64")})
            continue
        if metric(name).depends_on_machine:
            rows = rows_of_one_machine(rows)
        smallest = rows.groupby("contestant")["n_points"].transform("min")
        rows = rows[smallest.isna() | (rows["n_points"] == smallest).fillna(False).astype(bool)]
        mean = means_over_seeds(rows, ["contestant"]).rename(columns={"value": key})
        frame = frame.merge(mean[["contestant", key]], "left", "contestant")
    return frame
