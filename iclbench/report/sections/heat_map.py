"""Heat map: scores of all models and of the best baselines on all task families."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pandas as pd

from iclbench.analysis import normalised, slices
from iclbench.analysis.normalised import Contest
from iclbench.analysis.pairs import mean_ranks
from iclbench.analysis.separation import MIN_RATIO
from iclbench.core.formats import fixed, integer, one_decimal, plural, slug, two_decimals
from iclbench.core.metrics import BASELINES_GIVEN_TRUTH, GUESSING_BASELINES, metric
from iclbench.registry import needs_missing_inputs
from iclbench.report.blocks import Block, Column, Section, Table, Text
from iclbench.report.data import Results
from iclbench.report.figures import heat_map
from iclbench.report.sections.overview import shade

BEST_BASELINE = "best baseline"
# Statuses of cells without a score. If several apply to a cell, the first one is shown.
MISSING_STATUSES = ("diverged", "failed", "skipped")
NOT_DIFFERENT = "not significantly different from 0"
# Panels: models with results in all rows (see `split_backbones`), the other models (with only the rows in which they
# have results), and baselines.
_CORE, _FURTHER, _BASELINES = "models", "models on some tasks", "baselines"
# Missing results count in `split_backbones` only in rows that more than this share of the models have.
_MIN_SHARE = 1 / 3
# Number of columns for baselines in addition to the best baseline. Baselines with scores in the most rows are selected.
_MAX_BASELINES = 5
_INTRODUCTION = (
    "A score of 0 is as good as guessing; 1 is as good as the Bayes-optimal predictor or, where that is unknown, the "
    "best baseline. Scores are means over seeds; blue is better, orange is worse than guessing."
)


def section(results: Results) -> Section | None:
    blocks: list[Block] = []
    for preset in normalised.presets(results):
        contests = trained_contests(normalised.contests(results, preset))
        blocks += _preset_blocks(results, preset, contests) if contests else ()
    return (
        Section("heat-map", "Scores by family and model", (Text(_INTRODUCTION), *blocks), rules=("Heat map", "Score"))
        if blocks
        else None
    )


def trained_contests(contests: Sequence[Contest]) -> list[Contest]:
    """The contests, except those in which all evaluated backbones were trained on other tasks, such as contests on the
    user's tables."""
    return [contest for contest in contests if not _has_only_other_models(contest.task)]


def _has_only_other_models(task: slices.Slice) -> bool:
    backbones = task.rows[task.rows["kind"].eq("backbone")]
    return len(backbones) > 0 and bool(backbones["trained_on"].notna().all())


def main_scores(results: Results, contests: Sequence[Contest]) -> pd.DataFrame:
    """The scores of all contestants except variants of backbones, which are in the leaderboards of their tasks."""
    scores = normalised.all_scores(contests).assign(reason=None)
    return scores[~scores["contestant"].isin(results.variants)].reset_index(drop=True)


def _preset_blocks(results: Results, preset: str, contests: Sequence[Contest]) -> Iterator[Block]:
    scores = main_scores(results, contests)
    rows = [contest.title for contest in contests]
    core, others = split_backbones(results, contests, scores)
    backbones = [*core, *others]
    # If the user selected contestants, the best baseline may not be among them.
    best = [] if len(results.hidden_rows) else [BEST_BASELINE]
    baselines = [*best, *_frequent_baselines(scores)] if scores["kind"].eq("baseline").any() else []
    if BEST_BASELINE in baselines:
        scores = pd.concat([scores, best_baselines(scores)], ignore_index=True)
    panels = {_CORE: core, _FURTHER: others, _BASELINES: baselines}
    panels = {title: names for title, names in panels.items() if names}
    cells = pd.concat(
        [heat_map_cells(results, contests, scores, names).assign(panel=panel) for panel, names in panels.items()],
        ignore_index=True,
    )
    rows_with_runs = cells.loc[cells["panel"].eq(_FURTHER) & ~cells["status"].isin(["not run", "skipped"]), "row"]
    cells = cells[cells["panel"].ne(_FURTHER) | cells["row"].isin(rows_with_runs)].reset_index(drop=True)
    # The other panels have few results in most rows: their missing cells are blank, without a question mark.
    cells["status"] = cells["status"].mask(cells["panel"].ne(_CORE) & cells["status"].eq("not run"), "not asked")
    title = f"{preset}: scores by family and model"
    name = f"heat-map-{slug(preset)}"
    if backbones:
        words = {"skipped": "not applicable", "not asked": "not run"}
        marks = [
            f"{mark or 'blank'}: {words.get(status, status)}"
            for status, mark in heat_map.STATUS_MARKS.items()
            if status in set(cells["status"])
        ]
        yield heat_map.figure(
            name,
            title,
            f"Scores at preset {preset}, the model with the best mean rank first"
            + ("; the best baseline is chosen for each row. " if BEST_BASELINE in baselines else ". ")
            + (f"{'; '.join(marks)} (reasons in the tooltips). " if marks else "")
            + _not_different_text(cells),
            cells,
            rows,
            panels,
            results.user_backbones,
        )
    trained_backbones = _trained_backbones(results, contests)
    if variants := sorted(results.variants & trained_backbones):
        yield Text(f"Variants of models, which are in the leaderboards of their tasks: {', '.join(variants)}.")
    yield _score_table(contests, scores, [*backbones, *baselines], name, title)
    if (table := _separation_table(contests, name)) is not None:
        yield table
    if (table := _related_table(contests, name)) is not None:
        yield table


def _not_different_text(cells: pd.DataFrame) -> str:
    """A sentence with the number of scores that are not significantly different from 0; empty if the number is 0."""
    n = int(cells["reason"].eq(NOT_DIFFERENT).sum())
    return (
        f"{plural(n, 'score')} of models {'is' if n == 1 else 'are'} not significantly different from 0." if n else ""
    )


def _sparse_backbones(scores: pd.DataFrame) -> set[str]:
    """The backbones with scores in fewer than half of the rows."""
    rows = scores[scores["kind"] == "backbone"]
    counts = rows.groupby("contestant")["row"].nunique()
    return set(counts.index[counts < rows["row"].nunique() / 2])


def split_backbones(results: Results, contests: Sequence[Contest], scores: pd.DataFrame) -> tuple[list[str], list[str]]:
    """The backbones of the first panel and the other backbones, both in the order of `ordered_backbones`.

    The first panel has the backbones with the fewest missing results, among those with scores in at least half of the
    rows or in none. Failed and not applicable cells are not missing. Rows that few of these backbones have, as in an
    unfinished sweep, do not count.
    """
    backbones = ordered_backbones(results, contests, scores)
    sparse_backbones = _sparse_backbones(scores)
    frequent = [name for name in backbones if name not in sparse_backbones] or backbones
    cells = _cells_with_status(results, contests, scores, frequent)
    is_missing = cells["status"].eq("not run")
    is_missing &= is_missing.groupby(cells["row"]).transform("mean") < 1 - _MIN_SHARE
    counts = is_missing.groupby(cells["contestant"]).sum()
    scored = cells.loc[cells["score"].notna(), "contestant"]
    fewest = counts[counts.index.isin(scored)].min()  # NaN if none has a score
    core = [name for name in frequent if not counts[name] > fewest]
    return core, [name for name in backbones if name not in core]


def ordered_backbones(results: Results, contests: Sequence[Contest], scores: pd.DataFrame) -> list[str]:
    """The backbones by mean rank over the rows in which they have scores, the best first.

    Backbones without a score in most rows come after the others, and those that failed or diverged in all rows are
    last.
    """
    rows = scores[scores["kind"] == "backbone"]
    rank = mean_ranks(rows.pivot_table("score", "row", "contestant"))
    is_sparse = rank.index.isin(list(_sparse_backbones(scores)))
    order = pd.DataFrame({"is_sparse": is_sparse, "rank": rank}).rename_axis("contestant").reset_index()
    ranked_backbones = order.sort_values(["is_sparse", "rank", "contestant"])["contestant"].astype(str)
    failed = {name for (_, name), reasons in _reasons(results, contests).items() if reasons.keys() - {"skipped"}}
    return [
        *ranked_backbones,
        *sorted(failed & _trained_backbones(results, contests) - {*ranked_backbones} - results.variants),
    ]


def _trained_backbones(results: Results, contests: Sequence[Contest]) -> set[str]:
    """The backbones that were trained, or failed to train, on a task of the contests."""
    names: set[str] = set()
    for task in {id(contest.task): contest.task for contest in contests}.values():
        rows, cells = task.rows, results.cells
        names |= set(rows.loc[rows["kind"].eq("backbone") & rows["trained_on"].isna(), "contestant"].unique())
        in_training = cells["task"].eq(task.task) & cells["preset"].eq(task.preset) & cells["kind"].eq("train")
        names |= set(cells.loc[in_training, "contestant"].unique())
    return names


def _baseline_scores(scores: pd.DataFrame) -> pd.DataFrame:
    """The scores of baselines, except methods that guess and methods that are given the truth."""
    return scores[
        scores["kind"].eq("baseline") & ~scores["contestant"].isin(GUESSING_BASELINES | BASELINES_GIVEN_TRUTH)
    ]


def _frequent_baselines(scores: pd.DataFrame) -> list[str]:
    """The baselines with scores in the most rows, by mean score."""
    by_name = _baseline_scores(scores).groupby("contestant")["score"].agg(["size", "mean"]).reset_index()
    frequent = by_name.sort_values(["size", "mean"], ascending=False, kind="stable").head(_MAX_BASELINES)
    return [str(name) for name in frequent.sort_values("mean", ascending=False)["contestant"]]


def best_baselines(scores: pd.DataFrame) -> pd.DataFrame:
    """The score of the best baseline of each row, under the name `BEST_BASELINE`; `reason` is the name of the
    baseline."""
    sorted_scores = _baseline_scores(scores).sort_values(["score", "contestant"], ascending=[False, True])
    best = sorted_scores.drop_duplicates("row")
    return best.assign(reason=best["contestant"], contestant=BEST_BASELINE)


def heat_map_cells(
    results: Results, contests: Sequence[Contest], scores: pd.DataFrame, names: Sequence[str]
) -> pd.DataFrame:
    """A row per cell of the heat map, column by column, with its `status` and a `reason`.

    The reason says why a score or one of its runs is missing, which baseline is the best, or that the score is not
    significantly different from 0. It is empty for other cells.
    """
    by_title = {contest.title: contest for contest in contests}
    cells = _cells_with_status(results, contests, scores, names)
    includes_zero = cells["low"].le(0).fillna(False).astype(bool)
    candidates = cells["kind"].eq("backbone") & includes_zero & cells["reason"].eq("")
    not_different = [
        _not_different_from_guess(by_title[row], str(name), float(high))
        for row, name, high in cells.loc[candidates, ["row", "contestant", "high"]].itertuples(index=False)
    ]
    mask = pd.Series(not_different, cells.index[candidates], dtype=bool).reindex(cells.index, fill_value=False)
    return cells.assign(reason=cells["reason"].mask(mask, NOT_DIFFERENT))


def _cells_with_status(
    results: Results, contests: Sequence[Contest], scores: pd.DataFrame, names: Sequence[str]
) -> pd.DataFrame:
    """The cells of the heat map, without the reason of scores that are not significantly different from 0."""
    rows = [contest.title for contest in contests]
    by_title = {contest.title: contest for contest in contests}
    grid = pd.DataFrame([(row, name) for name in names for row in rows], columns=["row", "contestant"])
    cells = grid.merge(scores, "left", ["row", "contestant"])
    all_reasons = _reasons(results, contests)
    all_reasons |= _reasons_of_baselines(results, all_reasons)
    statuses, texts = [], []
    for row, name, score, baseline in zip(
        cells["row"], cells["contestant"], cells["score"], cells["reason"].astype(object), strict=True
    ):
        reasons = all_reasons.get((row, name), {})
        text = "; ".join(reason for status_reasons in reasons.values() for reason in status_reasons)
        missing_status = next((status for status in MISSING_STATUSES if status in reasons), "not run")
        if pd.isna(score) and not reasons and needs_missing_inputs(name, by_title[row].task.family):
            missing_status, text = "skipped", "the model needs inputs, and streams of tokens or vectors have none"
        statuses.append(missing_status if pd.isna(score) else "ok")
        texts.append(baseline if pd.notna(baseline) else text or ("not computed yet" if pd.isna(score) else ""))
    return cells.assign(status=statuses, reason=texts)


def _not_different_from_guess(contest: Contest, name: str, high: float) -> bool:
    """Whether a score with an interval that begins below 0 is not significantly different from the score of guessing.

    If the scores of single episodes are known, the comparison is paired by episode, which removes the variance due to
    the difficulty of episodes. Otherwise, `high`, the upper end of the interval, is compared with 0.
    """
    gap = None if contest.guessing_method is None else contest.difference(name, contest.guessing_method)
    return high >= 0 if gap is None else not gap.is_significant


def _reasons(results: Results, contests: Sequence[Contest]) -> dict[tuple[str, str], dict[str, list[str]]]:
    """The reasons for missing scores, by row and contestant and then by status."""
    reasons: dict[tuple[str, str], dict[str, list[str]]] = {}

    def add(row: str, name: object, status: object, reason: str) -> None:
        status_reasons = reasons.setdefault((row, str(name)), {}).setdefault(str(status), [])
        status_reasons += [reason] if reason not in status_reasons else []

    cells = results.cells
    cells = cells[cells["kind"].isin(["train", "evaluate"]) & cells["status"].ne("done")]
    columns = ["contestant", "status", "run", "reason"]
    for contest in contests:
        task = contest.task
        rows = task.rows
        rows = rows[rows["status"].ne("ok") & rows["shift"].eq("none") & rows["evaluator"].eq(contest.evaluator)]
        for name, status, run, reason in rows[columns].itertuples(index=False):
            add(contest.title, name, status, f"{run}: {reason}")
        for name, run, reason in task.diverged_rows[["contestant", "run", "reason"]].itertuples(index=False):
            add(contest.title, name, "diverged", f"{run}: {reason}")
        task_cells = cells[cells["task"].eq(task.task) & cells["preset"].eq(task.preset)]
        for name, status, run, reason in task_cells[columns].itertuples(index=False):
            add(contest.title, name, status, str(reason) if status == "skipped" else f"{run}: {reason}")
    return reasons


def _reasons_of_baselines(
    results: Results, all_reasons: dict[tuple[str, str], dict[str, list[str]]]
) -> dict[tuple[str, str], dict[str, list[str]]]:
    """The reasons of all baselines of a row, for the cell of the best baseline."""
    is_baseline = results.rows["kind"].eq("baseline")
    baselines = set(results.rows.loc[is_baseline, "contestant"].unique()) - GUESSING_BASELINES - BASELINES_GIVEN_TRUTH
    merged_reasons: dict[tuple[str, str], dict[str, list[str]]] = {}
    for (row, name), reasons in all_reasons.items():
        if name in baselines:
            row_reasons = merged_reasons.setdefault((row, BEST_BASELINE), {})
            for status, texts in reasons.items():
                row_reasons[status] = list(dict.fromkeys([*row_reasons.get(status, []), *texts]))
    return merged_reasons


def _score_table(
    contests: Sequence[Contest], scores: pd.DataFrame, names: Sequence[str], name: str, title: str
) -> Table:
    """The heat map as a table, with a row per family. The last columns are the predictor that scores 1 and the
    metric."""
    wide = scores.pivot_table("score", index="row", columns="contestant")
    frame = wide.reindex(index=[c.title for c in contests], columns=list(names)).reset_index()
    frame = frame.assign(one=[c.reference for c in contests], metric=[metric(c.metric).label for c in contests])
    if (best := scores[scores["contestant"] == BEST_BASELINE]).size:
        frame = frame.merge(best[["row", "reason"]].rename(columns={"reason": "best"}), "left", "row")
    columns = [Column("row", "family"), *(Column(n, n, two_decimals, numeric=True, shade=shade) for n in names)]
    columns += [Column("best", "name of the best baseline")] if "best" in frame else []
    return Table(
        name=f"{name}-numbers",
        title=title,
        caption="Mean scores over seeds, with the best baseline, the predictor that scores 1 and the metric of each "
        "row. Related datasets are not used. A dash: not run, not applicable, failed or diverged.",
        frame=frame,
        columns=(*columns, Column("one", "scores 1"), Column("metric", "metric")),
        folded=True,
    )


def _separation_table(contests: Sequence[Contest], name: str) -> Table | None:
    """A table that compares the spread over backbones with the spread over seeds, with a row per contest."""
    rows = [
        {
            "row": contest.title,
            "contestants": separation.contestants,
            "gap": separation.gap,
            "sd": separation.sd,
            "ratio": separation.ratio,
            "separates": "yes" if separation.is_clear else "no",
            "significant": f"{separation.significant_pairs} of {separation.pairs}",
        }
        for contest in contests
        if (separation := contest.separation) is not None and not math.isnan(separation.sd)
    ]
    if not rows:
        return None
    return Table(
        name=f"{name}-separation",
        title="Rows that separate architectures",
        caption="The median gap between quartiles of the models' scores, next to the standard deviation over seeds. A "
        f"row separates architectures if the gap is more than {MIN_RATIO:g} standard deviations; in other rows, a rank "
        "may be due to chance.",
        frame=pd.DataFrame(rows),
        columns=(
            Column("row", "family"),
            Column("contestants", "models", integer, numeric=True),
            Column("gap", "gap between quartiles", fixed, numeric=True),
            Column("sd", "sd over seeds", fixed, numeric=True),
            Column("ratio", "gap / sd", one_decimal, numeric=True),
            Column("separates", "separates"),
            Column("significant", "significant pairs", numeric=True),
        ),
        folded=True,
    )


def _related_table(contests: Sequence[Contest], name: str) -> Table | None:
    """A table of the gain from related datasets, as scores on the scale of the heat map."""
    frames = [normalised.related_scores(c.task).assign(row=c.title) for c in contests if c.evaluator == "targets"]
    rows = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
    if rows.empty:
        return None
    counts = sorted(int(n) for n in rows["n_related"].unique())
    wide = rows.pivot_table("value", index=["row", "kind", "contestant"], columns="n_related")
    frame = wide[counts].rename(columns={n: f"n{n}" for n in counts}).reset_index()
    frame = frame[frame[f"n{counts[-1]}"].notna()]
    frame = frame.assign(adds=frame[f"n{counts[-1]}"] - frame["n0"])
    frame = frame.sort_values(["row", "kind", f"n{counts[-1]}"], ascending=[True, True, False], ignore_index=True)
    return Table(
        name=f"{name}-related",
        title="Gain from related datasets",
        caption="Scores of models that use related datasets, by their number, on the scale of the heat map.",
        frame=frame,
        columns=(
            Column("contestant", "contestant"),
            Column("row", "family"),
            Column("kind", "kind"),
            *(Column(f"n{n}", f"{integer(n)} related", fixed, numeric=True) for n in counts),
            Column("adds", "gain", fixed, numeric=True),
        ),
        group="row",
    )
