"""Leaderboard: area under the learning curve with honest ties, error at a few context sizes, score and costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import pandas as pd

from iclbench.analysis.normalised import are_coarse
from iclbench.analysis.oracles import beaten
from iclbench.analysis.pairs import Difference, difference, ranks
from iclbench.core.formats import fixed, integer, number, signed, slug
from iclbench.core.metrics import TOLD, curve_metric, metric
from iclbench.report.blocks import Column, Section, Table, Text
from iclbench.report.cost_table import of_one_machine
from iclbench.report.data import Slice
from iclbench.tables.curves import of_few
from iclbench.tables.means import over_seeds
from iclbench.tables.runs import tuned

# Column -> phase and metric of the costs, and its header.
COSTS = {
    "parameters": ("model", "parameters", "parameters"),
    "train_seconds": ("train", "seconds", "training"),
    "evaluate_seconds": ("evaluate", "seconds", "evaluation"),
    "evaluate_bytes": ("evaluate", "bytes", "peak memory"),
}


def section(task: Slice) -> Section | None:
    summaries = task.summaries[task.summaries["shift"] == "none"]
    boards = [
        board(task, str(evaluator), rows)
        for evaluator, rows in summaries.groupby("evaluator")
        if (rows["metric"] == "auc").any()
    ]
    return Section(f"{task.id}-leaderboard", "Leaderboard", (*boards, *remarks(task, "next"))) if boards else None


def remarks(task: Slice, evaluator: str) -> Iterator[Text]:
    """What a reader must know of a leaderboard: who was trained on another task, and which oracles are none."""
    known = task.results.elsewhere
    if lines := tuple(f"{name}: trained on {known[name]}" for name in sorted(task.kinds) if name in known):
        yield Text("Trained on another task, and so in no ranking and no heat map:", lines)
    yield from beaten_oracles(task, evaluator)


def beaten_oracles(task: Slice, evaluator: str) -> Iterator[Text]:
    """What is said of oracles that are none on the training distribution."""
    rows = task.unfailed(task.rows[task.rows["shift"].eq("none") & task.rows["evaluator"].eq(evaluator)])
    rows = rows[rows["kind"].ne("published")]
    if lines := tuple(found.line for found in beaten(rows, task.results.errors)):
        yield Text("Oracles that are beaten:", lines)


def board(task: Slice, evaluator: str, summaries: pd.DataFrame) -> Table:
    """The leaderboard of one question."""
    curves = task.curves[(task.curves["shift"] == "none") & (task.curves["evaluator"] == evaluator)]
    measured = curves["metric"].unique()
    name = curve_metric(measured)
    name = name if name in measured else next(iter(measured), name)
    frame = _summary(summaries, "auc").rename(columns={"value": "auc", "low": "auc_low", "high": "auc_high"})
    score = _summary(summaries, "score")[["contestant", "value", "low", "high"]]
    frame = frame.merge(
        score.rename(columns={"value": "score", "low": "score_low", "high": "score_high"}), "left", "contestant"
    )
    # Scores compare over the same context sizes, which areas do not where costly baselines are asked at a few.
    scored = bool(frame["score"].notna().all())
    by, down = (["score", "auc", "contestant"], [False, True, True]) if scored else (["auc", "contestant"], True)
    frame = frame.sort_values(by, ascending=down, kind="stable", ignore_index=True)
    rows = task.rows[task.rows["shift"].eq("none") & task.rows["evaluator"].eq(evaluator) & task.rows["axis"].isna()]
    coarse = are_coarse(rows[rows["metric"].eq("score")])
    frame = _with_ranks(task, evaluator, name, frame, partial(difference, coarse=coarse))
    frame["runs"] = frame["runs"].astype("Int64").where(frame["kind"] == "backbone")
    frame = with_tuned(task, with_failed(task, evaluator, frame))
    frame, sizes = _with_errors(frame, curves[curves["metric"] == name])
    frame = with_costs(task, frame)
    columns = (
        Column("contestant", "contestant"),
        Column("rank", "rank", integer, numeric=True),
        Column("kind", "kind"),
        Column("runs", "seeds", integer, numeric=True),
        Column("tuned", "tuned"),
        Column("auc", "area under curve", fixed, True, "auc_low", "auc_high"),
        Column("behind", "behind the row above", signed, True, "behind_low", "behind_high"),
        *(Column(f"n{n}", f"n = {n}", number, numeric=True) for n in sizes),
        Column("score", "score", fixed, True, "score_low", "score_high"),
        *map(cost_column, COSTS),
        Column("failed", "failed"),
    )
    shown = tuple(c for c in columns if c.key in ("contestant", "auc") or frame[c.key].notna().any())
    return Table(
        name=f"{task.id}-{slug('leaderboard', evaluator)}",
        title=f"{task.task}: leaderboard",
        caption=f"Sorted by the {'score' if scored else 'area'}. Area under the learning curve: its mean height in "
        f"{metric(name).label}, lower is better{_at_few(rows, coarse)}; intervals are 95 % over episodes, of "
        "several seeds from the lowest end to the highest. Equal ranks: not told apart from the first of that rank by "
        "a paired 95 % interval over the same episodes. Behind the row above: the mean paired difference with that "
        "interval, over the context sizes that scores are over and both were asked at. In these two several seeds of a "
        "backbone are averaged episode by episode first, so that they do not cover the choice of seed. "
        "Oracles are ceilings and hold no rank; nor does who failed, be it at one context "
        "size, or diverged in training, be it from one seed: there is no area over the others.",
        frame=frame,
        columns=shown,
        group="rank",
    )


def _at_few(rows: pd.DataFrame, coarse: bool) -> str:
    """Whose areas are over a few context sizes, in words that end a sentence; empty where nobody's are."""
    scored = rows.loc[of_few(rows), "contestant"]
    if scored.empty:
        return ""
    sizes = rows.groupby("contestant")["n_context"].nunique()
    few = sorted(sizes.index[sizes.lt(sizes.max()) & sizes.gt(0) & sizes.index.isin(scored)])
    whose = "all" if coarse else "their"
    return f" (of {', '.join(few)} over the few context sizes that they are asked at, as {whose} scores are)"


def _summary(summaries: pd.DataFrame, name: str) -> pd.DataFrame:
    rows = summaries[summaries["metric"] == name]
    return rows[["contestant", "kind", "runs", "run", "value", "low", "high"]]


def _with_ranks(
    task: Slice,
    evaluator: str,
    name: str,
    frame: pd.DataFrame,
    compare: Callable[[pd.DataFrame, pd.DataFrame], Difference | None],
) -> pd.DataFrame:
    """Columns rank (missing for oracles and who is told) and behind: the paired difference to the row above."""
    v = task.rows
    curves = v[(v["shift"] == "none") & (v["evaluator"] == evaluator) & (v["metric"] == name) & v["prompt_set"].notna()]
    episodes = {}
    for contestant, rows in curves.groupby("contestant"):
        runs, prompt_set = sorted(rows["run"].unique()), str(rows["prompt_set"].iloc[0])
        episodes[str(contestant)] = task.results.errors.curves(runs, prompt_set, name)
    order = frame["contestant"].tolist()
    ranked = [c for c, kind in zip(order, frame["kind"], strict=True) if kind != "oracle" and c not in TOLD]
    found = ranks(ranked, episodes, compare)
    return placed(frame, order, found, episodes, compare)


def placed(
    frame: pd.DataFrame,
    order: Sequence[str],
    found: Mapping[str, int],
    episodes: Mapping[str, Any],
    behind: Callable[[Any, Any], Difference | None],
) -> pd.DataFrame:
    """Columns rank and behind, the latter with its interval, for rows that go by the names in `order`.

    Args:
        frame: the rows, best first.
        order: their names.
        found: ranks of those that have one.
        episodes: what `behind` takes, or None.
        behind: how far the first is behind the second.
    """
    gaps: list[Difference | None] = [None] * min(1, len(order))
    for upper, lower in pairwise(order):
        better, worse = episodes.get(upper), episodes.get(lower)
        gaps.append(behind(worse, better) if better is not None and worse is not None else None)
    return frame.assign(
        rank=pd.Series([found.get(name) for name in order], dtype="Int64"),
        behind=pd.Series([g.value if g else None for g in gaps], dtype="Float64"),
        behind_low=pd.Series([g.low if g else None for g in gaps], dtype="Float64"),
        behind_high=pd.Series([g.high if g else None for g in gaps], dtype="Float64"),
    )


def with_failed(task: Slice, evaluator: str, frame: pd.DataFrame) -> pd.DataFrame:
    """The rows, with those of contestants that failed, or diverged in training, below them; the reason stands in the
    column `failed`."""
    rows = task.failed[task.failed["shift"].eq("none") & task.failed["evaluator"].eq(evaluator)]
    rows = pd.concat([rows, task.diverged])
    rows = rows[~rows["contestant"].isin(frame["contestant"])]
    if rows.empty:
        return frame.assign(failed=pd.Series(pd.NA, index=frame.index, dtype="string"))
    failures = rows.groupby("contestant", as_index=False).agg(
        kind=("kind", "first"), failed=("reason", lambda reasons: "; ".join(dict.fromkeys(reasons)))
    )
    return pd.concat([frame, failures.reindex(columns=[*frame.columns, "failed"])], ignore_index=True)


def with_tuned(task: Slice, frame: pd.DataFrame) -> pd.DataFrame:
    """A column that says which contestants were trained at the learning rate chosen for them; missing where it is known
    of none, or all agree."""
    known = tuned(task.rows, "contestant").to_dict()
    return frame.assign(tuned=frame["contestant"].map(known).astype("string"))


def _with_errors(frame: pd.DataFrame, curves: pd.DataFrame) -> tuple[pd.DataFrame, list[int]]:
    """Columns n<k> with the error after k examples: up to three sizes at which everybody was asked who has an area."""
    ranked = set(frame.loc[frame["auc"].notna(), "contestant"])
    asked = curves[curves["contestant"].isin(ranked)].groupby("n_context")["contestant"].nunique()
    common = sorted(int(n) for n in asked[asked == asked.max()].index if n > 0)
    last = common[-1] if common else 0
    sizes = sorted({min(common, key=lambda n: abs(n - last * part)) for part in (0.25, 0.5, 1)} if common else set())
    wide = curves[curves["n_context"].isin(sizes)].pivot_table("value", index="contestant", columns="n_context")
    wide = wide.rename(columns={n: f"n{n}" for n in sizes}).reset_index()
    return frame.merge(wide, "left", "contestant"), sizes


def cost_column(key: str) -> Column:
    """The column of one of `COSTS`, printed as its metric is."""
    _, cost, header = COSTS[key]
    return Column(key, header, metric(cost).show, numeric=True)


def with_costs(task: Slice, frame: pd.DataFrame) -> pd.DataFrame:
    """Costs, means over runs; of several evaluations the shortest one. What depends on the machine is that of the one
    that measured most of them."""
    costs = task.costs
    for key, (phase, what, _) in COSTS.items():
        rows = costs[(costs["phase"] == phase) & (costs["metric"] == what)]
        if rows.empty:
            frame = frame.assign(**{key: pd.Series(pd.NA, index=frame.index, dtype="Float64")})
            continue
        if metric(what).of_machine:
            rows = of_one_machine(rows)
        shortest = rows.groupby("contestant")["n_points"].transform("min")
        rows = rows[shortest.isna() | (rows["n_points"] == shortest).fillna(False).astype(bool)]
        mean = over_seeds(rows, ["contestant"]).rename(columns={"value": key})
        frame = frame.merge(mean[["contestant", key]], "left", "contestant")
    return frame
