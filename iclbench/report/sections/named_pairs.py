"""Pairs of models that were named before training: differences over training seeds, not over episodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from iclbench.analysis import normalised
from iclbench.analysis.normalised import Contest
from iclbench.analysis.pairs import LEVEL, Difference, chance, holm, mean_of
from iclbench.config.pairs import Pair, shipped_pairs
from iclbench.core.formats import signed, slug
from iclbench.report.blocks import Block, Column, Figure, Section, Table, Text
from iclbench.report.data import Results
from iclbench.report.figures import dots

_READING = (
    "Score differences of pairs that were named in a grid card before training. Intervals are over training seeds, not "
    "over episodes, and are missing while a seed is missing."
)


def section(results: Results) -> Section | None:
    blocks: list[Block] = []
    for preset in normalised.presets(results):
        if len(rows := compared(normalised.contests(results, preset), preset)):
            drawn = rows[rows["gaps"].map(len) > 0]
            blocks += [_figure(drawn, preset, results)] if len(drawn) else []
            blocks.append(_table(rows, preset))
    return Section("named-pairs", "Named pairs", (Text(_READING), *blocks)) if blocks else None


def gaps(pair: Pair, contest: Contest) -> pd.Series:
    """Score of the first less score of the second by seed, of those of its seeds that both were trained from."""
    rows = contest.rows[contest.rows["kind"].eq("backbone") & contest.rows["seed"].isin(pair.seeds)]
    wide = rows[rows["contestant"].isin([pair.a, pair.b])].pivot_table("value", index="seed", columns="contestant")
    if not {pair.a, pair.b} <= set(wide.columns):
        return pd.Series(dtype=float)
    return (wide[pair.a] - wide[pair.b]).dropna().astype(float)


def over_trainings(pair: Pair, own: pd.Series) -> Difference | None:
    """The mean of a pair's gaps with Student's interval over its seeds; None while one of them is missing."""
    return mean_of(own.to_numpy(float)) if len(own) == len(pair.seeds) else None


def compared(contests: Sequence[Contest], preset: str, pairs: Sequence[Pair] | None = None) -> pd.DataFrame:
    """A row for every pair and contest that one of the two has a score in.

    Columns a, b, pair, row, seeds ("2 of 5"), each (the differences, as text), value, low and high (missing while seeds
    are), verdict, gaps, among_all ("holds", by Holm's method over those with a verdict).
    """
    named = shipped_pairs() if pairs is None else pairs
    rows = pd.DataFrame(_rows(contests, [pair for pair in named if pair.preset == preset]))
    if len(rows):
        there = rows.loc[~rows["verdict"].str.startswith("none"), "gaps"]
        corrected = pd.Series(holm([chance(np.array(own)) for own in there]), there.index)
        rows["among_all"] = corrected.map(lambda p: "holds" if p <= LEVEL else "")
    return rows


def _rows(contests: Sequence[Contest], pairs: Sequence[Pair]) -> Iterator[dict[str, object]]:
    for pair in pairs:
        for contest in contests:
            scored = {pair.a, pair.b} & set(contest.rows["contestant"])
            if contest.task.task not in pair.tasks or not scored:
                continue
            own = gaps(pair, contest)
            found = over_trainings(pair, own)
            yield {
                "a": pair.a,
                "b": pair.b,
                "pair": f"{pair.a} − {pair.b}",
                "row": contest.title,
                "seeds": f"{len(own)} of {len(pair.seeds)}",
                "each": ", ".join(signed(gap) for gap in own),
                "value": float(own.mean()) if len(own) else np.nan,
                "low": np.nan if found is None else found.low,
                "high": np.nan if found is None else found.high,
                "verdict": _verdict(pair, own, found),
                "gaps": own.tolist(),
            }


def _verdict(pair: Pair, own: pd.Series, found: Difference | None) -> str:
    if found is None:
        missing = [str(seed) for seed in pair.seeds if seed not in set(own.index)]
        return f"none: {'seed' if len(missing) == 1 else 'seeds'} {', '.join(missing)} missing"
    if not found.is_significant:
        return "not significantly different"
    return f"{pair.a if found.value > 0 else pair.b} is better"


def _figure(rows: pd.DataFrame, preset: str, results: Results) -> Figure:
    marks = []
    for each in rows.to_dict("records"):
        base = {
            "panel": each["row"],
            "row": each["pair"],
            "contestant": each["a"],
            "run": "",
            "low": None,
            "high": None,
        }
        marks += [base | {"part": "draw", "value": gap, "note": "one seed"} for gap in each["gaps"]]
        if not np.isnan(each["low"]):
            ends = {"low": each["low"], "high": each["high"]}
            marks.append(base | ends | {"part": "mean", "value": each["value"], "note": f"{len(each['gaps'])} seeds"})
    data = pd.DataFrame(marks)
    numbers = data[["value", "low", "high"]].astype(float).to_numpy()
    low, high = min(0.0, float(np.nanmin(numbers))), max(0.0, float(np.nanmax(numbers)))
    margin = 0.05 * (high - low) or 0.1
    return dots.figure(
        f"named-pairs-{slug(preset)}",
        f"{preset}: named pairs over seeds",
        f"Score of the first model minus that of the second at preset {preset}, by seed (small dots), and the mean "
        "with Student's 95 % interval over seeds (discs).",
        data,
        list(dict.fromkeys(rows["row"])),
        list(dict.fromkeys(rows["pair"])),
        {who: look for who, look in results.looks.items() if who in set(rows["a"])},
        dots.Scale("difference of scores", (low - margin, high + margin), zero_rule=True),
    )


def _table(rows: pd.DataFrame, preset: str) -> Table:
    return Table(
        name=f"named-pairs-{slug(preset)}-numbers",
        title=f"{preset}: named pairs over seeds",
        caption=f"Score of the first model minus that of the second at preset {preset}, by seed, and the mean with "
        "Student's 95 % interval over seeds.",
        frame=rows.drop(columns="gaps"),
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
