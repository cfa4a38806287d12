"""Reports on tests of a classification family (ICL, IWL, ...): table, training curves, and the ICL-IWL plane."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from iclbench import tables
from iclbench.analysis import accuracies
from iclbench.report.blocks import Block, Figure, Section, Table, Text
from iclbench.report.data import Results, load_results
from iclbench.report.sections import report_sections
from iclbench.report.sections.published import comparison
from tests.report import synthetic_bursty, vega_lite
from tests.report.blocks import cell_texts, get_figure, get_table
from tests.report.synthetic_bursty import CURVES, STEPS, accuracy


@pytest.fixture(scope="module")
def bursty(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return load_results(synthetic_bursty.write(tmp_path_factory.mktemp("bursty")))


@pytest.fixture(scope="module")
def sections(bursty: Results) -> list[Section]:
    return report_sections(bursty)


@pytest.fixture(scope="module")
def blocks(sections: list[Section]) -> dict[str, Block]:
    all_blocks = [block for section in sections for block in section.walk()]
    return {block.name: block for block in all_blocks if not isinstance(block, Text)}


def stored_rows(results: Results) -> pd.DataFrame:
    """Return the rows with only the columns of stored tables."""
    return results.rows.assign(contestant=results.rows["backbone"]).drop(columns="backbone")


def test_rows_of_all_tests_are_included(bursty: Results) -> None:
    """Each test has one prompt set for the final evaluation and another for evaluations during training."""
    assert bursty.excluded_rows == ()
    tests = bursty.rows[bursty.rows["axis"].isna() & (bursty.rows["kind"] == "baseline")]
    assert set(tests["evaluator"]) == set(synthetic_bursty.TESTS)


def test_the_table_has_means_over_seeds_the_chance_level_and_flip(blocks: dict[str, Block]) -> None:
    rows = cell_texts(get_table(blocks, "bursty-small-in-context"))
    assert list(rows) == [
        "pixel-1nn",
        "nearest-class-mean",
        "coqe",
        "coqe-paper",
        "transformer",
        "chance",
        "majority",
    ]
    final = [accuracy("coqe", "bursty", "icl", seed)[-1] for seed in (0, 1, 2)]
    interval = f"[{min(final) - 0.04:.3f}, {max(final) + 0.04:.3f}]"
    assert rows["coqe"]["ICL (chance 1/2)"] == f"{np.mean(final):.3f} {interval}"
    assert rows["coqe"]["seeds"] == "3" and rows["coqe-paper"]["seeds"] == "1"
    assert rows["pixel-1nn"]["ICL, paired (chance 1/4)"] == "0.750 [0.710, 0.790]"
    winners = {name: row["flip decided by"] for name, row in rows.items()}
    assert winners["transformer"] == "weights" and winners["pixel-1nn"] == "context"
    assert winners["majority"] == "neither" and winners["chance"] == "–"


def test_the_peak_is_the_highest_mean_over_seeds(blocks: dict[str, Block]) -> None:
    frame = get_table(blocks, "bursty-small-in-context").frame.set_index("name")
    index = int(np.argmax(CURVES["coqe", "icl"]))
    assert frame.loc["coqe", "peak_step"] == STEPS[index] == 1000
    peak = np.mean([accuracy("coqe", "bursty", "icl", seed)[index] for seed in (0, 1, 2)])
    assert frame.loc["coqe", "peak"] == pytest.approx(peak)
    assert frame.loc["coqe-paper", "peak_step"] == STEPS[-1]
    assert pd.isna(frame.loc["pixel-1nn", "peak"])


def test_measured_accuracies_are_compared_with_published_ones_by_test(blocks: dict[str, Block]) -> None:
    rows = cell_texts(get_table(blocks, "bursty-alpha1-small-in-context"))
    assert rows["coqe (published, paper, glyphs=omniglot)"]["IWL"] == "0.899"
    assert rows["transformer (published, paper, glyphs=omniglot)"]["IWL"] == "–"
    published = get_table(blocks, "bursty-alpha1-small-published").frame.set_index(["contestant", "test"])
    final = {t: np.mean([accuracy("coqe", "bursty-alpha1", t, s)[-1] for s in (0, 1, 2)]) for t in ("icl", "iwl")}
    for test, mean in final.items():
        assert published.loc[("coqe", test), "ours"] == pytest.approx(mean)


def test_no_difference_is_given_if_published_numbers_are_on_different_data(
    blocks: dict[str, Block], bursty: Results
) -> None:
    for name in ("bursty-alpha1-small-published", "published"):
        published = get_table(blocks, name)
        headers = [column.header for column in published.columns]
        assert {"published data", "our data"} < set(headers) and not {"ours − published"} & set(headers)
        for row in published.rows():
            cells = dict(zip(headers, (cell.text for cell in row), strict=True))
            assert (cells["published data"], cells["our data"]) == ("glyphs=omniglot", "glyphs=procedural")
    legend = get_figure(blocks, "published-bursty-alpha1-accuracy-within-choices").legend
    assert list(legend) == ["published (glyphs=omniglot)", "ours, small (glyphs=procedural)"]
    (alpha1,) = (task for task in bursty.slices if task.task == "bursty-alpha1")
    rows = bursty.rows.assign(data=bursty.rows["data"].replace("glyphs=procedural", "glyphs=omniglot"))
    other_preset = comparison(replace(alpha1, results=replace(bursty, rows=rows)))
    assert other_preset is not None and other_preset["difference"].isna().all()
    paper_results = replace(bursty, rows=rows.assign(preset="paper"))
    same_preset = comparison(replace(alpha1, preset="paper", results=paper_results))
    assert same_preset is not None
    assert same_preset.set_index(["contestant", "test"]).loc[("transformer", "icl"), "difference"] < 0
    without_data = bursty.rows.assign(data=bursty.rows["data"].replace("glyphs=procedural", pd.NA))
    unknown_data = comparison(replace(alpha1, results=replace(bursty, rows=without_data)))
    assert unknown_data is not None and unknown_data["difference"].isna().all()
    assert set(unknown_data["our_data"]) == {"not stated"}


def test_training_curves_are_means_with_ranges_over_seeds(blocks: dict[str, Block]) -> None:
    curves = get_figure(blocks, "bursty-small-accuracy-in-training")
    assert [panel.title for panel in curves.panels] == ["ICL", "ICL, paired", "IWL", "flip"]
    rows = curves.data[(curves.data["panel"] == "IWL") & (curves.data["contestant"] == "transformer")]
    by_seed = np.array([accuracy("transformer", "bursty", "iwl", seed) for seed in (0, 1, 2)])
    assert rows["axis_value"].tolist() == STEPS
    for column, expected in (("value", by_seed.mean(0)), ("low", by_seed.min(0)), ("high", by_seed.max(0))):
        np.testing.assert_allclose(rows[column].astype(float), expected)
    one_seed = curves.data[(curves.data["panel"] == "ICL") & (curves.data["contestant"] == "coqe-paper")]
    np.testing.assert_allclose((one_seed["high"] - one_seed["low"]).astype(float), 0.08)
    levels = curves.data[curves.data["panel"] == "ICL"].groupby("contestant")["value"].unique()
    assert levels["chance"].tolist() == [0.5] and levels["pixel-1nn"].tolist() == [0.86]


def test_the_section_on_training_shows_the_loss(blocks: dict[str, Block]) -> None:
    assert set(get_figure(blocks, "bursty-small-training-loss").data["value"]) == {0.9}


def test_the_plane_shows_final_accuracies_paths_and_peaks(blocks: dict[str, Block]) -> None:
    plane = get_figure(blocks, "plane-bursty-small")
    assert [panel.title for panel in plane.panels] == ["all settings", "bursty", "alpha1"]
    data = plane.data
    all_settings = data[data["panel"] == "all settings"]
    assert sorted(all_settings["part"].unique()) == ["final", "level"]
    assert len(all_settings[all_settings["part"] == "final"]) == 2 * 3
    marks = data[(data["panel"] == "bursty") & (data["contestant"] == "coqe")].set_index("part")
    assert marks.loc["path", "step"].tolist() == STEPS
    assert marks.loc["peak", "step"] == 1000
    for test in ("icl", "iwl"):
        final = [accuracy("coqe", "bursty", test, seed)[-1] for seed in (0, 1, 2)]
        mark = marks.loc["final", [test, f"{test}_low", f"{test}_high"]].astype(float)
        np.testing.assert_allclose(mark, [np.mean(final), min(final), max(final)])
    vega_lite.validate(plane.live)
    vega_lite.validate(plane.static | {"concat": [plane.static["concat"][0] | {"data": {"values": []}}]})


def test_the_panels_of_the_plane_are_in_the_order_of_training_classes(bursty: Results) -> None:
    """`bursty-vectors` has 256 classes at `grid`, so it is not the first task as in the order of names."""
    names = {"bursty": "bursty-vectors", "bursty-alpha1": "bursty-vectors-64"}
    results = replace(bursty, rows=bursty.rows.assign(task=bursty.rows["task"].replace(names), preset="grid"))
    (section,) = report_sections(results, ["plane"])
    plane = next(block for block in section.walk() if isinstance(block, Figure))
    assert [panel.title for panel in plane.panels] == ["all settings", "64", "bursty-vectors"]


def test_the_table_of_the_plane_has_both_accuracies_at_the_icl_peak(blocks: dict[str, Block]) -> None:
    frame = get_table(blocks, "plane-bursty-small-numbers").frame.set_index(["task", "contestant"])
    row, index = frame.loc[("bursty", "coqe")], STEPS.index(1000)
    means = [np.mean([accuracy("coqe", "bursty", test, seed)[index] for seed in (0, 1, 2)]) for test in ("icl", "iwl")]
    assert (row["step"], row["peak"], row["iwl_at_peak"]) == pytest.approx((1000, *means))


def test_the_overview_explains_only_accuracies(sections: list[Section]) -> None:
    reading = next(section for section in sections if section.id == "overview").blocks[0]
    assert isinstance(reading, Text)
    assert [item.split(":")[0] for item in reading.items] == ["Accuracy", "Value and interval"]


@pytest.mark.slow
def test_without_a_final_evaluation_the_accuracy_after_the_last_training_step_is_used(
    bursty: Results, tmp_path: Path
) -> None:
    rows = stored_rows(bursty)
    rows = rows[rows["kind"].eq("backbone") & rows["task"].eq("bursty")]
    tables.write("values", rows[rows["axis"].notna()].copy(), tmp_path / "a.values.parquet", {})
    sections = report_sections(load_results(tmp_path), ["in-context", "missing"])
    by_name = {b.name: b for s in sections for b in s.walk() if not isinstance(b, Text)}
    frame = get_table(by_name, "bursty-small-in-context").frame.set_index("name")
    assert list(frame.index) == ["coqe", "coqe-paper", "transformer"]
    assert frame.loc["coqe-paper", "icl"] == accuracy("coqe-paper", "bursty", "icl", 0)[-1]
    assert set(get_table(by_name, "missing").frame["what"]) == {"evaluation"}


@pytest.mark.slow
def test_a_contestant_with_a_diverged_seed_has_no_accuracy(bursty: Results, tmp_path: Path) -> None:
    """Accuracies before the divergence are not final accuracies."""
    rows = stored_rows(bursty)
    rows = rows[rows["task"].eq("bursty")]
    of_run = rows["run"].eq("bursty-coqe-small-s1")
    in_training = rows["axis"].eq("train_step").fillna(False) & rows["evaluator"].ne("train")
    loss = of_run & rows["evaluator"].eq("train") & rows["axis_value"].eq(4000)
    failure = {"value": pd.NA, "status": "failed", "reason": "diverged at step 2500: loss is nan", "axis_value": 2500.0}
    rows = rows[~of_run | loss | (in_training & rows["axis_value"].lt(2500))].copy()
    rows.loc[loss, list(failure)] = list(failure.values())
    tables.write("values", rows, tmp_path / "a.values.parquet", {})
    diverged = load_results(tmp_path)
    (task,) = diverged.slices
    for frame in (accuracies.final(task), accuracies.trajectory(task)):
        assert "coqe" not in set(frame["contestant"]) and {"coqe-paper", "transformer"} <= set(frame["contestant"])
    sections = report_sections(diverged, ["in-context", "plane", "missing"])
    frames = {b.name: b.frame for s in sections for b in s.walk() if isinstance(b, Table)}
    assert frames["failed"]["reason"].tolist() == [failure["reason"]]
    assert "coqe" not in set(frames["bursty-small-in-context"]["contestant"])


@pytest.mark.slow
def test_missing_runs_are_listed_for_backbones_but_not_for_variants(bursty: Results, tmp_path: Path) -> None:
    rows = stored_rows(bursty)
    other = rows[rows["contestant"].eq("transformer") & rows["task"].eq("bursty")]
    other = other.assign(task="other", run="other-" + other["run"])
    tables.write("values", pd.concat([rows, other], ignore_index=True), tmp_path / "a.values.parquet", {})
    sections = report_sections(load_results(tmp_path), ["missing"])
    by_name = {b.name: b for s in sections for b in s.walk() if not isinstance(b, Text)}
    assert get_table(by_name, "missing").frame["fix"].tolist() == ["iclbench train other coqe --preset small"]
    skipped = {
        "cell": "x",
        "kind": "train",
        "run": "other-coqe",
        "task": "other",
        "contestant": "coqe",
        "preset": "grid",
        "status": "skipped",
        "reason": "not applicable",
        "version": "0",
    }
    tables.write("cells", [skipped], tmp_path / "b.cells.parquet", {})
    sections = report_sections(load_results(tmp_path), ["missing"])
    names = {block.name for section in sections for block in section.walk() if isinstance(block, Table)}
    assert "missing" not in names, "a model that is not applicable at one preset is not applicable at any"


def test_the_overview_has_icl_accuracies(blocks: dict[str, Block]) -> None:
    frame = get_table(blocks, "icl").frame.set_index("contestant")
    final = [accuracy("coqe", "bursty", "icl", seed)[-1] for seed in (0, 1, 2)]
    assert frame.loc["coqe", "bursty-small"] == pytest.approx(np.mean(final))


def test_rows_on_a_different_prompt_set_of_a_test_are_excluded(bursty: Results, tmp_path: Path) -> None:
    rows = stored_rows(bursty)
    rows = rows[rows["task"].eq("bursty") & rows["evaluator"].eq("icl")]
    old = rows[rows["contestant"].eq("majority")].assign(prompt_set="old-set", run="old", contestant="old")
    tables.write("values", pd.concat([rows, old], ignore_index=True), tmp_path / "a.values.parquet", {})
    (line,) = load_results(tmp_path).excluded_rows
    assert line.startswith("bursty · small · none · icl: 1 run ") and "(old-set)" in line
