"""The section on extrapolation: slices by trained length, panels for shifts, and marked trained lengths."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from iclbench import tables
from iclbench.analysis.comparable import trained_lengths
from iclbench.report.blocks import Figure, Table
from iclbench.report.data import Results, load_results
from iclbench.report.figures import learning
from iclbench.report.sections import leaderboard, report_sections
from iclbench.report.sections.equal_budget import budgets
from tests.tables.rows import complete_row

FAR = 40


def curve(run: str, contestant: str, kind: str, shift: str, last: int, level: float = 1.0) -> pd.DataFrame:
    """Return `level` times a curve that falls from 1 to 0.01 at n = 10 and is constant afterwards."""
    n = np.arange(last + 1)
    value = level * np.maximum(10.0 ** (-n / 5), 0.01)
    columns = {
        "run": run,
        "task": "linear",
        "family": "linear",
        "contestant": contestant,
        "kind": kind,
        "preset": "small",
        "shift": shift,
        "evaluator": "next",
        "metric": "squared_error",
        "n_context": n,
        "value": value,
        "low": 0.9 * value,
        "high": 1.1 * value,
        "n_episodes": 64,
        "normaliser": 5.0,
        "status": "ok",
        "prompt_set": f"{shift}-{last}",
        "card": "c0",
        "version": "0",
    }
    return pd.DataFrame(complete_row(columns))


def area_row(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the row with the area under a curve."""
    mean = rows["value"].mean()
    first_row = rows.iloc[:1]
    return first_row.assign(metric="auc", value=mean, low=0.9 * mean, high=1.1 * mean, n_context=None)


@pytest.fixture(scope="module")
def two_lengths(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Results of two GPT-2 runs and a Mamba run trained with 10 examples, and a Mamba run trained with 20.

    All are evaluated with up to 40 examples, in-distribution and under the shift `orthants`.
    """
    folder = tmp_path_factory.mktemp("lengths")
    curves = []
    runs = [
        ("gpt2-s0", "gpt2", 10, 1.0),
        ("gpt2-s1", "gpt2", 10, 3.0),
        ("mamba", "mamba", 10, 2.0),
        ("mamba-20", "mamba", 20, 4.0),
    ]
    for run, contestant, trained, level in runs:
        for shift, last in (("none", trained), (f"points-{FAR}", FAR), (f"orthants+points-{FAR}", FAR)):
            curves.append(curve(run, contestant, "backbone", shift, last, level))
    for shift, last in (("none", 10), ("none", 20), (f"points-{FAR}", FAR), (f"orthants+points-{FAR}", FAR)):
        curves.append(curve("least-squares", "least-squares", "baseline", shift, last, 0.5 if last == 10 else 0.7))
        curves.append(curve("zero", "zero", "baseline", shift, last).assign(value=1.0))
    rows = pd.concat([*curves, *(area_row(rows) for rows in curves)], ignore_index=True)
    tables.write("values", tables.frame("values", rows), folder / "a.values.parquet", {})
    return load_results(folder)


def figures(results: Results) -> dict[str, Figure]:
    blocks = [block for section in report_sections(results, ["extrapolation"]) for block in section.walk()]
    return {block.name: block for block in blocks if isinstance(block, Figure)}


def test_trained_lengths_are_inferred_from_prompt_sets(two_lengths: Results) -> None:
    assert two_lengths.trained_lengths_by_run == {"gpt2-s0": 10, "gpt2-s1": 10, "mamba": 10, "mamba-20": 20}
    rows = two_lengths.rows.assign(trained=trained_lengths(two_lengths.rows))
    baseline_rows = rows.query("run == 'zero' and metric == 'squared_error'")
    by_prompts = baseline_rows.groupby("prompt_set")["trained"].first()
    assert (by_prompts["none-10"], by_prompts["none-20"]) == (10, 20)
    assert pd.isna(by_prompts[f"points-{FAR}-{FAR}"]), "runs of both lengths share these prompts"


def test_each_trained_length_has_a_separate_slice(two_lengths: Results) -> None:
    assert two_lengths.excluded_rows == ()
    assert [(s.id, s.trained_length) for s in two_lengths.slices] == [
        ("linear-small-trained-10", 10),
        ("linear-small-trained-20", 20),
    ]


def test_curves_of_different_trained_lengths_are_not_averaged(two_lengths: Results) -> None:
    """Each slice has runs of one length, and the baselines on the same prompts."""
    ten, twenty = two_lengths.slices
    ten_examples = "shift == 'none' and n_context == 10"
    assert ten.curves.query(ten_examples).set_index("contestant")["value"].to_dict() == pytest.approx(
        {"gpt2": 0.02, "mamba": 0.02, "least-squares": 0.005, "zero": 1.0}
    )
    assert twenty.curves.query(ten_examples).set_index("contestant")["value"].to_dict() == pytest.approx(
        {"mamba": 0.04, "least-squares": 0.007, "zero": 1.0}
    )
    for task, names in ((ten, {"gpt2", "mamba"}), (twenty, {"mamba"})):
        (board,) = leaderboard.section(task).blocks
        assert isinstance(board, Table)
        assert set(board.frame["contestant"]) == names | {"least-squares", "zero"}


def test_shifts_beyond_the_trained_length_have_panels(two_lengths: Results) -> None:
    figure = figures(two_lengths)[f"linear-small-trained-10-shifted-points-{FAR}-next-squared-error"]
    assert [panel.title for panel in figure.panels] == ["in-distribution", "orthants"]
    for panel, view in zip(figure.panels, figure.static["concat"], strict=True):
        rows = pd.DataFrame(view["data"]["values"])
        assert set(rows["panel"]) == {panel.where["panel"]}
        assert set(rows["series"]) == {"gpt2-s0", "gpt2-s1", "gpt2-s0; gpt2-s1", "mamba", "least-squares", "zero"}
        assert rows["n_context"].max() == FAR


@pytest.mark.slow
def test_each_trained_length_has_a_panel_with_a_rule_at_this_length(two_lengths: Results) -> None:
    figure = figures(two_lengths)[f"linear-small-trained-10-by-trained-length-points-{FAR}-next-squared-error"]
    assert [panel.title for panel in figure.panels] == ["trained with 10 examples", "trained with 20 examples"]
    lengths = [
        {int(row["trained"]) for row in view["data"]["values"] if row["trained"] is not None}
        for view in figure.static["concat"]
    ]
    assert lengths == [{10}, {20}]
    assert {row["series"] for row in figure.static["concat"][1]["data"]["values"]} == {
        "mamba-20",
        "least-squares",
        "zero",
    }
    assert "10 and 20" in figure.caption
    assert sum("by-trained-length" in name for name in figures(two_lengths)) == 1


def test_a_single_trained_length_has_one_slice_without_a_suffix(two_lengths: Results, tmp_path: Path) -> None:
    rows = two_lengths.rows[two_lengths.rows["run"] != "mamba-20"].drop(columns="backbone")
    tables.write("values", rows, tmp_path / "a.values.parquet", {})
    (task,) = load_results(tmp_path).slices
    assert (task.id, task.title, task.trained_length) == ("linear-small", "linear · small", 10)


@pytest.mark.slow
def test_the_caption_names_models_that_support_fewer_examples(tmp_path: Path) -> None:
    shift = f"points-{FAR}"
    name = f"linear-small-{shift}-next-squared-error"
    curves = [curve("gpt2", "gpt2", "backbone", shift, FAR), curve("zero", "zero", "baseline", shift, FAR)]
    curves += [curve(run, run, "backbone", "none", 10) for run in ("gpt2", "gpt2-learned")]
    tables.write("values", tables.frame("values", pd.concat(curves)), tmp_path / "a.values.parquet", {})
    assert "gpt2-learned" not in figures(load_results(tmp_path))[name].caption
    limited = curve("gpt2-learned", "gpt2-learned", "backbone", shift, FAR)
    skipped = {"value": np.nan, "low": np.nan, "high": np.nan, "status": "skipped", "reason": "it takes 10"}
    is_supported = limited["n_context"] <= 10
    curves += [limited[is_supported], limited[~is_supported].assign(**skipped)]
    tables.write("values", tables.frame("values", pd.concat(curves)), tmp_path / "a.values.parquet", {})
    results = load_results(tmp_path)
    assert "gpt2-learned" in figures(results)[name].caption
    blocks = [
        block for section in report_sections(results, ["learning-curves", "extrapolation"]) for block in section.walk()
    ]
    captions = {block.name: block.caption for block in blocks if isinstance(block, Table)}
    assert "more examples" in captions[name]
    assert "more examples" not in captions["linear-small-curves-next-squared-error"]


@pytest.mark.slow
def test_the_panel_of_a_trained_length_has_only_runs_of_this_length(
    two_lengths: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines are means over seeds. A run that failed at one length removes a line only from the panel of this length."""
    rows = two_lengths.rows[two_lengths.rows["run"] != "mamba"].drop(columns="backbone")
    tables.write("values", rows, tmp_path / "a.values.parquet", {})
    name = f"linear-small-trained-10-by-trained-length-points-{FAR}-next-squared-error"
    figure = figures(load_results(tmp_path))[name]
    assert {"gpt2", "mamba"} <= set(figure.legend)
    lines = set(figure.data.loc[figure.data["kind"] == "backbone", "series"])
    assert lines == {"gpt2-s0", "gpt2-s1", "gpt2-s0; gpt2-s1", "mamba-20"}
    monkeypatch.setattr(learning, "MAX_UNCROWDED_BACKBONES", 0)
    rows = two_lengths.rows.drop(columns="backbone")
    has_failed = rows["run"].eq("mamba-20") & rows["n_context"].eq(30) & rows["shift"].eq(f"points-{FAR}")
    rows.loc[has_failed, ["value", "low", "high", "status", "reason"]] = [pd.NA, pd.NA, pd.NA, "failed", "nan"]
    tables.write("values", rows, tmp_path / "a.values.parquet", {})
    data = figures(load_results(tmp_path))[name].data.query("contestant == 'mamba' and n_context == 30")
    assert set(data["panel"]) == {"trained with 10 examples"}


def test_the_table_of_training_budgets_has_a_row_per_trained_length(two_lengths: Results) -> None:
    shared = {"task": "linear", "preset": "small", "phase": "model", "metric": "parameters", "device": "cpu"}
    shared |= {"threads": 1, "version": "0"}
    sizes = {"gpt2-s0": ("gpt2", 100.0), "mamba": ("mamba", 110.0), "mamba-20": ("mamba", 120.0)}
    costs = [shared | {"run": run, "contestant": name, "value": value} for run, (name, value) in sizes.items()]
    results = replace(two_lengths, costs=tables.frame("costs", costs))
    assert budgets(results.slices)[["task", "parameters_high"]].to_numpy().tolist() == [
        ["linear (10)", 110.0],
        ["linear (20)", 120.0],
    ]
