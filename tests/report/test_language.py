"""The section on language models: means over sets of demonstrations, controls, gains, and what stays apart."""

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
from tests.report import synthetic_bursty, vega_lite
from tests.report import synthetic_language as told
from tests.report.synthetic_language import MAIN, SEEDS, SHOTS, TASKS, accuracy


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return told.write(tmp_path_factory.mktemp("language"))


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
    found = [block for section in sections for block in section.walk() if not isinstance(block, Text)]
    assert len({(type(block), block.name) for block in found}) == len(found), "no two blocks share a file"
    return {f"{type(block).__name__.lower()} {block.name}": block for block in found}


def table(blocks: dict[str, Block], name: str) -> Table:
    block = blocks[f"table {name}"]
    assert isinstance(block, Table)
    return block


def figure(blocks: dict[str, Block], name: str) -> Figure:
    block = blocks[f"figure {name}"]
    assert isinstance(block, Figure)
    return block


def shown(block: Table) -> dict[str, dict[str, str]]:
    """Row by row what stands below each header."""
    headers = [column.header for column in block.columns]
    return {row[0].text: dict(zip(headers, (cell.text for cell in row), strict=True)) for row in block.rows()}


def scores(model: str, task: str, method: str = "", shots: int = MAIN) -> np.ndarray:
    return np.array([accuracy(model, task, shots, seed, method) for seed in SEEDS])


def of(results: Results, folder: Path, keep: pd.Series, change: dict[str, object] | None = None) -> list[Section]:
    """The sections of a report on some of the rows that were read."""
    rows = results.language.rows[keep].assign(**change or {})
    tables.write("values", rows[list(tables.VALUES)], folder / "a.values.parquet", {})
    return report(load(folder))


def test_language_rows_are_no_slices_of_other_sections(results: Results, sections: list[Section]) -> None:
    assert results.rows.empty and results.slices == [] and results.excluded_rows == ()
    assert [section.id for section in sections] == ["summary", "language", "missing", "provenance"]
    assert subtitle(results) == "8 language tasks, 3 language models"


def test_the_table_shows_means_and_spreads_over_sets_of_demonstrations(blocks: dict[str, Block]) -> None:
    rows = shown(table(blocks, "language-accuracy"))
    own = scores("gpt2-large", "sst2", "+deep-thinking")
    assert rows["sst2"]["gpt2-large+deep-thinking"] == f"{own.mean():.3f} ± {own.std(ddof=1):.3f}"
    assert rows["sst2"]["majority"] == "0.510"
    assert rows["sst2"]["demonstrations"] == str(MAIN)


def test_families_stand_together_with_their_means_below(blocks: dict[str, Block]) -> None:
    rows = shown(table(blocks, "language-accuracy"))
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


def test_whoever_lacks_a_task_has_no_mean_over_it(blocks: dict[str, Block]) -> None:
    rows = shown(table(blocks, "language-accuracy"))
    assert rows["list-last"]["mamba-tiny"] == "–"
    assert rows["mean of algorithmic"]["mamba-tiny"] == rows["mean of all tasks"]["mamba-tiny"] == "–"
    assert rows["mean of sentiment"]["mamba-tiny"] != "–"


def test_intervals_are_students_over_seeds_and_the_cells_own_of_one(results: Results) -> None:
    found = results.language.scores
    own = found[(found["task"] == "sst5") & (found["contestant"] == "demo-lm") & (found["metric"] == "accuracy")]
    own = own[own["shift"] == "none"].set_index("n_context")
    of_seeds = scores("demo-lm", "sst5")
    expected = stats.t.interval(0.95, len(of_seeds) - 1, of_seeds.mean(), stats.sem(of_seeds))
    np.testing.assert_allclose(own.loc[MAIN, ["low", "high"]].astype(float), expected)
    value = accuracy("demo-lm", "sst5", 0, 0)
    half = 1.96 * np.sqrt(value * (1 - value) / told.EPISODES)
    np.testing.assert_allclose(own.loc[0, ["low", "high"]].astype(float), [value - half, value + half])
    assert own.loc[MAIN, "demo_seeds"] == 10 and pd.isna(own.loc[0, "sd"])


def test_orders_and_shuffled_labels_do_not_enter_the_mean(results: Results) -> None:
    found = results.language.scores
    own = found[(found["task"] == told.ORDERED) & (found["contestant"] == "gpt2-large") & (found["n_context"] == MAIN)]
    own = own[own["metric"] == "accuracy"].set_index("shift")
    assert own.loc["none", "value"] == pytest.approx(scores("gpt2-large", told.ORDERED).mean())
    assert own.loc["shuffled-labels", "value"] < 0.6 * own.loc["none", "value"]


def test_summaries_in_the_tables_are_not_averaged_again(results: Results) -> None:
    assert not results.language.cells["value"].eq(0.123).any()


def test_the_mean_of_independent_intervals_is_taken_in_quadrature() -> None:
    rows = pd.DataFrame(
        {"task": ["a", "b"], "who": "x", "value": [0.4, 0.6], "low": [0.37, 0.56], "high": [0.43, 0.64]}
    )
    mean = mean_over_tasks(rows, ["a", "b"], ["who"]).iloc[0]
    assert mean["value"] == pytest.approx(0.5)
    assert [mean["low"], mean["high"]] == pytest.approx([0.475, 0.525])  # (0.03² + 0.04²)½ / 2
    assert mean_over_tasks(rows, ["a", "b", "c"], ["who"]).empty


def test_every_accuracy_stands_beside_its_controls(blocks: dict[str, Block]) -> None:
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
    row = shown(block)["location-continent"]
    assert row["zero-shot"].startswith(f"{accuracy('gpt2-large', 'location-continent', 0, 0):.3f} [")
    assert row["balanced accuracy, in context"].startswith(
        f"{0.9 * scores('gpt2-large', 'location-continent').mean():.3f}"
    )
    assert row["majority"] == "0.400"


def test_scores_go_by_their_names(blocks: dict[str, Block]) -> None:
    block = table(blocks, "language-scores")
    frame = block.frame[block.frame["contestant"] == "demo-lm"].set_index("task")
    by_token = 0.99 * scores("demo-lm", "sst2").mean()
    assert frame.loc["sst2", "accuracy_per_token"] == pytest.approx(by_token)
    assert pd.isna(frame.loc["sst2", "accuracy_first_token"]) and pd.isna(frame.loc["to-upper", "accuracy_per_token"])


def test_gains_are_the_paired_ones_and_ties_are_ties(blocks: dict[str, Block]) -> None:
    frame = table(blocks, "language-gains").frame.set_index(["task", "contestant"])
    helped, left = frame.loc[("sst2", "gpt2-large+deep-thinking")], frame.loc[("sst2", "demo-lm+deep-thinking")]
    assert (helped["gain"], helped["verdict"]) == (0.04, "better")
    assert (left["gain"], left["verdict"]) == (0.0, "not different")
    assert helped["none_plain"] == pytest.approx(scores("gpt2-large", "sst2").mean())
    assert helped["shuffled_method"] > helped["shuffled_plain"]
    assert frame.loc[("sst2", "demo-lm+repeat-2"), "verdict"] == "not different"
    mean = frame.loc[("mean of all tasks", "gpt2-large+deep-thinking")]
    assert [mean["gain"], mean["low"]] == pytest.approx([0.04, 0.04 - 0.01 / np.sqrt(len(TASKS))])
    drawn = figure(blocks, "language-gains").data
    assert set(drawn["panel"]) == {m + method for m in told.HELPS for method in ("+deep-thinking", "+repeat-2")}


def test_published_numbers_stand_in_rows_of_their_own(blocks: dict[str, Block]) -> None:
    frame = table(blocks, "language-published").frame.set_index("contestant")
    assert frame.loc["GPT2-Large+deep-thinking", "whose"] == "published"
    assert frame.loc["GPT2-Large+deep-thinking", "sst2"] == 0.857
    assert frame.loc["gpt2-large+deep-thinking", "sst2"] == pytest.approx(
        scores("gpt2-large", "sst2", told.THOUGHT).mean()
    )
    suite = np.mean([scores("demo-lm", task).mean() for task in ("sst2", "sst5")])
    assert frame.loc["demo-lm", "simple"] == pytest.approx(suite)
    headers = [column.header for column in table(blocks, "language-published").columns]
    assert headers == ["contestant", "origin", "simple (2 tasks), other data", "sst2"]
    sources = table(blocks, "language-published-sources")
    assert {"published data", "our data"} < {column.header for column in sources.columns}
    of_suite = sources.frame[sources.frame["task"] == "simple"]
    assert set(zip(of_suite["data"], of_suite["our_data"], strict=True)) == {(told.THEIRS, told.OURS["sst5"])}
    assert sources.frame.loc[sources.frame["task"] == "sst2", "data"].isna().all()


def test_lines_against_demonstrations_start_at_none_and_carry_the_majority(blocks: dict[str, Block]) -> None:
    drawn = figure(blocks, "language-shots")
    assert [panel.title for panel in drawn.panels] == sorted(TASKS, key=lambda task: (TASKS[task][0], task))
    own = drawn.data[(drawn.data["panel"] == "sst2") & (drawn.data["contestant"] == "demo-lm")]
    assert own["n_context"].tolist() == SHOTS
    np.testing.assert_allclose(own["value"].iloc[2], scores("demo-lm", "sst2", shots=SHOTS[2]).mean())
    level = drawn.data[(drawn.data["panel"] == "sst2") & (drawn.data["contestant"] == "majority")]
    assert level["value"].tolist() == [0.51, 0.51]


def test_passes_begin_as_plain_icl_and_show_the_development_split_beside(blocks: dict[str, Block]) -> None:
    data = figure(blocks, "language-passes").data
    own = data[(data["panel"] == "sst2") & (data["contestant"] == "gpt2-large+deep-thinking")].set_index("axis_value")
    assert own.index.tolist() == [1, 2, 3, 4, 5]
    assert own.loc[1, "value"] == pytest.approx(scores("gpt2-large", "sst2").mean())
    split = data[data["contestant"] == "gpt2-large+deep-thinking (development)"]
    assert set(split["panel"]) == {"sst2"}
    np.testing.assert_allclose(split["value"], own["value"] - 0.01)
    drift = figure(blocks, "language-divergence").data
    assert (drift["value"] > 0).all() and drift["axis_value"].min() == 2, "a logarithmic axis has no place for zero"
    assert figure(blocks, "language-memory").data["axis_value"].min() == 2


def test_single_draws_stand_behind_their_mean(blocks: dict[str, Block]) -> None:
    seeds = figure(blocks, "language-seeds").data
    own = seeds[(seeds["panel"] == "sst2") & (seeds["contestant"] == "demo-lm")].set_index("part")
    np.testing.assert_allclose(own.loc["draw", "value"].astype(float), scores("demo-lm", "sst2"))
    assert own.loc["mean", "value"] == pytest.approx(scores("demo-lm", "sst2").mean())
    orders = figure(blocks, "language-orders").data
    assert set(orders["panel"]) == {told.ORDERED}
    own = orders[(orders["part"] == "draw") & (orders["contestant"] == "demo-lm")]
    expected = [accuracy("demo-lm", told.ORDERED, MAIN, 0, "", order) for order in range(10)]
    np.testing.assert_allclose(own["value"].astype(float), expected)


def test_every_contestant_has_one_look_all_over_the_section(blocks: dict[str, Block]) -> None:
    seen: dict[str, set] = {}
    for block in blocks.values():
        for name, look in block.legend.items() if isinstance(block, Figure) else ():
            seen.setdefault(name, set()).add(look)
    assert all(len(own) == 1 for own in seen.values())
    found = {name: next(iter(own)) for name, own in seen.items()}
    assert len(set(found.values())) == len(found)
    assert found["demo-lm"].colour == found["demo-lm+deep-thinking"].colour != found["gpt2-large"].colour
    many = looks((f"m{i}", method) for i in range(20) for method in ("", "+a", "+b"))
    assert len(set(many.values())) == len(many) == 61
    methods = looks(("m", method) for method in ["", *(f"+{i}" for i in range(11))])
    assert len(set(methods.values())) == len(methods) == 13
    assert len({look.colour for look in methods.values()}) == 13, "methods of a single model differ in colour, too"


@pytest.mark.parametrize("name", ["families", "gains", "divergence"])
def test_figures_are_valid_vega_lite(blocks: dict[str, Block], name: str) -> None:
    drawn = figure(blocks, f"language-{name}")
    vega_lite.validate({key: value for key, value in drawn.live.items() if key != "usermeta"})
    view = drawn.static["concat"][0] if "concat" in drawn.static else drawn.static
    vega_lite.validate({**drawn.static, **({"concat": [view]} if "concat" in drawn.static else {})})


def test_failed_cells_are_listed_once_with_their_reason(blocks: dict[str, Block]) -> None:
    frame = table(blocks, "failed").frame
    assert set(frame["reason"]) == {told.REASON} and set(frame["contestant"]) == {"mamba-tiny"}
    assert frame["shift"].tolist() == ["none", "shuffled-labels"], "not a row per set of demonstrations"


@pytest.mark.slow
def test_where_one_set_of_demonstrations_failed_there_is_no_mean(results: Results, tmp_path: Path) -> None:
    rows = results.language.rows
    own = rows["contestant"].eq("demo-lm") & rows["task"].eq("sst2") & rows["n_context"].eq(MAIN)
    own &= rows["shift"].eq("none") & rows["demo_seed"].eq(SEEDS[1]) & rows["prompt_set"].notna()
    failed = rows[own].assign(status="failed", reason="not finite", value=np.nan, low=np.nan, high=np.nan)
    others = rows[~own & rows["task"].isin(["sst2", "sst5"])]
    both = pd.concat([others, failed[failed["metric"].eq("accuracy")].head(1)])[list(tables.VALUES)]
    tables.write("values", both, tmp_path / "a.values.parquet", {})
    found = by_name(report(load(tmp_path)))
    shows = shown(table(found, "language-accuracy"))
    assert shows["sst2"]["demo-lm"] == shows["mean of sentiment"]["demo-lm"] == "–"
    assert shows["sst5"]["demo-lm"] != "–" and shows["sst2"]["gpt2-large"] != "–"
    assert "not finite" in set(table(found, "failed").frame["reason"])


def test_a_few_answers_are_shown_escaped(blocks: dict[str, Block]) -> None:
    block = table(blocks, "language-samples")
    assert len(block.frame) == 3 * (3 * len(TASKS) - 1)
    assert set(block.frame.groupby(["task", "contestant"]).size()) == {3}
    html = render_section(Section("a", "a", (block,)), (), {}).html
    assert told.NASTY not in html and "&lt;script&gt;alert(" in html


def test_what_cells_say_of_their_answers_is_kept(blocks: dict[str, Block]) -> None:
    """The passes that were chosen, or what was dropped, would else be lost with the single cells."""
    frame = table(blocks, "language-notes").frame
    own = frame[(frame["task"] == "sst2") & (frame["n_context"] == MAIN) & (frame["shift"] == "none")]
    assert own[["contestant", "reason", "cells"]].to_numpy().tolist() == [["majority", "always 'A'", len(SEEDS)]]


def test_prompt_sets_of_other_episodes_are_set_aside(results: Results, folder: Path, tmp_path: Path) -> None:
    """A look with fewer queries at one contestant does not mix with what everybody was asked."""
    rows = results.language.rows
    quick = rows[rows["contestant"].eq("demo-lm") & rows["task"].eq("sst2") & rows["prompt_set"].notna()]
    quick = quick.assign(prompt_set=quick["prompt_set"].str[:-8] + "00000000", value=1.0, n_episodes=16)
    both = pd.concat([rows, quick])[list(tables.VALUES)]
    for i, (_, own) in enumerate(both.groupby(both["prompt_set"].isin(quick["prompt_set"]))):
        tables.write("values", own, tmp_path / f"{i}.values.parquet", {})
    found = load(tmp_path)
    assert found.language.scores["value"].equals(results.language.scores["value"])
    assert any(line.startswith("sst2 · 4 demonstrations: 19 prompt sets") for line in found.excluded_rows)


def test_no_mean_is_over_other_queries_after_some_sets_of_demonstrations_than_after_others(
    results: Results, tmp_path: Path
) -> None:
    """More queries after three of ten sets of demonstrations: the seven others are of other queries, and left out."""
    rows = results.language.rows
    asked = rows["task"].eq("sst2") & rows["n_context"].eq(MAIN) & rows["prompt_set"].notna() & rows["shift"].eq("none")
    longer = rows[asked & rows["demo_seed"].lt(3) & rows["order"].eq(0)]
    longer = longer.assign(prompt_set=longer["prompt_set"].str[:-8] + "00000000", value=1.0, n_episodes=4000)
    tables.write("values", pd.concat([rows, longer])[list(tables.VALUES)], tmp_path / "a.values.parquet", {})
    found = load(tmp_path)
    own = found.language.scores.query(f"task == 'sst2' and n_context == {MAIN} and shift == 'none'")
    assert set(own["value"]) == {1.0} and set(own["demo_seeds"]) == {3}
    assert any(
        line.startswith("sst2 · 4 demonstrations: 19 prompt sets of other episodes") for line in found.excluded_rows
    )


@pytest.mark.slow
def test_a_gain_over_other_sets_of_demonstrations_than_the_accuracies_is_left_out(
    results: Results, tmp_path: Path
) -> None:
    """The summary is of the last evaluation alone, of a single set."""
    rows = results.language.rows
    last = rows["metric"].eq("accuracy_gain") & rows["task"].eq("sst2") & rows["model"].eq("gpt2-large")
    changed = rows.assign(mean_of=rows["mean_of"].mask(last, told.prompt_set("sst2", MAIN, "none", 0)))
    tables.write("values", changed[list(tables.VALUES)], tmp_path / "a.values.parquet", {})
    found = load(tmp_path)
    assert len(found.language.gains) == len(results.language.gains) - 2
    (line,) = found.excluded_rows
    assert line.startswith("sst2 · 4 demonstrations: 2 gains over other sets of demonstrations than the accuracies")
    older = rows.assign(mean_of=rows["mean_of"].mask(last))
    tables.write("values", older[list(tables.VALUES)], tmp_path / "a.values.parquet", {})
    assert len(load(tmp_path).language.gains) == len(results.language.gains), "who names no sets has no others"
    frame = table(by_name(report(found)), "language-gains").frame
    means = frame.loc[frame["task"].str.startswith("mean of"), ["task", "contestant"]].to_numpy().tolist()
    assert ["mean of its 7 tasks", "gpt2-large+deep-thinking"] in means
    assert ["mean of all tasks", "demo-lm+deep-thinking"] in means


@pytest.mark.slow
def test_a_task_without_demonstrations_stands_beside_tasks_with_some_and_majorities_are_of_the_same_queries(
    results: Results, tmp_path: Path
) -> None:
    rows = results.language.rows
    kept = rows[rows["task"].ne("sst5") | rows["n_context"].eq(0)]
    zero = kept["contestant"].eq("majority") & kept["n_context"].eq(0) & kept["metric"].eq("accuracy")
    kept = kept.assign(value=kept["value"].mask(zero, 0.25))
    tables.write("values", kept[list(tables.VALUES)], tmp_path / "a.values.parquet", {})
    lines = shown(table(by_name(report(load(tmp_path))), "language-accuracy"))
    assert (lines["sst5"]["demonstrations"], lines["sst5"]["majority"]) == ("0", "0.250")
    assert (lines["sst2"]["demonstrations"], lines["sst2"]["majority"]) == (str(MAIN), "0.510")


def test_one_model_one_task_one_seed_is_a_page(results: Results, tmp_path: Path) -> None:
    rows = results.language.rows
    keep = rows["task"].eq("to-upper") & rows["contestant"].isin(["demo-lm", "majority"]) & rows["demo_seed"].eq(0)
    found = by_name(of(results, tmp_path, keep & rows["n_context"].isin([0, MAIN]) & rows["prompt_set"].notna()))
    row = shown(table(found, "language-accuracy"))["to-upper"]
    assert row["demo-lm"].startswith(f"{accuracy('demo-lm', 'to-upper', MAIN, 0):.3f} [")
    assert "figure language-seeds" not in found and "figure language-shots" not in found


def test_zero_shot_alone_and_failed_rows_alone_make_a_page(results: Results, tmp_path: Path) -> None:
    rows = results.language.rows
    zero = by_name(of(results, tmp_path / "zero", rows["n_context"].eq(0) & rows["contestant"].eq("demo-lm")))
    assert shown(table(zero, "language-accuracy"))["to-upper"]["demonstrations"] == "0"
    failed = of(results, tmp_path / "failed", rows["status"].eq("failed"))
    assert [section.id for section in failed] == ["summary", "missing", "provenance"]


@pytest.mark.slow
def test_long_families_fold_into_tables_of_their_own(results: Results, tmp_path: Path) -> None:
    """57 subjects are read as the means of their groups first."""
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
    found = by_name(report(load(tmp_path)))
    assert list(shown(table(found, "language-accuracy"))) == [
        "mmlu-15",
        "mmlu-16",
        "mean of mmlu-other",
        "mean of mmlu-stem",
        "mean of all tasks",
    ]
    assert len(table(found, "language-accuracy-mmlu-stem").frame) == 16
    assert table(found, "language-accuracy-mmlu-stem").folded
    drawn = figure(found, "language-shots")
    assert [panel.title for panel in drawn.panels] == ["mmlu-other", "mmlu-stem"]
    assert set(drawn.rows()["run"]) == {"demo-lm", "majority"}


@pytest.mark.slow
def test_other_sections_read_what_they_read_without_language_rows(folder: Path, tmp_path: Path) -> None:
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


def test_a_method_on_a_backbone_of_ours_is_not_asked_for_on_other_tasks(tmp_path: Path) -> None:
    """`transformer+deep-thinking` is nothing that `iclbench train` knows."""
    synthetic_bursty.write(tmp_path)
    rows = tables.read_all("values", tmp_path)
    one = rows[rows["contestant"].eq("transformer") & rows["task"].eq("bursty")]
    more = one.assign(
        contestant="transformer+deep-thinking", method="+deep-thinking", run=one["run"] + "+deep-thinking"
    )
    tables.write("values", more, tmp_path / "b.values.parquet", {})
    said = [block for block in missing.section(load(tmp_path)).blocks if isinstance(block, Table)]
    assert not any(
        block.frame.astype(str).apply(lambda c: c.str.contains("+", regex=False)).any(axis=None) for block in said
    )
