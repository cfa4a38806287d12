"""The section on scores over training: branches are scored like full runs, and Kendall's tau compares rankings."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from iclbench import tables
from iclbench.analysis import normalised, over_training
from iclbench.report.blocks import Figure, Table
from iclbench.report.data import Results, load_results
from iclbench.report.sections import over_training as over_training_section
from tests.report.synthetic_grid import BACKBONES, FLOOR, TASKS, Grid, score

LAST = 200
# How much lower the score of a branch is than the score of its full run, by steps of the branch and by model (0.2 for
# other models). Rankings differ between branches.
LOSSES = {50: {"gpt2": 0.5, "s4d": 0.1}, 100: {"gpt2": 0.05}}


def raw_of_branch(grid: Grid, task: str, test: str, name: str, seed: int, steps: int) -> float:
    full = float(grid.raw[task, test, name, seed].mean())
    loss = LOSSES[steps].get(name, 0.2)
    return full - 0.4 * loss if test in ("icl", "iwl") else full + (1 - FLOOR) * loss


@pytest.fixture(scope="module")
def branched_results(grid: Grid, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The results of the grid, with branches after a quarter and a half of the steps."""
    folder = Path(shutil.copytree(grid.folder, tmp_path_factory.mktemp("branched") / "grid"))
    values = tables.read_all("values", folder)
    values = values[values["kind"].eq("backbone") & values["metric"].ne("score")]
    rows = []
    for row in values.to_dict("records"):
        task, test, name, seed = row["task"], row["evaluator"], row["contestant"], int(row["seed"])
        row |= {"metric": "auc"} if test == "next" else {}
        rows += [row] if test == "next" else []
        for steps in LOSSES:
            value = raw_of_branch(grid, task, test, name, seed, steps)
            rows.append(row | {"axis": "branch", "axis_value": float(steps), "value": value})
        loss = {"evaluator": "train", "metric": "loss", "axis": "train_step", "n_related": None, "prompt_set": None}
        rows += [row | loss | {"axis_value": float(step)} for step in (1, LAST)]
    frame = pd.DataFrame(rows).drop_duplicates(["run", "evaluator", "metric", "axis", "axis_value"])
    tables.write("values", frame, folder / "tables" / "branches.values.parquet", {})
    return load_results(folder)


@pytest.fixture(scope="module")
def blocks(branched_results: Results) -> dict[str, Figure | Table]:
    section = over_training_section.section(branched_results)
    assert section is not None
    return {block.name: block for block in section.walk() if isinstance(block, Table | Figure)}


@pytest.mark.slow
def test_branches_are_scored_on_the_scale_of_full_runs(grid: Grid, branched_results: Results) -> None:
    n_runs = 0
    for contest in normalised.contests(branched_results, "grid"):
        for run, rows in over_training.by_run(contest).groupby("run"):
            name, seed = rows["contestant"].iloc[0], int(str(run)[-1])
            raw = {
                steps: raw_of_branch(grid, contest.task.task, contest.evaluator, name, seed, steps) for steps in LOSSES
            }
            raw[LAST] = float(grid.raw[contest.task.task, contest.evaluator, name, seed].mean())
            assert rows["steps"].tolist() == sorted(raw)
            assert rows["share"].tolist() == [0.25, 0.5, 1.0]
            expected = [score(raw[int(steps)], contest.evaluator) for steps in rows["steps"]]
            assert rows["score"].tolist() == pytest.approx(expected)
            n_runs += 1
    assert n_runs == len(grid.raw)


def test_kendalls_tau_is_the_mean_agreement_over_pairs() -> None:
    rng = np.random.default_rng(0)
    for n in (3, 6, 11):
        names = [f"m{i}" for i in range(n)]
        a, b = (pd.Series(rng.normal(size=n), names) for _ in range(2))
        naive = np.mean([np.sign(a[i] - a[j]) * np.sign(b[i] - b[j]) for i, j in combinations(names, 2)])
        assert over_training.kendall(a, b.sample(frac=1, random_state=1)) == pytest.approx(naive)
    assert np.isnan(over_training.kendall(a.head(2), b.head(2)))


def test_scores_at_equal_compute_are_interpolated() -> None:
    """Contestants whose shortest run needs more compute are omitted."""
    rows = [("low", 1e6, 0.1), ("low", 1e8, 0.5), ("medium", 1e7, 0.2), ("medium", 1e9, 0.6), ("high", 1e9, 0.9)]
    trained = pd.DataFrame(rows, columns=["contestant", "flops", "value"])
    shared = over_training.shared_flops(trained)
    assert shared == 1e8
    assert over_training.scores_at_flops(trained, shared).to_dict() == pytest.approx({"low": 0.5, "medium": 0.4})


@pytest.mark.slow
def test_the_section_shows_how_stable_the_ranking_is(grid: Grid, blocks: dict[str, Figure | Table]) -> None:
    stability = blocks["over-training-grid-stability"]
    assert isinstance(stability, Table)
    rows = stability.frame.set_index("row")
    assert len(rows) == sum(map(len, TASKS.values()))
    names = [name for name in BACKBONES if ("linear", "next", name, 0) in grid.raw]

    def scores_of_seed(seed: int) -> pd.Series:
        return pd.Series({name: -float(grid.raw["linear", "next", name, seed].mean()) for name in names})

    def scores_after(steps: int) -> pd.Series:
        raw = {name: [raw_of_branch(grid, "linear", "next", name, seed, steps) for seed in (0, 1)] for name in names}
        return pd.Series({name: -float(np.mean(values)) for name, values in raw.items()})

    final = (scores_of_seed(0) + scores_of_seed(1)) / 2
    for column, steps in {"tau0": 50, "tau1": 100}.items():
        assert rows.loc["linear", column] == pytest.approx(over_training.kendall(scores_after(steps), final))
    assert rows.loc["linear", "tau0"] < rows.loc["linear", "tau1"]
    assert rows.loc["linear", "seeds"] == pytest.approx(over_training.kendall(scores_of_seed(0), scores_of_seed(1)))
    steps = blocks["over-training-grid-steps"]
    assert isinstance(steps, Table)
    assert [column.header for column in steps.columns][1::2] == [
        "score, 25 % of the steps",
        "score, 50 % of the steps",
        "score, all steps",
    ]
    assert set(steps.frame["contestant"]) == {"gpt2", "mamba", "transformer", "s4d", "cnp"}
    first, last = (steps.frame.set_index("contestant")[f"score{i}"] for i in (0, 2))
    assert (last - first).to_dict() == pytest.approx({n: LOSSES[50].get(n, 0.2) for n in first.index})
    figure = blocks["over-training-grid"]
    assert isinstance(figure, Figure)
    line = figure.data[figure.data["panel"].eq("linear") & figure.data["contestant"].eq("s4d")]
    assert line["axis_value"].tolist() == pytest.approx([50e8, 100e8, 200e8])


def rank(scores: dict[str, float], name: str) -> int:
    return 1 + sum(other > scores[name] for other in scores.values())


def test_ranks_follow_scores_after_each_share_of_steps(blocks: dict[str, Figure | Table]) -> None:
    steps = blocks["over-training-grid-steps"]
    assert isinstance(steps, Table)
    rows = steps.frame.set_index("contestant")
    for i in range(3):
        scores = rows[f"score{i}"].to_dict()
        assert rows[f"rank{i}"].to_dict() == {name: rank(scores, name) for name in scores}
    assert rows["rank0"].to_dict() != rows["rank1"].to_dict()


def test_scores_are_compared_at_the_compute_of_the_cheapest_full_run(
    grid: Grid, blocks: dict[str, Figure | Table]
) -> None:
    """A training step on `linear` takes 1e8 FLOPs times the cost in `BACKBONES`.

    With the FLOPs of the full run of cnp, s4d can train for a quarter to a half of its steps, and all other models for
    less than a quarter.
    """
    table = blocks["over-training-grid-compute"]
    assert isinstance(table, Table)
    rows = table.frame[table.frame["row"].eq("linear")].set_index("contestant")
    final = {
        name: float(np.mean([score(grid.raw["linear", "next", name, seed].mean(), "next") for seed in (0, 1)]))
        for name in rows.index
    }
    assert rows.index.tolist() == sorted(final, key=lambda name: -final[name])
    assert rows["steps_score"].to_dict() == pytest.approx(final)
    shared = 1e8 * LAST * BACKBONES["cnp"][1]
    assert rows["flops"].tolist() == pytest.approx([shared] * len(rows))
    assert rows["times"].to_dict() == pytest.approx({n: 1e8 * LAST * BACKBONES[n][1] / shared for n in final})
    weight = np.log(shared / (1e8 * BACKBONES["s4d"][1] * 50)) / np.log(100 / 50)
    quarter, half = final["s4d"] - LOSSES[50]["s4d"], final["s4d"] - 0.2
    scores = {"s4d": quarter + weight * (half - quarter), "cnp": final["cnp"]}
    assert rows["compute_score"].dropna().to_dict() == pytest.approx(scores)
    assert rows["compute_rank"].dropna().to_dict() == {name: rank(scores, name) for name in scores}
    at_end = {name: final[name] for name in scores}
    assert rows["steps_rank"].dropna().to_dict() == {name: rank(at_end, name) for name in scores}


def test_a_run_without_a_training_curve_is_omitted(branched_results: Results) -> None:
    """Its number of training steps is unknown, so the shares of its branches are also unknown."""
    run = "linear-gpt2-grid-s0"
    contest = next(c for c in normalised.contests(branched_results, "grid") if c.title == "linear")
    rows = branched_results.rows
    is_curve = rows["evaluator"].eq("train") & rows["run"].eq(run) & rows["task"].eq("linear")
    without_curve = normalised.contests(replace(branched_results, rows=rows[~is_curve]), "grid")
    linear = next(c for c in without_curve if c.title == "linear")
    assert set(over_training.by_run(contest)["run"]) - set(over_training.by_run(linear)["run"]) == {run}
    gpt2 = over_training.means(linear).query("contestant == 'gpt2'")
    assert gpt2["share"].tolist() == [0.25, 0.5, 1.0] and gpt2["run"].eq("linear-gpt2-grid-s1").all()


def test_agreement_between_seeds_uses_only_seeds_of_all_backbones(branched_results: Results) -> None:
    contest = next(c for c in normalised.contests(branched_results, "grid") if c.title == "linear")
    rows = contest.rows[contest.rows["contestant"].isin(["gpt2", "s4d"]) & contest.rows["seed"].eq(0)]
    rows = pd.concat([contest.rows, rows.assign(seed=7), rows.assign(seed=8)], ignore_index=True)
    tau = over_training_section._seed_agreement(contest)
    assert over_training_section._seed_agreement(replace(contest, rows=rows)) == pytest.approx(tau)
    assert not np.isnan(tau)


def test_the_band_around_a_line_is_the_range_over_seeds(blocks: dict[str, Figure | Table]) -> None:
    (figure,) = (block for block in blocks.values() if isinstance(block, Figure))
    rows = figure.data
    has_range = rows["low"] < rows["high"]
    assert has_range.any() and (rows["band"] == has_range).all()
    assert not rows.duplicated(["panel", "contestant", "axis_value"]).any()


def test_the_section_is_omitted_without_branches(grid_results: Results) -> None:
    assert over_training_section.section(grid_results) is None
