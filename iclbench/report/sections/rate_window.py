"""Windows of learning rates, from the trials of `iclbench tune`: scores by rate, the expected best score of k rates,
and the order of models if all are trained at one rate."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from iclbench.analysis.rate_curves import RateCurves, rate_curves
from iclbench.core.formats import fixed, plural
from iclbench.report.blocks import Column, Figure, Section, Table, Text
from iclbench.report.data import Slice
from iclbench.report.figures import curves, learning
from iclbench.report.style import Look, looks


def section(task: Slice) -> Section | None:
    trials = task.results.trials
    rate_scores = rate_curves(trials[trials["task"].eq(task.task) & trials["preset"].eq(task.preset)])
    if rate_scores is None:
        return None
    figures = () if rate_scores.rows["value"].isna().all() else (_figure(task, rate_scores),)
    blocks = (*figures, _window_table(task, rate_scores), *_order_blocks(task, rate_scores))
    return Section(f"{task.id}-rate-window", "Learning rates", blocks, rules=("Windows of learning rates",))


def _conditions(rate_scores: RateCurves) -> str:
    """The steps, seeds and episodes of the trials, and the direction of the metric, for a caption."""
    fewest, most = int(rate_scores.rows["seeds"].min()), int(rate_scores.rows["seeds"].max())
    seeds = plural(most, "seed") if fewest == most else f"{fewest} to {most} seeds"
    better = "lower" if rate_scores.metric.lower_is_better else "higher"
    return f"{rate_scores.steps:,} steps, {seeds}, validation episodes; {better} is better"


def _figure(task: Slice, rate_scores: RateCurves) -> Figure:
    """A figure with a line per backbone and the range over seeds. A rate with a diverged run has no point."""
    rows = rate_scores.rows.dropna(subset="value")
    all_looks = _looks(task, rate_scores)
    rows = rows.assign(
        kind="backbone", run=rows["contestant"], label=rows["contestant"], series=rows["contestant"], sparse=True
    )
    rows = rows.assign(low=rows["lowest"], high=rows["highest"], band=rows["seeds"] > 1, panel="")
    rows["width"] = [all_looks[name].width for name in rows["contestant"]]
    ends = curves.extent(rows["lr"])
    axes = curves.Axes(
        "learning rate",
        rate_scores.metric.label,
        (ends[0], ends[1]) if ends[0] > 0 else (rows["lr"].min() / 2, rows["lr"].max() * 2),
        curves.domain(rows, rate_scores.metric),
        field="lr",
        x_name="rate",
        band_name="range over seeds",
        log_x=True,
    )
    looks_of_lines = {name: look for name, look in all_looks.items() if name in set(rows["contestant"])}
    columns = [*curves.COLUMNS, "band", "panel", "lr", "run"]
    return learning.panel_figure(
        rows.sort_values(["contestant", "lr"], ignore_index=True)[columns],
        [""],
        axes,
        looks_of_lines,
        name=f"{task.id}-rate-window",
        title=f"{task.task}: score against the learning rate",
        caption=f"{rate_scores.metric.label.capitalize()} against the peak learning rate ({_conditions(rate_scores)}). "
        "Bands: range over seeds; no point: a run diverged.",
        alt=f"{task.task}: {rate_scores.metric.label} of {learning.name_list(looks_of_lines)} against the learning "
        "rate",
    )


def _looks(task: Slice, rate_scores: RateCurves) -> dict[str, Look]:
    names = sorted(rate_scores.by_contestant)
    return looks(names, [], [], task.results.orders) | {n: task.looks[n] for n in names if n in task.looks}


def _window_table(task: Slice, rate_scores: RateCurves) -> Table:
    """A table with a row per backbone, the best first: best rate and score, window, and expected best of k common
    rates."""
    counts = range(1, len(rate_scores.common_rates) + 1)
    rows = []
    spreads = rate_scores.rows.set_index(["contestant", "lr"])["spread"]
    for name, scores in rate_scores.by_contestant.items():
        best, window = rate_scores.best_rate(name), rate_scores.window(name)
        rows.append(
            {
                "contestant": name,
                "tried": len(scores),
                "best_rate": best,
                "value": None if best is None else scores[best],
                "spread": None if best is None else spreads[name, best],
                "lowest_rate": window[0] if window else None,
                "highest_rate": window[-1] if window else None,
                "window": _window_text(window, sorted(scores)),
            }
            | {f"best_of_{k}": rate_scores.expected_score(name, k) for k in counts}
        )
    frame = pd.DataFrame(rows).sort_values(
        ["value", "contestant"], ascending=[rate_scores.metric.lower_is_better, True], ignore_index=True
    )
    show = rate_scores.metric.show
    common = ", ".join(map(rate_text, rate_scores.common_rates))
    note = f" Best of k: the expected best of k of the common rates {common}." if rate_scores.common_rates else ""
    return Table(
        name=f"{task.id}-rate-window",
        title="Best learning rates and their windows",
        caption=f"{rate_scores.metric.label.capitalize()} (mean ± standard deviation over seeds) at the best learning "
        f"rate, and the window of rates around it; < and >: it reaches the lowest or the highest tried rate.{note}",
        frame=frame,
        columns=(
            Column("contestant", "contestant"),
            Column("best_rate", "best rate", rate_text, True),
            Column("value", rate_scores.metric.label, show, True, spread="spread"),
            Column("window", "window", numeric=True),
            *(Column(f"best_of_{k}", f"best of {k}", show, True) for k in counts),
        ),
    )


def _window_text(window: list[float], rates: list[float]) -> str:
    """A window of rates as text. It is marked as open where it reaches the lowest or the highest of the tried rates.

    >>> rates = [3e-4, 1e-3, 3e-3]
    >>> _window_text([1e-3, 3e-3], rates), _window_text([1e-3], rates), _window_text([], rates)
    ('1e-3 to 3e-3 >', '1e-3', '–')
    """
    if not window:
        return "–"
    ends = list(dict.fromkeys([rate_text(window[0]), rate_text(window[-1])]))
    return f"{'< ' if window[0] == rates[0] else ''}{' to '.join(ends)}{' >' if window[-1] == rates[-1] else ''}"


def _order_blocks(task: Slice, rate_scores: RateCurves) -> tuple[Table | Text, ...]:
    """A table of the orders of models at the best rate of each and at one rate for all, and a text on their
    agreement."""
    if len(rate_scores.by_contestant) < 3 or not rate_scores.common_rates:
        return ()
    at_best = rate_scores.ranks(None)
    at_rate = {lr: rate_scores.ranks(lr) for lr in rate_scores.common_rates}
    frame = pd.DataFrame(
        {"contestant": name, "best": at_best[name]} | {f"rate_{lr:g}": ranks[name] for lr, ranks in at_rate.items()}
        for name in sorted(at_best, key=lambda name: (at_best[name] or len(at_best) + 1, name))
    )
    frame = frame.astype({name: "Int64" for name in frame.columns if name != "contestant"})
    firsts = {lr: _first_contestant(ranks) for lr, ranks in at_rate.items()}
    taus = {lr: tau for lr in rate_scores.common_rates if (tau := rate_scores.rank_agreement(lr)) is not None}
    agreement = ", ".join(
        f"{fixed(tau, 2)} at {rate_text(lr)} (first: {firsts[lr]})"
        for lr, tau in taus.items()
        if firsts[lr] is not None
    )
    table = Table(
        name=f"{task.id}-rate-ranks",
        title="Order at one learning rate for all models",
        caption="Place of each model by mean score at its own best rate, and at one rate for all. A dash: a run "
        "diverged (the model counts as last).",
        frame=frame,
        columns=(
            Column("contestant", "contestant"),
            Column("best", "own best rate", numeric=True),
            *(Column(f"rate_{lr:g}", f"all at {rate_text(lr)}", numeric=True) for lr in rate_scores.common_rates),
        ),
    )
    if not agreement:
        return (table,)
    return (
        Text(
            f"Kendall's tau between the order at the best rates (first: {_first_contestant(at_best)}) and the order at "
            f"one rate: {agreement}."
        ),
        table,
    )


def _first_contestant(ranks: Mapping[str, int | None]) -> str | None:
    """The contestant with rank 1; None if all contestants have a diverged run."""
    return next((name for name, rank in ranks.items() if rank == 1), None)


def rate_text(rate: float) -> str:
    """A learning rate in scientific notation.

    >>> rate_text(3e-3), rate_text(0.1), rate_text(1.5e-4)
    ('3e-3', '1e-1', '1.5e-4')
    """
    digits, _, power = f"{rate:.2e}".partition("e")
    return f"{float(digits):g}e{int(power)}"
