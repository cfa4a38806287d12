"""The section on the number of loops, from a sweep to the figure."""

from dataclasses import replace

import pytest

from iclbench.report.blocks import Figure
from iclbench.report.data import Results
from iclbench.report.sections import loops
from tests.report import vega_lite
from tests.report.sweeps import sweep_results

GRID = """
summary = "a looped model and a model without loops"
tasks = ["linear"]
backbones = ["gpt2"]
presets = ["smoke"]
seeds = [0, 1]
evaluate = { baselines = ["zero"], shifts = ["noisy-1"], loops = [1, 4] }

[overrides.smoke]
looped = [
    "backbone.layers=1", "backbone.loops=2", "backbone.width=8", "backbone.heads=1", "task.episodes=8", "train.steps=3",
]

[[more]]
tasks = ["linear"]
backbones = ["gpt2"]
presets = ["smoke"]
seeds = [0, 1]
evaluate = { baselines = ["zero"], shifts = ["noisy-1"] }

[more.overrides.smoke]
deep = ["backbone.layers=2", "backbone.width=8", "backbone.heads=1", "task.episodes=8", "train.steps=3"]
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return sweep_results(tmp_path_factory.mktemp("loops"), GRID)


def test_a_looped_model_has_a_line_and_points_next_to_level_lines(results: Results) -> None:
    (task,) = results.slices
    section = loops.section(task)
    assert section is not None
    (figure,) = [block for block in section.walk() if isinstance(block, Figure)]
    assert [panel.title for panel in figure.panels] == ["in-distribution", "noisy-1"]
    data = figure.data
    assert set(data["contestant"]) == set(figure.legend) == {"gpt2-looped", "gpt2-deep", "ridge"}
    looped = data[data["contestant"].eq("gpt2-looped")]
    assert set(looped["loops"]) == {1, 4}
    for _, rows in looped.groupby(["panel", "loops"]):
        points = rows[rows["sparse"]]
        (mean,) = rows.loc[~rows["sparse"], "value"]
        assert len(points) == points["series"].nunique() == 2
        assert mean == pytest.approx(points["value"].mean())
    deep = task.rows[task.rows["contestant"].eq("gpt2-deep") & task.rows["metric"].eq("auc")]
    for shift, panel in (("none", "in-distribution"), ("noisy-1", "noisy-1")):
        level = data[data["contestant"].eq("gpt2-deep") & data["panel"].eq(panel)]
        assert level["value"].tolist() == pytest.approx([deep.loc[deep["shift"].eq(shift), "value"].mean()] * 2)
        assert level["loops"].min() < 1 and level["loops"].max() > 4
    vega_lite.validate(figure.make_static())


def test_results_without_loops_have_no_section(results: Results) -> None:
    rows = results.rows[results.rows["axis"].ne("loops").fillna(True)]
    (task,) = replace(results, rows=rows).slices
    assert loops.section(task) is None
