"""The sections on the rank of predictions and on learned representations."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from iclbench.report.blocks import Block, Figure, Table, Text
from iclbench.report.data import load_results
from iclbench.report.sections import report_sections
from tests.report import synthetic_inside, vega_lite
from tests.report.synthetic_inside import CONTEXTS, INPUTS, R_SQUARED, true_feature


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Block]:
    results = load_results(synthetic_inside.write(tmp_path_factory.mktemp("inside")))
    assert results.excluded_rows == ()
    all_blocks = [block for section in report_sections(results) for block in section.walk()]
    return {block.name: block for block in all_blocks if not isinstance(block, Text)}


def test_the_figure_of_ranks_shows_the_number_of_contexts_as_upper_bound(blocks: dict[str, Block]) -> None:
    figure = blocks["combination-small-rank-none"]
    assert isinstance(figure, Figure)
    assert [panel.title for panel in figure.panels] == ["effective rank", "numerical rank"]
    data = figure.data[figure.data["panel"] == "numerical rank"].set_index("contestant")
    assert data.loc["least-squares", "value"].tolist() == [4] * len(CONTEXTS)
    ceiling = data.loc["number of contexts"]
    assert ceiling["value"].tolist() == ceiling["axis_value"].tolist() == [CONTEXTS[0], CONTEXTS[-1]]
    coqe = data.loc["coqe"]
    np.testing.assert_allclose((coqe["high"] - coqe["low"]).astype(float), 1)  # the ranks of the two seeds differ by 1
    vega_lite.validate(figure.live)


def test_the_table_of_r_squared_has_a_column_per_feature(blocks: dict[str, Block]) -> None:
    table = blocks["combination-small-representation"]
    assert isinstance(table, Table)
    frame = table.frame.set_index("contestant")
    assert frame.index.tolist() == ["coqe", "least-squares"]
    for name, scores in R_SQUARED.items():
        assert frame.loc[name, ["f1", "f2", "f3"]].tolist() == scores
        assert frame.loc[name, "mean"] == pytest.approx(np.mean(scores))


def test_learned_features_are_standardised_with_the_moments_of_true_features(blocks: dict[str, Block]) -> None:
    figure = blocks["combination-small-representation-features"]
    assert isinstance(figure, Figure)
    assert [panel.title for panel in figure.panels] == ["feature 1", "feature 2", "feature 3"]
    for output in range(3):
        panel = figure.data[figure.data["panel"] == f"feature {output + 1}"].set_index("contestant")
        y = true_feature(output, INPUTS)
        scaled = (y - y.mean()) / y.std(ddof=1)
        np.testing.assert_allclose(panel.loc["true feature", "value"].astype(float), scaled)
        np.testing.assert_allclose(panel.loc["coqe", "low"].astype(float), scaled)
        np.testing.assert_allclose(panel.loc["coqe", "value"].astype(float), scaled + 0.1 / y.std(ddof=1))
    assert not any("examples" in name for name in blocks), "features are not examples of predictions"


def test_a_dimension_has_the_same_scale_in_all_panels(blocks: dict[str, Block]) -> None:
    figure = blocks["combination-small-representation-dimensions-coqe"]
    assert isinstance(figure, Figure)
    assert [panel.title for panel in figure.panels] == ["feature 1", "feature 2", "feature 3"]
    data = figure.data.set_index(["panel", "contestant"])["value"].astype(float)
    all_values = np.concatenate([5 + 3 * INPUTS, np.full(2 * len(INPUTS), 5.0)])
    mean, std = all_values.mean(), all_values.std(ddof=1)
    np.testing.assert_allclose(data["feature 1", "dimension 1"], (5 + 3 * INPUTS - mean) / std)
    np.testing.assert_allclose(data["feature 2", "dimension 1"], (5 - mean) / std)
    np.testing.assert_allclose(data["feature 1", "dimension 2"], 0)
    y = true_feature(1, INPUTS)
    np.testing.assert_allclose(data["feature 2", "true feature"], (y - y.mean()) / y.std(ddof=1))
    vega_lite.validate(figure.live)


def test_a_contestant_with_a_failed_seed_has_no_mean_rank(tmp_path: Path) -> None:
    loaded = load_results(synthetic_inside.write(tmp_path))
    has_failed = loaded.rows["run"].eq("combination-coqe-small-s1") & loaded.rows["axis_value"].eq(CONTEXTS[-1])
    status = loaded.rows["status"].mask(has_failed.fillna(False).astype(bool), "failed")
    (task,) = replace(loaded, rows=loaded.rows.assign(status=status)).slices
    contestants = task.rank_and_representation_rows.groupby("evaluator")["contestant"].unique()
    assert set(contestants["rank"]) == {"gpt2", "least-squares"} and "coqe" in set(contestants["representation"])
