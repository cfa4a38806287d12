"""The section on pools of truths, from a sweep of two models to the figure."""

import json
from dataclasses import replace

import pytest

from iclbench.report.blocks import Figure
from iclbench.report.data import Results
from iclbench.report.sections import missing, pools
from tests.report import vega_lite
from tests.report.sweeps import sweep_results

GRID = """
summary = "pools of 1 and 4 truths, and new truths"
tasks = ["noisy-linear"]
backbones = ["gru", "cnp"]
presets = ["smoke"]
seeds = [0, 1]
evaluate = { shifts = ["fresh"], baselines = ["zero"] }

[overrides.smoke]
pool-1 = ["task.pool=1", "task.episodes=8", "train.steps=3"]
pool-4 = ["task.pool=4", "task.episodes=8", "train.steps=3"]
pool-all = ["task.pool=all", "task.episodes=8", "train.steps=3"]
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return sweep_results(tmp_path_factory.mktemp("pools"), GRID)


def figure_of(results: Results) -> Figure:
    section = pools.section(results)
    assert section is not None
    (figure,) = [block for block in section.walk() if isinstance(block, Figure)]
    return figure


def test_each_model_has_a_line_and_a_point_per_seed(results: Results) -> None:
    figure = figure_of(results)
    data = figure.data
    assert [panel.title for panel in figure.panels] == [
        f"to {name}, {prompts}" for prompts in ("pool prompts", "fresh prompts") for name in ("oracle-pool", "ridge")
    ]
    for (panel, _, size), rows in data.groupby(["panel", "contestant", "pool"]):
        points = rows[rows["sparse"]]
        (mean,) = rows.loc[~rows["sparse"], "value"]
        assert len(points) == points["series"].nunique() == 2
        assert mean == pytest.approx(points["value"].mean())
        assert size in (1, 4) or (size == 16 and "ridge" in panel)
    assert set(data["contestant"]) == set(figure.legend) == {"gru", "cnp"}
    assert set(data.loc[data["panel"].str.startswith("to ridge"), "pool"]) == {1, 4, 16}
    specification = figure.make_static()
    vega_lite.validate(specification)
    assert "'all'" in json.dumps(specification)


def test_an_unlimited_pool_has_equal_distances_on_the_pool_and_on_new_truths(results: Results) -> None:
    distances = pools.pool_distances(results.rows)
    unlimited = distances[distances["pool"].eq(float("inf"))]
    pool, fresh = (unlimited[unlimited["shift"].eq(shift)].set_index("run")["value"] for shift in ("none", "fresh"))
    assert len(pool) == 4 and pool.sort_index().equals(fresh.sort_index())


def test_leaderboards_contain_one_distribution(results: Results) -> None:
    (task,) = results.slices
    backbones = {name for name, kind in task.kinds.items() if kind == "backbone"}
    curves = task.curves[task.curves["kind"].eq("backbone")]
    assert set(curves["contestant"]) == {"gru-pool-all", "cnp-pool-all"} < backbones
    assert len(results.excluded_rows) >= 2 and all("pool" in line for line in results.excluded_rows)
    assert not any("pool-1" in contestant for _, _, contestant, _, _ in missing.missing_results(results))


def test_results_without_pools_have_no_section(results: Results) -> None:
    rows = results.rows[results.rows["evaluator"] != "solutions"]
    assert pools.section(replace(results, rows=rows)) is None
