"""The heat map: means over seeds, the order of columns, cells without numbers, colours that can be read."""

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
from iclbench.report.blocks import Block, Figure, Glance, Section, Table, Text
from iclbench.report.data import Results, load
from iclbench.report.figures import curves
from iclbench.report.figures import heat_map as figures
from iclbench.report.sections import heat_map
from iclbench.report.style import ACCENT
from tests.report import synthetic_grid
from tests.report.synthetic_grid import BACKBONES, FAILED, ONLY_TARGETS, TASKS, Grid


@pytest.fixture(scope="module")
def blocks(grid_results: Results) -> dict[str, Block]:
    section = heat_map.section(grid_results)
    assert section is not None
    return {block.name: block for block in section.walk() if not isinstance(block, Text)}


def title(task: str, evaluator: str) -> str:
    return task if evaluator in ("next", "targets") else f"{task} · {evaluator.upper()}"


def cells(blocks: dict[str, Block]) -> pd.DataFrame:
    figure = blocks["heat-map-grid"]
    assert isinstance(figure, Figure)
    return figure.data.set_index(["row", "contestant"])


def test_every_cell_holds_the_mean_over_seeds_of_normalised_means(grid: Grid, blocks: dict[str, Block]) -> None:
    found, table = cells(blocks), blocks["heat-map-grid-numbers"]
    assert isinstance(table, Table)
    numbers = table.frame.set_index("row")
    for task, evaluator, name, _ in grid.raw:
        seeds = [
            synthetic_grid.score(grid.raw[task, evaluator, name, seed].mean(), evaluator)
            for seed in (0, 1)
            if (task, evaluator, name, seed) in grid.raw
        ]
        cell = found.loc[(title(task, evaluator), name)]
        assert cell["score"] == pytest.approx(np.mean(seeds))
        assert (cell["lowest"], cell["highest"]) == pytest.approx((min(seeds), max(seeds)))
        assert cell["runs"] == len(seeds) and cell["run"].count(";") == len(seeds) - 1
        assert numbers.loc[title(task, evaluator), name] == pytest.approx(np.mean(seeds))
    assert numbers.loc["linear", "one"] == "ridge" and numbers.loc["bursty · IWL", "one"] == "always right"


@pytest.mark.slow
def test_backbones_that_have_not_learned_say_so(
    grid_results: Results, blocks: dict[str, Block], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told by differences to the zero predictor on the same episodes, where there are any: an interval that holds 0
    is not enough."""
    assert not cells(blocks)["reason"].eq(heat_map.NOT_LEARNED).any(), "all intervals are above 0"
    rows = grid_results.rows
    one = rows["metric"].eq("score") & rows["task"].eq("linear") & rows["contestant"].isin(["cnp", "knn-3"])
    results = replace(grid_results, rows=rows.assign(low=rows["low"].mask(one & rows["seed"].ne(1).fillna(True), -0.1)))
    asked: list[tuple[str, str]] = []

    def figure_where(gap: Difference | None) -> Figure:
        def difference(_: Contest, a: str, b: str) -> Difference | None:
            asked.append((a, b))
            return gap

        monkeypatch.setattr(Contest, "difference", difference)
        section = heat_map.section(results)
        assert section is not None
        return next(block for block in section.walk() if isinstance(block, Figure))

    apart = figure_where(Difference(0.2, 0.1, 0.3)).data["reason"]
    assert not apart.eq(heat_map.NOT_LEARNED).any() and asked == [("cnp", "zero")]
    alone = figure_where(None).data["reason"]
    assert alone.eq(heat_map.NOT_LEARNED).sum() == 1, "no single episodes: its own interval has to do"
    figure = figure_where(Difference(0.1, -0.1, 0.3))
    said = figure.data[figure.data["reason"].eq(heat_map.NOT_LEARNED)]
    assert said[["row", "contestant"]].to_numpy().tolist() == [["linear", "cnp"]], (
        "one seed is enough, baselines are not"
    )
    assert "1 score" in figure.caption


def test_no_cell_is_blank_and_every_one_without_a_number_says_why(blocks: dict[str, Block]) -> None:
    found = cells(blocks)
    rows = sum(len(evaluators) for evaluators in TASKS.values())
    assert len(found[found["panel"] == "models"]) == rows * (len(BACKBONES) - 1)
    assert (found["label"].str.len().gt(0) | found["status"].eq("not asked")).all()
    failed = found.loc[("quadratic", "tnp")]
    assert failed["status"] == "failed" and FAILED in failed["reason"] and failed["label"] == "×"
    half = found.loc[("tabular", "cnp")]
    assert half["status"] == "ok" and FAILED in half["reason"] and half["runs"] == 1


def test_a_model_with_few_rows_has_a_panel_of_those_rows(blocks: dict[str, Block]) -> None:
    further = cells(blocks).query("panel == 'models on some tasks'").reset_index()
    assert set(further["contestant"]) == {ONLY_TARGETS}
    assert len(further) and further["status"].eq("ok").all()


def test_best_baseline_is_the_best_of_each_row_and_is_named(blocks: dict[str, Block]) -> None:
    best = cells(blocks).xs("best baseline", level="contestant")
    assert best.loc["linear", "score"] == pytest.approx(0.3 / 0.8)
    assert best.loc["linear", "reason"] == "knn-3"


def test_who_is_told_what_others_infer_is_not_the_best_baseline() -> None:
    scores = {"zero": 0.0, "periodic-mean": 0.9, "gp-rbf": 0.4, "mean": 0.1}
    rows = pd.DataFrame({"row": "a", "kind": "baseline", "contestant": [*scores], "score": [*scores.values()]})
    assert heat_map.best(rows)["reason"].tolist() == ["gp-rbf"]
    assert heat_map._common(rows) == ["gp-rbf", "mean"]


def test_columns_are_in_the_order_of_mean_ranks(grid: Grid, blocks: dict[str, Block]) -> None:
    found = cells(blocks)
    shown = found[found["panel"] == "models"]["score"].reset_index()
    wide = shown.pivot_table("score", index="row", columns="contestant", sort=False)
    ranks = {
        name: np.mean([1 + (line.dropna() > line[name]).sum() for _, line in wide.iterrows() if pd.notna(line[name])])
        for name in wide.columns
    }
    order = list(dict.fromkeys(shown["contestant"]))
    assert [ranks[name] for name in order] == sorted(ranks[name] for name in order)


def test_a_backbone_with_half_of_the_rows_stands_by_its_rank_and_one_with_fewer_last(grid_results: Results) -> None:
    rows = [f"r{i}" for i in range(6)]
    own = {
        "all": dict.fromkeys(rows, 0.5),
        "half": dict.fromkeys(rows[:3], 0.9),
        "fewer": dict.fromkeys(rows[3:5], 1.0),
    }
    scores = pd.DataFrame(
        [(name, row, score) for name, each in own.items() for row, score in each.items()],
        columns=["contestant", "row", "score"],
    ).assign(kind="backbone")
    linear = [contest for contest in contests(grid_results, "grid") if contest.title == "linear"]
    assert heat_map.ordered_backbones(grid_results, linear, scores) == (["half", "all"], ["fewer"])


def test_numbers_are_readable_on_every_colour() -> None:
    low, high = figures.white_beyond()
    for score in np.linspace(-3, 3, 1201):
        ink = (255, 255, 255) if score < low or score > high else (0, 0, 0)
        assert figures.contrast(figures.colour(score), ink) >= 4.5
    # As published: mid grey #767676 is the lightest that passes 4.5 on white.
    assert figures.contrast((0x76, 0x76, 0x76), (255, 255, 255)) == pytest.approx(4.54, abs=0.005)


def test_worse_than_nothing_and_better_than_nothing_differ_for_the_colour_blind() -> None:
    """Blue against red stays under protanopia and deuteranopia: one side has more of it, the other less."""
    for score in np.linspace(0.3, 1.25, 20):
        red, _, blue = figures.colour(score)
        assert blue - red > 40
    for score in np.linspace(-1, -0.3, 20):
        red, _, blue = figures.colour(score)
        assert red - blue > 40


def test_related_datasets_stand_on_the_line_without_them(grid: Grid, tmp_path: Path) -> None:
    values = tables.read("values", grid.folder / "tables" / "gp-mixture.values.parquet")
    more = values[(values["contestant"] == ONLY_TARGETS) & (values["metric"] == "score")]
    more = more.assign(n_related=2, value=more["value"] + 0.25)
    tables.write("values", pd.concat([values, more]), tmp_path / "all.values.parquet", {})
    section = heat_map.section(load(tmp_path))
    assert section is not None
    table = next(block for block in section.walk() if isinstance(block, Table) and block.name.endswith("-related"))
    assert table.frame["contestant"].tolist() == [ONLY_TARGETS]
    assert table.frame["adds"].tolist() == pytest.approx([0.25])


def test_the_page_draws_the_columns_in_the_order_of_the_file(blocks: dict[str, Block]) -> None:
    """Whatever stands in the cells: one without a number must not bring its column to the front."""
    figure = blocks["heat-map-grid"]
    assert isinstance(figure, Figure)
    rows = figure.data[figure.data["panel"] == "models"]
    names = list(dict.fromkeys(rows["contestant"]))
    spec = figure.live | {"datasets": {"rows": curves.records(rows)}, "width": 500}
    svg = vl_convert.vegalite_to_svg(spec)
    places = [float(re.findall(rf"translate\(([\d.]+),[^>]*>{re.escape(name)}</text>", svg)[0]) for name in names]
    assert places == sorted(places)


def test_names_of_the_users_own_stand_out(grid_results: Results) -> None:
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


def test_classes_of_one_module_are_told_apart_in_narrow_columns(blocks: dict[str, Block]) -> None:
    """There they stand without their module; tooltips, tables and files have the whole name."""
    figure = blocks["heat-map-grid"]
    assert isinstance(figure, Figure)
    renamed = figure.data.replace({"contestant": {"tnp": "my_package.net:One", "cnp": "my_package.net:Two"}})
    names = list(dict.fromkeys(renamed["contestant"]))
    drawn = figures.figure("own", "", "", renamed.assign(panel="all"), sorted(set(renamed["row"])), {"all": names})
    live = drawn.live | {"datasets": {"rows": curves.records(drawn.data)}, "width": 500}
    for spec in (drawn.make_static(), live):
        svg = vl_convert.vegalite_to_svg(spec)
        assert ">One</text>" in svg and ">Two</text>" in svg and ">mamba</text>" in svg
        assert "my_package.net" not in "".join(re.findall(r">([^<]*)</text>", svg))
    assert {"my_package.net:One", "my_package.net:Two"} <= set(drawn.data["contestant"])
    columns = ("my_package.net:One", "my_package.net:Two", "mamba")
    glance = Glance("summary", (), "grid", columns, (("linear", []),), 0, (), ())
    html = page.render_section(Section("summary", "", (glance,)), (), {}, frozenset()).html
    assert '<th scope="col" title="my_package.net:One"><span>One</span>' in html
    assert '<th scope="col"><span>mamba</span>' in html


def test_the_page_says_of_every_row_whether_it_separates_backbones(grid_results: Results) -> None:
    section = heat_map.section(grid_results)
    assert section is not None
    table = next(block for block in section.walk() if isinstance(block, Table) and block.name.endswith("separation"))
    found = contests(grid_results, "grid")
    assert table.frame["row"].tolist() == [contest.title for contest in found]
    for contest, row in zip(found, table.frame.to_dict("records"), strict=True):
        values = contest.rows[contest.rows["kind"] == "backbone"].groupby("contestant")["value"]
        kept = values.mean().sort_values().iloc[1:-1]
        assert row["gap"] == pytest.approx(np.median(np.diff(np.quantile(kept, [0, 0.25, 0.5, 0.75, 1]))))
        assert row["tells"] == ("yes" if row["gap"] > 2 * row["sd"] else "no")
