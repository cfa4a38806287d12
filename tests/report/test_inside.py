"""Ranks of predictions and learned representations have sections of their own."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from iclbench.report.blocks import Block, Figure, Table, Text
from iclbench.report.data import load
from iclbench.report.sections import report
from tests.report import synthetic_inside, vega_lite
from tests.report.synthetic_inside import CONTEXTS, INPUTS, R_SQUARED, true


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Block]:
    results = load(synthetic_inside.write(tmp_path_factory.mktemp("inside")))
    assert results.excluded_rows == ()
    found = [block for section in report(results) for block in section.walk()]
    return {block.name: block for block in found if not isinstance(block, Text)}


def test_ranks_stand_below_the_number_of_contexts(blocks: dict[str, Block]) -> None:
    figure = blocks["combination-small-rank-none"]
    assert isinstance(figure, Figure)
    assert [panel.title for panel in figure.panels] == ["effective rank", "numerical rank"]
    data = figure.data[figure.data["panel"] == "numerical rank"].set_index("contestant")
    assert data.loc["least-squares", "value"].tolist() == [4] * len(CONTEXTS)
    ceiling = data.loc["as many as contexts"]
    assert ceiling["value"].tolist() == ceiling["axis_value"].tolist() == [CONTEXTS[0], CONTEXTS[-1]]
    coqe = data.loc["coqe"]
    np.testing.assert_allclose((coqe["high"] - coqe["low"]).astype(float), 1)  # two seeds, one apart
    vega_lite.validate(figure.live)


def test_r_squared_has_a_column_per_feature(blocks: dict[str, Block]) -> None:
    table = blocks["combination-small-representation"]
    assert isinstance(table, Table)
    frame = table.frame.set_index("contestant")
    assert frame.index.tolist() == ["coqe", "least-squares"]
    for name, scores in R_SQUARED.items():
        assert frame.loc[name, ["f1", "f2", "f3"]].tolist() == scores
        assert frame.loc[name, "mean"] == pytest.approx(np.mean(scores))


def test_features_are_drawn_in_units_of_the_true_ones(blocks: dict[str, Block]) -> None:
    figure = blocks["combination-small-representation-features"]
    assert isinstance(figure, Figure)
    assert [panel.title for panel in figure.panels] == ["feature 1", "feature 2", "feature 3"]
    for output in range(3):
        own = figure.data[figure.data["panel"] == f"feature {output + 1}"].set_index("contestant")
        y = true(output, INPUTS)
        scaled = (y - y.mean()) / y.std(ddof=1)
        np.testing.assert_allclose(own.loc["true feature", "value"].astype(float), scaled)
        np.testing.assert_allclose(own.loc["coqe", "low"].astype(float), scaled)
        np.testing.assert_allclose(own.loc["coqe", "value"].astype(float), scaled + 0.1 / y.std(ddof=1))
    assert not any("examples" in name for name in blocks), "features are no predictions of episodes"


def test_dimensions_are_drawn_as_they_are_with_one_scale_in_all_panels(blocks: dict[str, Block]) -> None:
    figure = blocks["combination-small-representation-dimensions-coqe"]
    assert isinstance(figure, Figure)
    assert [panel.title for panel in figure.panels] == ["feature 1", "feature 2", "feature 3"]
    data = figure.data.set_index(["panel", "contestant"])["value"].astype(float)
    every = np.concatenate([5 + 3 * INPUTS, np.full(2 * len(INPUTS), 5.0)])
    moves = (5 + 3 * INPUTS - every.mean()) / every.std(ddof=1)
    np.testing.assert_allclose(data["feature 1", "dimension 1"], moves)
    np.testing.assert_allclose(data["feature 2", "dimension 1"], (5 - every.mean()) / every.std(ddof=1))
    np.testing.assert_allclose(data["feature 1", "dimension 2"], 0)
    y = true(1, INPUTS)
    np.testing.assert_allclose(data["feature 2", "true feature"], (y - y.mean()) / y.std(ddof=1))
    vega_lite.validate(figure.live)


def test_no_mean_is_over_the_runs_that_did_not_fail(tmp_path: Path) -> None:
    loaded = load(synthetic_inside.write(tmp_path))
    last = loaded.rows["run"].eq("combination-coqe-small-s1") & loaded.rows["axis_value"].eq(CONTEXTS[-1])
    failed = loaded.rows["status"].mask(last.fillna(False).astype(bool), "failed")
    (task,) = replace(loaded, rows=loaded.rows.assign(status=failed)).slices
    who = task.inside.groupby("evaluator")["contestant"].unique()
    assert set(who["rank"]) == {"gpt2", "least-squares"} and "coqe" in set(who["representation"])
