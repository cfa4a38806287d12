"""The question `targets` in the report: leaderboard, gaps, related datasets and context sizes."""

import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from iclbench import tables
from iclbench.analysis.episode_scores import EpisodeScores
from iclbench.analysis.gains import Gain, gain
from iclbench.analysis.pairs import score_difference
from iclbench.core.formats import fixed
from iclbench.report.blocks import Block, Column, Figure, Section, Table, Text
from iclbench.report.data import load_results
from iclbench.report.figures import learning
from iclbench.report.sections import context_size, related, report_sections
from tests.report import synthetic_targets as synthetic
from tests.report import vega_lite
from tests.report.blocks import get_figure, get_table
from tests.report.conftest import Report

GP = "gp-mixture-small"


def _values(results: Path, task: str, shift: str = "none") -> pd.DataFrame:
    values = tables.read_all("values", results)
    return values[(values["task"] == task) & (values["shift"] == shift) & (values["kind"] != "published")]


def test_the_leaderboard_has_rows_with_no_one_and_all_related_datasets(targets_blocks: dict[str, Block]) -> None:
    frame = get_table(targets_blocks, f"{GP}-leaderboard-targets").frame
    keys = list(zip(frame["contestant"], frame["n_related"], strict=True))
    assert sorted(keys) == sorted(
        [(name, n) for name in ("icicl-tnp", "oracle-bayes") for n in (0, 1, 3)]
        + [("oracle-kernel", 0), ("pt-tnp", 0), ("cnp", 0), ("knn-3", 0)]
    )
    assert keys[-1] == ("knn-3", 0), "a point predictor has no likelihood and is last"
    assert frame["log_likelihood"].dropna().is_monotonic_decreasing
    ranked = frame.dropna(subset="rank")
    assert set(ranked["kind"]) == {"backbone"}, "oracles and point predictors have no rank"
    assert ranked["rank"].iloc[0] == 1
    assert frame.set_index("contestant").loc["cnp", "covered_90"] == pytest.approx(0.881)


def test_methods_without_a_log_likelihood_are_named_in_a_note(
    targets_blocks: dict[str, Block], targets_sections: list[Section]
) -> None:
    frame = get_table(targets_blocks, f"{GP}-leaderboard-targets").frame
    missing = frame.loc[frame["log_likelihood"].isna(), "contestant"].unique()
    texts = [block.text for section in targets_sections for block in section.walk() if isinstance(block, Text)]
    assert len(missing) and any(all(name in text for name in missing) for text in texts)


def test_differences_in_the_leaderboard_are_paired(targets_blocks: dict[str, Block]) -> None:
    frame = get_table(targets_blocks, f"{GP}-leaderboard-targets").frame
    index = frame.index[(frame["contestant"] == "icicl-tnp") & (frame["n_related"] == 1)][0]
    row, row_above = frame.loc[index], frame.loc[index - 1]
    upper = synthetic.log_likelihoods("gp-mixture", row_above["contestant"])[int(row_above["n_related"])]
    lower = synthetic.log_likelihoods("gp-mixture", "icicl-tnp")[1]
    interval = stats.ttest_rel(upper, lower).confidence_interval(0.95)
    assert row["behind"] == pytest.approx((upper - lower).mean(), rel=1e-9)
    assert (row["behind_low"], row["behind_high"]) == pytest.approx((interval.low, interval.high), rel=1e-9)


def test_a_paired_difference_requires_two_common_episodes() -> None:
    a, b = pd.Series([1.0, 2.0, 4.0]), pd.Series([0.5, 1.0], index=[2, 1])
    difference = score_difference(a, b)
    assert difference is not None
    assert difference.value == pytest.approx(((4.0 - 0.5) + (2.0 - 1.0)) / 2)
    assert score_difference(a, b[:1]) is None


def test_the_table_of_gaps_has_columns_by_context_size_and_stratum(
    targets_blocks: dict[str, Block], targets_results: Path
) -> None:
    table = get_table(targets_blocks, f"{GP}-gap")
    values = _values(targets_results, "gp-mixture").query("metric == 'gap' and contestant == 'icicl-tnp'")
    row = table.frame[(table.frame["contestant"] == "icicl-tnp") & (table.frame["n_related"] == 3)].iloc[0]
    values = values[values["n_related"] == 3]
    assert row["all"] == values.loc[values["axis"].isna(), "value"].item()
    for end in (4, 16, 64):
        assert row[f"n{end}"] == values.loc[values["axis_value"] == end, "value"].item()
    assert row["s_rbf"] == values.loc[values["axis"] == "stratum:rbf", "value"].item()
    headers = [column.header for column in table.columns]
    assert headers[2:] == ["all episodes", "1 to 4 points", "5 to 16 points", "17 to 64 points", "periodic", "rbf"]
    assert table.frame["all"].is_monotonic_increasing, "the smallest gap is first"


def test_joint_log_likelihoods_are_listed_if_they_differ_from_marginal_ones(targets_blocks: dict[str, Block]) -> None:
    joint, marginal = (
        get_table(targets_blocks, name).frame.set_index(["contestant", "n_related"])["all"]
        for name in (f"{GP}-gap-joint", f"{GP}-gap")
    )
    assert joint["cnp", 0] == pytest.approx(marginal["cnp", 0] + 0.3), "the oracle gains 0.3 from joint prediction"
    assert joint["oracle-bayes", 0] == pytest.approx(marginal["oracle-bayes", 0])
    board = get_table(targets_blocks, f"{GP}-leaderboard-targets")
    assert "log_likelihood_joint" in [column.key for column in board.columns]
    board_of_images = get_table(targets_blocks, "image-completion-small-leaderboard-targets")
    assert "log_likelihood_joint" not in [column.key for column in board_of_images.columns]


def test_figures_of_gaps_have_panels_for_strata_and_related_datasets(targets_blocks: dict[str, Block]) -> None:
    by_related = get_figure(targets_blocks, f"{GP}-gap-related")
    assert [p.title for p in by_related.panels] == ["all episodes", "periodic", "rbf"]
    by_size = get_figure(targets_blocks, f"{GP}-gap-context")
    assert [p.title for p in by_size.panels] == ["no related dataset", "1 related dataset", "3 related datasets"]
    for _, rows in by_size.data.groupby("panel"):
        assert {"pt-tnp", "cnp", "icicl-tnp"} <= set(rows["contestant"]), (
            "models that do not use related datasets are included"
        )


def test_the_figure_of_related_datasets_has_measured_and_published_numbers(
    targets_blocks: dict[str, Block], targets_results: Path
) -> None:
    figure = get_figure(targets_blocks, f"{GP}-related")
    assert figure.panels[0].title == "in-distribution"
    assert {p.title for p in figure.panels[1:]} == set(synthetic.SHIFTS["gp-mixture"][1:])
    line = figure.data[(figure.data["panel"] == "in-distribution") & (figure.data["contestant"] == "icicl-tnp")]
    published = line[line["kind"] == "published"]
    assert dict(zip(published["n_related"], published["value"], strict=True)) == synthetic.PUBLISHED
    values = _values(targets_results, "gp-mixture").query("metric == 'log_likelihood' and contestant == 'icicl-tnp'")
    values = values[values["axis"].isna()].sort_values("n_related")
    assert line.loc[line["kind"] == "backbone", "value"].tolist() == values["value"].tolist()
    level = figure.data[(figure.data["panel"] == "ood-lengthscale") & (figure.data["contestant"] == "pt-tnp")]
    assert level["n_related"].tolist() == [0, 1, 2, 3]
    assert len(set(level["value"])) == 1
    table = get_table(targets_blocks, f"{GP}-published").frame.set_index("n_related")
    assert table.loc[1, "ours"] == values["value"].iloc[1] and table.loc[1, "published"] == synthetic.PUBLISHED[1]
    assert pd.isna(table.loc[1, "difference"]), "the published number is for another preset"


def test_gains_are_paired_and_give_the_largest_share_of_a_single_episode(targets_blocks: dict[str, Block]) -> None:
    table = get_table(targets_blocks, f"{GP}-related-gains")
    row = table.frame.set_index(["contestant", "n_related"]).loc[("icicl-tnp", 3)]
    scores = synthetic.log_likelihoods("gp-mixture", "icicl-tnp")
    assert row["gain"] == pytest.approx((scores[3] - scores[0]).mean())
    assert row["median"] == pytest.approx(np.median(scores[3] - scores[0]))
    assert pd.isna(row["largest"]), "all episodes have the same gain"
    assert set(table.frame["contestant"]) == {"icicl-tnp", "oracle-bayes"}
    # 49 episodes gain 0.01, and one gains 0.5.
    scores_without = pd.Series(np.zeros(50))
    one_large = gain(scores_without + 0.01 + 0.49 * (scores_without.index == 3), scores_without)
    assert one_large is not None and one_large.largest_share == pytest.approx(0.5 / 0.99)
    interval = stats.ttest_1samp([0.01] * 49 + [0.5], 0).confidence_interval()
    assert (one_large.low, one_large.high, one_large.median) == pytest.approx((interval.low, interval.high, 0.01))
    assert gain(scores_without, scores_without) is None


def test_the_table_of_gains_has_intervals(targets_report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    (task,) = (task for task in targets_report.results.slices if task.task == "gp-mixture")
    mean = Gain(0.1, 0.05, 0.2, median=0.08, largest_share=0.01)
    monkeypatch.setattr(related, "gains", lambda *_: {("icicl-tnp", 3): mean})
    table = related._gain_table(task)
    assert table is not None
    assert table.frame[["gain", "gain_low", "gain_high", "median"]].iloc[0].tolist() == [0.1, 0.05, 0.2, 0.08]


def test_a_cell_with_fewer_episodes_shows_their_number() -> None:
    frame = pd.DataFrame({"name": ["a", "b", "c"], "ll": [-1.0, -2.0, None], "n": [256, 128, None]})
    table = Table("t", "t", "", frame, (Column("name", "name"), Column("ll", "ll", fixed, True, episodes="n")))
    assert [row[1].text for row in table.rows()] == ["-1.000", "-2.000 (128 episodes)", "–"]


@pytest.mark.slow
def test_published_numbers_are_compared_with_ceiling_adjusted_numbers(targets_results: Path, tmp_path: Path) -> None:
    shutil.copytree(targets_results, tmp_path / "results")
    values = tables.read_all("values", targets_results).query("metric == 'gap' and axis.isna() and shift == 'none'")
    ends = {"value": -0.288 - values["value"], "low": -0.288 - values["high"], "high": -0.288 - values["low"]}
    adjusted = values.assign(metric="log_likelihood_adjusted", **ends)
    folder = tmp_path / "results" / "tables" / synthetic.prompt_set("gp-mixture", "none") / "summary"
    tables.write("values", adjusted, folder / "gaps.values.parquet", {})
    sections = report_sections(load_results(tmp_path / "results"), ["related", "published"])
    blocks = {block.name: block for s in sections for block in s.walk() if not isinstance(block, Text)}
    expected = adjusted[adjusted["contestant"].eq("icicl-tnp")].set_index("n_related")["value"]
    row = get_table(blocks, f"{GP}-published").frame.set_index("n_related").loc[1]
    assert row["adjusted"] == expected[1] and pd.isna(row["difference"]), "the published number is for another preset"
    numbers = get_table(blocks, f"{GP}-related-numbers").frame.set_index("contestant")
    assert numbers.loc["icicl-tnp, ceiling-adjusted", "r1"] == expected[1]
    line = get_figure(blocks, f"{GP}-related").data.query("panel == 'in-distribution' and contestant == 'icicl-tnp'")
    assert line.loc[line["kind"].eq("backbone"), "value"].tolist() == expected.sort_index().tolist()
    marks = get_figure(blocks, "published-gp-mixture-log-likelihood").data.set_index(["contestant", "row"])["value"]
    assert marks["ours, small", "icicl-tnp, 1 related"] == expected[1]


def test_published_and_measured_numbers_share_rows_of_a_figure(
    targets_blocks: dict[str, Block], targets_results: Path
) -> None:
    figure = get_figure(targets_blocks, "published-gp-mixture-log-likelihood")
    marks = figure.data.set_index(["contestant", "row"])["value"].to_dict()
    values = _values(targets_results, "gp-mixture").query("metric == 'log_likelihood' and contestant == 'icicl-tnp'")
    ours = values[values["axis"].isna()].set_index("n_related")["value"]
    shared = sorted(synthetic.PUBLISHED.keys() & set(ours.index))
    assert shared and len(shared) < len(synthetic.PUBLISHED), "numbers that we did not measure are only in the table"
    expected = {("published", f"icicl-tnp, {n} related"): synthetic.PUBLISHED[n] for n in shared}
    expected |= {("ours, small", f"icicl-tnp, {n} related"): ours[n] for n in shared}
    assert marks == pytest.approx(expected)
    assert list(figure.legend) == ["published", "ours, small"]
    low, high = figure.live["layer"][-1]["encoding"]["x"]["scale"]["domain"]
    assert low < min(expected.values()) and max(expected.values()) < high


def test_bins_of_context_sizes_agree_with_a_naive_loop(targets_blocks: dict[str, Block]) -> None:
    figure = get_figure(targets_blocks, f"{GP}-context-size")
    line = figure.data[(figure.data["panel"] == "3 related datasets") & (figure.data["contestant"] == "icicl-tnp")]
    sizes, scores = synthetic.context_sizes("gp-mixture"), synthetic.log_likelihoods("gp-mixture", "icicl-tnp")[3]
    edges = [-np.inf, *np.quantile(sizes, [0.25, 0.5, 0.75]), np.inf]
    for row, low, high in zip(line.itertuples(), edges[:-1], edges[1:], strict=True):
        in_bin = np.array([low < n <= high for n in sizes])
        assert row.size == pytest.approx(sizes[in_bin].mean())
        assert row.value == pytest.approx(scores[in_bin].mean())


def test_images_are_binned_by_the_share_of_observed_pixels(targets_blocks: dict[str, Block]) -> None:
    figure = get_figure(targets_blocks, "image-completion-small-context-size")
    assert "observed pixels" in figure.alt
    share = 100 * synthetic.context_sizes("image-completion") / synthetic.SIDE**2
    edges = [-np.inf, *np.quantile(share, [0.25, 0.5, 0.75]), np.inf]
    means = [share[(low < share) & (share <= high)].mean() for low, high in pairwise(edges)]
    for _, line in figure.data.groupby(["panel", "contestant"]):
        assert line["size"].tolist() == pytest.approx(means)


@pytest.mark.slow
def test_figures_are_valid_vega_lite(targets_blocks: dict[str, Block]) -> None:
    figures = [block for block in targets_blocks.values() if isinstance(block, Figure)]
    assert len(figures) == 12
    for figure in figures:
        # Validate one panel without rows, because all panels have the same layers and rows are slow to validate.
        first_panel = {**figure.static["concat"][0], "data": {"values": []}}
        vega_lite.validate({**figure.static, "concat": [first_panel]})
        vega_lite.validate(figure.live)
        assert figure.alt and figure.caption


@pytest.mark.slow
def test_a_very_poor_baseline_does_not_extend_the_axis(targets_results: Path, tmp_path: Path) -> None:
    values = tables.read_all("values", targets_results).query("task == 'gp-mixture' and shift == 'none'")
    poor = values[(values["contestant"] == "pt-tnp") & values["metric"].eq("log_likelihood")].assign(
        contestant="gp-rbf", run="gp-rbf", kind="baseline", seed=None, value=-1e4, low=-2e4, high=-1e3
    )
    tables.write("values", pd.concat([values, poor]), tmp_path / "a.values.parquet", {})
    blocks = {
        b.name: b
        for s in report_sections(load_results(tmp_path), ["related"])
        for b in s.walk()
        if isinstance(b, Figure)
    }
    figure = blocks[f"{GP}-related"]
    scale = figure.live["layer"][0]["encoding"]["y"]["scale"]
    assert scale["domain"][0] > -2


def test_episode_scores_of_the_two_questions_are_separate() -> None:
    row = {"run": "a", "prompt_set": "p", "metric": "squared_error"}
    frame = tables.frame(
        "errors",
        [row | {"n_context": n, "episode": e, "value": 10.0 * n + e} for n in (0, 1) for e in (0, 1)]
        + [row | {"n_context": 5 + e, "n_related": k, "episode": e, "value": k + e} for k in (0, 2) for e in (0, 1)],
    )
    scores = EpisodeScores([frame], {"p"})
    curves = scores.curves(["a"], "p", "squared_error")
    assert curves is not None and curves.to_numpy().tolist() == [[0.0, 10.0], [1.0, 11.0]]
    answers = scores.targets(["a"], "p", "squared_error", 2)
    assert answers is not None and answers.tolist() == [2.0, 3.0]
    assert scores.targets(["a"], "p", "squared_error", 1) is None
    assert scores.targets(["a", "b"], "p", "squared_error", 2) is None, "a run without scores is not ignored"
    sizes = scores.context_sizes("p")
    assert sizes is not None and sizes.tolist() == [5, 6]


def test_the_page_has_the_sections_for_the_question_targets(targets_sections: list[Section]) -> None:
    titles = {part.title for section in targets_sections for part in section.parts}
    assert titles == {
        "Leaderboard",
        "Gap to the oracle",
        "Related datasets",
        "Context size",
        "Examples",
        "Published results",
    }


@pytest.mark.slow
def test_mean_lines_exclude_contestants_with_a_failed_seed(
    targets_results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of icicl-tnp fails with any number of related datasets, and a run of pt-tnp fails without them.

    Published numbers are still drawn.
    """
    monkeypatch.setattr(learning, "MAX_UNCROWDED_BACKBONES", 0)
    loaded = load_results(targets_results)
    rows = loaded.rows[loaded.rows["task"].eq("gp-mixture") & loaded.rows["evaluator"].eq("targets")]
    likelihoods = rows[rows["shift"].eq("none") & rows["metric"].eq("log_likelihood") & rows["axis"].isna()]
    likelihoods = likelihoods[likelihoods["kind"].eq("backbone")].drop_duplicates("contestant")
    failed = likelihoods.set_index("contestant", drop=False).loc[["icicl-tnp", "pt-tnp"]]
    failed = failed.assign(run=["second", "other"], value=pd.NA, status="failed", reason="nan")
    failed.loc["icicl-tnp", "n_related"] = pd.NA
    task = next(s for s in replace(loaded, rows=pd.concat([rows, failed], ignore_index=True)).slices if s.id == GP)
    for section in (related.section(task), context_size.section(task)):
        assert section is not None
        data = next(block for block in section.walk() if isinstance(block, Figure)).data
        data = data[data["panel"].isin(["in-distribution", "no related dataset", "3 related datasets"])]
        assert not {"icicl-tnp", "pt-tnp"} & set(data.loc[data["kind"] != "published", "contestant"])
        assert "cnp" in set(data["contestant"])
