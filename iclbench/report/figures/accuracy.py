"""Figure of the accuracy on the tests of a family during training, with a panel per test (CoQE, figures 5 and 8)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from iclbench.analysis import accuracies
from iclbench.analysis.evaluators import meaning, sorted_evaluators
from iclbench.report.blocks import Figure
from iclbench.report.data import Slice
from iclbench.report.figures import curves, learning
from iclbench.report.style import ZERO, Look

GUESSING = "chance"
# The reference for accuracies in context. This baseline is not trained and has an accuracy of 0.8 to 0.9.
PIXEL_BASELINE = "pixel-1nn"
# A line with more steps than this has no dots.
_MAX_DOTS = 30


def training_figure(task: Slice) -> Figure | None:
    """A figure with a line per contestant (the mean over its runs), a band (the range over its runs, or the interval of
    a single run), and a horizontal line per reference; None for fewer than two steps."""
    steps = accuracies.trajectory(task)
    if steps["axis_value"].nunique() < 2:
        return None
    step_range = curves.extent(steps["axis_value"])
    tests = sorted_evaluators(steps["evaluator"])
    data = pd.concat([_lines(steps), *(_levels(task, test, step_range) for test in tests)], ignore_index=True)
    looks = _looks(task, data)
    data = data.assign(
        label=data["contestant"],
        series=data["contestant"],
        width=[looks[name].width for name in data["contestant"]],
        panel=[meaning(str(test)).title for test in data["evaluator"]],
    )
    axes = curves.Axes(
        "training step",
        "accuracy",
        step_range,
        (0.0, 1.02),
        field="axis_value",
        x_name="step",
        band_name="range over seeds or 95 % interval",
    )
    titles = [meaning(test).title for test in tests]
    run_counts = sorted({int(n) for n in steps["runs"]})
    references = f"guessing and {PIXEL_BASELINE}" if PIXEL_BASELINE in looks else "guessing"
    return learning.panel_figure(
        data[[*curves.COLUMNS, "run", "axis_value", "panel"]],
        titles,
        axes,
        looks,
        name=f"{task.id}-accuracy-in-training",
        title=f"{task.task}: accuracy in context and in weights during training",
        caption="Accuracy among the allowed labels against the training step, one panel per test. "
        f"{_band_caption(run_counts)}; horizontal lines: {references}.",
        alt=f"{task.task}: accuracy of {learning.name_list(looks)} against the training step",
    )


def reference_levels(task: Slice, evaluator: str) -> dict[str, float]:
    """The accuracies of the untrained references, guessing and `PIXEL_BASELINE`, if they are known."""
    final_rows = accuracies.final(task)
    rows = final_rows[
        (final_rows["evaluator"] == evaluator) & final_rows["contestant"].isin([PIXEL_BASELINE, GUESSING])
    ]
    measured_levels = {str(name): float(value) for name, value in zip(rows["contestant"], rows["value"], strict=True)}
    guessing_level = meaning(evaluator).chance
    return ({} if guessing_level is None else {GUESSING: guessing_level}) | measured_levels


def _lines(steps: pd.DataFrame) -> pd.DataFrame:
    """The lines of contestants during training. The band is the range over runs or, for one run, its interval over
    episodes."""
    has_several_runs = steps["runs"] > 1
    rows = steps.assign(
        low=steps["lowest"].where(has_several_runs, steps["low"]),
        high=steps["highest"].where(has_several_runs, steps["high"]),
        sparse=steps["axis_value"].nunique() <= _MAX_DOTS,
    )
    return rows.sort_values(["evaluator", "contestant", "axis_value"])


def _levels(task: Slice, evaluator: str, step_range: tuple[float, float]) -> pd.DataFrame:
    """Horizontal lines over all steps: two rows per accuracy of `reference_levels`."""
    rows = [
        {"contestant": name, "run": name, "value": value, "axis_value": step}
        for name, value in reference_levels(task, evaluator).items()
        for step in step_range
    ]
    frame = pd.DataFrame(rows, columns=["contestant", "run", "value", "axis_value"])
    return frame.assign(evaluator=evaluator, kind="baseline", low=np.nan, high=np.nan, sparse=False)


def _looks(task: Slice, data: pd.DataFrame) -> dict[str, Look]:
    names = dict.fromkeys(data.loc[data["kind"] == "backbone", "contestant"].sort_values())
    levels = [name for name in (PIXEL_BASELINE, GUESSING) if name in set(data["contestant"])]
    return {name: ZERO if name == GUESSING else task.looks[name] for name in [*names, *levels]}


def _band_caption(run_counts: list[int]) -> str:
    """The meaning of lines and bands for these numbers of runs per contestant."""
    if run_counts == [1]:
        return "Bands: 95 % intervals over episodes"
    number = f"{run_counts[0]}" if len(run_counts) == 1 else f"{run_counts[0]} to {run_counts[-1]}"
    single = " (one seed: 95 % interval over episodes)" if 1 in run_counts else ""
    return f"Lines: means over {number} seeds; bands: range over seeds{single}"
