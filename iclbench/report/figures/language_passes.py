"""Figures of Deep-Thinking by pass: accuracy (figure 6 of arXiv 2305.13016) and distance to plain in-context
learning."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from iclbench.core.metrics import metric
from iclbench.report.blocks import Figure
from iclbench.report.figures import curves, language
from iclbench.report.language import ACCURACY, LanguageResults

_DRIFT_METRICS = {
    "kl_to_icl": (
        "divergence",
        metric("kl_to_icl").label,
        "KL divergence of the next token from plain in-context learning (nats, mean over queries)",
    ),
    "memory_change": (
        "memory",
        "change of the memory by a pass",
        "Relative change of the keys and values of the memory by each pass (mean over layers)",
    ),
}


def against_passes(results: LanguageResults) -> Iterator[Figure]:
    """Yield figures of the accuracy after every pass, of the divergence from plain in-context learning, and of the
    change of the memory. If the number of passes was chosen on the development split, the accuracy on this split is
    shown, too."""
    rows = results.pass_scores[results.pass_scores["shift"] == "none"]
    rows = results.at_main_shots(rows)
    if rows["axis_value"].nunique() < 2:
        return
    accuracy = rows[rows["metric"] == ACCURACY]
    if len(accuracy):
        yield _figure(
            results,
            accuracy,
            "language-passes",
            "Accuracy against passes",
            "accuracy",
            language.accuracy_range(accuracy),
            "Accuracy on the same queries after each pass (one pass: plain in-context learning)",
        )
    for drift, (name, label, caption) in _DRIFT_METRICS.items():
        drift_rows = rows[(rows["metric"] == drift) & (rows["value"] > 0)]
        if len(drift_rows["axis_value"].unique()) > 1:
            domain = float(drift_rows["value"].min()) / 1.5, float(drift_rows["value"].max()) * 1.5
            yield _figure(
                results,
                drift_rows,
                f"language-{name}",
                f"{label} against passes",
                label,
                domain,
                caption,
                log=True,
            )


def _figure(
    results: LanguageResults,
    rows: pd.DataFrame,
    name: str,
    title: str,
    label: str,
    domain: tuple[float, float],
    caption: str,
    log: bool = False,
) -> Figure:
    is_development = rows["evaluator"] == "development"
    names = rows["contestant"].where(~is_development, rows["contestant"] + language.DEVELOPMENT)
    data, panels, panel_meaning = language.split_into_panels(rows.assign(contestant=names), "axis_value")
    passes = sorted(data["axis_value"].unique())
    axes = curves.Axes(
        "passes",
        label,
        curves.extent(data["axis_value"]),
        domain,
        log_y=log,
        field="axis_value",
        x_name="pass",
        band_name="95 % interval",
        ticks=tuple(passes) if len(passes) <= 8 else (),
    )
    split_note = "; development: the queries on which the number of passes was chosen" if is_development.any() else ""
    return language.line_figure(
        results,
        data,
        panels,
        axes,
        name=name,
        title=title,
        caption=f"{caption}, {panel_meaning}. Bands: 95 % intervals over sets of demonstrations{split_note}.",
        levels=False,
    )
