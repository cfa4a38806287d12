"""Tests of a family (ICL, IWL, ...): their table, their curves in training, the plane of both, and what stays apart."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from iclbench import tables
from iclbench.analysis import accuracies
from iclbench.report.blocks import Block, Figure, Section, Table, Text
from iclbench.report.data import Results, load
from iclbench.report.sections import report
from iclbench.report.sections.published import compared
from tests.report import synthetic_bursty, vega_lite
from tests.report.synthetic_bursty import CURVES, STEPS, accuracy


@pytest.fixture(scope="module")
def bursty(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return load(synthetic_bursty.write(tmp_path_factory.mktemp("bursty")))


@pytest.fixture(scope="module")
def sections(bursty: Results) -> list[Section]:
    return report(bursty)


@pytest.fixture(scope="module")
def blocks(sections: list[Section]) -> dict[str, Block]:
    found = [block for section in sections for block in section.walk()]
    return {block.name: block for block in found if not isinstance(block, Text)}


def table(blocks: dict[str, Block], name: str) -> Table:
    block = blocks[name]
    assert isinstance(block, Table)
    return block


def figure(blocks: dict[str, Block], name: str) -> Figure:
    block = blocks[name]
    assert isinstance(block, Figure)
    return block


def shown(block: Table) -> dict[str, dict[str, str]]:
    """Row by row what stands below each header."""
    headers = [column.header for column in block.columns]
    return {row[0].text: dict(zip(headers, (cell.text for cell in row), strict=True)) for row in block.rows()}


def stored(results: Results) -> pd.DataFrame:
    """The rows as they were read."""
    return results.rows.assign(contestant=results.rows["backbone"]).drop(columns="backbone")


def test_no_rows_are_set_aside(bursty: Results) -> None:
    """Every test has prompts of its own, and others in training; all are kept."""
    assert bursty.excluded_rows == ()
    tests = bursty.rows[bursty.rows["axis"].isna() & (bursty.rows["kind"] == "baseline")]
    assert set(tests["evaluator"]) == set(synthetic_bursty.TESTS)


def test_the_table_averages_seeds_and_names_chance_and_the_winner_of_the_flip(blocks: dict[str, Block]) -> None:
    rows = shown(table(blocks, "bursty-small-in-context"))
    assert list(rows) == [
        "coqe",
        "coqe-paper",
        "transformer",
        "pixel-1nn",
        "nearest-class-mean",
        "chance",
        "majority",
    ]
    ends = [accuracy("coqe", "bursty", "icl", seed)[-1] for seed in (0, 1, 2)]
    interval = f"[{min(ends) - 0.04:.3f}, {max(ends) + 0.04:.3f}]"
    assert rows["coqe"]["ICL (chance 1/2)"] == f"{np.mean(ends):.3f} {interval}"
    assert rows["coqe"]["seeds"] == "3" and rows["coqe-paper"]["seeds"] == "1"
    assert rows["pixel-1nn"]["ICL, paired (chance 1/4)"] == "0.750 [0.710, 0.790]"
    winners = {name: row["flip decided by"] for name, row in rows.items()}
    assert winners["transformer"] == "weights" and winners["pixel-1nn"] == "context"
    assert winners["majority"] == "neither" and winners["chance"] == "–"


def test_the_peak_is_that_of_the_mean_over_seeds(blocks: dict[str, Block]) -> None:
    frame = table(blocks, "bursty-small-in-context").frame.set_index("name")
    at = int(np.argmax(CURVES["coqe", "icl"]))
    assert frame.loc["coqe", "peak_step"] == STEPS[at] == 1000
    peak = np.mean([accuracy("coqe", "bursty", "icl", seed)[at] for seed in (0, 1, 2)])
    assert frame.loc["coqe", "peak"] == pytest.approx(peak)
    assert frame.loc["coqe-paper", "peak_step"] == STEPS[-1]
    assert pd.isna(frame.loc["pixel-1nn", "peak"])


def test_published_accuracies_stand_beside_ours_by_test(blocks: dict[str, Block]) -> None:
    rows = shown(table(blocks, "bursty-alpha1-small-in-context"))
    assert rows["coqe (published, paper, glyphs=omniglot)"]["IWL"] == "0.899"
    assert rows["transformer (published, paper, glyphs=omniglot)"]["IWL"] == "–"
    published = table(blocks, "bursty-alpha1-small-published").frame.set_index(["contestant", "test"])
    ends = {t: np.mean([accuracy("coqe", "bursty-alpha1", t, s)[-1] for s in (0, 1, 2)]) for t in ("icl", "iwl")}
    for test, end in ends.items():
        assert published.loc[("coqe", test), "ours"] == pytest.approx(end)


def test_published_numbers_of_other_data_are_told_and_not_subtracted(blocks: dict[str, Block], bursty: Results) -> None:
    for name in ("bursty-alpha1-small-published", "published"):
        other = table(blocks, name)
        headers = [column.header for column in other.columns]
        assert {"published data", "our data"} < set(headers) and not {"ours − published"} & set(headers)
        for row in other.rows():
            cells = dict(zip(headers, (cell.text for cell in row), strict=True))
            assert (cells["published data"], cells["our data"]) == ("glyphs=omniglot", "glyphs=procedural")
    legend = figure(blocks, "published-bursty-alpha1-accuracy-within-choices").legend
    assert list(legend) == ["published (glyphs=omniglot)", "ours, small (glyphs=procedural)"]
    (alpha1,) = (task for task in bursty.slices if task.task == "bursty-alpha1")
    rows = bursty.rows.assign(data=bursty.rows["data"].replace("glyphs=procedural", "glyphs=omniglot"))
    smaller = compared(replace(alpha1, results=replace(bursty, rows=rows)))
    assert smaller is not None and smaller["difference"].isna().all()
    of_paper = replace(bursty, rows=rows.assign(preset="paper"))
    same = compared(replace(alpha1, preset="paper", results=of_paper))
    assert same is not None and same.set_index(["contestant", "test"]).loc[("transformer", "icl"), "difference"] < 0
    older = bursty.rows.assign(data=bursty.rows["data"].replace("glyphs=procedural", pd.NA))
    unknown = compared(replace(alpha1, results=replace(bursty, rows=older)))
    assert unknown is not None and set(unknown["our_data"]) == {"not said"} and unknown["difference"].isna().all()


def test_curves_in_training_are_means_over_seeds_with_their_range(blocks: dict[str, Block]) -> None:
    drawn = figure(blocks, "bursty-small-accuracy-in-training")
    assert [panel.title for panel in drawn.panels] == ["ICL", "ICL, paired", "IWL", "flip"]
    own = drawn.data[(drawn.data["panel"] == "IWL") & (drawn.data["contestant"] == "transformer")]
    seeds = np.array([accuracy("transformer", "bursty", "iwl", seed) for seed in (0, 1, 2)])
    assert own["axis_value"].tolist() == STEPS
    for column, expected in (("value", seeds.mean(0)), ("low", seeds.min(0)), ("high", seeds.max(0))):
        np.testing.assert_allclose(own[column].astype(float), expected)
    one = drawn.data[(drawn.data["panel"] == "ICL") & (drawn.data["contestant"] == "coqe-paper")]
    np.testing.assert_allclose((one["high"] - one["low"]).astype(float), 0.08)
    levels = drawn.data[drawn.data["panel"] == "ICL"].groupby("contestant")["value"].unique()
    assert levels["chance"].tolist() == [0.5] and levels["pixel-1nn"].tolist() == [0.86]


def test_the_section_on_training_shows_the_loss_alone(blocks: dict[str, Block]) -> None:
    drawn = figure(blocks, "bursty-small-training-loss")
    assert set(drawn.data["value"]) == {0.9}


def test_the_plane_shows_ends_ways_and_peaks_of_all_settings(blocks: dict[str, Block]) -> None:
    plane = figure(blocks, "plane-bursty-small")
    assert [panel.title for panel in plane.panels] == ["all settings", "bursty", "alpha1"]
    data = plane.data
    together = data[data["panel"] == "all settings"]
    assert sorted(together["part"].unique()) == ["final", "level"]
    assert len(together[together["part"] == "final"]) == 2 * 3
    own = data[(data["panel"] == "bursty") & (data["contestant"] == "coqe")].set_index("part")
    assert own.loc["path", "step"].tolist() == STEPS
    assert own.loc["peak", "step"] == 1000
    for test in ("icl", "iwl"):
        ends = [accuracy("coqe", "bursty", test, seed)[-1] for seed in (0, 1, 2)]
        found = own.loc["final", [test, f"{test}_low", f"{test}_high"]].astype(float)
        np.testing.assert_allclose(found, [np.mean(ends), min(ends), max(ends)])
    vega_lite.validate(plane.live)
    vega_lite.validate(plane.static | {"concat": [plane.static["concat"][0] | {"data": {"values": []}}]})


def test_the_numbers_of_the_plane_hold_both_tests_at_the_highest_of_the_first(blocks: dict[str, Block]) -> None:
    frame = table(blocks, "plane-bursty-small-numbers").frame.set_index(["task", "contestant"])
    row, at = frame.loc[("bursty", "coqe")], STEPS.index(1000)
    means = [np.mean([accuracy("coqe", "bursty", test, seed)[at] for seed in (0, 1, 2)]) for test in ("icl", "iwl")]
    assert (row["step"], row["peak"], row["iwl_at_peak"]) == pytest.approx((1000, *means))


def test_the_overview_reads_accuracies_and_no_squared_error(sections: list[Section]) -> None:
    reading = next(section for section in sections if section.id == "overview").blocks[0]
    assert isinstance(reading, Text)
    assert "predicts the class of a query from labelled examples." in reading.text
    assert [item.split(":")[0] for item in reading.items] == ["Accuracy", "Value and interval"]


def test_without_a_final_evaluation_the_last_step_counts(bursty: Results, tmp_path: Path) -> None:
    rows = stored(bursty)
    rows = rows[rows["kind"].eq("backbone") & rows["task"].eq("bursty")]
    tables.write("values", rows[rows["axis"].notna()].copy(), tmp_path / "a.values.parquet", {})
    made = report(load(tmp_path), ["in-context", "missing"])
    found = {b.name: b for s in made for b in s.walk() if not isinstance(b, Text)}
    frame = table(found, "bursty-small-in-context").frame.set_index("name")
    assert frame.loc["coqe-paper", "icl"] == accuracy("coqe-paper", "bursty", "icl", 0)[-1]
    assert set(table(found, "missing").frame["what"]) == {"evaluation"}


def test_who_diverged_from_one_seed_is_no_trained_model(bursty: Results, tmp_path: Path) -> None:
    """The scores on the way to where the training ended are there, and are no end."""
    rows = stored(bursty)
    rows = rows[rows["task"].eq("bursty")]
    broken = rows["run"].eq("bursty-coqe-small-s1")
    on_its_way = rows["axis"].eq("train_step").fillna(False) & rows["evaluator"].ne("train")
    loss = broken & rows["evaluator"].eq("train")
    end = {"value": pd.NA, "status": "failed", "reason": "diverged at step 2500: loss is nan", "axis_value": 2500.0}
    rows = rows[~broken | loss | (on_its_way & rows["axis_value"].lt(2500))].copy()
    rows.loc[loss, list(end)] = list(end.values())
    tables.write("values", rows, tmp_path / "a.values.parquet", {})
    found = load(tmp_path)
    (task,) = found.slices
    for own in (accuracies.final(task), accuracies.trajectory(task)):
        assert "coqe" not in set(own["contestant"]) and {"coqe-paper", "transformer"} <= set(own["contestant"])
    made = report(found, ["in-context", "plane", "missing"])
    frames = {b.name: b.frame for s in made for b in s.walk() if isinstance(b, Table)}
    assert frames["failed"]["reason"].tolist() == [end["reason"]]
    assert "coqe" not in set(frames["bursty-small-in-context"]["contestant"])


def test_variants_are_not_asked_for_on_other_tasks(bursty: Results, tmp_path: Path) -> None:
    """What is missing elsewhere is a backbone that can be trained, not a variant of one."""
    rows = stored(bursty)
    other = rows[rows["contestant"].eq("transformer") & rows["task"].eq("bursty")]
    other = other.assign(task="other", run="other-" + other["run"])
    tables.write("values", pd.concat([rows, other], ignore_index=True), tmp_path / "a.values.parquet", {})
    made = report(load(tmp_path), ["missing"])
    found = {b.name: b for s in made for b in s.walk() if not isinstance(b, Text)}
    assert table(found, "missing").frame["fix"].tolist() == ["iclbench train other coqe --preset small"]
    skipped = {
        "cell": "x",
        "kind": "train",
        "run": "other-coqe",
        "task": "other",
        "contestant": "coqe",
        "preset": "grid",
        "status": "skipped",
        "reason": "no sense",
        "version": "0",
    }
    tables.write("cells", [skipped], tmp_path / "b.cells.parquet", {})
    made = report(load(tmp_path), ["missing"])
    names = {block.name for section in made for block in section.walk() if isinstance(block, Table)}
    assert "missing" not in names, "what makes no sense at one preset does so at none"


def test_the_overview_compares_accuracies_in_context(blocks: dict[str, Block]) -> None:
    frame = table(blocks, "icl").frame.set_index("contestant")
    ends = [accuracy("coqe", "bursty", "icl", seed)[-1] for seed in (0, 1, 2)]
    assert frame.loc["coqe", "bursty-small"] == pytest.approx(np.mean(ends))


def test_other_prompts_of_a_test_are_listed_and_not_used(bursty: Results, tmp_path: Path) -> None:
    rows = stored(bursty)
    rows = rows[rows["task"].eq("bursty") & rows["evaluator"].eq("icl")]
    old = rows[rows["contestant"].eq("majority")].assign(prompt_set="old", run="old", contestant="old")
    tables.write("values", pd.concat([rows, old], ignore_index=True), tmp_path / "a.values.parquet", {})
    (line,) = load(tmp_path).excluded_rows
    assert all(name in line for name in ("bursty", "small", "icl", "(old)"))
