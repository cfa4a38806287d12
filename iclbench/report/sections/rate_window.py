"""Windows of learning rates: scores of the trials of `iclbench tune` against the rate, the expected best of k rates,
and the order of models at one rate for all."""

from __future__ import annotations

import pandas as pd

from iclbench.analysis.rate_curves import WINDOW_TOLERANCE, RateCurves, rate_curves
from iclbench.core.formats import fixed, plural
from iclbench.report.blocks import Column, Figure, Section, Table, Text
from iclbench.report.data import Slice
from iclbench.report.figures import curves, learning
from iclbench.report.style import Look, looks


def section(task: Slice) -> Section | None:
    trials = task.results.trials
    found = rate_curves(trials[trials["task"].eq(task.task) & trials["preset"].eq(task.preset)])
    if found is None:
        return None
    drawn = () if found.rows["value"].isna().all() else (_figure(task, found),)
    blocks = (*drawn, _windows(task, found), *_rankings(task, found))
    return Section(f"{task.id}-rate-window", "Learning rates", blocks)


def _conditions(found: RateCurves) -> str:
    few, many = int(found.rows["seeds"].min()), int(found.rows["seeds"].max())
    seeds = plural(many, "seed") if few == many else f"{few} to {many} seeds"
    better = "less" if found.metric.lower_is_better else "more"
    return f"{found.steps:,} steps, {seeds}, validation episodes; {better} is better"


def _figure(task: Slice, found: RateCurves) -> Figure:
    """A line per backbone, and the range over seeds; a rate with a diverged run has no point."""
    rows = found.rows.dropna(subset="value")
    known = _looks(task, found)
    rows = rows.assign(
        kind="backbone", run=rows["contestant"], label=rows["contestant"], series=rows["contestant"], sparse=True
    )
    rows = rows.assign(low=rows["lowest"], high=rows["highest"], band=rows["seeds"] > 1, panel="")
    rows["width"] = [known[name].width for name in rows["contestant"]]
    ends = curves.extent(rows["lr"])
    axes = curves.Axes(
        "learning rate",
        found.metric.label,
        (ends[0], ends[1]) if ends[0] > 0 else (rows["lr"].min() / 2, rows["lr"].max() * 2),
        curves.domain(rows, found.metric),
        field="lr",
        unit="rate",
        band="range over seeds",
        log_x=True,
    )
    drawn = {name: look for name, look in known.items() if name in set(rows["contestant"])}
    columns = [*curves.COLUMNS, "band", "panel", "lr", "run"]
    return learning.panel_figure(
        rows.sort_values(["contestant", "lr"], ignore_index=True)[columns],
        [""],
        axes,
        drawn,
        name=f"{task.id}-rate-window",
        title=f"{task.task}: score against the learning rate",
        caption=f"{found.metric.label.capitalize()} against the peak learning rate ({_conditions(found)}). Bands: "
        "range over seeds; no point: a run diverged.",
        alt=f"{task.task}: {found.metric.label} of {learning.name_list(drawn)} against the learning rate",
    )


def _looks(task: Slice, found: RateCurves) -> dict[str, Look]:
    names = sorted(found.by_contestant)
    return looks(names, [], [], task.results.orders) | {n: task.looks[n] for n in names if n in task.looks}


def _windows(task: Slice, found: RateCurves) -> Table:
    """Best first: rate and score, window, and the expected best of k common rates."""
    several = range(1, len(found.common) + 1)
    rows = []
    spreads = found.rows.set_index(["contestant", "lr"])["spread"]
    for who, own in found.by_contestant.items():
        best, window = found.best(who), found.window(who)
        rows.append(
            {
                "contestant": who,
                "tried": len(own),
                "best_rate": best,
                "value": None if best is None else own[best],
                "spread": None if best is None else spreads[who, best],
                "lowest_rate": window[0] if window else None,
                "highest_rate": window[-1] if window else None,
                "window": _window(window, sorted(own)),
            }
            | {f"best_of_{k}": found.expected(who, k) for k in several}
        )
    frame = pd.DataFrame(rows).sort_values(
        ["value", "contestant"], ascending=[found.metric.lower_is_better, True], ignore_index=True
    )
    show = found.metric.show
    common = ", ".join(map(number_of, found.common))
    rates = f" Best of k: the expected best of k of the common rates {common}." if found.common else ""
    return Table(
        name=f"{task.id}-rate-window",
        title="Best learning rates and their windows",
        caption=f"{found.metric.label.capitalize()} (mean ± standard deviation over seeds) at the best learning rate, "
        f"and the window of rates within {WINDOW_TOLERANCE:.0%} of it; < and >: open at the end of the tried rates."
        f"{rates}",
        frame=frame,
        columns=(
            Column("contestant", "contestant"),
            Column("best_rate", "best rate", number_of, True),
            Column("value", found.metric.label, show, True, spread="spread"),
            Column("window", "window", numeric=True),
            *(Column(f"best_of_{k}", f"best of {k}", show, True) for k in several),
        ),
    )


def _window(window: list[float], tried: list[float]) -> str:
    """
    >>> _window([1e-3, 3e-3], [3e-4, 1e-3, 3e-3]), _window([1e-3], [3e-4, 1e-3, 3e-3]), _window([], [1e-3])
    ('1e-3 to 3e-3 >', '1e-3', '–')
    """
    if not window:
        return "–"
    ends = list(dict.fromkeys([number_of(window[0]), number_of(window[-1])]))
    return f"{'< ' if window[0] == tried[0] else ''}{' to '.join(ends)}{' >' if window[-1] == tried[-1] else ''}"


def _rankings(task: Slice, found: RateCurves) -> tuple[Table | Text, ...]:
    """Order of models at the best rate of each and at one rate for all, and the agreement of these orders."""
    if len(found.by_contestant) < 3 or not found.common:
        return ()
    best = found.ranks(None)
    places = {lr: found.ranks(lr) for lr in found.common}
    frame = pd.DataFrame(
        {"contestant": who, "best": best[who]} | {f"rate_{lr:g}": own[who] for lr, own in places.items()}
        for who in sorted(best, key=lambda who: (best[who] or len(best) + 1, who))
    )
    frame = frame.astype({name: "Int64" for name in frame.columns if name != "contestant"})
    agreed = {lr: tau for lr in found.common if (tau := found.agreement(lr)) is not None}
    said = ", ".join(
        f"{fixed(tau, 2)} at {number_of(lr)} (first: {next(who for who, place in places[lr].items() if place == 1)})"
        for lr, tau in agreed.items()
        if any(place == 1 for place in places[lr].values())
    )
    table = Table(
        name=f"{task.id}-rate-ranks",
        title="Order at one learning rate for all models",
        caption="Place of each model by mean score at its own best rate, and at one rate for all. A dash: a run "
        "diverged (counts as last).",
        frame=frame,
        columns=(
            Column("contestant", "contestant"),
            Column("best", "own best rate", numeric=True),
            *(Column(f"rate_{lr:g}", f"all at {number_of(lr)}", numeric=True) for lr in found.common),
        ),
    )
    first = next((who for who, place in best.items() if place == 1), None)
    text = f"Kendall's tau to the order at the best rates (first: {first}): {said}." if said else ""
    return (Text(text), table) if text else (table,)


def number_of(rate: float) -> str:
    """
    >>> number_of(3e-3), number_of(0.1), number_of(1.5e-4)
    ('3e-3', '1e-1', '1.5e-4')
    """
    digits, _, power = f"{rate:.2e}".partition("e")
    return f"{float(digits):g}e{int(power)}"
