"""Figures hold exactly the numbers of the tables, and are valid Vega-Lite."""

from pathlib import Path

import altair as alt
import pandas as pd
import pytest

from iclbench import tables
from iclbench.report.blocks import Figure
from iclbench.report.data import load
from iclbench.report.figures import curves, learning
from iclbench.report.metrics import metric
from iclbench.report.sections import report
from iclbench.report.style import BACKGROUND, looks


@pytest.fixture(scope="module")
def figures(results: Path) -> dict[str, Figure]:
    blocks = [block for section in report(load(results)) for block in section.walk()]
    return {block.name: block for block in blocks if isinstance(block, Figure)}


def test_there_is_a_figure_for_every_kind_of_curve(figures: dict[str, Figure]) -> None:
    of_linear = {name for name in figures if name.startswith("linear-")}
    assert of_linear == {
        "linear-small-curves-next-squared-error",
        "linear-small-points-80-next-squared-error",
        "linear-small-shifts-next-squared-error",
        "linear-small-training-loss",
    }


def test_a_learning_curve_holds_the_tables_numbers(figures: dict[str, Figure], results: Path) -> None:
    values = tables.read_all("values", results)
    rows = pd.DataFrame(figures["linear-small-curves-next-squared-error"].static["data"]["values"])
    for contestant in ("mamba", "xgboost", "oracle-bayes"):
        drawn = rows[rows["contestant"] == contestant].set_index("n_context")
        table = values.query(
            "task == 'linear' and contestant == @contestant and shift == 'none' and metric == 'squared_error'"
        )
        table = table.set_index("n_context").sort_index()
        assert drawn.index.tolist() == table.index.tolist()
        for column in ("value", "low", "high"):
            assert drawn[column].tolist() == table[column].tolist()


def test_every_seed_has_its_line_and_a_backbone_alone_its_band(figures: dict[str, Figure], results: Path) -> None:
    figure = figures["linear-small-curves-next-squared-error"]
    rows = pd.DataFrame(figure.static["data"]["values"]).query("kind == 'backbone'")
    assert sorted(rows["series"].unique()) == [
        "linear-gpt2-small-s0", "linear-gpt2-small-s1", "linear-gpt2-small-s2", "linear-mamba-small-s0"
    ]  # fmt: skip
    values = tables.read_all("values", results).query("run == 'linear-gpt2-small-s1' and shift == 'none'")
    values = values.query("metric == 'squared_error' and evaluator == 'next'").sort_values("n_context")
    for column in ("value", "low", "high"):
        assert rows.loc[rows["series"] == "linear-gpt2-small-s1", column].tolist() == values[column].tolist()
    assert rows.groupby("contestant")["band"].all().to_dict() == {"gpt2": False, "mamba": True}
    assert figure.legend["gpt2"].width < figure.legend["mamba"].width
    assert set(rows.loc[rows["contestant"] == "mamba", "label"]) == {"mamba"}
    assert "linear-gpt2-small-s2" in set(rows["label"])


def test_tables_average_seeds_and_enclose_their_intervals(results: Path) -> None:
    values = tables.read_all("values", results)
    three = values.query("task == 'linear' and contestant == 'gpt2' and shift == 'none' and n_context == 7")
    three = three[three["kind"] == "backbone"]
    assert len(three) == 3
    task = next(s for s in load(results).slices if s.task == "linear")
    mean = task.curves.query("contestant == 'gpt2' and shift == 'none' and n_context == 7").iloc[0]
    assert mean["value"] == pytest.approx(sum(three["value"]) / 3, rel=1e-15)
    assert (mean["low"], mean["high"], mean["runs"]) == (min(three["low"]), max(three["high"]), 3)


def test_every_figure_is_valid_vega_lite(figures: dict[str, Figure]) -> None:
    one, grid = figures["linear-small-points-80-next-squared-error"], figures["linear-small-shifts-next-squared-error"]
    panel = grid.static["concat"][0] | {"data": {"values": []}}  # rows are slow to validate
    for spec in (one.live, one.static | {"data": {"values": []}}, grid.live, grid.static | {"concat": [panel]}):
        alt.Chart.from_dict(spec)  # validates against the schema


def test_the_trained_length_is_marked(figures: dict[str, Figure]) -> None:
    beyond, within = (
        figures["linear-small-points-80-next-squared-error"],
        figures["linear-small-shifts-next-squared-error"],
    )
    for spec in (beyond.static, beyond.live):
        (rule,) = [layer for layer in spec["layer"] if layer["mark"]["type"] == "rule"]
        assert rule["encoding"]["x"]["field"] == "trained"
    assert set(beyond.data.loc[beyond.data["kind"] == "backbone", "trained"]) == {20}
    assert beyond.data.loc[beyond.data["kind"] != "backbone", "trained"].isna().all()
    assert not [layer for layer in within.live["layer"] if layer["mark"]["type"] == "rule"]


def test_published_numbers_are_diamonds(figures: dict[str, Figure]) -> None:
    rows = figures["linear-small-curves-next-squared-error"].static["data"]["values"]
    assert [(r["contestant"], r["n_context"], r["value"]) for r in rows if r["kind"] == "published"] == [
        ("gpt2", 10, 0.05)
    ]


def test_a_costly_baseline_shows_where_it_was_asked(figures: dict[str, Figure]) -> None:
    rows = figures["linear-small-curves-next-squared-error"].static["data"]["values"]
    assert {r["contestant"] for r in rows if r["sparse"]} == {"xgboost"}


def test_shift_panels_split_the_rows_and_share_their_axes(figures: dict[str, Figure]) -> None:
    figure = figures["linear-small-shifts-next-squared-error"]
    assert [panel.title for panel in figure.panels] == ["input-scale-2", "noisy", "orthants"]
    assert sum(len(view["data"]["values"]) for view in figure.static["concat"]) == len(figure.data)
    noisy = figure.static["concat"][1]["data"]["values"]
    assert "mamba" not in {r["contestant"] for r in noisy}, "a failed cell has no line"


def test_values_that_cannot_be_drawn_become_null() -> None:
    data = pd.DataFrame({"value": pd.array([1.0, float("inf"), None], dtype="Float64"), "n": [1, 2, 3]})
    assert [row["value"] for row in curves.records(data)] == [1.0, None, None]


@pytest.mark.parametrize("name", ["squared_error", "log_likelihood", "accuracy", "never_heard_of"])
def test_the_axis_survives_every_metric(name: str) -> None:
    for values in ([0.0], [-3.0, 5.0], [float("inf"), 1e-9], []):
        data = pd.DataFrame({"value": pd.array(values, dtype="Float64"), "kind": ["backbone"] * len(values)})
        low, high = curves.domain(data, metric(name))
        assert low < high
        assert low > 0 or not metric(name).log


def test_one_exact_baseline_does_not_squeeze_the_backbones() -> None:
    data = pd.DataFrame({"value": [1.0, 0.02, 1e-20, 300.0], "kind": ["backbone", "backbone", "oracle", "baseline"]})
    low, high = curves.domain(data, metric("squared_error"))
    assert 1e-3 < low <= 0.02
    assert 1.0 <= high < 10


@pytest.mark.parametrize(("values", "log"), [([1.0, 0.4], False), ([1.0, 0.1], True), ([1.0, 0.0], False)])
def test_the_axis_of_errors_is_logarithmic_where_backbones_span_a_decade(values: list[float], log: bool) -> None:
    data = pd.DataFrame({"value": [*values, 1e-9, 40.0], "kind": ["backbone", "backbone", "oracle", "baseline"]})
    assert curves.spans_a_decade(data) is log
    if not log:
        assert curves.domain(data, metric("never_heard_of_error")) == (0.0, 1.05 * 1.5)


def test_a_backbone_keeps_its_colour_whoever_else_is_there() -> None:
    few, many = looks(["mamba", "s4d"], [], []), looks(["cnp", "gpt2", "mamba", "s4", "s4d", "tnp"], [], [])
    assert few["mamba"] == many["mamba"]
    assert few["s4d"] == many["s4d"]
    assert len({(look.colour, look.dash) for look in many.values()}) == len(many)


def test_looks_tell_everybody_apart() -> None:
    backbones, baselines = [f"net-{i}" for i in range(13)], [f"base-{i}" for i in range(20)]
    found = looks(backbones, baselines, ["oracle-bayes"])
    assert len({(look.colour, look.dash) for look in found.values()}) == len(found)


def test_of_many_variants_the_best_is_featured_and_the_rest_stay_grey(results: Path) -> None:
    task = next(s for s in load(results).slices if s.task == "linear")
    rows = task.lines[task.lines["shift"] == "none"]
    lasso = rows[rows["contestant"] == "lasso-1e-2"]
    worse = lasso.assign(contestant="lasso-1", run="lasso-1", value=lasso["value"] * 2)
    task.results.looks["lasso-1"] = task.results.looks["lasso-1e-2"]
    found = learning.cast(task, pd.concat([rows, worse]))
    assert found["lasso-1e-2"] != BACKGROUND
    assert found["lasso-1"] == BACKGROUND
