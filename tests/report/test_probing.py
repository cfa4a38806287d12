"""The section on layers: figures and tables of probes, which do not change other sections."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from iclbench import tables
from iclbench.core.metrics import metric
from iclbench.report import build
from iclbench.report.blocks import Figure, Section, Table
from iclbench.report.data import Results, load_results
from iclbench.report.sections import probing, report_sections
from tests.report import synthetic, vega_lite

TASK = "linear"
LAYERS = {"linear-gpt2-small-s0": 4, "linear-gpt2-small-s1": 4, "linear-mamba-small-s0": 8}
DESCENTS = ("gd", "gd-plus-plus", "gd-plus-plus-transformed")


def probe_rows(n: int, shift: str = "none") -> list[dict[str, object]]:
    """Return synthetic rows of `iclbench probe` for three runs, gradient descent and baselines."""
    columns = {"evaluator": "probe", "n_context": n, "prompt_set": f"{TASK}-small-{shift}-probe{n}", "n_episodes": 128}
    rows = []
    for run, layers in LAYERS.items():
        contestant = run.split("-")[1]
        for layer in range(1, layers + 1):
            error = float(np.exp(-4 * layer / layers)) * n / 20
            by_metric = {
                "squared_error": error,
                "squared_error_raw": 2 * error,
                "scale": 1 + error,
                "shift": -error,
                "scale_std": error / 2,
                "shift_std": error / 4,
            }
            rows += [
                synthetic._row(
                    TASK,
                    contestant,
                    "backbone",
                    run,
                    int(run[-1]),
                    shift,
                    metric=metric,
                    value=value,
                    low=0.9 * value,
                    high=1.1 * value,
                    axis="layer",
                    axis_value=layer,
                    **columns,
                )
                for metric, value in by_metric.items()
            ]
    for place, name in enumerate(DESCENTS):
        rows += [
            synthetic._row(
                TASK,
                name,
                "baseline",
                name,
                None,
                shift,
                metric="squared_error",
                axis="gd_step",
                axis_value=step,
                value=float(np.exp(-0.1 * (place + 1) * step)),
                **columns,
            )
            for step in range(1, 25)
        ]
        if place:
            search = columns | {"evaluator": "gamma_search"}
            rows += [
                synthetic._row(
                    TASK,
                    name,
                    "baseline",
                    name,
                    None,
                    shift,
                    metric="squared_error",
                    axis="gamma",
                    axis_value=float(g),
                    value=float(0.1 + (np.log10(g) + 4) ** 2),
                    **search,
                )
                for g in np.logspace(-6, -3, 31)
            ]
            rows.append(synthetic._row(TASK, name, "baseline", name, None, shift, metric="gamma", value=1e-4, **search))
    for name, value in (("zero", 1.02), ("least-squares", 1e-15)):
        rows.append(
            synthetic._row(TASK, name, "baseline", name, None, shift, metric="squared_error", value=value, **columns)
        )
    return rows


@pytest.fixture(scope="module")
def results_with_probes(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The synthetic results with probes at 20 and 40 examples."""
    folder = tmp_path_factory.mktemp("probed")
    for path in results.rglob("*.parquet"):
        (folder / path.relative_to(results)).parent.mkdir(parents=True, exist_ok=True)
        (folder / path.relative_to(results)).write_bytes(path.read_bytes())
    for n in (20, 40):
        tables.write("values", probe_rows(n), folder / f"probe{n}.values.parquet", {})
    return load_results(folder)


def blocks_by_name(sections: list[Section]) -> dict[str, Figure | Table]:
    blocks = [block for section in sections for block in section.walk()]
    return {block.name: block for block in blocks if isinstance(block, Figure | Table)}


@pytest.fixture(scope="module")
def blocks(results_with_probes: Results) -> dict[str, Figure | Table]:
    return blocks_by_name(report_sections(results_with_probes, {"probing", "provenance"}))


def figure(blocks: dict[str, Figure | Table], name: str) -> Figure:
    block = blocks[f"linear-small-probe-none-{name}"]
    assert isinstance(block, Figure)
    return block


@pytest.mark.slow
def test_probes_do_not_change_other_figures_and_tables(results_with_probes: Results, sections: list[Section]) -> None:
    without_probes, blocks = blocks_by_name(sections), blocks_by_name(report_sections(results_with_probes))
    for name, expected in without_probes.items():
        if name == "provenance":
            continue
        block = blocks[name]
        data = (expected.data, block.data) if isinstance(expected, Figure) else (expected.frame, block.frame)
        pd.testing.assert_frame_equal(*data)
    assert {name.removeprefix("linear-small-") for name in set(blocks) - set(without_probes)} == {
        "probe-none",
        "probe-none-error",
        "probe-none-contexts",
        "probe-none-scale",
        "probe-none-shift",
        "probe-none-gamma",
    }


@pytest.mark.slow
def test_the_section_on_provenance_lists_probe_sets(
    results_with_probes: Results, blocks: dict[str, Figure | Table]
) -> None:
    assert results_with_probes.excluded_rows == ()
    provenance = blocks["provenance"]
    assert isinstance(provenance, Table)
    assert {"linear-small-none-probe20", "linear-small-none-probe40", "linear-small-none-0"} <= set(
        provenance.frame["prompt_set"]
    )


def test_rows_on_a_different_probe_set_of_the_same_size_are_excluded(tmp_path: Path) -> None:
    rows = probe_rows(20)
    of_mamba = [row | {"prompt_set": "other-set"} for row in rows if row["run"] == "linear-mamba-small-s0"]
    tables.write("values", rows, tmp_path / "a.values.parquet", {})
    tables.write("values", of_mamba, tmp_path / "b.values.parquet", {})
    loaded = load_results(tmp_path)
    assert set(loaded.rows["prompt_set"]) == {"linear-small-none-probe20"}
    (line,) = loaded.excluded_rows
    assert "n = 20" in line and "other-set" in line


def test_errors_are_plotted_against_the_share_of_layers_or_steps(blocks: dict[str, Figure | Table]) -> None:
    data = figure(blocks, "error").data
    mamba = data[data["run"] == "linear-mamba-small-s0"]
    assert mamba["depth"].tolist() == [k / 8 for k in range(1, 9)]
    np.testing.assert_allclose(mamba["value"].astype(float), np.exp(-4 * mamba["depth"].astype(float)))
    assert mamba["label"].iloc[2] == "linear-mamba-small-s0, layer 3 of 8"
    gd = data[data["run"] == "gd"]
    assert gd["depth"].tolist() == [k / 24 for k in range(1, 25)]
    assert data.loc[data["run"] == "zero", "depth"].tolist() == [0, 1]
    assert set(data["n_context"]) == {20}, "only probes with the trained number of examples are plotted"
    assert set(data.loc[data["contestant"] == "gpt2", "series"]) == {"linear-gpt2-small-s0", "linear-gpt2-small-s1"}


def test_each_run_has_a_panel_with_a_line_per_context_size(blocks: dict[str, Figure | Table]) -> None:
    contexts = figure(blocks, "contexts")
    assert [panel.title for panel in contexts.panels] == sorted(LAYERS)
    assert list(contexts.legend) == ["20 examples", "40 examples"]
    assert len({look.colour for look in contexts.legend.values()}) == 2
    assert len(contexts.static["concat"][0]["data"]["values"]) == 8


def test_bands_around_scale_and_shift_are_standard_deviations(blocks: dict[str, Figure | Table]) -> None:
    for name, divisor in (("scale", 2), ("shift", 4)):
        data = figure(blocks, name).data
        error = np.exp(-4 * data["depth"].astype(float))
        np.testing.assert_allclose((data["high"] - data["low"]).astype(float), 2 * error / divisor)
        assert set(data["contestant"]) == {"gpt2", "mamba"}


def test_the_best_gamma_is_marked(blocks: dict[str, Figure | Table]) -> None:
    gamma = figure(blocks, "gamma")
    assert [panel.title for panel in gamma.panels] == ["20 examples", "40 examples"]
    assert gamma.data.loc[gamma.data["sparse"], "axis_value"].astype(float).tolist() == pytest.approx([1e-4] * 4)


def test_figures_are_valid_vega_lite(blocks: dict[str, Figure | Table]) -> None:
    for name in ("error", "gamma"):
        block = figure(blocks, name)
        vega_lite.validate(block.live)
        panel = block.static.get("concat", [{}])[0] | {"data": {"values": []}}
        vega_lite.validate(block.static | ({"concat": [panel]} if "concat" in block.static else panel))


def test_the_table_has_final_and_smallest_errors(blocks: dict[str, Figure | Table]) -> None:
    table = blocks["linear-small-probe-none"]
    assert isinstance(table, Table)
    frame = table.frame.set_index(["n_context", "run"])
    row = frame.loc[(40, "linear-gpt2-small-s0")]
    assert (row["depth"], row["best_at"]) == (4, 4)
    assert row["raw"] == pytest.approx(2 * row["score"])
    assert row["scale"] == pytest.approx(1 + row["score"])
    assert frame.loc[(20, "gd-plus-plus"), "gamma"] == 1e-4
    assert pd.isna(frame.loc[(20, "zero"), "depth"])


def test_the_final_error_is_not_the_smallest_if_it_rises_in_the_last_layer() -> None:
    rows = pd.DataFrame([row for row in probe_rows(20) if row["run"] == "linear-gpt2-small-s0"])
    final_error = rows["axis_value"].eq(4) & rows["metric"].eq("squared_error")
    record = probing._record(rows.assign(value=rows["value"].mask(final_error, 0.9)), metric("squared_error"))
    assert (record["depth"], record["score"]) == (4, 0.9)
    assert (record["best_at"], record["best"]) == (3, pytest.approx(np.exp(-3)))
    assert record["scale"] == pytest.approx(1 + np.exp(-4)), "the scale is that of the last layer"


@pytest.mark.slow
def test_a_report_can_be_built_from_probes_alone(tmp_path: Path) -> None:
    tables.write("values", probe_rows(20), tmp_path / "p.values.parquet", {})
    html = build(tmp_path, tmp_path / "out", formats=()).page.read_text(encoding="utf-8")
    assert "probe-none-error" in html and "linear-small-curves" not in html
    assert "probe-none-contexts" not in html, "the figure of context sizes needs more than one size"


def stream_rows(n: int) -> list[dict[str, object]]:
    """Return synthetic rows of `iclbench probe` for a run on streams and for its untrained model."""
    columns = {"evaluator": "probe", "n_context": n, "prompt_set": f"{TASK}-small-none-probe{n}", "n_episodes": 1024}
    names = {"gru": ("backbone", "linear-gru-small-s0", 0), "gru-untrained": ("baseline", "gru-untrained", None)}
    return [
        synthetic._row(
            TASK,
            contestant,
            kind,
            run,
            seed,
            "none",
            metric=name,
            value=layer / 4 - (kind == "baseline") / 8,
            axis="layer",
            axis_value=layer,
            **columns,
        )
        for contestant, (kind, run, seed) in names.items()
        for name in ("r_squared_of_prediction", "accuracy_of_previous_element")
        for layer in (1, 2, 3)
    ]


def test_runs_on_streams_have_a_figure_and_a_table_per_probe_target(tmp_path: Path) -> None:
    for n in (16, 32):
        tables.write("values", stream_rows(n), tmp_path / f"{n}.values.parquet", {})
    loaded = load_results(tmp_path)
    assert loaded.excluded_rows == ()
    blocks = blocks_by_name(report_sections(loaded, {"probing"}))
    names = {"probe-none-r-squared-of-prediction", "probe-none-accuracy-of-previous-element"}
    suffixes = ("", "-score", "-contexts")
    assert {name.removeprefix("linear-small-") for name in blocks} == {name + end for name in names for end in suffixes}
    drawn = blocks["linear-small-probe-none-r-squared-of-prediction-score"]
    assert isinstance(drawn, Figure)
    assert set(drawn.data["contestant"]) == {"gru", "gru-untrained"} and set(drawn.data["n_context"]) == {16}
    assert "R² of prediction" in drawn.alt
    vega_lite.validate(drawn.live)
    table = blocks["linear-small-probe-none-accuracy-of-previous-element"]
    assert isinstance(table, Table)
    assert [column.key for column in table.columns] == ["run", "n_context", "depth", "score", "best", "best_at"]
    first = table.frame.iloc[0]
    assert (first["run"], first["score"], first["best_at"]) == ("linear-gru-small-s0", 0.75, 3), "the best run is first"
