"""The budget of each model: parameters, training steps, FLOPs, time, memory and learning rate."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd

from iclbench.analysis import normalised
from iclbench.analysis.normalised import contests
from iclbench.config.cards import BUDGET_TOLERANCE, Preset, deviation, load_task, read_toml
from iclbench.config.rates import Rates, learning_rate
from iclbench.core.errors import UsageError
from iclbench.core.formats import count, integer, number, slug
from iclbench.core.metrics import metric
from iclbench.report.blocks import Block, Column, Section, Table, Text
from iclbench.report.cost_table import rows_of_one_machine
from iclbench.report.data import Results, Slice
from iclbench.store.rates import read_rates
from iclbench.tables.means import means_over_seeds

_INTRODUCTION = (
    "All models of a task have about the same number of parameters and are trained for the same number of steps. "
    "The cost of a step may differ."
)
# Column -> phase and metric of a cost. The table shows the smallest and the largest value over the backbones of a task.
_COSTS = {
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
        frame = budgets(tasks)
        if frame.empty:
            continue
        blocks.append(_budget_table(frame, preset))
        if not (shares := deviations(tasks)).empty:
            blocks.append(_deviation_table(shares, preset))
        if not (rates := learning_rates(tasks)).empty:
            blocks.append(_rate_table(rates, preset))
        if counts := tuning_task_counts(tasks):
            lines = tuple(f"{task}: {', '.join(texts)}" for task, texts in counts.items())
            blocks.append(
                Text(f"Learning rates of preset {preset} that were tuned on another task", lines, folded=True)
            )
    return Section("equal-budget", "Equal budget", (Text(_INTRODUCTION), *blocks)) if blocks else None


def budgets(tasks: list[Slice]) -> pd.DataFrame:
    """A row per task with the number of backbones, the fewest and most steps, the smallest and largest value of each
    cost over the backbones (means over runs), and the `ratio` of the largest to the smallest number of parameters."""
    rows = []
    for task in tasks:
        row: dict[str, object] = {"task": task.name}
        steps = _steps(task)
        row |= {"steps_low": steps.min(), "steps_high": steps.max()} if len(steps) else {}
        backbones = {name for name, kind in task.kinds.items() if kind == "backbone"}
        costs = task.costs[task.costs["contestant"].isin(backbones)]
        for column, (phase, name) in _COSTS.items():
            values = costs[(costs["phase"] == phase) & (costs["metric"] == name)]
            if metric(name).depends_on_machine:
                values = rows_of_one_machine(values)
            means = means_over_seeds(values, ["contestant"])["value"].astype(float)
            if len(means):
                row |= {f"{column}_low": means.min(), f"{column}_high": means.max()}
            if column == "parameters" and len(means):
                row |= {"ratio": means.max() / means.min(), "backbones": len(means)}
        if "ratio" in row:
            rows.append(row)
    return pd.DataFrame(rows)


def deviations(tasks: list[Slice]) -> pd.DataFrame:
    """Deviations of the number of parameters from the budget of the card's preset, as a share of the budget.

    The frame has a row per backbone and a column per task. Rows of another version of the card are ignored.
    """
    shares: dict[str, dict[str, float]] = {}
    for task in tasks:
        preset, backbones = current_preset(task)
        if preset is None or preset.budget is None:
            continue
        costs = task.costs[task.costs["phase"].eq("model") & task.costs["contestant"].isin(backbones)]
        means = means_over_seeds(costs, ["contestant", "metric"])
        sizes = means.pivot_table(index="contestant", columns="metric", values="value").astype(float)
        if "parameters" in sizes:
            encoder = sizes["encoder_parameters"].fillna(0) if "encoder_parameters" in sizes else 0
            shares[task.name] = deviation(sizes["parameters"] - encoder, preset.budget).dropna().to_dict()
    return _by_contestant(shares)


def learning_rates(tasks: list[Slice]) -> pd.DataFrame:
    """The learning rates of all backbones, with a row per backbone and a column per task.

    The rate is taken from the runs in the results folder or, if they are missing, from the tables of tuned rates or the
    card. It is missing if the rates of the runs differ. Rows of another version of the card are ignored.
    """
    rates: dict[str, dict[str, float]] = {}
    for task in tasks:
        preset, backbones = current_preset(task)
        if preset is None:
            continue
        tuned_rates = _rates(task)
        rates_or_none = {
            name: _rate_of_runs(task, name) or learning_rate(preset, tuned_rates, name) for name in backbones
        }
        if known_rates := {name: rate for name, rate in rates_or_none.items() if rate is not None}:
            rates[task.name] = known_rates
    return _by_contestant(rates)


def tuning_task_counts(tasks: list[Slice]) -> dict[str, list[str]]:
    """By task, the number of backbones whose learning rate was tuned on another task, such as "12 of 16 on linear"."""
    texts = {}
    for task in tasks:
        _, backbones = current_preset(task)
        tuning_task = _rates(task).tuning_tasks
        tuned_on = [tuning_task[name] for name in backbones if name in tuning_task]
        counts = Counter(name for name in tuned_on if name != task.task)
        if counts:
            texts[task.name] = [f"{n} of {len(tuned_on)} on {name}" for name, n in sorted(counts.items())]
    return texts


def _rates(task: Slice) -> Rates:
    return Rates.of(task.preset, task.task, results_table=read_rates(task.results.folder, task.preset))


def _rate_of_runs(task: Slice, contestant: str) -> float | None:
    """The learning rate of a contestant's runs: NaN if the runs differ, None if the settings of a run cannot be
    read."""
    settings = [_train_settings(task.results.folder, run) for run in task.runs_by_backbone.get(contestant, [])]
    rates = {train["lr"] for train in settings if train is not None and "lr" in train}
    if not rates or None in settings:
        return None
    return float(rates.pop()) if len(rates) == 1 else math.nan


def _train_settings(results: Path | None, run: str) -> dict[str, Any] | None:
    """The training settings of a run in the results folder; None if its file is missing or cannot be read."""
    path = None if results is None else results / "runs" / run / "config.toml"
    if path is None or not path.is_file():
        return None
    with suppress(UsageError):
        return dict(read_toml(path).get("train", {}))
    return None


def current_preset(task: Slice) -> tuple[Preset | None, list[str]]:
    """The preset of the task's current card, and the backbones whose rows have the hash of this card."""
    try:
        card = load_task(task.task)[1]
    except UsageError:  # a user's card may be in another folder
        return None, []
    card_contestants = set(task.rows.loc[task.rows["card"] == card.hash, "contestant"].unique())
    backbones = [name for name, kind in task.kinds.items() if kind == "backbone" and name in card_contestants]
    return card.presets.get(task.preset), backbones  # type: ignore[call-overload]  # the preset may have any name


def _by_contestant(columns: dict[str, dict[str, float]]) -> pd.DataFrame:
    frame = pd.DataFrame(columns).rename_axis("contestant").reset_index()
    return frame.sort_values("contestant", ignore_index=True)


def _steps(task: Slice) -> pd.Series:
    """The number of training steps by run, without diverged runs."""
    in_training = task.rows["evaluator"].eq("train") & task.rows["axis"].eq("train_step").fillna(False).astype(bool)
    rows = task.rows[in_training]
    rows = rows[~rows["run"].isin(rows.loc[rows["status"] == "failed", "run"])]
    return rows.groupby("run")["axis_value"].max().astype(int)


def _budget_table(frame: pd.DataFrame, preset: str) -> Table:
    formats = {"steps": integer} | {name: metric(name).show for name in ("flops", "seconds", "bytes")}
    titles = {"steps": "steps", "flops": "FLOPs of a step", "seconds": "training", "bytes": "peak memory of training"}
    columns = [
        Column("task", "family"),
        Column("backbones", "models", integer, numeric=True),
        Column("parameters_low", "fewest parameters", count, numeric=True),
        Column("parameters_high", "most", count, numeric=True),
        Column("ratio", "most / fewest", _ratio, numeric=True),
    ]
    for name, show in formats.items():
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
        f"equal-budget-{slug(preset)}",
        f"{preset}: parameters, steps and training costs",
        f"Smallest and largest value over the models of each task of preset {preset}; means over seeds.",
        frame,
        tuple(columns),
    )


def _deviation_table(shares: pd.DataFrame, preset: str) -> Table:
    return Table(
        f"budget-{slug(preset)}",
        f"{preset}: parameters against the budget",
        f"Parameters of each model (without an image encoder) relative to the budget of each task of preset {preset}; "
        f"the tolerance is {BUDGET_TOLERANCE:.0%}. A dash: not trained.",
        shares,
        (Column("contestant", "model"), *(Column(str(t), str(t), _percent, numeric=True) for t in shares.columns[1:])),
        folded=True,
    )


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %"


def _rate_table(rates: pd.DataFrame, preset: str) -> Table:
    tasks = [str(name) for name in rates.columns[1:]]
    return Table(
        f"learning-rates-{slug(preset)}",
        f"{preset}: learning rates",
        f"Learning rate of each model on each task of preset {preset}. A dash: not trained, or trained at "
        "different rates.",
        rates,
        (Column("contestant", "model"), *(Column(task, task, number, numeric=True) for task in tasks)),
        folded=True,
    )


def _ratio(value: float) -> str:
    return f"{value:.2f}"
