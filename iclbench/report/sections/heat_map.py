"""Scores of all models and the best baselines on all task families."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pandas as pd

from iclbench.analysis import normalised
from iclbench.analysis.normalised import Contest
from iclbench.analysis.separation import ENOUGH, Separation
from iclbench.core.formats import fixed, integer, plural, slug
from iclbench.core.metrics import GIVEN_TRUTH, GUESSES, metric
from iclbench.report.blocks import Block, Column, Section, Table, Text
from iclbench.report.data import Results
from iclbench.report.figures import heat_map
from iclbench.report.sections.overview import shade

BEST = "best baseline"
# What became of a cell without a score, the most telling first.
MISSING = ("diverged", "failed", "skipped")
NOT_LEARNED = "not significantly different from 0"
# Models that have at least half of the rows, the other models with the rows that any of them has, and baselines.
_CORE, _FURTHER, _BASELINES = "models", "models on some tasks", "baselines"
# Baselines that have columns of their own: the best, and so many that were asked on most rows.
_COMMON = 5
_READING = (
    "A score of 0 is as good as guessing: the zero predictor, the mean training image or a Poisson process. A score "
    "of 1 is as good as the Bayes-optimal predictor or, where that is unknown, the best baseline. Scores are means "
    "over seeds; blue is better, orange is worse than guessing."
)


def section(results: Results) -> Section | None:
    blocks: list[Block] = []
    for preset in normalised.presets(results):
        blocks += _of_preset(results, preset, normalised.contests(results, preset))
    return Section("heat-map", "Scores by family and model", (Text(_READING), *blocks)) if blocks else None


def _of_preset(results: Results, preset: str, contests: Sequence[Contest]) -> Iterator[Block]:
    scores = normalised.all_scores(contests).assign(reason=None)
    rows = [contest.title for contest in contests]
    core, further = ordered_backbones(results, contests, scores)
    backbones = [*core, *further]
    baselines = [BEST, *_common(scores)] if scores["kind"].eq("baseline").any() else []
    shown = pd.concat([scores, best(scores)], ignore_index=True)
    titled = ((_CORE, core), (_FURTHER, further), (_BASELINES, baselines))
    panels = {title: names for title, names in titled if names}
    cells = pd.concat(
        [cells_of(results, contests, shown, names).assign(panel=panel) for panel, names in panels.items()],
        ignore_index=True,
    )
    asked = cells.loc[cells["panel"].eq(_FURTHER) & ~cells["status"].isin(["not run", "skipped"]), "row"]
    cells = cells[cells["panel"].ne(_FURTHER) | cells["row"].isin(asked)].reset_index(drop=True)
    # A panel of models that meet few tasks is mostly empty: no grid of question marks.
    cells["status"] = cells["status"].mask(cells["panel"].eq(_FURTHER) & cells["status"].eq("not run"), "not asked")
    title = f"{preset}: scores by family and model"
    name = f"heat-map-{slug(preset)}"
    if backbones:
        marks = [
            f"{mark}: {'not applicable' if status == 'skipped' else status}"
            for status, mark in heat_map.MARKS.items()
            if mark and status in set(cells["status"])
        ]
        yield heat_map.figure(
            name,
            title,
            f"Scores at preset {preset}, the model with the best mean rank first; the best baseline is chosen for each "
            "row. " + (f"{'; '.join(marks)} (reasons in the tooltips). " if marks else "") + _not_learned(cells),
            cells,
            rows,
            panels,
            results.user_backbones,
        )
    yield _numbers(contests, shown, [*backbones, *baselines], name, title)
    if (table := _separations(contests, name)) is not None:
        yield table
    if (table := _related(contests, name)) is not None:
        yield table


def _not_learned(cells: pd.DataFrame) -> str:
    """A sentence with the number of scores that are not significantly above 0."""
    n = int(cells["reason"].eq(NOT_LEARNED).sum())
    return (
        f"{plural(n, 'score')} of models {'is' if n == 1 else 'are'} not significantly different from 0." if n else ""
    )


def ordered_backbones(
    results: Results, contests: Sequence[Contest], scores: pd.DataFrame
) -> tuple[list[str], list[str]]:
    """Backbones with scores on at least half of the rows, and the others, both by mean rank with the best first.

    Backbones that failed or diverged on all rows are the last of the first list. If it is empty, the lists are swapped.
    """
    rows = scores[scores["kind"] == "backbone"]
    ranks = rows.groupby("row")["score"].rank(ascending=False).groupby(rows["contestant"]).mean()
    means = ranks.rename("rank").rename_axis("contestant").reset_index()
    ranked = means.sort_values(["rank", "contestant"])["contestant"].astype(str)
    counts = rows.groupby("contestant")["row"].nunique()
    core = [name for name in ranked if counts[name] >= rows["row"].nunique() / 2]
    further = [name for name in ranked if name not in core]
    failed = {name for (_, name), reasons in _reasons(results, contests).items() if reasons.keys() - {"skipped"}}
    core += sorted(failed & _trained(results, contests) - {*ranked})
    return (core, further) if core else (further, core)


def _trained(results: Results, contests: Sequence[Contest]) -> set[str]:
    """Backbones that rows or cells of the contests are about; none that met a task which they were not trained on."""
    names: set[str] = set()
    for task in {id(contest.task): contest.task for contest in contests}.values():
        rows, cells = task.rows, results.cells
        names |= set(rows.loc[rows["kind"].eq("backbone") & rows["trained_on"].isna(), "contestant"])
        of = cells["task"].eq(task.task) & cells["preset"].eq(task.preset) & cells["kind"].eq("train")
        names |= set(cells.loc[of, "contestant"])
    return names


def _common(scores: pd.DataFrame) -> list[str]:
    """Baselines that were asked on most rows, by their mean score."""
    of = scores[scores["kind"].eq("baseline") & ~scores["contestant"].isin(GUESSES | GIVEN_TRUTH)]
    by_name = of.groupby("contestant")["score"].agg(["size", "mean"]).reset_index()
    most = by_name.sort_values(["size", "mean"], ascending=False, kind="stable").head(_COMMON)
    return [str(name) for name in most.sort_values("mean", ascending=False)["contestant"]]


def best(scores: pd.DataFrame) -> pd.DataFrame:
    """Rows of a contestant that is the best baseline of each row; its name is in `reason`."""
    of = scores[scores["kind"].eq("baseline") & ~scores["contestant"].isin(GUESSES | GIVEN_TRUTH)]
    best = of.sort_values(["score", "contestant"], ascending=[False, True]).drop_duplicates("row")
    return best.assign(reason=best["contestant"], contestant=BEST)


def cells_of(results: Results, contests: Sequence[Contest], scores: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """A row for every cell, in the order of the columns; those without a score say why."""
    rows = [contest.title for contest in contests]
    grid = pd.DataFrame([(row, name) for name in names for row in rows], columns=["row", "contestant"])
    cells = grid.merge(scores, "left", ["row", "contestant"])
    all_reasons = _reasons(results, contests)
    all_reasons |= _reasons_of_baselines(results, all_reasons)
    status, reasons = [], []
    for row, name, score, best in zip(
        cells["row"], cells["contestant"], cells["score"], cells["reason"].astype(object), strict=True
    ):
        why = all_reasons.get((row, name), {})
        reason = "; ".join(reason for lines in why.values() for reason in lines)
        missing = next((status for status in MISSING if status in why), "not run")
        status.append(missing if pd.isna(score) else "ok")
        reasons.append(best if pd.notna(best) else reason or ("not computed yet" if pd.isna(score) else ""))
    cells = cells.assign(status=status, reason=reasons)
    titled = {contest.title: contest for contest in contests}
    near = cells["kind"].eq("backbone") & cells["low"].le(0).fillna(False).astype(bool) & cells["reason"].eq("")
    found = [
        _like_nothing(titled[row], str(name), float(high))
        for row, name, high in cells.loc[near, ["row", "contestant", "high"]].itertuples(index=False)
    ]
    alike = pd.Series(found, cells.index[near], dtype=bool).reindex(cells.index, fill_value=False)
    return cells.assign(reason=cells["reason"].mask(alike, NOT_LEARNED))


def _like_nothing(contest: Contest, name: str, high: float) -> bool:
    """Whether a score whose own interval begins below 0 is not told apart from what scores 0: paired by episode where
    that can be, since what is hard for one is hard for the other, by the end of the interval elsewhere."""
    nothing = contest.guess
    gap = None if nothing is None else contest.difference(name, nothing)
    return high >= 0 if gap is None else not gap.is_significant


def _reasons(results: Results, contests: Sequence[Contest]) -> dict[tuple[str, str], dict[str, list[str]]]:
    """By row and contestant: every status that is not good, and the reasons for it."""
    found: dict[tuple[str, str], dict[str, list[str]]] = {}

    def tell(row: str, name: object, status: object, reason: str) -> None:
        lines = found.setdefault((row, str(name)), {}).setdefault(str(status), [])
        lines += [reason] if reason not in lines else []

    cells = results.cells
    cells = cells[cells["kind"].isin(["train", "evaluate"]) & cells["status"].ne("done")]
    for contest in contests:
        rows = contest.task.rows
        rows = rows[rows["status"].ne("ok") & rows["shift"].eq("none") & rows["evaluator"].eq(contest.evaluator)]
        for name, status, run, why in zip(rows["contestant"], rows["status"], rows["run"], rows["reason"], strict=True):
            tell(contest.title, name, status, f"{run}: {why}")
        rows = contest.task.diverged
        for name, run, why in zip(rows["contestant"], rows["run"], rows["reason"], strict=True):
            tell(contest.title, name, "diverged", f"{run}: {why}")
        of = cells[cells["task"].eq(contest.task.task) & cells["preset"].eq(contest.task.preset)]
        for name, status, run, why in zip(of["contestant"], of["status"], of["run"], of["reason"], strict=True):
            tell(contest.title, name, status, str(why) if status == "skipped" else f"{run}: {why}")
    return found


def _reasons_of_baselines(
    results: Results, all_reasons: dict[tuple[str, str], dict[str, list[str]]]
) -> dict[tuple[str, str], dict[str, list[str]]]:
    """By row what is told of any baseline, for the cell of the best of them."""
    baselines = {*results.rows.loc[results.rows["kind"] == "baseline", "contestant"]} - GUESSES - GIVEN_TRUTH
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for (row, name), why in all_reasons.items():
        if name in baselines:
            of_row = found.setdefault((row, BEST), {})
            for status, lines in why.items():
                of_row[status] = list(dict.fromkeys([*of_row.get(status, []), *lines]))
    return found


def _numbers(contests: Sequence[Contest], scores: pd.DataFrame, names: Sequence[str], name: str, title: str) -> Table:
    """The same as a table: a row per family, with what scores 1."""
    wide = scores.pivot_table("score", index="row", columns="contestant")
    frame = wide.reindex(index=[c.title for c in contests], columns=list(names)).reset_index()
    frame = frame.assign(one=[c.reference for c in contests], metric=[metric(c.metric).label for c in contests])
    if (best := scores[scores["contestant"] == BEST]).size:
        frame = frame.merge(best[["row", "reason"]].rename(columns={"reason": "best"}), "left", "row")
    columns = [Column("row", "family"), *(Column(n, n, _two, numeric=True, shade=shade) for n in names)]
    columns += [Column("best", "name of the best baseline")] if "best" in frame else []
    return Table(
        name=f"{name}-numbers",
        title=title,
        caption="Scores, means over seeds, with the best baseline, the predictor that scores 1 and the metric of each "
        "row. Related datasets are not used. A dash: no score.",
        frame=frame,
        columns=(*columns, Column("one", "scores 1"), Column("metric", "score of")),
        folded=True,
    )


def _separations(contests: Sequence[Contest], name: str) -> Table | None:
    """Which rows tell backbones apart, and which the luck of their seeds."""
    found = [(contest.title, contest.separation) for contest in contests]
    rows = [
        {"row": row, "contestants": s.contestants, "gap": s.gap, "sd": s.sd, "ratio": s.ratio, "tells": _verdict(s)}
        for row, s in found
        if s is not None and not math.isnan(s.sd)
    ]
    if not rows:
        return None
    return Table(
        name=f"{name}-separation",
        title="Rows that separate architectures",
        caption="The median gap between adjacent quartiles of the models' scores (without the best and the worst) and "
        f"the pooled standard deviation over seeds. A row separates architectures if the gap is more than {ENOUGH:g} "
        "standard deviations; in other rows a rank may be chance.",
        frame=pd.DataFrame(rows),
        columns=(
            Column("row", "family"),
            Column("contestants", "models", integer, numeric=True),
            Column("gap", "gap between quartiles", _three, numeric=True),
            Column("sd", "sd over seeds", _three, numeric=True),
            Column("ratio", "gap / sd", _one, numeric=True),
            Column("tells", "separates"),
        ),
        folded=True,
    )


def _verdict(found: Separation) -> str:
    return "yes" if found.is_clear else "no"


def _related(contests: Sequence[Contest], name: str) -> Table | None:
    """What related datasets add: scores on the line that the heat map has without them."""
    parts = [normalised.related_scores(c.task).assign(row=c.title) for c in contests if c.evaluator == "targets"]
    rows = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
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
            *(Column(f"n{n}", f"{integer(n)} related", _three, numeric=True) for n in counts),
            Column("adds", "gain", _three, numeric=True),
        ),
        group="row",
    )


def _one(ratio: float) -> str:
    return fixed(ratio, 1)


def _two(score: float) -> str:
    return fixed(score, 2)


def _three(score: float) -> str:
    return fixed(score, 3)
