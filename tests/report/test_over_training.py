"""Scores over training: branches stand on the line of the scores, orders are compared as SciPy and a naive count do."""

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
from iclbench.report.data import Results, load
from iclbench.report.sections import over_training as section
from tests.report.synthetic_grid import BACKBONES, FLOOR, TASKS, Grid, score

LAST = 200
# What a training of so many steps lacks, in units of what scores 0 to 1; the order changes between the first two.
BEHIND = {50: {"gpt2": 0.5, "s4d": 0.1}, 100: {"gpt2": 0.05}}


def raw_of_branch(grid: Grid, task: str, test: str, name: str, seed: int, steps: int) -> float:
    whole = float(grid.raw[task, test, name, seed].mean())
    lacks = BEHIND[steps].get(name, 0.2)
    return whole - 0.4 * lacks if test in ("icl", "iwl") else whole + (1 - FLOOR) * lacks


@pytest.fixture(scope="module")
def branched(grid: Grid, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The grid with branches after a quarter and a half of the steps."""
    folder = Path(shutil.copytree(grid.folder, tmp_path_factory.mktemp("branched") / "grid"))
    own = tables.read_all("values", folder)
    own = own[own["kind"].eq("backbone") & own["metric"].ne("score")]
    found = []
    for row in own.to_dict("records"):
        task, test, name, seed = row["task"], row["evaluator"], row["contestant"], int(row["seed"])
        row |= {"metric": "auc"} if test == "next" else {}
        found += [row] if test == "next" else []
        for steps in BEHIND:
            value = raw_of_branch(grid, task, test, name, seed, steps)
            found.append(row | {"axis": "branch", "axis_value": float(steps), "value": value})
        loss = {"evaluator": "train", "metric": "loss", "axis": "train_step", "n_related": None, "prompt_set": None}
        found += [row | loss | {"axis_value": float(step)} for step in (1, LAST)]
    frame = pd.DataFrame(found).drop_duplicates(["run", "evaluator", "metric", "axis", "axis_value"])
    tables.write("values", frame, folder / "tables" / "branches.values.parquet", {})
    return load(folder)


@pytest.fixture(scope="module")
def blocks(branched: Results) -> dict[str, Figure | Table]:
    made = section.section(branched)
    assert made is not None
    return {block.name: block for block in made.walk() if isinstance(block, Table | Figure)}


def test_scores_of_branches_are_those_of_their_own_errors(grid: Grid, branched: Results) -> None:
    seen = 0
    for contest in normalised.contests(branched, "grid"):
        rows = over_training.by_run(contest)
        for run, own in rows.groupby("run"):
            name, seed = own["contestant"].iloc[0], int(str(run)[-1])
            raw = {
                steps: raw_of_branch(grid, contest.task.task, contest.evaluator, name, seed, steps) for steps in BEHIND
            }
            raw[LAST] = float(grid.raw[contest.task.task, contest.evaluator, name, seed].mean())
            assert own["steps"].tolist() == sorted(raw)
            assert own["share"].tolist() == [0.25, 0.5, 1.0]
            expected = [score(raw[int(steps)], contest.evaluator) for steps in own["steps"]]
            assert own["score"].tolist() == pytest.approx(expected)
            seen += 1
    assert seen == len(grid.raw)


def test_tau_is_the_share_of_pairs_in_order_less_that_of_the_others() -> None:
    draw = np.random.default_rng(0)
    for n in (3, 6, 11):
        names = [f"m{i}" for i in range(n)]
        a, b = (pd.Series(draw.normal(size=n), names) for _ in range(2))
        naive = np.mean([np.sign(a[i] - a[j]) * np.sign(b[i] - b[j]) for i, j in combinations(names, 2)])
        assert over_training.kendall(a, b.sample(frac=1, random_state=1)) == pytest.approx(naive)
    assert np.isnan(over_training.kendall(a.head(2), b.head(2)))


def test_scores_at_equal_compute_lie_on_the_line_between_trainings() -> None:
    trained = pd.DataFrame(
        [("cheap", 1e6, 0.1), ("cheap", 1e8, 0.5), ("dear", 1e7, 0.2), ("dear", 1e9, 0.6), ("dearer", 1e9, 0.9)],
        columns=["contestant", "flops", "value"],
    )
    shared = over_training.shared_compute(trained)
    assert shared == 1e8
    found = over_training.at_compute(trained, shared)
    assert found.to_dict() == pytest.approx({"cheap": 0.5, "dear": 0.4}), "the shortest training of dearer takes more"


def test_the_page_says_when_the_order_is_settled(grid: Grid, blocks: dict[str, Figure | Table]) -> None:
    stability = blocks["over-training-grid-stability"]
    assert isinstance(stability, Table)
    rows = stability.frame.set_index("row")
    assert len(rows) == sum(map(len, TASKS.values()))
    names = [name for name in BACKBONES if ("linear", "next", name, 0) in grid.raw]

    def order(seed: int) -> pd.Series:
        return pd.Series({name: -float(grid.raw["linear", "next", name, seed].mean()) for name in names})

    def after(steps: int) -> pd.Series:
        raw = {name: [raw_of_branch(grid, "linear", "next", name, seed, steps) for seed in (0, 1)] for name in names}
        return pd.Series({name: -float(np.mean(values)) for name, values in raw.items()})

    end = (order(0) + order(1)) / 2
    for column, steps in {"tau0": 50, "tau1": 100}.items():
        assert rows.loc["linear", column] == pytest.approx(over_training.kendall(after(steps), end))
    assert rows.loc["linear", "tau0"] < rows.loc["linear", "tau1"]
    assert rows.loc["linear", "seeds"] == pytest.approx(over_training.kendall(order(0), order(1)))
    steps = blocks["over-training-grid-steps"]
    assert isinstance(steps, Table) and steps.caption.endswith(": icicl-tnp, tnp.")
    assert [column.header for column in steps.columns][1::2] == [
        "score, 25 % of the steps",
        "score, 50 % of the steps",
        "score, all steps",
    ]
    assert set(steps.frame["contestant"]) == {"gpt2", "mamba", "transformer", "s4d", "cnp"}
    first, last = (steps.frame.set_index("contestant")[f"score{i}"] for i in (0, 2))
    assert (last - first).to_dict() == pytest.approx({n: BEHIND[50].get(n, 0.2) for n in first.index})
    figure = blocks["over-training-grid"]
    assert isinstance(figure, Figure)
    one = figure.data[figure.data["panel"].eq("linear") & figure.data["contestant"].eq("s4d")]
    assert one["axis_value"].tolist() == pytest.approx([50e8, 100e8, 200e8])


def place(scores: dict[str, float], name: str) -> int:
    return 1 + sum(other > scores[name] for other in scores.values())


def test_ranks_after_shares_of_the_steps_count_who_is_better(blocks: dict[str, Figure | Table]) -> None:
    steps = blocks["over-training-grid-steps"]
    assert isinstance(steps, Table)
    rows = steps.frame.set_index("contestant")
    for i in range(3):
        scores = rows[f"score{i}"].to_dict()
        assert rows[f"rank{i}"].to_dict() == {name: place(scores, name) for name in scores}
    assert rows["rank0"].to_dict() != rows["rank1"].to_dict()


def test_the_same_computation_is_that_of_the_cheapest_whole_training(
    grid: Grid, blocks: dict[str, Figure | Table]
) -> None:
    """A training step of `linear` takes 1e8 times the cost in `BACKBONES`. At what the whole training of cnp takes, s4d
    is between a quarter and a half of its steps, and a quarter of any other takes more."""
    table = blocks["over-training-grid-compute"]
    assert isinstance(table, Table)
    rows = table.frame[table.frame["row"].eq("linear")].set_index("contestant")
    ends = {
        name: float(np.mean([score(grid.raw["linear", "next", name, seed].mean(), "next") for seed in (0, 1)]))
        for name in rows.index
    }
    assert rows.index.tolist() == sorted(ends, key=lambda name: -ends[name])
    assert rows["steps_score"].to_dict() == pytest.approx(ends)
    shared = 1e8 * LAST * BACKBONES["cnp"][1]
    assert rows["flops"].tolist() == pytest.approx([shared] * len(rows))
    assert rows["times"].to_dict() == pytest.approx({n: 1e8 * LAST * BACKBONES[n][1] / shared for n in ends})
    way = np.log(shared / (1e8 * BACKBONES["s4d"][1] * 50)) / np.log(100 / 50)
    short = ends["s4d"] - BEHIND[50]["s4d"]
    both = {"s4d": short + way * (ends["s4d"] - 0.2 - short), "cnp": ends["cnp"]}
    assert rows["compute_score"].dropna().to_dict() == pytest.approx(both)
    assert rows["compute_rank"].dropna().to_dict() == {name: place(both, name) for name in both}
    assert rows["steps_rank"].dropna().to_dict() == {name: place({n: ends[n] for n in both}, name) for name in both}


def test_a_run_without_its_curve_has_no_share_of_unknown_steps(branched: Results) -> None:
    """Nor do its branches stand for the whole training."""
    contest = next(c for c in normalised.contests(branched, "grid") if c.title == "linear")
    v = branched.rows
    lost = v["evaluator"].eq("train") & v["run"].eq("linear-gpt2-grid-s0") & v["task"].eq("linear")
    without = replace(branched, rows=v[~lost])
    other = next(c for c in normalised.contests(without, "grid") if c.title == "linear")
    assert set(over_training.by_run(contest)["run"]) - set(over_training.by_run(other)["run"]) == {
        "linear-gpt2-grid-s0"
    }
    gpt2 = over_training.means(other).query("contestant == 'gpt2'")
    assert gpt2["share"].tolist() == [0.25, 0.5, 1.0] and gpt2["run"].eq("linear-gpt2-grid-s1").all()


def test_seeds_that_only_some_have_are_no_orders_to_compare(branched: Results) -> None:
    contest = next(c for c in normalised.contests(branched, "grid") if c.title == "linear")
    own = contest.rows[contest.rows["contestant"].isin(["gpt2", "s4d"]) & contest.rows["seed"].eq(0)]
    more = replace(contest, rows=pd.concat([contest.rows, own.assign(seed=7), own.assign(seed=8)], ignore_index=True))
    assert section._between_seeds(more) == pytest.approx(section._between_seeds(contest))
    assert not np.isnan(section._between_seeds(contest))


def test_seeds_are_one_line_with_their_range_as_a_band(blocks: dict[str, Figure | Table]) -> None:
    (figure,) = (block for block in blocks.values() if isinstance(block, Figure))
    rows = figure.data
    several = rows["low"] < rows["high"]
    assert several.any() and (rows["band"] == several).all()
    assert not rows.duplicated(["panel", "contestant", "axis_value"]).any()


def test_without_branches_there_is_no_such_section(grid_results: Results) -> None:
    assert section.section(grid_results) is None
