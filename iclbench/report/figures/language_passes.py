"""Deep-Thinking pass by pass: accuracy (figure 6 of arXiv 2305.13016), and how far it has moved from plain in-context
learning."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from iclbench.core.metrics import metric
from iclbench.report.blocks import Figure
from iclbench.report.figures import curves, language
from iclbench.report.language import HEADLINE, Language

_DRIFT = {
    "kl_to_icl": (
        "divergence",
        metric("kl_to_icl").label,
        "KL divergence of the next token from plain in-context learning (nats, mean over queries)",
    ),
    "memory_change": (
        "memory",
        "distance of a pass from the memory",
        "Relative distance of the keys and values of each pass from the memory before it (mean over layers)",
    ),
}


def against_passes(found: Language) -> Iterator[Figure]:
    """Accuracy after every pass, on the development split too where T was chosen on it; then both drifts."""
    rows = found.trace[found.trace["shift"] == "none"]
    rows = found.at_main(rows)
    if rows["axis_value"].nunique() < 2:
        return
    accuracy = rows[rows["metric"] == HEADLINE]
    if len(accuracy):
        yield _figure(
            found,
            accuracy,
            "language-passes",
            "Accuracy against passes",
            "accuracy",
            language.around(accuracy),
            "Accuracy on the same queries after each pass (one pass: plain in-context learning)",
        )
    for drift, (name, label, reading) in _DRIFT.items():
        own = rows[(rows["metric"] == drift) & (rows["value"] > 0)]
        if len(own["axis_value"].unique()) > 1:
            domain = float(own["value"].min()) / 1.5, float(own["value"].max()) * 1.5
            yield _figure(
                found,
                own,
                f"language-{name}",
                f"{label} against passes",
                label,
                domain,
                reading,
                log=True,
            )


def _figure(
    found: Language,
    rows: pd.DataFrame,
    name: str,
    title: str,
    label: str,
    domain: tuple[float, float],
    caption: str,
    log: bool = False,
) -> Figure:
    held_out = rows["evaluator"] == "development"
    rows = rows.assign(contestant=rows["contestant"].where(~held_out, rows["contestant"] + language.DEVELOPMENT))
    data, panels, what = language.paneled(rows, "axis_value")
    passes = sorted(data["axis_value"].unique())
    axes = curves.Axes(
        "passes",
        label,
        curves.extent(data["axis_value"]),
        domain,
        log=log,
        field="axis_value",
        unit="pass",
        band="95 % interval",
        ticks=tuple(passes) if len(passes) <= 8 else (),
    )
    split = "; development: the queries for choosing the number of passes" if held_out.any() else ""
    return language.lines(
        found,
        data,
        panels,
        axes,
        name=name,
        title=title,
        caption=f"{caption}, {what}. Bands: 95 % intervals over sets of demonstrations{split}.",
        levels=False,
    )
