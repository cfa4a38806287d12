"""Pairs of models that were named before training: differences over training seeds, not over episodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from iclbench.analysis import normalised
from iclbench.analysis.normalised import Contest
from iclbench.analysis.pairs import ERROR_RATE, Difference, holm, welch
from iclbench.config.pairs import Pair, shipped_pairs
from iclbench.core.formats import signed, slug
from iclbench.report.blocks import Block, Column, Figure, Section, Table, Text
from iclbench.report.data import Results
from iclbench.report.figures import dots

_INTRODUCTION = (
    "Score differences of pairs of models that were named in a grid card before training. Welch's intervals are "
    "computed over training seeds, not over episodes, and are missing while a seed is missing."
)


def section(results: Results) -> Section | None:
    blocks: list[Block] = []
    for preset in normalised.presets(results):
        if len(rows := compare_pairs(normalised.contests(results, preset), preset)):
            drawn = rows[rows["gaps"].map(len) > 0]
            blocks += [_figure(drawn, preset, results)] if len(drawn) else []
            blocks.append(_table(rows, preset))
    return (
        Section("named-pairs", "Named pairs", (Text(_INTRODUCTION), *blocks), rules=("Named pairs",))
        if blocks
        else None
    )


def scores_by_seed(pair: Pair, contest: Contest) -> pd.DataFrame:
    """The scores of both models (columns a and b) by seed, for the seeds of the pair that both have."""
    rows = contest.rows[contest.rows["kind"].eq("backbone") & contest.rows["seed"].isin(pair.seeds)]
    wide = rows[rows["contestant"].isin([pair.a, pair.b])].pivot_table("value", index="seed", columns="contestant")
    if not {pair.a, pair.b} <= set(wide.columns):
        return pd.DataFrame({"a": [], "b": []}, dtype=float)
    return wide[[pair.a, pair.b]].set_axis(["a", "b"], axis=1).dropna().astype(float)


def mean_difference(pair: Pair, pair_scores: pd.DataFrame) -> tuple[Difference, float] | None:
    """The difference between the mean scores of a and b, with Welch's interval over the seeds, and the p-value of
    Welch's test; None while a seed is missing."""
    if len(pair_scores) < len(pair.seeds):
        return None
    return welch(pair_scores["a"].to_numpy(), pair_scores["b"].to_numpy())


def compare_pairs(contests: Sequence[Contest], preset: str, pairs: Sequence[Pair] | None = None) -> pd.DataFrame:
    """A row per pair and contest in which at least one model of the pair has a score.

    Columns a, b, pair, row, seeds ("2 of 8"), each (the differences, as text), value, low, high and p (empty while a
    seed is missing), verdict, gaps, among_all ("holds" if significant after Holm's correction over the complete pairs).
    `pairs` defaults to the pairs of the shipped grid cards.
    """
    all_pairs = shipped_pairs() if pairs is None else pairs
    rows = pd.DataFrame(_rows(contests, [pair for pair in all_pairs if pair.preset == preset]))
    if len(rows):
        p_values = rows["p"].dropna()
        rows["among_all"] = pd.Series(holm(p_values.tolist()), p_values.index).map(
            lambda p: "holds" if p <= ERROR_RATE else ""
        )
    return rows


def _rows(contests: Sequence[Contest], pairs: Sequence[Pair]) -> Iterator[dict[str, object]]:
    for pair in pairs:
        for contest in contests:
            scored_models = {pair.a, pair.b} & set(contest.rows["contestant"])
            if contest.task.task not in pair.tasks or not scored_models:
                continue
            pair_scores = scores_by_seed(pair, contest)
            mean, p_value = mean_difference(pair, pair_scores) or (None, np.nan)
            gaps = pair_scores["a"] - pair_scores["b"]
            yield {
                "a": pair.a,
                "b": pair.b,
                "pair": f"{pair.a} − {pair.b}",
                "row": contest.title,
                "seeds": f"{len(pair_scores)} of {len(pair.seeds)}",
                "each": ", ".join(signed(gap) for gap in gaps),
                "value": float(gaps.mean()) if len(gaps) else np.nan,
                "low": np.nan if mean is None else mean.low,
                "high": np.nan if mean is None else mean.high,
                "p": p_value,
                "verdict": _verdict(pair, pair_scores, mean),
                "gaps": gaps.tolist(),
            }


def _verdict(pair: Pair, pair_scores: pd.DataFrame, mean: Difference | None) -> str:
    """The result of a pair: the better model, or the missing seeds."""
    if mean is None:
        missing = [str(seed) for seed in pair.seeds if seed not in set(pair_scores.index)]
        seeds, verb = ("seed", "is") if len(missing) == 1 else ("seeds", "are")
        return f"{seeds} {', '.join(missing)} {verb} missing"
    if not mean.is_significant:
        return "not significantly different"
    return f"{pair.a if mean.value > 0 else pair.b} is better"


def _figure(rows: pd.DataFrame, preset: str, results: Results) -> Figure:
    marks = []
    for row in rows.to_dict("records"):
        base = {
            "panel": row["row"],
            "row": row["pair"],
            "contestant": row["a"],
            "run": "",
            "low": None,
            "high": None,
        }
        marks += [base | {"part": "draw", "value": gap, "note": "one seed"} for gap in row["gaps"]]
        if not np.isnan(row["low"]):
            ends = {"low": row["low"], "high": row["high"]}
            marks.append(base | ends | {"part": "mean", "value": row["value"], "note": f"{len(row['gaps'])} seeds"})
    data = pd.DataFrame(marks)
    numbers = data[["value", "low", "high"]].astype(float).to_numpy()
    low, high = min(0.0, float(np.nanmin(numbers))), max(0.0, float(np.nanmax(numbers)))
    margin = 0.05 * (high - low) or 0.1
    return dots.figure(
        f"named-pairs-{slug(preset)}",
        f"{preset}: named pairs over seeds",
        f"The score of the first model minus the score of the second at preset {preset}, by seed (small dots), and the "
        "mean with Welch's 95 % interval over seeds (discs).",
        data,
        list(dict.fromkeys(rows["row"])),
        list(dict.fromkeys(rows["pair"])),
        {name: look for name, look in results.looks.items() if name in set(rows["a"])},
        dots.Scale("difference of scores", (low - margin, high + margin), zero_rule=True),
    )


def _table(rows: pd.DataFrame, preset: str) -> Table:
    return Table(
        name=f"named-pairs-{slug(preset)}-numbers",
        title=f"{preset}: named pairs over seeds",
        caption=f"The score of the first model minus the score of the second at preset {preset}, by seed, and the mean "
        "with Welch's 95 % interval over seeds.",
        frame=rows.drop(columns=["gaps", "p"]),
        columns=(
            Column("pair", "pair"),
            Column("row", "family"),
            Column("seeds", "seeds", numeric=True),
            Column("each", "differences by seed"),
            Column("value", "mean", signed, numeric=True, low="low", high="high"),
            Column("verdict", "result"),
            Column("among_all", "after Holm correction"),
        ),
        group="pair",
    )
