"""The section on language models: means over sets of demonstrations, controls, gains, and excluded rows."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from iclbench import tables
from iclbench.report import subtitle
from iclbench.report.blocks import Block, Figure, Section, Table, Text
from iclbench.report.data import Results, load
from iclbench.report.language import looks, mean_over_tasks
from iclbench.report.page import render_section
from iclbench.report.sections import language, missing, overview, report
from tests.report import synthetic_bursty, synthetic_language, vega_lite
from tests.report.synthetic_language import MAIN, SEEDS, SHOTS, TASKS, accuracy


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic_language.write(tmp_path_factory.mktemp("language"))


@pytest.fixture(scope="module")
def results(folder: Path) -> Results:
    return load(folder)


@pytest.fixture(scope="module")
def sections(results: Results) -> list[Section]:
    return report(results)


@pytest.fixture(scope="module")
def blocks(sections: list[Section]) -> dict[str, Block]:
    return by_name(sections)


def by_name(sections: list[Section]) -> dict[str, Block]:
    blocks = [block for section in sections for block in section.walk() if not isinstance(block, Text)]
    assert len({(type(block), block.name) for block in blocks}) == len(blocks), "file names are unique"
    return {f"{type(block).__name__.lower()} {block.name}": block for block in blocks}


def table(blocks: dict[str, Block], name: str) -> Table:
    block = blocks[f"table {name}"]
    assert isinstance(block, Table)
    return block


def figure(blocks: dict[str, Block], name: str) -> Figure:
    block = blocks[f"figure {name}"]
    assert isinstance(block, Figure)
    return block


def cells(block: Table) -> dict[str, dict[str, str]]:
    """The formatted cells of each row by header."""
    headers = [column.header for column in block.columns]
    return {row[0].text: dict(zip(headers, (cell.text for cell in row), strict=True)) for row in block.rows()}


def scores(model: str, task: str, method: str = "", shots: int = MAIN) -> np.ndarray:
    return np.array([accuracy(model, task, shots, seed, method) for seed in SEEDS])


def report_on(results: Results, folder: Path, is_selected: pd.Series) -> list[Section]:
    """The sections of a report on selected rows."""
    rows = results.language.rows[is_selected]
    tables.write("values", rows[list(tables.VALUES)], folder / "a.values.parquet", {})
    return report(load(folder))


def test_language_rows_are_not_in_slices(results: Results, sections: list[Section]) -> None:
    assert results.rows.empty and results.slices == [] and results.excluded_rows == ()
    assert [section.id for section in sections] == ["summary", "language", "missing", "provenance"]
    assert subtitle(results) == "8 language tasks, 3 language models"


def test_the_table_shows_means_and_spreads_over_sets_of_demonstrations(blocks: dict[str, Block]) -> None:
    rows = cells(table(blocks, "language-accuracy"))
    by_seed = scores("gpt2-large", "sst2", "+deep-thinking")
    assert rows["sst2"]["gpt2-large+deep-thinking"] == f"{by_seed.mean():.3f} ± {by_seed.std(ddof=1):.3f}"
    assert rows["sst2"]["majority"] == "0.510"
    assert rows["sst2"]["demonstrations"] == str(MAIN)


def test_tasks_are_grouped_by_family_with_the_mean_below(blocks: dict[str, Block]) -> None:
    rows = cells(table(blocks, "language-accuracy"))
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


def test_a_model_that_lacks_a_task_has_no_mean_over_it(blocks: dict[str, Block]) -> None:
    rows = cells(table(blocks, "language-accuracy"))
    assert rows["list-last"]["mamba-tiny"] == "–"
    assert rows["mean of algorithmic"]["mamba-tiny"] == rows["mean of all tasks"]["mamba-tiny"] == "–"
    assert rows["mean of sentiment"]["mamba-tiny"] != "–"


def test_intervals_are_students_over_seeds_or_that_of_a_single_cell(results: Results) -> None:
    v = results.language.scores
    rows = v[(v["task"] == "sst5") & (v["contestant"] == "demo-lm") & (v["metric"] == "accuracy")]
    rows = rows[rows["shift"] == "none"].set_index("n_context")
    by_seed = scores("demo-lm", "sst5")
    expected = stats.t.interval(0.95, len(by_seed) - 1, by_seed.mean(), stats.sem(by_seed))
    np.testing.assert_allclose(rows.loc[MAIN, ["low", "high"]].astype(float), expected)
    value = accuracy("demo-lm", "sst5", 0, 0)
    half = 1.96 * np.sqrt(value * (1 - value) / synthetic_language.EPISODES)
    np.testing.assert_allclose(rows.loc[0, ["low", "high"]].astype(float), [value - half, value + half])
    assert rows.loc[MAIN, "demo_seeds"] == 10 and pd.isna(rows.loc[0, "sd"])


def test_orders_and_shuffled_labels_do_not_enter_the_mean(results: Results) -> None:
    v = results.language.scores
    rows = v[(v["task"] == synthetic_language.ORDERED) & (v["contestant"] == "gpt2-large") & (v["n_context"] == MAIN)]
    values = rows[rows["metric"] == "accuracy"].set_index("shift")["value"]
    assert values["none"] == pytest.approx(scores("gpt2-large", synthetic_language.ORDERED).mean())
    assert values["shuffled-labels"] < 0.6 * values["none"]


def test_summaries_in_the_tables_are_not_averaged_again(results: Results) -> None:
    assert not results.language.cells["value"].eq(0.123).any()


def test_intervals_of_tasks_are_added_in_quadrature() -> None:
    rows = pd.DataFrame(
        {"task": ["a", "b"], "contestant": "x", "value": [0.4, 0.6], "low": [0.37, 0.56], "high": [0.43, 0.64]}
    )
    mean = mean_over_tasks(rows, ["a", "b"], ["contestant"]).iloc[0]
    assert mean["value"] == pytest.approx(0.5)
    assert [mean["low"], mean["high"]] == pytest.approx([0.475, 0.525])  # (0.03² + 0.04²)½ / 2
    assert mean_over_tasks(rows, ["a", "b", "c"], ["contestant"]).empty


def test_accuracies_have_controls_in_the_same_table(blocks: dict[str, Block]) -> None:
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
    row = cells(block)["location-continent"]
    assert row["zero-shot"].startswith(f"{accuracy('gpt2-large', 'location-continent', 0, 0):.3f} [")
    assert row["balanced accuracy, in context"].startswith(
        f"{0.9 * scores('gpt2-large', 'location-continent').mean():.3f}"
    )
    assert row["majority"] == "0.400"


def test_scores_by_token_have_separate_columns(blocks: dict[str, Block]) -> None:
    block = table(blocks, "language-scores")
    frame = block.frame[block.frame["contestant"] == "demo-lm"].set_index("task")
    by_token = 0.99 * scores("demo-lm", "sst2").mean()
    assert frame.loc["sst2", "accuracy_per_token"] == pytest.approx(by_token)
    assert pd.isna(frame.loc["sst2", "accuracy_first_token"]) and pd.isna(frame.loc["to-upper", "accuracy_per_token"])


def test_gains_are_paired_differences_with_a_verdict(blocks: dict[str, Block]) -> None:
    frame = table(blocks, "language-gains").frame.set_index(["task", "contestant"])
    better, equal = frame.loc[("sst2", "gpt2-large+deep-thinking")], frame.loc[("sst2", "demo-lm+deep-thinking")]
    assert (better["gain"], better["verdict"]) == (0.04, "better")
    assert (equal["gain"], equal["verdict"]) == (0.0, "not different")
    assert better["none_plain"] == pytest.approx(scores("gpt2-large", "sst2").mean())
    assert better["shuffled_method"] > better["shuffled_plain"]
    assert frame.loc[("sst2", "demo-lm+repeat-2"), "verdict"] == "not different"
    mean = frame.loc[("mean of all tasks", "gpt2-large+deep-thinking")]
    assert [mean["gain"], mean["low"]] == pytest.approx([0.04, 0.04 - 0.01 / np.sqrt(len(TASKS))])
    drawn = figure(blocks, "language-gains").data
    assert set(drawn["panel"]) == {
        m + method for m in synthetic_language.HELPS for method in ("+deep-thinking", "+repeat-2")
    }


def test_published_numbers_have_separate_rows(blocks: dict[str, Block]) -> None:
    frame = table(blocks, "language-published").frame.set_index("contestant")
    assert frame.loc["GPT2-Large+deep-thinking", "whose"] == "published"
    assert frame.loc["GPT2-Large+deep-thinking", "sst2"] == 0.857
    assert frame.loc["gpt2-large+deep-thinking", "sst2"] == pytest.approx(
        scores("gpt2-large", "sst2", synthetic_language.THOUGHT).mean()
    )
    suite = np.mean([scores("demo-lm", task).mean() for task in ("sst2", "sst5")])
    assert frame.loc["demo-lm", "simple"] == pytest.approx(suite)
    headers = [column.header for column in table(blocks, "language-published").columns]
    assert headers == ["contestant", "origin", "simple (2 tasks), other data", "sst2"]
    sources = table(blocks, "language-published-sources")
    assert {"published data", "our data"} < {column.header for column in sources.columns}
    suite_rows = sources.frame[sources.frame["task"] == "simple"]
    assert set(zip(suite_rows["data"], suite_rows["our_data"], strict=True)) == {
        (synthetic_language.THEIRS, synthetic_language.OURS["sst5"])
    }
    assert sources.frame.loc[sources.frame["task"] == "sst2", "data"].isna().all()


def test_accuracies_against_demonstrations_start_at_zero_with_a_majority_level(blocks: dict[str, Block]) -> None:
    drawn = figure(blocks, "language-shots")
    assert [panel.title for panel in drawn.panels] == sorted(TASKS, key=lambda task: (TASKS[task][0], task))
    line = drawn.data[(drawn.data["panel"] == "sst2") & (drawn.data["contestant"] == "demo-lm")]
    assert line["n_context"].tolist() == SHOTS
    np.testing.assert_allclose(line["value"].iloc[2], scores("demo-lm", "sst2", shots=SHOTS[2]).mean())
    level = drawn.data[(drawn.data["panel"] == "sst2") & (drawn.data["contestant"] == "majority")]
    assert level["value"].tolist() == [0.51, 0.51]


def test_passes_start_with_plain_icl_and_include_the_development_split(blocks: dict[str, Block]) -> None:
    data = figure(blocks, "language-passes").data
    line = data[(data["panel"] == "sst2") & (data["contestant"] == "gpt2-large+deep-thinking")].set_index("axis_value")
    assert line.index.tolist() == [1, 2, 3, 4, 5]
    assert line.loc[1, "value"] == pytest.approx(scores("gpt2-large", "sst2").mean())
    split = data[data["contestant"] == "gpt2-large+deep-thinking (development)"]
    assert set(split["panel"]) == {"sst2"}
    np.testing.assert_allclose(split["value"], line["value"] - 0.01)
    drift = figure(blocks, "language-divergence").data
    assert (drift["value"] > 0).all() and drift["axis_value"].min() == 2, "a logarithmic axis has no zero"
    assert figure(blocks, "language-memory").data["axis_value"].min() == 2


def test_single_draws_and_their_mean_are_drawn(blocks: dict[str, Block]) -> None:
    seeds = figure(blocks, "language-seeds").data
    values = seeds[(seeds["panel"] == "sst2") & (seeds["contestant"] == "demo-lm")].set_index("part")["value"]
    np.testing.assert_allclose(values["draw"].astype(float), scores("demo-lm", "sst2"))
    assert values["mean"] == pytest.approx(scores("demo-lm", "sst2").mean())
    orders = figure(blocks, "language-orders").data
    assert set(orders["panel"]) == {synthetic_language.ORDERED}
    draws = orders[(orders["part"] == "draw") & (orders["contestant"] == "demo-lm")]
    expected = [accuracy("demo-lm", synthetic_language.ORDERED, MAIN, 0, "", order) for order in range(10)]
    np.testing.assert_allclose(draws["value"].astype(float), expected)


def test_every_contestant_has_the_same_look_in_all_figures(blocks: dict[str, Block]) -> None:
    all_looks: dict[str, set] = {}
    for block in blocks.values():
        for name, look in block.legend.items() if isinstance(block, Figure) else ():
            all_looks.setdefault(name, set()).add(look)
    assert all(len(name_looks) == 1 for name_looks in all_looks.values())
    by_name = {name: next(iter(name_looks)) for name, name_looks in all_looks.items()}
    assert len(set(by_name.values())) == len(by_name)
    assert by_name["demo-lm"].colour == by_name["demo-lm+deep-thinking"].colour != by_name["gpt2-large"].colour
    many = looks((f"m{i}", method) for i in range(20) for method in ("", "+a", "+b"))
    assert len(set(many.values())) == len(many) == 61
    methods = looks(("m", method) for method in ["", *(f"+{i}" for i in range(11))])
    assert len(set(methods.values())) == len(methods) == 13
    assert len({look.colour for look in methods.values()}) == 13, "methods of a single model differ in colour"


@pytest.mark.parametrize("name", ["families", "gains", "divergence"])
def test_figures_are_valid_vega_lite(blocks: dict[str, Block], name: str) -> None:
    drawn = figure(blocks, f"language-{name}")
    vega_lite.validate({key: value for key, value in drawn.live.items() if key != "usermeta"})
    view = drawn.static["concat"][0] if "concat" in drawn.static else drawn.static
    vega_lite.validate({**drawn.static, **({"concat": [view]} if "concat" in drawn.static else {})})


def test_failed_cells_are_listed_once_with_the_reason(blocks: dict[str, Block]) -> None:
    frame = table(blocks, "failed").frame
    assert set(frame["reason"]) == {synthetic_language.REASON} and set(frame["contestant"]) == {"mamba-tiny"}
    assert frame["shift"].tolist() == ["none", "shuffled-labels"], "one row for all sets of demonstrations"


@pytest.mark.slow
def test_a_failed_set_of_demonstrations_leaves_no_mean(results: Results, tmp_path: Path) -> None:
    rows = results.language.rows
    is_failed = rows["contestant"].eq("demo-lm") & rows["task"].eq("sst2") & rows["n_context"].eq(MAIN)
    is_failed &= rows["shift"].eq("none") & rows["demo_seed"].eq(SEEDS[1]) & rows["prompt_set"].notna()
    failed = rows[is_failed].assign(status="failed", reason="not finite", value=np.nan, low=np.nan, high=np.nan)
    others = rows[~is_failed & rows["task"].isin(["sst2", "sst5"])]
    values = pd.concat([others, failed[failed["metric"].eq("accuracy")].head(1)])[list(tables.VALUES)]
    tables.write("values", values, tmp_path / "a.values.parquet", {})
    blocks = by_name(report(load(tmp_path)))
    accuracies = cells(table(blocks, "language-accuracy"))
    assert accuracies["sst2"]["demo-lm"] == accuracies["mean of sentiment"]["demo-lm"] == "–"
    assert accuracies["sst5"]["demo-lm"] != "–" and accuracies["sst2"]["gpt2-large"] != "–"
    assert "not finite" in set(table(blocks, "failed").frame["reason"])


def test_answers_are_escaped(blocks: dict[str, Block]) -> None:
    block = table(blocks, "language-samples")
    assert len(block.frame) == 3 * (3 * len(TASKS) - 1)
    assert set(block.frame.groupby(["task", "contestant"]).size()) == {3}
    html = render_section(Section("a", "a", (block,)), (), {}).html
    assert synthetic_language.NASTY not in html and "&lt;script&gt;alert(" in html


def test_notes_of_cells_are_listed(blocks: dict[str, Block]) -> None:
    frame = table(blocks, "language-notes").frame
    rows = frame[(frame["task"] == "sst2") & (frame["n_context"] == MAIN) & (frame["shift"] == "none")]
    assert rows[["contestant", "reason", "cells"]].to_numpy().tolist() == [["majority", "always 'A'", len(SEEDS)]]


def test_prompt_sets_of_other_queries_are_not_used(results: Results, tmp_path: Path) -> None:
    """One contestant was also evaluated on fewer queries."""
    rows = results.language.rows
    quick = rows[rows["contestant"].eq("demo-lm") & rows["task"].eq("sst2") & rows["prompt_set"].notna()]
    quick = quick.assign(prompt_set=quick["prompt_set"].str[:-8] + "00000000", value=1.0, n_episodes=16)
    for name, frame in (("all", rows), ("quick", quick)):
        tables.write("values", frame[list(tables.VALUES)], tmp_path / f"{name}.values.parquet", {})
    loaded = load(tmp_path)
    assert loaded.language.scores["value"].equals(results.language.scores["value"])
    assert any("sst2 · 4" in line and "19" in line for line in loaded.excluded_rows)


def test_means_over_sets_of_demonstrations_have_the_same_queries(results: Results, tmp_path: Path) -> None:
    """Three of ten sets of demonstrations have more queries, so the others are not used."""
    rows = results.language.rows
    is_cell = rows["task"].eq("sst2") & rows["n_context"].eq(MAIN) & rows["shift"].eq("none")
    longer = rows[is_cell & rows["prompt_set"].notna() & rows["demo_seed"].lt(3) & rows["order"].eq(0)]
    longer = longer.assign(prompt_set=longer["prompt_set"].str[:-8] + "00000000", value=1.0, n_episodes=4000)
    tables.write("values", pd.concat([rows, longer])[list(tables.VALUES)], tmp_path / "a.values.parquet", {})
    loaded = load(tmp_path)
    means = loaded.language.scores.query(f"task == 'sst2' and n_context == {MAIN} and shift == 'none'")
    assert set(means["value"]) == {1.0} and set(means["demo_seeds"]) == {3}
    assert any("sst2 · 4" in line and "19" in line for line in loaded.excluded_rows)


@pytest.mark.slow
def test_a_gain_over_other_sets_of_demonstrations_than_the_accuracies_is_not_used(
    results: Results, tmp_path: Path
) -> None:
    """The last evaluation had a single set."""
    rows = results.language.rows
    is_gain = rows["metric"].eq("accuracy_gain") & rows["task"].eq("sst2") & rows["model"].eq("gpt2-large")
    changed = rows.assign(mean_of=rows["mean_of"].mask(is_gain, synthetic_language.prompt_set("sst2", MAIN, "none", 0)))
    tables.write("values", changed[list(tables.VALUES)], tmp_path / "a.values.parquet", {})
    loaded = load(tmp_path)
    assert len(loaded.language.gains) == len(results.language.gains) - 2
    (line,) = loaded.excluded_rows
    assert "sst2 · 4" in line and "2 gains" in line
    frame = table(by_name(report(loaded)), "language-gains").frame
    means = frame.loc[frame["task"].str.startswith("mean of"), ["task", "contestant"]].to_numpy().tolist()
    assert ["mean of its 7 tasks", "gpt2-large+deep-thinking"] in means
    assert ["mean of all tasks", "demo-lm+deep-thinking"] in means


@pytest.mark.slow
def test_a_task_without_demonstrations_has_the_majority_of_the_same_queries(results: Results, tmp_path: Path) -> None:
    rows = results.language.rows
    rows = rows[rows["task"].ne("sst5") | rows["n_context"].eq(0)]
    is_zero_shot = rows["contestant"].eq("majority") & rows["n_context"].eq(0) & rows["metric"].eq("accuracy")
    rows = rows.assign(value=rows["value"].mask(is_zero_shot, 0.25))
    tables.write("values", rows[list(tables.VALUES)], tmp_path / "a.values.parquet", {})
    accuracies = cells(table(by_name(report(load(tmp_path))), "language-accuracy"))
    assert (accuracies["sst5"]["demonstrations"], accuracies["sst5"]["majority"]) == ("0", "0.250")
    assert (accuracies["sst2"]["demonstrations"], accuracies["sst2"]["majority"]) == (str(MAIN), "0.510")


def test_one_model_task_and_seed_make_a_report(results: Results, tmp_path: Path) -> None:
    rows = results.language.rows
    is_selected = rows["task"].eq("to-upper") & rows["contestant"].isin(["demo-lm", "majority"])
    is_selected &= rows["demo_seed"].eq(0) & rows["n_context"].isin([0, MAIN]) & rows["prompt_set"].notna()
    blocks = by_name(report_on(results, tmp_path, is_selected))
    row = cells(table(blocks, "language-accuracy"))["to-upper"]
    assert row["demo-lm"].startswith(f"{accuracy('demo-lm', 'to-upper', MAIN, 0):.3f} [")
    assert "figure language-seeds" not in blocks and "figure language-shots" not in blocks


def test_only_zero_shot_or_only_failed_rows_make_a_report(results: Results, tmp_path: Path) -> None:
    rows = results.language.rows
    is_zero_shot = rows["n_context"].eq(0) & rows["contestant"].eq("demo-lm")
    zero = by_name(report_on(results, tmp_path / "zero", is_zero_shot))
    assert cells(table(zero, "language-accuracy"))["to-upper"]["demonstrations"] == "0"
    failed = report_on(results, tmp_path / "failed", rows["status"].eq("failed"))
    assert [section.id for section in failed] == ["summary", "missing", "provenance"]


@pytest.mark.slow
def test_families_with_many_tasks_have_separate_folded_tables(results: Results, tmp_path: Path) -> None:
    """The main table has only their means."""
    rows = results.language.rows
    one = rows[rows["task"].eq("sst2") & rows["contestant"].isin(["demo-lm", "majority"]) & rows["demo_seed"].lt(2)]
    one = one[one["prompt_set"].notna()]
    copies = [
        one.assign(
            task=f"mmlu-{i}",
            family="mmlu-stem" if i < 15 else "mmlu-other",
            prompt_set=one["prompt_set"].str.replace("sst2", f"mmlu-{i}"),
        )
        for i in range(17)
    ]
    tables.write("values", pd.concat(copies)[list(tables.VALUES)], tmp_path / "a.values.parquet", {})
    blocks = by_name(report(load(tmp_path)))
    assert list(cells(table(blocks, "language-accuracy"))) == [
        "mmlu-15",
        "mmlu-16",
        "mean of mmlu-other",
        "mean of mmlu-stem",
        "mean of all tasks",
    ]
    assert len(table(blocks, "language-accuracy-mmlu-stem").frame) == 16
    assert table(blocks, "language-accuracy-mmlu-stem").folded
    drawn = figure(blocks, "language-shots")
    assert [panel.title for panel in drawn.panels] == ["mmlu-other", "mmlu-stem"]
    assert set(drawn.rows()["run"]) == {"demo-lm", "majority"}


@pytest.mark.slow
def test_language_rows_do_not_change_other_sections(folder: Path, tmp_path: Path) -> None:
    alone = load(synthetic_bursty.write(tmp_path))
    shutil.copytree(folder, tmp_path / "language")
    both = load(tmp_path)
    pd.testing.assert_frame_equal(both.rows, alone.rows)
    pd.testing.assert_frame_equal(both.costs, alone.costs)
    assert both.looks == alone.looks and both.excluded_rows == alone.excluded_rows == ()
    assert [task.id for task in both.slices] == [task.id for task in alone.slices]
    assert language.section(alone) is None and language.section(both) is not None
    assert repr(overview.section(both)) == repr(overview.section(alone))
    assert subtitle(both) == f"{subtitle(alone)}, 8 language tasks, 3 language models"


def test_a_method_on_a_backbone_is_not_listed_as_missing_on_other_tasks(tmp_path: Path) -> None:
    """`iclbench train` does not know `transformer+deep-thinking`."""
    synthetic_bursty.write(tmp_path)
    rows = tables.read_all("values", tmp_path)
    one = rows[rows["contestant"].eq("transformer") & rows["task"].eq("bursty")]
    more = one.assign(
        contestant="transformer+deep-thinking", method="+deep-thinking", run=one["run"] + "+deep-thinking"
    )
    tables.write("values", more, tmp_path / "b.values.parquet", {})
    blocks = [block for block in missing.section(load(tmp_path)).blocks if isinstance(block, Table)]
    assert not any(
        block.frame.astype(str).apply(lambda c: c.str.contains("+", regex=False)).any(axis=None) for block in blocks
    )
