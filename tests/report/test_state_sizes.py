"""The section on sizes of states, from a sweep of two models to the figure."""

from dataclasses import replace

import pytest

from iclbench.report.blocks import Figure
from iclbench.report.data import Results
from iclbench.report.sections import state_sizes
from tests.report import vega_lite
from tests.report.sweeps import sweep_results

GRID = """
summary = "states of two sizes, and a model with one size"
tasks = ["recall"]
backbones = ["linear-attention"]
presets = ["smoke"]
seeds = [0]
evaluate.shifts_of.recall = ["pairs-4", "points-40"]
evaluate.baselines = ["uniform"]
cost.points = [31]

[overrides.smoke]
state-256 = ["backbone.state_budget=256", "train.steps=2"]
state-1024 = ["backbone.state_budget=1024", "train.steps=2"]

[[more]]
tasks = ["recall"]
backbones = ["gru"]
presets = ["smoke"]
seeds = [0]
overrides.smoke.short = ["train.steps=2"]
evaluate.shifts_of.recall = ["pairs-4", "points-40"]
evaluate.baselines = ["uniform"]
cost.points = [31]
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return sweep_results(tmp_path_factory.mktemp("states"), GRID)


def test_a_backbone_has_one_line_over_the_sizes_of_its_states(results: Results) -> None:
    (task,) = results.slices
    section = state_sizes.section(task)
    assert section is not None and section.id == f"{task.id}-state-sizes"
    (figure,) = [block for block in section.walk() if isinstance(block, Figure)]
    data = figure.data
    # The shift with more points is not drawn.
    assert [panel.title for panel in figure.panels] == ["training distribution", "pairs-4"]
    assert set(figure.legend) == {"linear-attention", "gru"}
    for _, panel in data.groupby("panel"):
        by_model = panel.groupby("contestant")
        assert by_model["sparse"].sum().to_dict() == {"linear-attention": 2, "gru": 1}
        lines = panel[~panel["sparse"]].groupby("contestant")
        assert lines["series"].nunique().to_dict() == {"linear-attention": 1, "gru": 1}
        (sizes,) = [rows["state_bytes"].tolist() for name, rows in lines if name == "linear-attention"]
        # A state has four bytes per number. It is within 10 % of the budget, and the last token is stored in addition.
        assert sizes == pytest.approx([4 * 256, 4 * 1024], rel=0.2)
    vega_lite.validate(figure.make_static())


def test_points_have_the_accuracy_of_their_run(results: Results) -> None:
    (task,) = results.slices
    points = state_sizes.state_points(task)
    rows = task.rows
    values = rows[rows["metric"].eq("accuracy") & rows["n_context"].isna() & rows["axis"].isna()]
    expected = values.set_index(["run", "shift"])["value"].astype(float)
    assert len(points) == 6
    for run, shift, value in points[["run", "shift", "value"]].itertuples(index=False):
        assert value == expected[run, shift]


def test_models_with_one_size_have_no_section(results: Results) -> None:
    (task,) = results.slices
    rows = results.rows[~results.rows["run"].str.contains("state-1024")]
    (smaller,) = replace(results, rows=rows).slices
    assert state_sizes.section(smaller) is None
    assert state_sizes.section(task) is not None
