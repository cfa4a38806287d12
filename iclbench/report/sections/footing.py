"""Whether models had an equal budget: parameters, steps, FLOPs, time, and learning rates."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd

from iclbench.analysis import normalised
from iclbench.analysis.normalised import contests
from iclbench.config.cards import TOLERANCE, Preset, deviation, load_task, read_toml
from iclbench.config.rates import Rates, learning_rate
from iclbench.core.errors import UsageError
from iclbench.core.formats import count, integer, number, slug
from iclbench.core.metrics import metric
from iclbench.report.blocks import Block, Column, Section, Table, Text
from iclbench.report.cost_table import of_one_machine
from iclbench.report.data import Results, Slice
from iclbench.tables.means import over_seeds

_READING = (
    "Models of one task have about as many parameters and train the same number of steps. The cost of a step is not "
    "made equal."
)
# Column -> phase and metric of the costs; every one gives a smallest and a largest over the backbones of a task.
_SPANS = {
    "parameters": ("model", "parameters"),
    "flops": ("train_step", "flops"),
    "seconds": ("train", "seconds"),
    "bytes": ("train", "bytes"),
}


def section(results: Results) -> Section | None:
    blocks: list[Block] = []
    for preset in normalised.presets(results):
        slices = {task.id: task for task in results.slices}
        tasks = [slices[name] for name in dict.fromkeys(contest.task.id for contest in contests(results, preset))]
        frame = footing(tasks)
        if frame.empty:
            continue
        blocks.append(_sizes(frame, preset))
        if not (off := deviations(tasks)).empty:
            blocks.append(_deviations(off, preset))
        if not (rates := learning_rates(tasks)).empty:
            blocks.append(_rates(rates, preset))
        if others := chosen_elsewhere(tasks):
            lines = tuple(f"{task}: {', '.join(where)}" for task, where in others.items())
            blocks.append(
                Text(f"Learning rates of preset {preset} that were tuned on another task", lines, folded=True)
            )
    return Section("footing", "Equal budget", (Text(_READING), *blocks)) if blocks else None


def footing(tasks: list[Slice]) -> pd.DataFrame:
    """A row per task: number of backbones, fewest and most steps, and of every cost the smallest and the largest mean
    over a backbone's runs; `ratio` of parameters."""
    rows = []
    for task in tasks:
        row: dict[str, object] = {"task": task.name}
        steps = _steps(task)
        row |= {"steps_low": steps.min(), "steps_high": steps.max()} if len(steps) else {}
        backbones = {name for name, kind in task.kinds.items() if kind == "backbone"}
        for column, (phase, name) in _SPANS.items():
            costs = task.costs
            own = costs[(costs["phase"] == phase) & (costs["metric"] == name) & costs["contestant"].isin(backbones)]
            if metric(name).of_machine:
                own = of_one_machine(own)
            means = over_seeds(own, ["contestant"])["value"].astype(float)
            if len(means):
                row |= {f"{column}_low": means.min(), f"{column}_high": means.max()}
            if column == "parameters" and len(means):
                row |= {"ratio": means.max() / means.min(), "backbones": len(means)}
        if "ratio" in row:
            rows.append(row)
    return pd.DataFrame(rows)


def deviations(tasks: list[Slice]) -> pd.DataFrame:
    """A row per backbone, a column per task: how far its parameters are from the budget of the card's preset, as a
    share of it, where its rows were made with what this card has trained and evaluated."""
    found: dict[str, dict[str, float]] = {}
    for task in tasks:
        preset, backbones = _of_card(task)
        if preset is None or preset.budget is None:
            continue
        model = task.costs[task.costs["phase"].eq("model") & task.costs["contestant"].isin(backbones)]
        means = over_seeds(model, ["contestant", "metric"])
        sizes = means.pivot_table(index="contestant", columns="metric", values="value").astype(float)
        if "parameters" in sizes:
            encoder = sizes["encoder_parameters"].fillna(0) if "encoder_parameters" in sizes else 0
            found[task.name] = deviation(sizes["parameters"] - encoder, preset.budget).dropna().to_dict()
    return _by_contestant(found)


def learning_rates(tasks: list[Slice]) -> pd.DataFrame:
    """A row per backbone, a column per task: the learning rate that its runs were trained with, where they lie in the
    results folder; else that of tables of rates or of the card, where its rows were made with what this card has
    trained and evaluated. Missing where runs differ in it."""
    rates: dict[str, dict[str, float]] = {}
    for task in tasks:
        preset, backbones = _of_card(task)
        if preset is None:
            continue
        tuned = Rates.of(task.preset, task.task, results=task.results.folder)
        own = {who: _trained_at(task, who) or learning_rate(preset, tuned, who) for who in backbones}
        if found := {who: rate for who, rate in own.items() if rate is not None}:
            rates[task.name] = found
    return _by_contestant(rates)


def chosen_elsewhere(tasks: list[Slice]) -> dict[str, list[str]]:
    """By task of which backbones the learning rate was chosen on another one, as "12 of 16 on linear"."""
    found = {}
    for task in tasks:
        _, backbones = _of_card(task)
        on = Rates.of(task.preset, task.task, results=task.results.folder).tuning_tasks
        chosen = [on[who] for who in backbones if who in on]
        others = Counter(where for where in chosen if where != task.task)
        if others:
            found[task.name] = [f"{n} of {len(chosen)} on {where}" for where, n in sorted(others.items())]
    return found


def _trained_at(task: Slice, contestant: str) -> float | None:
    """The learning rate of a contestant's runs; NaN: several, None: it is not known of all."""
    found = [_train_settings(task.results.folder, run) for run in task.runs.get(contestant, [])]
    rates = {train["lr"] for train in found if train is not None and "lr" in train}
    if not rates or None in found:
        return None
    return float(rates.pop()) if len(rates) == 1 else math.nan


def _train_settings(results: Path | None, run: str) -> dict[str, Any] | None:
    """Settings of training of a run in the results folder; None: it is not there, or cannot be read."""
    path = None if results is None else results / "runs" / run / "config.toml"
    if path is None or not path.is_file():
        return None
    with suppress(UsageError):
        return dict(read_toml(path).get("train", {}))
    return None


def _of_card(task: Slice) -> tuple[Preset | None, list[str]]:
    """The preset as the task's card has it now, and the backbones whose rows were made with this card."""
    try:
        card = load_task(task.task)[1]
    except UsageError:  # a card of somebody's own, which lies elsewhere
        return None, []
    made_with_it = set(task.rows.loc[task.rows["card"] == card.hash, "contestant"])
    backbones = [who for who, kind in task.kinds.items() if kind == "backbone" and who in made_with_it]
    return card.presets.get(task.preset), backbones  # type: ignore[call-overload]  # any name is asked for


def _by_contestant(columns: dict[str, dict[str, float]]) -> pd.DataFrame:
    frame = pd.DataFrame(columns).rename_axis("contestant").reset_index()
    return frame.sort_values("contestant", ignore_index=True)


def _steps(task: Slice) -> pd.Series:
    """The last step of every run's training curve, but of those that diverged: they were to go on."""
    v = task.rows
    rows = v[v["evaluator"].eq("train") & v["axis"].eq("train_step").fillna(False).astype(bool)]
    rows = rows[~rows["run"].isin(rows.loc[rows["status"] == "failed", "run"])]
    return rows.groupby("run")["axis_value"].max().astype(int)


def _sizes(frame: pd.DataFrame, preset: str) -> Table:
    spans = {"steps": integer} | {name: metric(name).show for name in ("flops", "seconds", "bytes")}
    titles = {"steps": "steps", "flops": "FLOPs of a step", "seconds": "training", "bytes": "peak memory of training"}
    columns = [
        Column("task", "family"),
        Column("backbones", "models", integer, numeric=True),
        Column("parameters_low", "fewest parameters", count, numeric=True),
        Column("parameters_high", "most", count, numeric=True),
        Column("ratio", "most / fewest", _ratio, numeric=True),
    ]
    for name, show in spans.items():
        low, high = f"{name}_low", f"{name}_high"
        if low not in frame:
            continue
        if frame[low].equals(frame[high]):
            columns.append(Column(low, titles[name], show, numeric=True))
        else:
            columns += [
                Column(low, f"{titles[name]}: least", show, numeric=True),
                Column(high, "most", show, numeric=True),
            ]
    return Table(
        f"footing-{slug(preset)}",
        f"{preset}: parameters, steps and training costs",
        f"Smallest and largest value over the models of each task of preset {preset}; means over seeds.",
        frame,
        tuple(columns),
    )


def _deviations(off: pd.DataFrame, preset: str) -> Table:
    return Table(
        f"budget-{slug(preset)}",
        f"{preset}: parameters against the budget",
        f"Parameters of each model (without an image encoder) relative to the budget of each task of preset {preset}; "
        f"the tolerance is {TOLERANCE:.0%}. A dash: not trained.",
        off,
        (Column("contestant", "model"), *(Column(str(t), str(t), _percent, numeric=True) for t in off.columns[1:])),
        folded=True,
    )


def _percent(value: float) -> str:
    return f"{100 * value:+.1f} %"


def _rates(rates: pd.DataFrame, preset: str) -> Table:
    tasks = [str(name) for name in rates.columns[1:]]
    return Table(
        f"learning-rates-{slug(preset)}",
        f"{preset}: learning rates",
        f"Learning rate of each model on each task of preset {preset}. A dash: not trained, or runs differ.",
        rates,
        (Column("contestant", "model"), *(Column(task, task, number, numeric=True) for task in tasks)),
        folded=True,
    )


def _ratio(value: float) -> str:
    return f"{value:.2f}"
