"""The heat map: means over seeds, the order of columns, cells without scores, and readable colours."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import vl_convert

from iclbench import tables
from iclbench.analysis.normalised import Contest, contests
from iclbench.analysis.pairs import Difference
from iclbench.report import page
from iclbench.report.blocks import Block, Figure, FirstScreen, Section, Table, Text
from iclbench.report.data import Results, load_results
from iclbench.report.figures import curves
from iclbench.report.figures import heat_map as figures
from iclbench.report.sections import heat_map, summary
from iclbench.report.style import ACCENT
from tests.report import synthetic_grid
from tests.report.synthetic_grid import BACKBONES, FAILED, ONLY_TARGETS, TASKS, Grid


@pytest.fixture(scope="module")
def blocks(grid_results: Results) -> dict[str, Block]:
    section = heat_map.section(grid_results)
    assert section is not None
    return {block.name: block for block in section.walk() if not isinstance(block, Text)}


def row_title(task: str, evaluator: str) -> str:
    return task if evaluator in ("next", "targets") else f"{task} · {evaluator.upper()}"


def cells(blocks: dict[str, Block]) -> pd.DataFrame:
    figure = blocks["heat-map-grid"]
    assert isinstance(figure, Figure)
    return figure.data.set_index(["row", "contestant"])


@pytest.mark.slow
def test_cells_are_normalised_scores_averaged_over_seeds(grid: Grid, blocks: dict[str, Block]) -> None:
    figure_cells, table = cells(blocks), blocks["heat-map-grid-numbers"]
    assert isinstance(table, Table)
    table_rows = table.frame.set_index("row")
    for task, evaluator, name, _ in grid.raw:
        scores = [
            synthetic_grid.score(grid.raw[task, evaluator, name, seed].mean(), evaluator)
            for seed in (0, 1)
            if (task, evaluator, name, seed) in grid.raw
        ]
        cell = figure_cells.loc[(row_title(task, evaluator), name)]
        assert cell["score"] == pytest.approx(np.mean(scores))
        assert (cell["lowest"], cell["highest"]) == pytest.approx((min(scores), max(scores)))
        assert cell["runs"] == len(scores) and cell["run"].count(";") == len(scores) - 1
        assert table_rows.loc[row_title(task, evaluator), name] == pytest.approx(np.mean(scores))
    assert table_rows.loc["linear", "one"] == "ridge" and table_rows.loc["bursty · IWL", "one"] == "always right"


@pytest.mark.slow
def test_backbones_that_do_not_differ_significantly_from_guessing_are_marked(
    grid_results: Results, blocks: dict[str, Block], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark depends on the paired difference from the zero predictor or, if this difference is missing, on the
    interval of the score."""
    assert not cells(blocks)["reason"].eq(heat_map.NOT_DIFFERENT).any(), "all intervals are above 0"
    rows = grid_results.rows
    lowered = rows["metric"].eq("score") & rows["task"].eq("linear") & rows["contestant"].isin(["cnp", "knn-3"])
    lowered &= rows["seed"].ne(1).fillna(True)
    results = replace(grid_results, rows=rows.assign(low=rows["low"].mask(lowered, -0.1)))
    compared: list[tuple[str, str]] = []

    def figure_with(gap: Difference | None) -> Figure:
        def difference(_: Contest, a: str, b: str) -> Difference | None:
            compared.append((a, b))
            return gap

        monkeypatch.setattr(Contest, "difference", difference)
        section = heat_map.section(results)
        assert section is not None
        return next(block for block in section.walk() if isinstance(block, Figure))

    reasons = figure_with(Difference(0.2, 0.1, 0.3)).data["reason"]
    assert not reasons.eq(heat_map.NOT_DIFFERENT).any() and compared == [("cnp", "zero")]
    reasons = figure_with(None).data["reason"]
    assert reasons.eq(heat_map.NOT_DIFFERENT).sum() == 1, "the interval of the score contains 0"
    figure = figure_with(Difference(0.1, -0.1, 0.3))
    marked = figure.data[figure.data["reason"].eq(heat_map.NOT_DIFFERENT)]
    assert marked[["row", "contestant"]].to_numpy().tolist() == [["linear", "cnp"]], (
        "only backbones are marked, and the interval of one seed suffices"
    )
    assert "1 score" in figure.caption


def test_cells_without_a_score_have_a_mark_and_a_reason(blocks: dict[str, Block]) -> None:
    figure_cells = cells(blocks)
    n_rows = sum(len(evaluators) for evaluators in TASKS.values())
    assert len(figure_cells[figure_cells["panel"] == "models"]) == n_rows * (len(BACKBONES) - 1)
    assert (figure_cells["label"].str.len().gt(0) | figure_cells["status"].eq("not asked")).all()
    failed = figure_cells.loc[("quadratic", "tnp")]
    assert failed["status"] == "failed" and FAILED in failed["reason"] and failed["label"] == "×"
    one_seed = figure_cells.loc[("tabular", "cnp")]
    assert one_seed["status"] == "ok" and FAILED in one_seed["reason"] and one_seed["runs"] == 1


def test_a_model_that_applies_to_few_tasks_is_in_a_separate_panel(blocks: dict[str, Block]) -> None:
    partial_models = cells(blocks).query("panel == 'models on some tasks'").reset_index()
    assert set(partial_models["contestant"]) == {ONLY_TARGETS}
    assert len(partial_models) and partial_models["status"].eq("ok").all()


def test_the_best_baseline_of_each_row_is_named(blocks: dict[str, Block]) -> None:
    best = cells(blocks).xs("best baseline", level="contestant")
    assert best.loc["linear", "score"] == pytest.approx(0.3 / 0.8)
    assert best.loc["linear", "reason"] == "knn-3"


def test_baselines_with_access_to_the_truth_are_not_the_best_baseline() -> None:
    scores = {"zero": 0.0, "periodic-mean": 0.9, "gp-rbf": 0.4, "mean": 0.1}
    rows = pd.DataFrame({"row": "a", "kind": "baseline", "contestant": [*scores], "score": [*scores.values()]})
    assert heat_map.best_baselines(rows)["reason"].tolist() == ["gp-rbf"]
    assert heat_map._frequent_baselines(rows) == ["gp-rbf", "mean"]


def test_columns_are_ordered_by_mean_rank(grid: Grid, blocks: dict[str, Block]) -> None:
    figure_cells = cells(blocks)
    scores = figure_cells[figure_cells["panel"] == "models"]["score"].reset_index()
    by_contestant = scores.pivot_table("score", index="row", columns="contestant", sort=False)
    ranks = {
        name: np.mean(
            [1 + (row.dropna() > row[name]).sum() for _, row in by_contestant.iterrows() if pd.notna(row[name])]
        )
        for name in by_contestant.columns
    }
    order = list(dict.fromkeys(scores["contestant"]))
    assert [ranks[name] for name in order] == sorted(ranks[name] for name in order)


def test_backbones_with_scores_on_less_than_half_of_the_rows_come_last(grid_results: Results) -> None:
    rows = [f"r{i}" for i in range(6)]
    by_name = {
        "all": dict.fromkeys(rows, 0.5),
        "half": dict.fromkeys(rows[:3], 0.9),
        "fewer": dict.fromkeys(rows[3:5], 1.0),
    }
    scores = pd.DataFrame(
        [(name, row, score) for name, by_row in by_name.items() for row, score in by_row.items()],
        columns=["contestant", "row", "score"],
    ).assign(kind="backbone")
    linear = [contest for contest in contests(grid_results, "grid") if contest.title == "linear"]
    assert heat_map.ordered_backbones(grid_results, linear, scores) == ["half", "all", "fewer"]


def test_numbers_are_readable_on_all_colours() -> None:
    low, high = figures.white_text_limits()
    for score in np.linspace(-3, 3, 1201):
        ink = (255, 255, 255) if score < low or score > high else (0, 0, 0)
        assert figures.contrast(figures.score_colour(score), ink) >= 4.5
    # In WCAG 2, #767676 is the lightest grey with a contrast of at least 4.5 against white.
    assert figures.contrast((0x76, 0x76, 0x76), (255, 255, 255)) == pytest.approx(4.54, abs=0.005)


def test_colours_of_positive_and_negative_scores_differ_under_colour_blindness() -> None:
    """Positive scores are more blue than red, and negative scores are more red than blue. This difference is visible
    with protanopia and deuteranopia."""
    for score in np.linspace(0.3, 1.25, 20):
        red, _, blue = figures.score_colour(score)
        assert blue - red > 40
    for score in np.linspace(-1, -0.3, 20):
        red, _, blue = figures.score_colour(score)
        assert red - blue > 40


def test_the_gain_from_related_datasets_is_a_difference_in_score(grid: Grid, tmp_path: Path) -> None:
    values = tables.read("values", grid.folder / "tables" / "gp-mixture.values.parquet")
    with_related = values[(values["contestant"] == ONLY_TARGETS) & (values["metric"] == "score")]
    with_related = with_related.assign(n_related=2, value=with_related["value"] + 0.25)
    tables.write("values", pd.concat([values, with_related]), tmp_path / "all.values.parquet", {})
    section = heat_map.section(load_results(tmp_path))
    assert section is not None
    table = next(block for block in section.walk() if isinstance(block, Table) and block.name.endswith("-related"))
    assert table.frame["contestant"].tolist() == [ONLY_TARGETS]
    assert table.frame["adds"].tolist() == pytest.approx([0.25])


def test_columns_are_drawn_in_the_order_of_the_data(blocks: dict[str, Block]) -> None:
    """A cell without a score must not move its column to the front."""
    figure = blocks["heat-map-grid"]
    assert isinstance(figure, Figure)
    rows = figure.data[figure.data["panel"] == "models"]
    names = list(dict.fromkeys(rows["contestant"]))
    spec = figure.live | {"datasets": {"rows": curves.records(rows)}, "width": 500}
    svg = vl_convert.vegalite_to_svg(spec)
    x_positions = [float(re.findall(rf"translate\(([\d.]+),[^>]*>{re.escape(name)}</text>", svg)[0]) for name in names]
    assert x_positions == sorted(x_positions)


@pytest.mark.slow
def test_user_defined_backbones_are_highlighted(grid_results: Results) -> None:
    results = replace(grid_results)
    results.__dict__["user_backbones"] = frozenset({"tnp"})
    section = heat_map.section(results)
    assert section is not None
    (figure,) = [block for block in section.walk() if isinstance(block, Figure)]
    svg = vl_convert.vegalite_to_svg(figure.make_static())
    styles = {name: style for style, name in re.findall(r"<text([^>]*)>([a-z0-9-]+)</text>", svg)}
    assert "bold" in styles["tnp"] and ACCENT in styles["tnp"]
    assert "bold" not in styles["icicl-tnp"] and ACCENT not in styles["icicl-tnp"]
    html = page.render_section(section, (), {}, results.user_backbones).html
    assert re.findall(r'<th scope="col" class="number own">(.*?)</th>', html) == ["tnp"]


def test_narrow_columns_show_class_names_without_modules(blocks: dict[str, Block]) -> None:
    """Tooltips, tables and files have the full names."""
    figure = blocks["heat-map-grid"]
    assert isinstance(figure, Figure)
    renamed = figure.data.replace({"contestant": {"tnp": "my_package.net:One", "cnp": "my_package.net:Two"}})
    names = list(dict.fromkeys(renamed["contestant"]))
    figure = figures.figure("map", "", "", renamed.assign(panel="all"), sorted(set(renamed["row"])), {"all": names})
    live = figure.live | {"datasets": {"rows": curves.records(figure.data)}, "width": 500}
    for spec in (figure.make_static(), live):
        svg = vl_convert.vegalite_to_svg(spec)
        assert ">One</text>" in svg and ">Two</text>" in svg and ">mamba</text>" in svg
        assert "my_package.net" not in "".join(re.findall(r">([^<]*)</text>", svg))
    assert {"my_package.net:One", "my_package.net:Two"} <= set(figure.data["contestant"])
    columns = ("my_package.net:One", "my_package.net:Two", "mamba")
    first_screen = FirstScreen("summary", (), "grid", columns, (("linear", []),), 0, (), ())
    html = page.render_section(Section("summary", "", (first_screen,)), (), {}, frozenset()).html
    assert '<th scope="col" title="my_package.net:One"><span>One</span>' in html
    assert '<th scope="col"><span>mamba</span>' in html


@pytest.mark.slow
def test_the_separation_table_relates_gaps_between_backbones_to_the_deviation_over_seeds(
    grid_results: Results,
) -> None:
    section = heat_map.section(grid_results)
    assert section is not None
    table = next(block for block in section.walk() if isinstance(block, Table) and block.name.endswith("separation"))
    all_contests = contests(grid_results, "grid")
    assert table.frame["row"].tolist() == [contest.title for contest in all_contests]
    for contest, row in zip(all_contests, table.frame.to_dict("records"), strict=True):
        values = contest.rows[contest.rows["kind"] == "backbone"].groupby("contestant")["value"]
        inner = values.mean().sort_values().iloc[1:-1]
        assert row["gap"] == pytest.approx(np.median(np.diff(np.quantile(inner, [0, 0.25, 0.5, 0.75, 1]))))
        assert row["separates"] == ("yes" if row["gap"] > 2 * row["sd"] else "no")


def test_user_defined_tasks_and_variants_are_not_in_the_heat_map(grid: Grid, tmp_path: Path) -> None:
    values = tables.read_all("values", grid.folder)
    linear = values[values["task"].eq("linear")]
    wide = linear[linear["contestant"].eq("gpt2")]
    wide = wide.assign(run=wide["run"].str.replace("gpt2", "gpt2-wide"), variant="wide")
    user_rows = linear[linear["contestant"].isin(["gpt2", "zero", "ridge", "knn-3"])]
    user_rows = user_rows.assign(task="csv-mine", family="tabular", prompt_set="csv-mine")
    is_model = user_rows["kind"].eq("backbone")
    user_rows["trained_on"] = user_rows["trained_on"].mask(is_model, "linear")
    user_rows["contestant"] = user_rows["contestant"].mask(is_model, "gpt2@linear")
    rows = pd.concat([linear, values[values["task"].eq("quadratic")], wide, user_rows], ignore_index=True)
    tables.write("values", rows, tmp_path / "all.values.parquet", {})
    loaded = load_results(tmp_path)
    assert loaded.variants == {"gpt2-wide"}
    assert "csv-mine" in {task.task for task in loaded.slices}
    section = heat_map.section(loaded)
    assert section is not None
    figure = next(block for block in section.blocks if isinstance(block, Figure))
    assert set(figure.data["row"]) == {"linear", "quadratic"}
    assert "gpt2" in set(figure.data["contestant"]) and "gpt2-wide" not in set(figure.data["contestant"])
    notes = " ".join(block.text for block in section.blocks if isinstance(block, Text))
    assert "gpt2-wide" in notes
    (first_screen,) = summary.section(loaded).blocks
    assert isinstance(first_screen, FirstScreen)
    assert "gpt2" in first_screen.columns and "gpt2-wide" not in first_screen.columns
    assert [title for title, _ in first_screen.rows] == ["linear", "quadratic"]


def test_models_that_need_inputs_are_not_applicable_on_streams_without_inputs(tmp_path: Path) -> None:
    """Other missing cells, including those of unknown models, have the status `not run`."""
    packed = Path(__file__).parents[2] / "results" / "reference"
    folder = tmp_path / "reference"
    folder.mkdir()
    for path in packed.glob("markov-grid.*.parquet"):
        (folder / path.name).symlink_to(path)
    results = load_results(tmp_path)
    markov = contests(results, "grid")
    names = ["gpt2", "tnp", "coqe-learned", "lstm", "of-a-plug-in"]
    cells = heat_map.heat_map_cells(results, markov, heat_map.main_scores(results, markov), names)
    assert cells["status"].tolist() == ["ok", "skipped", "skipped", "not run", "not run"]
    assert "needs inputs" in cells["reason"][1]
