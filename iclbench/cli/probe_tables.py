"""The tables of the probes: scores by depth, ranks by number of contexts, and R² by feature."""

from __future__ import annotations

import math

import pandas as pd

from iclbench.analysis.probes import layer_scores
from iclbench.cli.result_rows import short_score
from iclbench.core.formats import fixed
from iclbench.core.metrics import Metric, metric
from iclbench.registry import noun_of_points


def examples_in_context(values: pd.DataFrame) -> str:
    """Return the number of examples (or elements) in context as a part of the title; empty if it is unknown."""
    sizes = values["n_context"].dropna()
    return f"{int(sizes.iloc[0])} {noun_of_points(str(values['family'].iloc[0]))}, " if len(sizes) else ""


def depth_table(values: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Return the column names and the rows, best first.

    A row has the score after a quarter, half, three quarters and all of the layers (or steps), the best score, and the
    scale and shift after the last layer with their standard deviations over functions.

    Contestants have one row for each kind of score: an error, or the score of a decoded target. Columns without values
    are omitted.
    """
    names = layer_scores(values)
    is_shown = values["evaluator"].eq("probe") & values["status"].ne("skipped")
    lines: list[list[str]] = []
    for name in names:
        measure = metric(name)
        runs = values.loc[values["status"].eq("ok") & values["metric"].eq(name), "run"].unique()
        run_lines = [
            _line(_styled_name(values, str(run)), values[is_shown & values["run"].eq(run)], measure) for run in runs
        ]
        run_lines.sort(key=lambda pair: (math.isnan(pair[0]), pair[0] if measure.lower_is_better else -pair[0]))
        lines += [
            [line[0], measure.label if len(names) > 1 or name != "squared_error" else "", *line[1:]]
            for _, line in run_lines
        ]
    columns = ["contestant", "score", "depth", "1/4", "1/2", "3/4", "all", "best", "scale", "shift"]
    used_indices = [i for i in range(len(columns)) if not lines or any(line[i] for line in lines)]
    return [columns[i] for i in used_indices], [[line[i] for i in used_indices] for line in lines]


def _line(name: str, rows: pd.DataFrame, measure: Metric) -> tuple[float, list[str]]:
    """Return the score after the last layer or step, and a contestant's row without the name of the score."""
    scores = rows[rows["metric"] == measure.name].sort_values("axis_value")
    last_score = float(scores["value"].astype(float).iloc[-1])
    if scores["axis"].isna().all():
        return last_score, [name, "", "", "", "", short_score(last_score), "", "", ""]
    by_depth = scores.set_index(scores["axis_value"].astype(int))["value"]
    depth = int(by_depth.index.max())
    unit = "layer" if scores["axis"].iloc[0] == "layer" else "step"
    quarters = [_score_at(by_depth, depth, quarter) for quarter in (1, 2, 3)]
    best_score, best_at = (
        (by_depth.min(), by_depth.idxmin()) if measure.lower_is_better else (by_depth.max(), by_depth.idxmax())
    )
    best = "" if by_depth.isna().any() else f"{short_score(best_score)} at {unit} {best_at}"
    last_layer = rows[rows["axis_value"] == depth].set_index("metric")["value"]
    scale, shift = (_with_spread(last_layer, key) for key in ("scale", "shift"))
    return last_score, [name, f"{depth} {unit}s", *quarters, short_score(last_score), best, scale, shift]


def _score_at(by_depth: pd.Series, depth: int, quarters: int) -> str:
    """Return the score at this number of quarters of the depth. Return an empty string if the model has no layer at
    this depth, or if the layer has no score."""
    layer, remainder = divmod(quarters * depth, 4)
    return "" if remainder or layer not in by_depth.index else short_score(by_depth[layer])


def _with_spread(values: pd.Series, metric: str) -> str:
    if f"{metric}_std" not in values.index or pd.isna(values[metric]):
        return ""
    return f"{fixed(values[metric], 2)} ±{fixed(values[f'{metric}_std'], 2)}"


def rank_table(values: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Return the column names and the rows: effective rank and number of non-zero singular values by number of
    contexts. The contestant with the smallest rank is first."""
    by_contexts = _rows_along_axis(values, "rank", "contexts")
    lines: list[tuple[float, list[str]]] = []
    for run, rows in by_contexts.groupby("run", sort=False):
        ranks = rows.pivot_table("value", "axis_value", "metric")
        cells = [f"{e:.1f} ({r:.0f})" for e, r in zip(ranks["effective_rank"], ranks["rank"], strict=True)]
        lines.append((float(ranks["effective_rank"].iloc[-1]), [_styled_name(values, str(run)), *cells]))
    counts = sorted(by_contexts["axis_value"].unique())
    return ["contestant", *(f"m={n:.0f}" for n in counts)], [line for _, line in sorted(lines)]


def rank_title(values: pd.DataFrame) -> str:
    """Return the title of the table of ranks."""
    return f"{examples_in_context(values)}effective rank (rank) of m contexts, "


def representation_title(values: pd.DataFrame) -> str:
    """Return the title of the table of R². R² can be below 0, since a linear map without intercept can be worse than
    the mean."""
    return "R² of the true features, decoded by a linear map without intercept, "


def representation_table(values: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Return the column names and the rows: R² of each true feature and the mean R². The best contestant is first."""
    by_feature = _rows_along_axis(values, "representation", "feature").pivot_table("value", "run", "axis_value")
    means = values[values["evaluator"].eq("representation") & values["axis"].isna() & values["status"].eq("ok")]
    lines = [
        [
            _styled_name(values, str(row["run"])),
            *(fixed(value, 3) for value in by_feature.loc[row["run"]]),
            f"{row['value']:.3f} [{row['low']:.3f}, {row['high']:.3f}]",
        ]
        for _, row in means.sort_values("value", ascending=False).iterrows()
    ]
    return ["contestant", *(f"R² {int(n)}" for n in by_feature.columns), "mean R²"], lines


def _rows_along_axis(values: pd.DataFrame, evaluator: str, axis: str) -> pd.DataFrame:
    return values[values["status"].eq("ok") & values["evaluator"].eq(evaluator) & values["axis"].eq(axis)]


def _styled_name(values: pd.DataFrame, run: str) -> str:
    """Return the name of a contestant, in bold if it is a trained model."""
    return f"[bold]{run}[/bold]" if values.loc[values["run"] == run, "kind"].iloc[0] == "backbone" else run
