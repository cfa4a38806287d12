"""Pareto fronts by brute force, and the costs and scores they are made of."""

import math
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from iclbench.analysis import normalised
from iclbench.config.cards import load_task
from iclbench.config.rates import Rates, shipped_path
from iclbench.report.blocks import Figure
from iclbench.report.data import Results
from iclbench.report.figures.marks import HIGHLIGHT, IS_HIGHLIGHTED
from iclbench.report.figures.pareto import front, labels
from iclbench.report.sections.footing import chosen_elsewhere, deviations, footing, learning_rates
from iclbench.report.sections.pareto import COSTS, FLOPS, _of_some, overall, points, section
from tests.report.synthetic_grid import BACKBONES, TASKS, Grid, score


def test_the_front_is_who_is_beaten_by_nobody() -> None:
    draw = np.random.default_rng(0)
    for _ in range(20):
        frame = pd.DataFrame({"cost": draw.integers(1, 6, 12), "score": draw.integers(0, 6, 12)})
        both = list(zip(frame["cost"], frame["score"], strict=True))
        expected = [not any(d <= c and t >= s and (d, t) != (c, s) for d, t in both) for c, s in both]
        assert front(frame).tolist() == expected


def test_names_on_the_front_stand_where_there_is_room() -> None:
    points = pd.DataFrame(
        {
            "contestant": ["gpt2", "s4d", "mamba", "cnp", "gated-deltanet", "mambaformer", "tnp"],
            "cost": [1.0, 9.0, 9.4, 60.0, 92.0, 100.0, 3.0],
            "score": [0.0, 0.48, 0.5, 0.8, 0.98, 1.0, 0.1],
            "front": [True] * 6 + [False],
        }
    )
    assert labels(points).tolist() == ["below", "above", "below", "above", "above", "", ""]
    assert labels(points[::-1])[::-1].tolist() == labels(points).tolist(), "whatever the order of rows"
    assert labels(points[:1]).tolist() == ["below"], "to the left of the first is the axis"


def test_costs_and_scores_of_a_task(grid: Grid, grid_results: Results) -> None:
    contests = normalised.contests(grid_results, "grid")
    flops, seconds, state, _ = (points(contests, cost).set_index(["panel", "contestant"]) for cost in COSTS)
    number = list(TASKS).index("relu-network")
    for name, (_, cost) in BACKBONES.items():
        if name == "icicl-tnp":
            continue
        at = ("relu-network", name)
        scores = [score(grid.raw["relu-network", "next", name, seed].mean(), "next") for seed in (0, 1)]
        assert flops.loc[at, "score"] == pytest.approx(np.mean(scores))
        assert flops.loc[at, "cost"] == pytest.approx(1e8 * cost * (1 + number))
        assert seconds.loc[at, "cost"] == pytest.approx(10 * cost * (1 + number))
        # Of the two numbers of points at which it was measured the larger one.
        assert state.loc[at, "cost"] == pytest.approx(1e3 * cost * (1 + number))


def test_what_depends_on_the_machine_counts_on_the_one_with_most_runs(grid_results: Results) -> None:
    """Seconds do; operations are the same everywhere."""
    costs = grid_results.costs
    linear, gpt2 = costs["task"].eq("linear"), costs["contestant"].eq("gpt2")
    fast = costs[linear & gpt2].assign(device="cuda", value=costs["value"] / 1000)
    moved = costs.assign(device=costs["device"].mask(costs["contestant"].eq("s4d"), "cuda"))
    rows = grid_results.rows[grid_results.rows["task"].eq("linear")]
    results = replace(grid_results, rows=rows, costs=pd.concat([moved[linear], fast], ignore_index=True))
    contests = normalised.contests(results, "grid")
    flops, seconds = (points(contests, cost).set_index("contestant")["cost"] for cost in COSTS[:2])
    assert seconds["gpt2"] == pytest.approx(10 * BACKBONES["gpt2"][1]) and "s4d" not in seconds
    assert flops["s4d"] == pytest.approx(1e8 * BACKBONES["s4d"][1])


def test_over_tasks_scores_are_means_and_costs_geometric_means(grid_results: Results) -> None:
    contests = normalised.contests(grid_results, "grid")
    found = overall(points(contests, COSTS[0]), "all", str).set_index("contestant")
    # Who lacks a task is not compared.
    assert set(found.index) == {"gpt2", "mamba", "transformer", "s4d", "cnp"}
    factors = np.prod([1.0 + i for i in range(len(TASKS))]) ** (1 / len(TASKS))
    assert found.loc["gpt2", "cost"] == pytest.approx(4e8 * factors)
    by_task = pd.concat(c.scores.assign(task=c.task.task) for c in contests)
    own = by_task[by_task["contestant"] == "gpt2"].groupby("task")["score"].mean().mean()
    assert found.loc["gpt2", "score"] == pytest.approx(own)


def test_means_over_some_rows_alone_say_so(grid_results: Results) -> None:
    costs = grid_results.costs
    costs = costs[~(costs["task"].eq("tabular") & costs["phase"].eq(FLOPS.phase))]
    contests = normalised.contests(replace(grid_results, costs=costs), "grid")
    said = _of_some(contests, {cost: points(contests, cost) for cost in COSTS[:2]})
    n = len(contests)
    assert f"{FLOPS.title} on {n - 1} of {n} rows" in said and COSTS[1].title not in said


def test_costs_that_are_alike_by_design_are_not_drawn(grid_results: Results) -> None:
    found = section(grid_results)
    assert found is not None
    figure = next(block for block in found.walk() if getattr(block, "name", "") == "pareto-grid")
    assert [panel.title for panel in figure.panels] == [  # type: ignore[union-attr]
        "FLOPs of a training step",
        "seconds of training",
        "bytes of the state",
    ]
    assert figure.caption.endswith(": icicl-tnp, tnp.")  # type: ignore[union-attr]


def test_whoever_is_picked_in_the_legend_is_lit_and_the_others_fade(grid_results: Results) -> None:
    """The page sets `highlight` to a list of names."""
    found = section(grid_results)
    assert found is not None
    for figure in (block for block in found.walk() if isinstance(block, Figure)):
        assert figure.live["params"] == [HIGHLIGHT]
        tests = [
            layer["encoding"].get("opacity", {}).get("condition", {}).get("test") for layer in figure.live["layer"]
        ]
        assert tests == [None, IS_HIGHLIGHTED, IS_HIGHLIGHTED, IS_HIGHLIGHTED, IS_HIGHLIGHTED], "all but the front"


def test_footing_has_the_smallest_and_the_largest_backbone(grid_results: Results) -> None:
    frame = footing([task for task in grid_results.slices if task.task == "gp-mixture"])
    assert frame.loc[0, "parameters_low"] == 26_000 + 10 * len("cnp")
    assert frame.loc[0, "parameters_high"] == 26_000 + 10 * len("transformer")
    assert frame.loc[0, "ratio"] == pytest.approx(26_110 / 26_030)
    assert frame.loc[0, "backbones"] == len(BACKBONES)


def test_deviations_are_from_the_budget_of_the_card_without_encoders(grid_results: Results) -> None:
    card, rows, costs = load_task("linear")[1], grid_results.rows.copy(), grid_results.costs.copy()
    own = rows["task"].eq("linear") & rows["contestant"].isin(["mamba", "cnp", "knn-3"])
    rows.loc[own, "card"] = card.hash
    model = costs[costs["task"].eq("linear") & costs["contestant"].eq("cnp") & costs["phase"].eq("model")]
    costs = pd.concat([costs, model.assign(metric="encoder_parameters", value=500.0)])
    results = replace(grid_results, rows=rows, costs=costs)
    frame = deviations([task for task in results.slices if task.task in ("linear", "quadratic")])
    assert frame["contestant"].tolist() == ["cnp", "mamba"]
    expected = [(26_000 + 10 * len(name) - encoder) / 25_000 - 1 for name, encoder in [("cnp", 500), ("mamba", 0)]]
    assert frame["linear"].tolist() == pytest.approx(expected)


def test_learning_rates_are_those_of_the_tables_for_rows_of_the_card(grid_results: Results) -> None:
    """Of each backbone on its own; what rows of another card were trained with is not known."""
    card = load_task("linear")[1]
    shipped = tomllib.loads(shipped_path("grid").read_text())["tuned"]
    (of_table,) = (g["train"]["mamba"]["lr"] for g in shipped if "linear" in g["tasks"] and "mamba" in g["train"])
    rows = grid_results.rows.copy()
    own = rows["task"].eq("linear") & rows["contestant"].isin(["mamba", "knn-3"])
    rows.loc[own, "card"] = card.hash
    results = replace(grid_results, rows=rows)
    tasks = [task for task in results.slices if task.task in ("linear", "quadratic")]
    frame = learning_rates(tasks)
    assert frame.to_dict("records") == [{"contestant": "mamba", "linear": of_table}]


def test_rates_that_were_chosen_on_another_task_are_said_to_be_so(grid_results: Results) -> None:
    """On `sparse-linear` GPT-2 has a rate that was chosen there, others have that of `linear`."""
    rows = grid_results.rows.assign(task=grid_results.rows["task"].replace("quadratic", "sparse-linear"))
    rows["card"] = [load_task(task)[1].hash if task in ("linear", "sparse-linear") else "" for task in rows["task"]]
    results = replace(grid_results, rows=rows[rows["contestant"].isin(["mamba", "gpt2", "s4d"])])
    tasks = [task for task in results.slices if task.task in ("linear", "sparse-linear")]
    assert chosen_elsewhere(tasks) == {"sparse-linear": ["2 of 3 on linear"]}


def test_learning_rates_of_runs_that_are_there_are_those_that_they_were_trained_with(
    grid_results: Results, tmp_path: Path
) -> None:
    rows = grid_results.rows.assign(card=load_task("linear")[1].hash)
    results = replace(grid_results, rows=rows, folder=tmp_path)
    (linear,) = (task for task in results.slices if task.task == "linear")
    for who, rates in (("mamba", (0.5, 0.5)), ("gpt2", (0.5, 0.25))):
        for run, rate in zip(linear.runs[who], rates, strict=True):
            (tmp_path / "runs" / run).mkdir(parents=True)
            (tmp_path / "runs" / run / "config.toml").write_text(f"[train]\nlr = {rate}\n")
    found = learning_rates([linear]).set_index("contestant")["linear"]
    assert found["mamba"] == 0.5 and math.isnan(found["gpt2"]), "seeds differ"
    assert found["cnp"] == Rates.of("grid", "linear").chosen["cnp"]["lr"], "of packed runs the tables are believed"
