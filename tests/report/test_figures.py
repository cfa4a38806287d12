"""Figures show the numbers in the tables and are valid Vega-Lite, and contestants have distinct looks."""

import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import vl_convert

from iclbench import tables
from iclbench.core.metrics import metric
from iclbench.registry import BACKBONES, Backbones, Variant
from iclbench.report import style
from iclbench.report.blocks import Figure, Section, Table
from iclbench.report.data import Results
from iclbench.report.figures import curves, learning
from iclbench.report.sections import training
from iclbench.report.style import ARCHITECTURE_LOOKS, BACKGROUND, CAUSAL_LOOKS, SET_LOOKS, SHIPPED_LOOKS, Look, looks
from tests.report import vega_lite


@pytest.fixture(scope="module")
def figures(sections: list[Section]) -> dict[str, Figure]:
    blocks = [block for section in sections for block in section.walk()]
    return {block.name: block for block in blocks if isinstance(block, Figure)}


def test_a_task_has_a_figure_for_every_kind_of_curve(figures: dict[str, Figure]) -> None:
    assert {name for name in figures if name.startswith("linear-")} == {
        "linear-small-curves-next-squared-error",
        "linear-small-points-80-next-squared-error",
        "linear-small-shifts-next-squared-error",
        "linear-small-training-loss",
    }


def test_a_learning_curve_shows_the_numbers_in_the_table(figures: dict[str, Figure], results: Path) -> None:
    values = tables.read_all("values", results)
    rows = pd.DataFrame(figures["linear-small-curves-next-squared-error"].static["data"]["values"])
    for contestant in ("mamba", "xgboost", "oracle-bayes"):
        drawn_rows = rows[rows["contestant"] == contestant].set_index("n_context")
        table = values.query(
            "task == 'linear' and contestant == @contestant and shift == 'none' and metric == 'squared_error'"
        )
        table = table.set_index("n_context").sort_index()
        assert drawn_rows.index.tolist() == table.index.tolist()
        for column in ("value", "low", "high"):
            assert drawn_rows[column].tolist() == table[column].tolist()


def test_several_seeds_are_drawn_as_a_mean_with_range_and_as_thin_lines(
    figures: dict[str, Figure], results: Path
) -> None:
    figure = figures["linear-small-curves-next-squared-error"]
    rows = pd.DataFrame(figure.static["data"]["values"]).query("kind == 'backbone'")
    assert sorted(rows["series"].unique()) == [
        "linear-gpt2-small-s0",
        "linear-gpt2-small-s0; linear-gpt2-small-s1; linear-gpt2-small-s2",
        "linear-gpt2-small-s1",
        "linear-gpt2-small-s2",
        "linear-mamba-small-s0",
    ]
    seeds = tables.read_all("values", results).query("task == 'linear' and contestant == 'gpt2' and shift == 'none'")
    seeds = seeds.query("metric == 'squared_error' and evaluator == 'next' and kind == 'backbone'")
    by_size = seeds.groupby("n_context")["value"]
    mean = rows[rows["series"].str.contains(";")].set_index("n_context")
    assert mean["value"].tolist() == pytest.approx(by_size.mean().tolist(), rel=1e-12)
    assert (mean["low"].tolist(), mean["high"].tolist()) == (by_size.min().tolist(), by_size.max().tolist())
    values = tables.read_all("values", results).query("run == 'linear-gpt2-small-s1' and shift == 'none'")
    values = values.query("metric == 'squared_error' and evaluator == 'next'").sort_values("n_context")
    for column in ("value", "low", "high"):
        assert rows.loc[rows["series"] == "linear-gpt2-small-s1", column].tolist() == values[column].tolist()
    is_seed = rows["contestant"].eq("gpt2") & ~rows["series"].str.contains(";")
    assert rows["band"].ne(is_seed).all()
    assert set(rows.loc[is_seed, "width"]) == {curves.SEED_WIDTH} and set(rows.loc[~is_seed, "width"]) == {2.6}
    layers = [layer["mark"] for layer in figure.live["layer"] if layer["mark"]["type"] == "line"]
    assert layers[0]["strokeWidth"] == curves.SEED_WIDTH, "single seeds are drawn behind the other lines"
    assert set(rows.loc[rows["contestant"] == "mamba", "label"]) == {"mamba"}
    assert "linear-gpt2-small-s2" in set(rows["label"])


def test_the_interval_of_a_mean_spans_the_intervals_of_its_seeds(report_results: Results, results: Path) -> None:
    values = tables.read_all("values", results)
    seeds = values.query("task == 'linear' and contestant == 'gpt2' and shift == 'none' and n_context == 7")
    seeds = seeds[seeds["kind"] == "backbone"]
    assert len(seeds) == 3
    task = next(s for s in report_results.slices if s.task == "linear")
    mean = task.curves.query("contestant == 'gpt2' and shift == 'none' and n_context == 7").iloc[0]
    assert mean["value"] == pytest.approx(sum(seeds["value"]) / 3, rel=1e-15)
    assert (mean["low"], mean["high"], mean["runs"]) == (min(seeds["low"]), max(seeds["high"]), 3)


def test_every_figure_is_valid_vega_lite(figures: dict[str, Figure]) -> None:
    single = figures["linear-small-points-80-next-squared-error"]
    several = figures["linear-small-shifts-next-squared-error"]
    no_rows = {"data": {"values": []}}  # rows are slow to validate
    panel = several.static["concat"][0] | no_rows
    for spec in (single.live, single.static | no_rows, several.live, several.static | {"concat": [panel]}):
        vega_lite.validate(spec)


def test_ticks_at_multiples_of_ten_are_plain_numbers() -> None:
    """By default, Vega prints 60 as 6e+1 on an axis with steps of 20."""
    rows = pd.DataFrame({"n_context": [1.0, 2.0], "value": [-40.0, 60.0], "low": None, "high": None})
    names = {"contestant": "cnp", "kind": "backbone", "label": "cnp", "series": "cnp"}
    data = rows.assign(**names, width=1.0, sparse=True)
    make_static, _ = curves.specifications(
        [("", data)], curves.Axes("n", "scale", (1, 2), (-54, 64)), {"cnp": Look("#000")}
    )
    texts = re.findall(r">([^<]*)</text>", vl_convert.vegalite_to_svg(make_static()))
    assert {"60", "20"} <= set(texts) and not any("e+" in text for text in texts)


def test_a_training_curve_with_a_single_point_is_not_drawn(report_results: Results) -> None:
    (task,) = (task for task in report_results.slices if task.task == "linear")
    last_steps = task.rows.groupby("run")["axis_value"].transform("max")
    is_last = task.rows["axis"].ne("train_step").fillna(True) | task.rows["axis_value"].eq(last_steps)
    assert training.section(task) is not None
    task = next(iter(replace(report_results, rows=task.rows[is_last]).slices))
    assert training.section(task) is None


def test_the_trained_length_is_marked(figures: dict[str, Figure]) -> None:
    extrapolation = figures["linear-small-points-80-next-squared-error"]
    shifts = figures["linear-small-shifts-next-squared-error"]
    for spec in (extrapolation.static, extrapolation.live):
        (rule,) = [layer for layer in spec["layer"] if layer["mark"]["type"] == "rule"]
        assert rule["encoding"]["x"]["field"] == "trained"
    assert set(extrapolation.data.loc[extrapolation.data["kind"] == "backbone", "trained"]) == {20}
    assert extrapolation.data.loc[extrapolation.data["kind"] != "backbone", "trained"].isna().all()
    assert not [layer for layer in shifts.live["layer"] if layer["mark"]["type"] == "rule"]


def test_published_numbers_are_drawn_as_diamonds(figures: dict[str, Figure]) -> None:
    rows = figures["linear-small-curves-next-squared-error"].static["data"]["values"]
    assert [(r["contestant"], r["n_context"], r["value"]) for r in rows if r["kind"] == "published"] == [
        ("gpt2", 10, 0.05)
    ]


def test_a_curve_that_skips_context_sizes_is_drawn_with_points(figures: dict[str, Figure]) -> None:
    rows = figures["linear-small-curves-next-squared-error"].static["data"]["values"]
    assert {r["contestant"] for r in rows if r["sparse"]} == {"xgboost"}


def test_every_shift_has_a_panel(figures: dict[str, Figure]) -> None:
    figure = figures["linear-small-shifts-next-squared-error"]
    assert [panel.title for panel in figure.panels] == ["input-scale-2", "noisy", "orthants"]
    assert sum(len(view["data"]["values"]) for view in figure.static["concat"]) == len(figure.data)
    noisy = figure.static["concat"][1]["data"]["values"]
    assert "mamba" not in {r["contestant"] for r in noisy}, "the cell of mamba failed"


def test_missing_and_infinite_values_are_exported_as_none() -> None:
    data = pd.DataFrame({"value": pd.array([1.0, float("inf"), None], dtype="Float64"), "n": [1, 2, 3]})
    assert [row["value"] for row in curves.records(data)] == [1.0, None, None]


@pytest.mark.parametrize("name", ["squared_error", "log_likelihood", "accuracy", "unknown"])
def test_every_metric_has_a_valid_y_range(name: str) -> None:
    for values in ([0.0], [-3.0, 5.0], [float("inf"), 1e-9], []):
        data = pd.DataFrame({"value": pd.array(values, dtype="Float64"), "kind": ["backbone"] * len(values)})
        low, high = curves.domain(data, metric(name))
        assert low < high
        assert low > 0 or not metric(name).logarithmic


def test_the_y_range_is_determined_by_the_backbones() -> None:
    data = pd.DataFrame({"value": [1.0, 0.02, 1e-20, 300.0], "kind": ["backbone", "backbone", "oracle", "baseline"]})
    low, high = curves.domain(data, metric("squared_error"))
    assert 1e-4 < low <= 0.02
    assert 1.0 <= high < 10


@pytest.mark.parametrize("name", ["squared_error", "log_likelihood"])
def test_the_y_range_includes_the_oracle(name: str) -> None:
    optimum = {"squared_error": 0.01, "log_likelihood": 9.0}[name]
    data = pd.DataFrame({"kind": ["backbone", "backbone", *["baseline"] * 200, "oracle"]})
    data["value"] = [0.2, 2.5, *[1.0] * 200, optimum]
    low, high = curves.domain(data, metric(name))
    assert low < optimum < high


def test_an_oracle_without_error_does_not_extend_the_y_range() -> None:
    data = pd.DataFrame({"kind": ["backbone", "backbone", "oracle"], "value": [0.1, 1.0, 1e-20]})
    low, _ = curves.domain(data, metric("squared_error"))
    assert 0.001 < low < 0.004


def test_the_legend_is_sorted_by_the_last_value_of_each_line(figures: dict[str, Figure]) -> None:
    figure = figures["linear-small-curves-next-squared-error"]
    lines = figure.data[figure.data["kind"] != "published"].sort_values("n_context")
    ends = lines.groupby(["contestant", "series"]).tail(1).groupby("contestant")["value"].mean()
    legend = [name for name in figure.legend if name != curves.OTHERS]
    assert len(legend) > 3
    assert legend == sorted(legend, key=lambda name: -ends[name])
    colours = [layer["encoding"]["color"] for layer in figure.static["layer"] if layer["mark"]["type"] == "line"]
    assert colours[0]["legend"]["values"] == legend


@pytest.mark.parametrize(("values", "log"), [([1.0, 0.4], False), ([1.0, 0.1], True), ([1.0, 0.0], False)])
def test_an_axis_is_logarithmic_if_backbones_span_a_decade(values: list[float], log: bool) -> None:
    data = pd.DataFrame({"value": [*values, 1e-9, 40.0], "kind": ["backbone", "backbone", "oracle", "baseline"]})
    assert curves.spans_a_decade(data) is log
    if not log:
        assert curves.domain(data, metric("unknown_error")) == (0.0, 1.05 * 1.5)


def test_the_look_of_a_shipped_backbone_does_not_depend_on_other_contestants() -> None:
    few, many = looks(["mamba", "s4d"], [], []), looks(["cnp", "gpt2", "mamba", "s4", "s4d", "tnp"], [], [])
    assert few["mamba"] == many["mamba"]
    assert few["s4d"] == many["s4d"]
    assert len({(look.colour, look.dash) for look in many.values()}) == len(many)


def test_all_contestants_differ_in_colour_or_dash() -> None:
    backbones, baselines = [f"net-{i}" for i in range(13)], [f"base-{i}" for i in range(20)]
    by_name = looks(backbones, baselines, ["oracle-bayes"])
    assert len({(look.colour, look.dash) for look in by_name.values()}) == len(by_name)


def test_only_the_best_variant_of_a_baseline_is_in_the_foreground(report_results: Results) -> None:
    # The test changes looks, so it uses a copy of the results.
    task = next(s for s in replace(report_results).slices if s.task == "linear")
    rows = task.curves_by_run[task.curves_by_run["shift"] == "none"]
    lasso = rows[rows["contestant"] == "lasso-1e-2"]
    worse = lasso.assign(contestant="lasso-1", run="lasso-1", value=lasso["value"] * 2)
    task.results.looks["lasso-1"] = task.results.looks["lasso-1e-2"]
    task.models["lasso-1"] = task.models["lasso-1e-2"]
    by_name = learning.looks_in_legend_order(task, pd.concat([rows, worse]))
    assert by_name["lasso-1e-2"] != BACKGROUND
    assert by_name["lasso-1"] == BACKGROUND


def test_every_row_of_a_figure_lists_its_runs(figures: dict[str, Figure], results: Path) -> None:
    runs = {*tables.read_all("values", results)["run"], *tables.read_all("costs", results)["run"]}
    for name, figure in figures.items():
        rows = figure.rows()
        assert rows.columns[0] == "run", name
        names = rows["run"].dropna().str.split("; ").explode()
        assert set(names) <= runs, name
        assert len(rows) == len(figure.data)


# Matrices for linear RGB under protanopia and deuteranopia (Machado, Oliveira and Fernandes 2009, severity 1).
VISION = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
}


def _lab(colour: str, vision: str) -> np.ndarray:
    """Return CIE L*a*b* (D65) of an sRGB colour."""
    srgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    perceived = np.clip(np.asarray(VISION[vision]) @ linear, 0, 1)
    to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    white = np.array(to_xyz) @ perceived / [0.95047, 1.0, 1.08883]
    f = np.where(white > 0.008856, np.cbrt(white), 7.787 * white + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", list(VISION))
@pytest.mark.parametrize("kind", [CAUSAL_LOOKS, SET_LOOKS])
def test_colours_within_a_kind_of_model_differ_under_colour_blindness(kind: dict[str, Look], vision: str) -> None:
    """A difference of 2.3 is just noticeable. Lines need several times as much."""
    for a, b in combinations(kind.values(), 2):
        assert np.linalg.norm(_lab(a.colour, vision) - _lab(b.colour, vision)) > 15


def test_shipped_backbones_differ_without_colour() -> None:
    """Causal and set models differ in dash and fill, models of the same kind in shape, and variants also in dash."""
    styled_looks = [
        look for name, look in SHIPPED_LOOKS.items() if name in ARCHITECTURE_LOOKS or name in style.VARIANT_SHAPES
    ]
    assert len({(look.shape, look.hollow) for look in styled_looks}) == len(styled_looks)
    causal = [look for look in SHIPPED_LOOKS.values() if look.order == "causal"]
    assert not {look.dash for look in causal} & {look.dash for look in SET_LOOKS.values()}
    assert len({(look.colour, look.dash) for look in SHIPPED_LOOKS.values()}) == len(SHIPPED_LOOKS)


def test_looks_agree_with_the_order_of_the_class_and_the_colour_of_the_backbone() -> None:
    assert set(ARCHITECTURE_LOOKS) == {*style.BACKBONE_STYLES} <= set(BACKBONES.architectures())
    for name, look in SHIPPED_LOOKS.items():
        assert BACKBONES.get(name).order == look.order
        assert SHIPPED_LOOKS[name].colour == ARCHITECTURE_LOOKS[BACKBONES.variant(name).backbone].colour


def test_a_shipped_backbone_without_a_style_has_a_unique_look(monkeypatch: pytest.MonkeyPatch) -> None:
    orders = {name: BACKBONES.get(name).order for name in BACKBONES.names()}
    architectures = BACKBONES.architectures()
    without_variants = Backbones({name: BACKBONES.entry(name) for name in architectures}, {})
    for name in ("gpt2", "cnp"):
        monkeypatch.delitem(style.BACKBONE_STYLES, name)
    monkeypatch.setattr(style, "SHIPPED_LOOKS", style.shipped_looks(without_variants))
    all_looks = looks(architectures, [], [], orders)
    by_name = {name: all_looks[name] for name in architectures}
    assert {"gpt2", "cnp"}.isdisjoint(style.SHIPPED_LOOKS)
    assert len({(look.colour, look.dash) for look in by_name.values()}) == len(architectures)
    assert [(by_name[name].order, by_name[name].hollow, by_name[name].is_user_defined) for name in ("gpt2", "cnp")] == [
        ("causal", False, False),
        ("set", True, False),
    ]


def test_a_new_variant_has_the_colour_of_its_backbone_and_a_unique_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = Backbones({"mamba": BACKBONES.entry("mamba")}, {"mamba-wide": Variant("mamba", {"expand": 4}, "wider")})
    monkeypatch.setitem(style.VARIANT_SHAPES, "mamba-wide", "star")
    by_name = style.shipped_looks(wide)
    variant, backbone = by_name["mamba-wide"], by_name["mamba"]
    assert variant.colour == backbone.colour and variant.shape == style.PATHS["star"]
    assert variant.dash not in {look.dash for look in ARCHITECTURE_LOOKS.values()}


def test_every_line_width_has_a_layer(figures: dict[str, Figure]) -> None:
    """Numbers on the page have six digits, so a layer for a width with more digits would select no line."""
    figure = figures["linear-small-curves-next-squared-error"]
    layers = re.findall(r"datum\.width === ([\d.]+)", " ".join(str(layer) for layer in figure.live["layer"]))
    widths = {float(f"{width:.6g}") for width in figure.data["width"].dropna()}
    assert len(widths) > 2
    assert widths <= {float(width) for width in layers}


def test_many_backbones_are_split_into_panels_of_causal_and_set_models(report_results: Results) -> None:
    # The test changes looks, so it uses a copy of the results.
    task = next(s for s in replace(report_results).slices if s.task == "linear")
    rows = task.curves_by_run[
        (task.curves_by_run["shift"] == "none") & (task.curves_by_run["metric"] == "squared_error")
    ]
    gpt2 = rows[rows["contestant"] == "gpt2"]
    others = [
        gpt2.assign(contestant=name, run=gpt2["run"].str.replace("gpt2", name))
        for name in ARCHITECTURE_LOOKS
        if name != "gpt2"
    ]
    task.results.looks.update(ARCHITECTURE_LOOKS)
    task.kinds.update(dict.fromkeys(ARCHITECTURE_LOOKS, "backbone"))
    figure = learning.figure(task, {"": pd.concat([rows, *others])}, name="x", title="x", caption="")
    assert [panel.title for panel in figure.panels] == ["causal models", "set models"]
    for panel, kind in (("causal models", CAUSAL_LOOKS), ("set models", SET_LOOKS)):
        lines = figure.data[(figure.data["panel"] == panel) & (figure.data["kind"] == "backbone")]
        assert set(lines["contestant"]) == set(kind)
        assert not lines.duplicated(["contestant", "n_context"]).any()
        assert lines["series"].str.count("; ").eq(2).all()
    mean = figure.data[(figure.data["contestant"] == "tnp") & (figure.data["n_context"] == 7)]["value"].item()
    assert mean == pytest.approx(gpt2[gpt2["n_context"] == 7]["value"].mean(), rel=1e-12)


def test_captions_begin_with_a_capital_letter(sections: list[Section], targets_sections: list[Section]) -> None:
    blocks = [block for section in [*sections, *targets_sections] for block in section.walk()]
    captions = {block.name: block.caption for block in blocks if isinstance(block, Figure | Table)}
    assert {name: text for name, text in captions.items() if text[:1].islower()} == {}


def test_captions_of_figures_without_backbones_do_not_describe_seeds() -> None:
    rows = pd.DataFrame({"kind": ["baseline"], "contestant": ["ridge"], "series": ["ridge"], "band": [False]})
    assert learning.band_descriptions(rows) == []
