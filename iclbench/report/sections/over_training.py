"""Scores and ranks over training: by number of steps and by computation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

import numpy as np
import pandas as pd

from iclbench.analysis import normalised, over_training
from iclbench.analysis.normalised import Contest
from iclbench.core.formats import flops, integer, one_decimal, slug, two_decimals
from iclbench.report.blocks import Block, Column, Figure, Section, Table, Text
from iclbench.report.data import Results
from iclbench.report.figures import curves, learning
from iclbench.report.sections.pareto import FLOPS, mean_costs, models_not_shown

_INTRODUCTION = (
    "Scores by number of steps and by training FLOPs. Shorter training runs branch off each full run, and decay their "
    "learning rate as the full run does."
)


def section(results: Results) -> Section | None:
    blocks: list[Block] = []
    for preset in normalised.presets(results):
        blocks += _preset_blocks(results, preset, normalised.contests(results, preset))
    return (
        Section(
            "over-training",
            "Scores over training",
            (Text(_INTRODUCTION), *blocks),
            rules=("Scores over training", "Score"),
        )
        if blocks
        else None
    )


def scores_by_steps(contest: Contest) -> pd.DataFrame:
    """Scores by contestant and number of training steps, averaged over seeds.

    Columns as in `over_training.means`, and flops (of the training up to these steps) and panel.
    """
    rows = over_training.means(contest)
    if rows.empty:
        return rows
    rows = rows.merge(mean_costs(contest, FLOPS), on="contestant", how="left")
    return rows.assign(flops=rows["cost"] * rows["steps"], panel=contest.title)


def _preset_blocks(results: Results, preset: str, contests: Sequence[Contest]) -> list[Block]:
    by_contest = _with_three_models({contest.title: scores_by_steps(contest) for contest in contests})
    if not by_contest:
        return []
    name = f"over-training-{slug(preset)}"
    with_flops = _with_three_models({title: rows[rows["flops"].notna()] for title, rows in by_contest.items()})
    blocks: list[Block] = [_figure(results, name, preset, with_flops)] if with_flops else []
    shares = common_shares(by_contest.values())
    if (table := _step_table(by_contest, shares, name, preset)) is not None:
        contestants = (name for rows in by_contest.values() for name in rows["contestant"])
        blocks += [table, *models_not_shown(contestants, table.frame["contestant"])]
    blocks.append(_stability_table(contests, by_contest, shares, name, preset))
    if with_flops:
        blocks.append(_compute_table(with_flops, name, preset))
    return blocks


def _with_three_models(by_contest: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The contests with at least three models. A rank among two is not informative."""
    return {title: rows for title, rows in by_contest.items() if len(rows) and rows["contestant"].nunique() > 2}


def _figure(results: Results, name: str, preset: str, by_contest: dict[str, pd.DataFrame]) -> Figure:
    """A figure of scores against training FLOPs, with a panel per contest."""
    rows = pd.concat(by_contest.values(), ignore_index=True)
    looks = {name: look for name, look in results.looks.items() if name in set(rows["contestant"])}
    data = rows.assign(axis_value=rows["flops"])
    # One line per contestant, with the range over seeds as its band.
    data = learning.with_look_columns(data, looks, "axis_value").assign(sparse=True, band=data["low"].lt(data["high"]))
    data = data[[*curves.COLUMNS, "axis_value", "run", "steps", "panel", "band"]].reset_index(drop=True)
    lowest, highest = float(data["value"].min()), float(data["value"].max())
    low, high = max(-0.25, lowest), min(1.25, highest)
    low, high = (low, high) if low < high else (lowest, highest)
    axes = curves.Axes(
        "training FLOPs",
        "score",
        (0.9 * float(data["axis_value"].min()), 1.1 * float(data["axis_value"].max())),
        (low - 0.02, high + 0.02),
        field="axis_value",
        x_name="FLOPs",
        band_name="range over seeds",
        log_x=True,
    )
    return learning.panel_figure(
        data,
        list(by_contest),
        axes,
        looks,
        name=name,
        title=f"{preset}: scores over training",
        caption=f"Score against training FLOPs at preset {preset}, with mean and range over seeds, and a point for "
        "each shorter run and for the full run. Scores outside -0.25 to 1.25 are drawn at the edge.",
        alt=f"Scores of {learning.name_list(looks)} against training FLOPs",
    )


def _step_table(by_contest: dict[str, pd.DataFrame], shares: Sequence[float], name: str, preset: str) -> Table | None:
    """A table of mean scores and ranks after each share of the steps, for the models with a score in every contest;
    None without such models."""
    scores = {
        share: over_training.mean_over_contests([_scores_at_share(rows, share) for rows in by_contest.values()])
        for share in shares
    }
    if scores[shares[-1]].empty:
        return None
    frame = pd.DataFrame({"contestant": scores[shares[-1]].sort_values(ascending=False, kind="stable").index})
    columns = [Column("contestant", "model")]
    for i, share in enumerate(shares):
        at_share = scores[share]
        ranks = over_training.ranks(at_share)
        frame[f"score{i}"], frame[f"rank{i}"] = frame["contestant"].map(at_share), frame["contestant"].map(ranks)
        label = _share_title(share)
        columns += [
            Column(f"score{i}", f"score, {label}", two_decimals, numeric=True),
            Column(f"rank{i}", f"rank, {label}", integer, numeric=True),
        ]
    return Table(
        name=f"{name}-steps",
        title=f"{preset}: mean scores by share of the training steps",
        caption=f"Mean score and rank of each model at preset {preset} over {_rows_title(by_contest)}, after a share "
        "of the steps.",
        frame=frame,
        columns=tuple(columns),
    )


def _stability_table(
    contests: Sequence[Contest], by_contest: dict[str, pd.DataFrame], shares: Sequence[float], name: str, preset: str
) -> Table:
    """A table of Kendall's tau between the order after each share of the steps and the final order, and between
    seeds."""
    rows = []
    for contest in contests:
        if contest.title not in by_contest:
            continue
        scores = by_contest[contest.title]
        row: dict[str, object] = {"row": contest.title, "contestants": int(scores["contestant"].nunique())}
        final = _scores_at_share(scores, 1.0)
        for i, share in enumerate(shares[:-1]):
            row[f"tau{i}"] = over_training.kendall(_scores_at_share(scores, share), final)
        row["seeds"] = _seed_agreement(contest)
        rows.append(row)
    columns = [Column("row", "family"), Column("contestants", "models", integer, numeric=True)]
    columns += [
        Column(f"tau{i}", f"after {_share_title(s)}", two_decimals, numeric=True) for i, s in enumerate(shares[:-1])
    ]
    return Table(
        name=f"{name}-stability",
        title=f"{preset}: stability of the order",
        caption="Kendall's tau between the order of models after a share of the steps and the final order (1: the same "
        "order), and between the final orders of two seeds.",
        frame=pd.DataFrame(rows),
        columns=(*columns, Column("seeds", "between seeds", two_decimals, numeric=True)),
    )


def _seed_agreement(contest: Contest) -> float:
    """Mean of Kendall's tau between the final orders of two seeds, over the pairs of seeds that all backbones have."""
    rows = contest.rows[contest.rows["kind"].eq("backbone")]
    wide = rows.pivot_table("value", index="contestant", columns="seed").astype(float).dropna(axis=1)
    taus = [over_training.kendall(wide[a], wide[b]) for a, b in combinations(wide.columns, 2)]
    return float(np.mean(taus)) if taus else float("nan")


def _compute_table(by_contest: dict[str, pd.DataFrame], name: str, preset: str) -> Table:
    """A table of scores at equal steps and at equal FLOPs, with a row per contest and model."""
    frames = []
    for title, rows in by_contest.items():
        shared = over_training.shared_flops(rows)
        at_compute, final = over_training.scores_at_flops(rows, shared), _scores_at_share(rows, 1.0)
        full_flops = rows.groupby("contestant")["flops"].max()
        frame = pd.DataFrame(
            {"contestant": final.index, "row": title, "flops": shared, "steps_score": final.to_numpy()}
        )
        frame["compute_score"] = frame["contestant"].map(at_compute)
        comparable = frame["steps_score"].where(frame["compute_score"].notna())
        frame["steps_rank"] = over_training.ranks(comparable)
        frame["compute_rank"] = over_training.ranks(frame["compute_score"])
        frame["times"] = frame["contestant"].map(full_flops) / shared
        frames.append(frame.sort_values("steps_score", ascending=False, kind="stable"))
    return Table(
        name=f"{name}-compute",
        title=f"{preset}: equal steps and equal computation",
        caption="Scores after the full run, and after the FLOPs of the cheapest model's full run. Times: the FLOPs of "
        "a model's full run divided by the FLOPs of the cheapest full run. A dash: the model's shortest run needs "
        "more FLOPs.",
        frame=pd.concat(frames, ignore_index=True),
        columns=(
            Column("contestant", "model"),
            Column("row", "family"),
            Column("flops", "FLOPs", flops, numeric=True),
            Column("times", "times", one_decimal, numeric=True),
            Column("steps_score", "score, equal steps", two_decimals, numeric=True),
            Column("steps_rank", "rank", integer, numeric=True),
            Column("compute_score", "score, equal FLOPs", two_decimals, numeric=True),
            Column("compute_rank", "rank", integer, numeric=True),
        ),
        group="row",
        folded=True,
    )


def common_shares(contests: Iterable[pd.DataFrame]) -> list[float]:
    """The shares of the steps at which all models have a score in all of their contests, ascending; the last one is
    1."""
    shares = (model["share"].astype(float).round(6) for rows in contests for _, model in rows.groupby("contestant"))
    return sorted(set.intersection(*map(set, shares)))


def _scores_at_share(rows: pd.DataFrame, share: float) -> pd.Series:
    """Scores by contestant after a share of the steps."""
    return rows[np.isclose(rows["share"], share)].set_index("contestant")["value"].astype(float)


def _rows_title(by_contest: dict[str, pd.DataFrame]) -> str:
    return f"{len(by_contest)} rows of the heat map" if len(by_contest) > 1 else f"the row {next(iter(by_contest))}"


def _share_title(share: float) -> str:
    return "all steps" if share == 1 else f"{integer(round(100 * share))} % of the steps"
