"""The section on language models: means over sets of demonstrations, controls, gains and published numbers."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from iclbench import tables
from iclbench.report import subtitle
from iclbench.report.blocks import Block, Figure, Section, Table, Text
from iclbench.report.data import Results, load_results
from iclbench.report.language import looks, mean_over_tasks
from iclbench.report.page import render_section
from iclbench.report.sections import language, missing, overview, report_sections
from tests.report import synthetic_bursty, synthetic_language, vega_lite
from tests.report.blocks import cell_texts
from tests.report.synthetic_language import (
    DEEP_THINKING,
    GAINS,
    MAIN,
    ORDERED_TASK,
    OUR_DATA,
    REASON,
    SEEDS,
    SHOTS,
    TASKS,
    THEIR_DATA,
    UNSAFE_PROMPT,
    accuracy,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic_language.write(tmp_path_factory.mktemp("language"))


@pytest.fixture(scope="module")
def results(folder: Path) -> Results:
    return load_results(folder)


@pytest.fixture(scope="module")
def sections(results: Results) -> list[Section]:
    return report_sections(results)


@pytest.fixture(scope="module")
def blocks(sections: list[Section]) -> dict[str, Block]:
    return blocks_by_name(sections)


def blocks_by_name(sections: list[Section]) -> dict[str, Block]:
    blocks = [block for section in sections for block in section.walk() if not isinstance(block, Text)]
    assert len({(type(block), block.name) for block in blocks}) == len(blocks), "names of files are unique"
    return {f"{type(block).__name__.lower()} {block.name}": block for block in blocks}


def table(blocks: dict[str, Block], name: str) -> Table:
    block = blocks[f"table {name}"]
    assert isinstance(block, Table)
    return block


def figure(blocks: dict[str, Block], name: str) -> Figure:
    block = blocks[f"figure {name}"]
    assert isinstance(block, Figure)
    return block


def scores(model: str, task: str, method: str = "", shots: int = MAIN) -> np.ndarray:
    return np.array([accuracy(model, task, shots, seed, method) for seed in SEEDS])


def write_and_load(rows: pd.DataFrame, folder: Path) -> Results:
    """Write rows to a folder, and load its results."""
    tables.write("values", rows[list(tables.VALUES)], folder / "a.values.parquet", {})
    return load_results(folder)


def test_rows_of_language_models_are_not_in_slices(results: Results, sections: list[Section]) -> None:
    assert results.rows.empty and results.slices == [] and results.excluded_rows == ()
    assert [section.id for section in sections] == ["summary", "language", "missing", "provenance"]
    assert subtitle(results) == "8 language tasks, 3 language models"


def test_the_table_has_means_and_deviations_over_sets_of_demonstrations(blocks: dict[str, Block]) -> None:
    rows = cell_texts(table(blocks, "language-accuracy"))
    by_seed = scores("gpt2-large", "sst2", DEEP_THINKING)
    assert rows["sst2"]["gpt2-large+deep-thinking"] == f"{by_seed.mean():.3f} ± {by_seed.std(ddof=1):.3f}"
    assert rows["sst2"]["majority"] == "0.510"
    assert rows["sst2"]["demonstrations"] == str(MAIN)


def test_the_mean_of_a_family_follows_the_rows_of_its_tasks(blocks: dict[str, Block]) -> None:
    rows = cell_texts(table(blocks, "language-accuracy"))
    assert list(rows) == [
        "list-first",
        "list-last",
        "next-letter",
        "to-upper",
        "mean of algorithmic",
        "country-capital",
        "location-continent",
        "mean of knowledge",
        "sst2",
        "sst5",
        "mean of sentiment",
        "mean of all tasks",
    ]
    mean = np.mean([scores("demo-lm", task).mean() for task in ("sst2", "sst5")])
    assert rows["mean of sentiment"]["demo-lm"].startswith(f"{mean:.3f} [")


def test_a_contestant_without_results_on_a_task_has_no_mean_over_tasks(blocks: dict[str, Block]) -> None:
    rows = cell_texts(table(blocks, "language-accuracy"))
    assert rows["list-last"]["mamba-tiny"] == "–"
    assert rows["mean of algorithmic"]["mamba-tiny"] == rows["mean of all tasks"]["mamba-tiny"] == "–"
    assert rows["mean of sentiment"]["mamba-tiny"] != "–"


def test_intervals_are_over_seeds_or_copied_from_the_cell_of_a_single_seed(results: Results) -> None:
    rows = results.language.scores
    rows = rows[(rows["task"] == "sst5") & (rows["contestant"] == "demo-lm") & (rows["metric"] == "accuracy")]
    by_size = rows[rows["shift"] == "none"].set_index("n_context")
    by_seed = scores("demo-lm", "sst5")
    expected = stats.t.interval(0.95, len(by_seed) - 1, by_seed.mean(), stats.sem(by_seed))
    np.testing.assert_allclose(by_size.loc[MAIN, ["low", "high"]].astype(float), expected)
    value = accuracy("demo-lm", "sst5", 0, 0)
    half = 1.96 * np.sqrt(value * (1 - value) / synthetic_language.EPISODES)
    np.testing.assert_allclose(by_size.loc[0, ["low", "high"]].astype(float), [value - half, value + half])
    assert by_size.loc[MAIN, "demo_seeds"] == 10 and pd.isna(by_size.loc[0, "sd"])


def test_means_exclude_permuted_orders_and_shuffled_labels(results: Results) -> None:
    rows = results.language.scores
    rows = rows[(rows["task"] == ORDERED_TASK) & (rows["contestant"] == "gpt2-large") & (rows["n_context"] == MAIN)]
    by_shift = rows[rows["metric"] == "accuracy"].set_index("shift")
    assert by_shift.loc["none", "value"] == pytest.approx(scores("gpt2-large", ORDERED_TASK).mean())
    assert by_shift.loc["shuffled-labels", "value"] < 0.6 * by_shift.loc["none", "value"]


def test_stored_means_are_ignored(results: Results) -> None:
    assert not results.language.cells["value"].eq(0.123).any()


def test_intervals_of_tasks_are_averaged_in_quadrature() -> None:
    rows = pd.DataFrame(
        {"task": ["a", "b"], "model": "x", "value": [0.4, 0.6], "low": [0.37, 0.56], "high": [0.43, 0.64]}
    )
    mean = mean_over_tasks(rows, ["a", "b"], ["model"]).iloc[0]
    assert mean["value"] == pytest.approx(0.5)
    assert [mean["low"], mean["high"]] == pytest.approx([0.475, 0.525])  # sqrt(0.03² + 0.04²) / 2 = 0.025
    assert mean_over_tasks(rows, ["a", "b", "c"], ["model"]).empty


def test_controls_are_in_columns_next_to_the_accuracy(blocks: dict[str, Block]) -> None:
    block = table(blocks, "language-controls-gpt2-large")
    assert [column.header for column in block.columns] == [
        "task",
        "majority",
        "zero-shot",
        "in context",
        "deep-thinking",
        "repeat-2",
        "in context, shuffled labels",
        "deep-thinking, shuffled labels",
        "balanced accuracy, in context",
        "demonstrations",
    ]
    row = cell_texts(block)["location-continent"]
    assert row["zero-shot"].startswith(f"{accuracy('gpt2-large', 'location-continent', 0, 0):.3f} [")
    assert row["balanced accuracy, in context"].startswith(
        f"{0.9 * scores('gpt2-large', 'location-continent').mean():.3f}"
    )
    assert row["majority"] == "0.400"


def test_each_metric_has_a_column(blocks: dict[str, Block]) -> None:
    block = table(blocks, "language-scores")
    frame = block.frame[block.frame["contestant"] == "demo-lm"].set_index("task")
    per_token = 0.99 * scores("demo-lm", "sst2").mean()
    assert frame.loc["sst2", "accuracy_per_token"] == pytest.approx(per_token)
    assert pd.isna(frame.loc["sst2", "accuracy_first_token"]) and pd.isna(frame.loc["to-upper", "accuracy_per_token"])


def test_gains_are_paired_and_have_verdicts(blocks: dict[str, Block]) -> None:
    frame = table(blocks, "language-gains").frame.set_index(["task", "contestant"])
    better, equal = frame.loc[("sst2", "gpt2-large+deep-thinking")], frame.loc[("sst2", "demo-lm+deep-thinking")]
    assert (better["gain"], better["verdict"]) == (0.04, "better")
    assert (equal["gain"], equal["verdict"]) == (0.0, "not different")
    assert better["none_plain"] == pytest.approx(scores("gpt2-large", "sst2").mean())
    assert better["shuffled_method"] > better["shuffled_plain"]
    assert frame.loc[("sst2", "demo-lm+repeat-2"), "verdict"] == "not different"
    mean = frame.loc[("mean of all tasks", "gpt2-large+deep-thinking")]
    assert [mean["gain"], mean["low"]] == pytest.approx([0.04, 0.04 - 0.01 / np.sqrt(len(TASKS))])
    panels = figure(blocks, "language-gains").data["panel"]
    assert set(panels) == {model + method for model in GAINS for method in (DEEP_THINKING, "+repeat-2")}


def test_published_numbers_are_in_separate_rows(blocks: dict[str, Block]) -> None:
    frame = table(blocks, "language-published").frame.set_index("contestant")
    assert frame.loc["GPT2-Large+deep-thinking", "origin"] == "published"
    assert frame.loc["GPT2-Large+deep-thinking", "sst2"] == 0.857
    mean = scores("gpt2-large", "sst2", DEEP_THINKING).mean()
    assert frame.loc["gpt2-large+deep-thinking", "sst2"] == pytest.approx(mean)
    mean_of_suite = np.mean([scores("demo-lm", task).mean() for task in ("sst2", "sst5")])
    assert frame.loc["demo-lm", "simple"] == pytest.approx(mean_of_suite)
    headers = [column.header for column in table(blocks, "language-published").columns]
    assert headers == ["contestant", "origin", "simple (2 tasks), other data", "sst2"]
    sources = table(blocks, "language-published-sources")
    assert {"published data", "our data"} < {column.header for column in sources.columns}
    suite_rows = sources.frame[sources.frame["task"] == "simple"]
    assert set(zip(suite_rows["data"], suite_rows["our_data"], strict=True)) == {(THEIR_DATA, OUR_DATA["sst5"])}
    assert sources.frame.loc[sources.frame["task"] == "sst2", "data"].isna().all()


def test_lines_start_at_zero_shots_and_the_majority_baseline_has_a_line(blocks: dict[str, Block]) -> None:
    shots = figure(blocks, "language-shots")
    assert [panel.title for panel in shots.panels] == sorted(TASKS, key=lambda task: (TASKS[task][0], task))
    line = shots.data[(shots.data["panel"] == "sst2") & (shots.data["contestant"] == "demo-lm")]
    assert line["n_context"].tolist() == SHOTS
    np.testing.assert_allclose(line["value"].iloc[2], scores("demo-lm", "sst2", shots=SHOTS[2]).mean())
    majority = shots.data[(shots.data["panel"] == "sst2") & (shots.data["contestant"] == "majority")]
    assert majority["value"].tolist() == [0.51, 0.51]


def test_the_first_pass_is_plain_icl_and_the_development_split_has_a_separate_line(blocks: dict[str, Block]) -> None:
    data = figure(blocks, "language-passes").data
    line = data[(data["panel"] == "sst2") & (data["contestant"] == "gpt2-large+deep-thinking")].set_index("axis_value")
    assert line.index.tolist() == [1, 2, 3, 4, 5]
    assert line.loc[1, "value"] == pytest.approx(scores("gpt2-large", "sst2").mean())
    development = data[data["contestant"] == "gpt2-large+deep-thinking (development)"]
    assert set(development["panel"]) == {"sst2"}
    np.testing.assert_allclose(development["value"], line["value"] - 0.01)
    divergence = figure(blocks, "language-divergence").data
    assert (divergence["value"] > 0).all() and divergence["axis_value"].min() == 2, "a logarithmic axis has no zero"
    assert figure(blocks, "language-memory").data["axis_value"].min() == 2


def test_figures_show_single_seeds_and_orders_with_their_mean(blocks: dict[str, Block]) -> None:
    seeds = figure(blocks, "language-seeds").data
    by_part = seeds[(seeds["panel"] == "sst2") & (seeds["contestant"] == "demo-lm")].set_index("part")
    np.testing.assert_allclose(by_part.loc["draw", "value"].astype(float), scores("demo-lm", "sst2"))
    assert by_part.loc["mean", "value"] == pytest.approx(scores("demo-lm", "sst2").mean())
    orders = figure(blocks, "language-orders").data
    assert set(orders["panel"]) == {ORDERED_TASK}
    single_orders = orders[(orders["part"] == "draw") & (orders["contestant"] == "demo-lm")]
    expected = [accuracy("demo-lm", ORDERED_TASK, MAIN, 0, "", order) for order in range(10)]
    np.testing.assert_allclose(single_orders["value"].astype(float), expected)


def test_contestants_have_the_same_look_in_all_figures(blocks: dict[str, Block]) -> None:
    looks_by_name: dict[str, set] = {}
    for block in blocks.values():
        for name, look in block.legend.items() if isinstance(block, Figure) else ():
            looks_by_name.setdefault(name, set()).add(look)
    look_of = {name: look for name, (look,) in looks_by_name.items()}
    assert len(set(look_of.values())) == len(look_of)
    assert look_of["demo-lm"].colour == look_of["demo-lm+deep-thinking"].colour != look_of["gpt2-large"].colour
    many_models = looks((f"m{i}", method) for i in range(20) for method in ("", "+a", "+b"))
    assert len(set(many_models.values())) == len(many_models) == 61
    many_methods = looks(("m", method) for method in ["", *(f"+{i}" for i in range(11))])
    assert len(set(many_methods.values())) == len(many_methods) == 13
    assert len({look.colour for look in many_methods.values()}) == 13, "methods of a single model differ in colour"


@pytest.mark.parametrize("name", ["families", "gains", "divergence"])
def test_figures_are_valid_vega_lite(blocks: dict[str, Block], name: str) -> None:
    block = figure(blocks, f"language-{name}")
    vega_lite.validate({key: value for key, value in block.live.items() if key != "usermeta"})
    view = block.static["concat"][0] if "concat" in block.static else block.static
    vega_lite.validate({**block.static, **({"concat": [view]} if "concat" in block.static else {})})


def test_failed_cells_are_listed_once_with_a_reason(blocks: dict[str, Block]) -> None:
    frame = table(blocks, "failed").frame
    assert set(frame["reason"]) == {REASON} and set(frame["contestant"]) == {"mamba-tiny"}
    assert frame["shift"].tolist() == ["none", "shuffled-labels"], "all sets of demonstrations share a row"


@pytest.mark.slow
def test_a_contestant_that_failed_on_one_set_of_demonstrations_has_no_mean(results: Results, tmp_path: Path) -> None:
    rows = results.language.rows
    of_cell = rows["contestant"].eq("demo-lm") & rows["task"].eq("sst2") & rows["n_context"].eq(MAIN)
    of_cell &= rows["shift"].eq("none") & rows["demo_seed"].eq(SEEDS[1]) & rows["prompt_set"].notna()
    failed = rows[of_cell & rows["metric"].eq("accuracy")].head(1)
    failed = failed.assign(status="failed", reason="not finite", value=np.nan, low=np.nan, high=np.nan)
    others = rows[~of_cell & rows["task"].isin(["sst2", "sst5"])]
    blocks = blocks_by_name(report_sections(write_and_load(pd.concat([others, failed]), tmp_path)))
    texts = cell_texts(table(blocks, "language-accuracy"))
    assert texts["sst2"]["demo-lm"] == texts["mean of sentiment"]["demo-lm"] == "–"
    assert texts["sst5"]["demo-lm"] != "–" and texts["sst2"]["gpt2-large"] != "–"
    assert "not finite" in set(table(blocks, "failed").frame["reason"])


def test_sample_answers_are_escaped(blocks: dict[str, Block]) -> None:
    block = table(blocks, "language-samples")
    assert len(block.frame) == 3 * (3 * len(TASKS) - 1)
    assert set(block.frame.groupby(["task", "contestant"]).size()) == {3}
    html = render_section(Section("a", "a", (block,)), (), {}).html
    assert UNSAFE_PROMPT not in html and "&lt;script&gt;alert(" in html


def test_notes_of_cells_are_listed(blocks: dict[str, Block]) -> None:
    frame = table(blocks, "language-notes").frame
    notes = frame[(frame["task"] == "sst2") & (frame["n_context"] == MAIN) & (frame["shift"] == "none")]
    assert notes[["contestant", "reason", "cells"]].to_numpy().tolist() == [["majority", "always 'A'", len(SEEDS)]]


def test_rows_on_prompt_sets_with_fewer_queries_are_excluded(results: Results, tmp_path: Path) -> None:
    """An evaluation with fewer queries is not compared with other contestants."""
    rows = results.language.rows
    short = rows[rows["contestant"].eq("demo-lm") & rows["task"].eq("sst2") & rows["prompt_set"].notna()]
    short = short.assign(prompt_set=short["prompt_set"].str[:-8] + "00000000", value=1.0, n_episodes=16)
    tables.write("values", short[list(tables.VALUES)], tmp_path / "b.values.parquet", {})
    with_short = write_and_load(rows, tmp_path)
    assert with_short.language.scores["value"].equals(results.language.scores["value"])
    assert any(line.startswith("sst2 · 4 demonstrations: 19 prompt sets") for line in with_short.excluded_rows)


def test_means_are_over_sets_of_demonstrations_with_the_same_queries(results: Results, tmp_path: Path) -> None:
    """If three of ten sets of demonstrations have more queries, the other seven are excluded."""
    rows = results.language.rows
    is_main = rows["task"].eq("sst2") & rows["n_context"].eq(MAIN) & rows["shift"].eq("none")
    long = rows[is_main & rows["prompt_set"].notna() & rows["demo_seed"].lt(3) & rows["order"].eq(0)]
    long = long.assign(prompt_set=long["prompt_set"].str[:-8] + "00000000", value=1.0, n_episodes=4000)
    with_long = write_and_load(pd.concat([rows, long]), tmp_path)
    scores = with_long.language.scores.query(f"task == 'sst2' and n_context == {MAIN} and shift == 'none'")
    assert set(scores["value"]) == {1.0} and set(scores["demo_seeds"]) == {3}
    assert any(line.startswith("sst2 · 4 demonstrations: 19 prompt sets") for line in with_long.excluded_rows)


@pytest.mark.slow
def test_a_gain_over_different_sets_of_demonstrations_is_excluded(results: Results, tmp_path: Path) -> None:
    """A gain describes only the last evaluation, which has a single set of demonstrations in this test."""
    rows = results.language.rows
    changed = rows["metric"].eq("accuracy_gain") & rows["task"].eq("sst2") & rows["model"].eq("gpt2-large")
    one_set = synthetic_language.prompt_set("sst2", MAIN, "none", 0)
    with_one_set = write_and_load(rows.assign(mean_of=rows["mean_of"].mask(changed, one_set)), tmp_path / "one")
    assert len(with_one_set.language.gains) == len(results.language.gains) - 2
    (line,) = with_one_set.excluded_rows
    assert line.startswith("sst2 · 4 demonstrations: 2 gains ")
    frame = table(blocks_by_name(report_sections(with_one_set)), "language-gains").frame
    means = frame.loc[frame["task"].str.startswith("mean of"), ["task", "contestant"]].to_numpy().tolist()
    assert ["mean of its 7 tasks", "gpt2-large+deep-thinking"] in means
    assert ["mean of all tasks", "demo-lm+deep-thinking"] in means


@pytest.mark.slow
def test_a_task_with_only_zero_shot_rows_has_the_zero_shot_majority_baseline(results: Results, tmp_path: Path) -> None:
    """The majority baseline must use the queries that belong to the task's number of demonstrations."""
    rows = results.language.rows
    rows = rows[rows["task"].ne("sst5") | rows["n_context"].eq(0)]
    is_zero_shot = rows["contestant"].eq("majority") & rows["n_context"].eq(0) & rows["metric"].eq("accuracy")
    rows = rows.assign(value=rows["value"].mask(is_zero_shot, 0.25))
    texts = cell_texts(table(blocks_by_name(report_sections(write_and_load(rows, tmp_path))), "language-accuracy"))
    assert (texts["sst5"]["demonstrations"], texts["sst5"]["majority"]) == ("0", "0.250")
    assert (texts["sst2"]["demonstrations"], texts["sst2"]["majority"]) == (str(MAIN), "0.510")


def test_the_section_is_written_for_a_single_model_task_and_seed(results: Results, tmp_path: Path) -> None:
    rows = results.language.rows
    rows = rows[rows["task"].eq("to-upper") & rows["contestant"].isin(["demo-lm", "majority"])]
    rows = rows[rows["demo_seed"].eq(0) & rows["n_context"].isin([0, MAIN]) & rows["prompt_set"].notna()]
    blocks = blocks_by_name(report_sections(write_and_load(rows, tmp_path)))
    row = cell_texts(table(blocks, "language-accuracy"))["to-upper"]
    assert row["demo-lm"].startswith(f"{accuracy('demo-lm', 'to-upper', MAIN, 0):.3f} [")
    assert "figure language-seeds" not in blocks and "figure language-shots" not in blocks


@pytest.mark.slow
def test_the_section_is_written_for_zero_shot_rows_but_not_for_failed_rows(results: Results, tmp_path: Path) -> None:
    rows = results.language.rows
    zero_shot = write_and_load(rows[rows["n_context"].eq(0) & rows["contestant"].eq("demo-lm")], tmp_path / "zero-shot")
    texts = cell_texts(table(blocks_by_name(report_sections(zero_shot)), "language-accuracy"))
    assert texts["to-upper"]["demonstrations"] == "0"
    failed = report_sections(write_and_load(rows[rows["status"].eq("failed")], tmp_path / "failed"))
    assert [section.id for section in failed] == ["summary", "missing", "provenance"]


@pytest.mark.slow
def test_tasks_of_large_families_are_in_folded_tables(results: Results, tmp_path: Path) -> None:
    rows = results.language.rows
    rows = rows[rows["task"].eq("sst2") & rows["contestant"].isin(["demo-lm", "majority"]) & rows["demo_seed"].lt(2)]
    rows = rows[rows["prompt_set"].notna()]
    copies = [
        rows.assign(
            task=f"mmlu-{i}",
            family="mmlu-stem" if i < 15 else "mmlu-other",
            prompt_set=rows["prompt_set"].str.replace("sst2", f"mmlu-{i}"),
        )
        for i in range(17)
    ]
    blocks = blocks_by_name(report_sections(write_and_load(pd.concat(copies), tmp_path)))
    assert list(cell_texts(table(blocks, "language-accuracy"))) == [
        "mmlu-15",
        "mmlu-16",
        "mean of mmlu-other",
        "mean of mmlu-stem",
        "mean of all tasks",
    ]
    assert len(table(blocks, "language-accuracy-mmlu-stem").frame) == 16
    assert table(blocks, "language-accuracy-mmlu-stem").folded
    shots = figure(blocks, "language-shots")
    assert [panel.title for panel in shots.panels] == ["mmlu-other", "mmlu-stem"]
    assert set(shots.rows()["run"]) == {"demo-lm", "majority"}


@pytest.mark.slow
def test_rows_of_language_models_do_not_change_other_sections(folder: Path, tmp_path: Path) -> None:
    bursty = load_results(synthetic_bursty.write(tmp_path))
    shutil.copytree(folder, tmp_path / "language")
    with_language = load_results(tmp_path)
    pd.testing.assert_frame_equal(with_language.rows, bursty.rows)
    pd.testing.assert_frame_equal(with_language.costs, bursty.costs)
    assert with_language.looks == bursty.looks and with_language.excluded_rows == bursty.excluded_rows == ()
    assert [task.id for task in with_language.slices] == [task.id for task in bursty.slices]
    assert language.section(bursty) is None and language.section(with_language) is not None
    assert repr(overview.section(with_language)) == repr(overview.section(bursty))
    assert subtitle(with_language) == f"{subtitle(bursty)}, 8 language tasks, 3 language models"


def test_no_training_is_listed_as_missing_for_a_backbone_with_a_method(tmp_path: Path) -> None:
    """`iclbench train` has no backbone `transformer+deep-thinking`."""
    synthetic_bursty.write(tmp_path)
    rows = tables.read_all("values", tmp_path)
    rows = rows[rows["contestant"].eq("transformer") & rows["task"].eq("bursty")]
    name = f"transformer{DEEP_THINKING}"
    method_contestants = rows.assign(contestant=name, method=DEEP_THINKING, run=rows["run"] + DEEP_THINKING)
    tables.write("values", method_contestants, tmp_path / "b.values.parquet", {})
    frames = [block.frame for block in missing.section(load_results(tmp_path)).blocks if isinstance(block, Table)]
    assert not any(name in str(frame.to_dict()) for frame in frames)
