"""Pareto fronts against brute force, their costs and scores, and the section on equal budgets."""

import math
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import vl_convert

from iclbench.analysis import normalised
from iclbench.config.cards import load_task
from iclbench.config.rates import Rates, shipped_path
from iclbench.report.blocks import Figure, Text
from iclbench.report.data import Results
from iclbench.report.figures.marks import HIGHLIGHT, IS_HIGHLIGHTED
from iclbench.report.figures.pareto import figure as pareto_figure
from iclbench.report.figures.pareto import is_on_front, label_sides
from iclbench.report.sections.equal_budget import budgets, deviations, learning_rates, tuning_task_counts
from iclbench.report.sections.pareto import COSTS, FLOPS, _incomplete_costs, cost_points, overall_points, section
from iclbench.report.style import Look
from tests.report.synthetic_grid import BACKBONES, TASKS, Grid, score


def test_the_front_has_all_points_that_are_not_dominated() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        frame = pd.DataFrame({"cost": rng.integers(1, 6, 12), "score": rng.integers(0, 6, 12)})
        pairs = list(zip(frame["cost"], frame["score"], strict=True))
        expected = [not any(d <= c and t >= s and (d, t) != (c, s) for d, t in pairs) for c, s in pairs]
        assert is_on_front(frame).tolist() == expected


def test_labels_on_the_front_do_not_overlap() -> None:
    points = pd.DataFrame(
        {
            "contestant": ["gpt2", "s4d", "mamba", "cnp", "gated-deltanet", "mambaformer", "tnp"],
            "cost": [1.0, 9.0, 9.4, 60.0, 92.0, 100.0, 3.0],
            "score": [0.0, 0.48, 0.5, 0.8, 0.98, 1.0, 0.1],
            "front": [True] * 6 + [False],
        }
    )
    assert label_sides(points).tolist() == ["below", "above", "below", "above", "above", "", ""]
    assert label_sides(points[::-1])[::-1].tolist() == label_sides(points).tolist(), (
        "the sides do not depend on the order of rows"
    )
    assert label_sides(points[:1]).tolist() == ["below"], "the first point is next to the axis"


def test_the_axis_has_a_tick_at_the_score_of_a_single_point() -> None:
    point = {"panel": "linear", "contestant": "cnp", "cost": 2.0, "score": 0.1981, "front": True, "shown": "2 s"}
    look = {"cnp": Look("#000000")}
    drawn = pareto_figure("pareto", "Costs", "Scores.", pd.DataFrame([point | {"run": "cnp"}]), ["linear"], look, 1)
    svg = vl_convert.vegalite_to_svg(drawn.static)
    assert ">0.1981</text>" in svg and ">0</text>" not in svg


@pytest.mark.slow
def test_points_have_costs_and_scores(grid: Grid, grid_results: Results) -> None:
    contests = normalised.contests(grid_results, "grid")
    flops, seconds, state, _ = (cost_points(contests, cost).set_index(["panel", "contestant"]) for cost in COSTS)
    task_index = list(TASKS).index("relu-network")
    for name, (_, cost) in BACKBONES.items():
        if name == "icicl-tnp":
            continue
        key = ("relu-network", name)
        scores = [score(grid.raw["relu-network", "next", name, seed].mean(), "next") for seed in (0, 1)]
        assert flops.loc[key, "score"] == pytest.approx(np.mean(scores))
        assert flops.loc[key, "cost"] == pytest.approx(1e8 * cost * (1 + task_index))
        assert seconds.loc[key, "cost"] == pytest.approx(10 * cost * (1 + task_index))
        # The state is measured after the larger of two numbers of points.
        assert state.loc[key, "cost"] == pytest.approx(1e3 * cost * (1 + task_index))


def test_seconds_are_from_the_machine_with_the_most_runs(grid_results: Results) -> None:
    """FLOPs do not depend on the machine."""
    costs = grid_results.costs
    costs = costs[costs["task"].eq("linear")]
    on_cuda = costs[costs["contestant"].eq("gpt2")].assign(device="cuda", value=costs["value"] / 1000)
    costs = costs.assign(device=costs["device"].mask(costs["contestant"].eq("s4d"), "cuda"))
    rows = grid_results.rows[grid_results.rows["task"].eq("linear")]
    results = replace(grid_results, rows=rows, costs=pd.concat([costs, on_cuda], ignore_index=True))
    contests = normalised.contests(results, "grid")
    flops, seconds = (cost_points(contests, cost).set_index("contestant")["cost"] for cost in COSTS[:2])
    assert seconds["gpt2"] == pytest.approx(10 * BACKBONES["gpt2"][1]) and "s4d" not in seconds
    assert flops["s4d"] == pytest.approx(1e8 * BACKBONES["s4d"][1])


def test_overall_points_have_mean_scores_and_geometric_mean_costs(grid_results: Results) -> None:
    contests = normalised.contests(grid_results, "grid")
    means = overall_points(cost_points(contests, COSTS[0]), "all", str).set_index("contestant")
    assert set(means.index) == {"gpt2", "mamba", "transformer", "s4d", "cnp"}, (
        "only models with scores on all tasks have an overall point"
    )
    factor = np.prod([1.0 + i for i in range(len(TASKS))]) ** (1 / len(TASKS))
    assert means.loc["gpt2", "cost"] == pytest.approx(4e8 * factor)
    scores = pd.concat(c.scores.assign(task=c.task.task) for c in contests)
    expected = scores[scores["contestant"] == "gpt2"].groupby("task")["score"].mean().mean()
    assert means.loc["gpt2", "score"] == pytest.approx(expected)


@pytest.mark.slow
def test_the_section_names_costs_that_are_missing_on_some_tasks(grid_results: Results) -> None:
    costs = grid_results.costs
    costs = costs[~(costs["task"].eq("tabular") & costs["phase"].eq(FLOPS.phase))]
    contests = normalised.contests(replace(grid_results, costs=costs), "grid")
    sentence = _incomplete_costs(contests, {cost: cost_points(contests, cost) for cost in COSTS[:2]})
    n = len(contests)
    assert f"{FLOPS.title} on {n - 1} of {n}" in sentence and COSTS[1].title not in sentence


@pytest.mark.slow
def test_costs_that_hardly_differ_have_no_panel(grid_results: Results) -> None:
    pareto = section(grid_results)
    assert pareto is not None
    figure = next(block for block in pareto.walk() if getattr(block, "name", "") == "pareto-grid")
    assert [panel.title for panel in figure.panels] == [  # type: ignore[union-attr]
        "FLOPs of a training step",
        "seconds of training",
        "bytes of the state",
    ]
    assert [block.items for block in pareto.walk() if isinstance(block, Text) and block.folded] == [
        ("icicl-tnp", "tnp")
    ]


@pytest.mark.slow
def test_selecting_contestants_in_the_legend_fades_the_others(grid_results: Results) -> None:
    """The page sets the Vega parameter `highlight` to a list of names."""
    pareto = section(grid_results)
    assert pareto is not None
    for figure in (block for block in pareto.walk() if isinstance(block, Figure)):
        assert figure.live["params"] == [HIGHLIGHT]
        tests = [
            layer["encoding"].get("opacity", {}).get("condition", {}).get("test") for layer in figure.live["layer"]
        ]
        assert tests == [None, IS_HIGHLIGHTED, IS_HIGHLIGHTED, IS_HIGHLIGHTED, IS_HIGHLIGHTED], (
            "all layers fade, except the line of the front"
        )


def test_budgets_range_from_the_smallest_to_the_largest_backbone(grid_results: Results) -> None:
    frame = budgets([task for task in grid_results.slices if task.task == "gp-mixture"])
    assert frame.loc[0, "parameters_low"] == 26_000 + 10 * len("cnp")
    assert frame.loc[0, "parameters_high"] == 26_000 + 10 * len("transformer")
    assert frame.loc[0, "ratio"] == pytest.approx(26_110 / 26_030)
    assert frame.loc[0, "backbones"] == len(BACKBONES)


def test_deviations_from_the_budget_exclude_encoders(grid_results: Results) -> None:
    card, rows, costs = load_task("linear")[1], grid_results.rows.copy(), grid_results.costs.copy()
    with_card = rows["task"].eq("linear") & rows["contestant"].isin(["mamba", "cnp", "knn-3"])
    rows.loc[with_card, "card"] = card.hash
    cnp_costs = costs[costs["task"].eq("linear") & costs["contestant"].eq("cnp") & costs["phase"].eq("model")]
    costs = pd.concat([costs, cnp_costs.assign(metric="encoder_parameters", value=500.0)])
    results = replace(grid_results, rows=rows, costs=costs)
    frame = deviations([task for task in results.slices if task.task in ("linear", "quadratic")])
    assert frame["contestant"].tolist() == ["cnp", "mamba"]
    expected = [(26_000 + 10 * len(name) - encoder) / 25_000 - 1 for name, encoder in [("cnp", 500), ("mamba", 0)]]
    assert frame["linear"].tolist() == pytest.approx(expected)


def test_learning_rates_of_runs_with_the_current_card_are_the_shipped_rates(grid_results: Results) -> None:
    """Rates are unknown for rows with a different version of the card."""
    card = load_task("linear")[1]
    shipped = tomllib.loads(shipped_path("grid").read_text())["tuned"]
    (rate,) = (
        table["train"]["mamba"]["lr"] for table in shipped if "linear" in table["tasks"] and "mamba" in table["train"]
    )
    rows = grid_results.rows.copy()
    with_card = rows["task"].eq("linear") & rows["contestant"].isin(["mamba", "knn-3"])
    rows.loc[with_card, "card"] = card.hash
    results = replace(grid_results, rows=rows)
    tasks = [task for task in results.slices if task.task in ("linear", "quadratic")]
    assert learning_rates(tasks).to_dict("records") == [{"contestant": "mamba", "linear": rate}]


def test_rates_tuned_on_other_tasks_are_counted(grid_results: Results) -> None:
    """For `sparse-linear`, only the core was tuned on the task itself. The other rates were tuned on `linear`."""
    rows = grid_results.rows.assign(task=grid_results.rows["task"].replace("quadratic", "sparse-linear"))
    rows["contestant"] = rows["contestant"].replace({"mamba": "gla", "s4d": "kda"})
    rows["card"] = [load_task(task)[1].hash if task in ("linear", "sparse-linear") else "" for task in rows["task"]]
    results = replace(grid_results, rows=rows[rows["contestant"].isin(["gla", "gpt2", "kda"])])
    tasks = [task for task in results.slices if task.task in ("linear", "sparse-linear")]
    assert tuning_task_counts(tasks) == {"sparse-linear": ["2 of 3 on linear"]}


def test_learning_rates_of_stored_runs_are_read_from_their_settings(grid_results: Results, tmp_path: Path) -> None:
    rows = grid_results.rows.assign(card=load_task("linear")[1].hash)
    results = replace(grid_results, rows=rows, folder=tmp_path)
    (linear,) = (task for task in results.slices if task.task == "linear")
    for name, rates_of_runs in {"mamba": (0.5, 0.5), "gpt2": (0.5, 0.25)}.items():
        for run, rate in zip(linear.runs_by_backbone[name], rates_of_runs, strict=True):
            (tmp_path / "runs" / run).mkdir(parents=True)
            (tmp_path / "runs" / run / "config.toml").write_text(f"[train]\nlr = {rate}\n")
    rates = learning_rates([linear]).set_index("contestant")["linear"]
    assert rates["mamba"] == 0.5 and math.isnan(rates["gpt2"]), "the two seeds of gpt2 have different rates"
    assert rates["cnp"] == Rates.of("grid", "linear").chosen_settings["cnp"]["lr"], (
        "without stored runs, the shipped rate is shown"
    )
