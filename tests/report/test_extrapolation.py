"""Beyond the trained length: a part of the report per trained length, panels for shifts, rules where training ended."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from iclbench import tables
from iclbench.analysis.comparable import trained_lengths
from iclbench.report.blocks import Figure, Table
from iclbench.report.data import Results, load
from iclbench.report.figures import learning
from iclbench.report.sections import leaderboard, report
from iclbench.report.sections.footing import footing
from tests.tables.rows import complete

FAR = 40


def curve(run: str, contestant: str, kind: str, shift: str, last: int, level: float = 1.0) -> pd.DataFrame:
    """A curve that falls from 1 to 0.01 at n = 10 and stays there, times `level`."""
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
    return pd.DataFrame(complete(columns))


def area(rows: pd.DataFrame) -> pd.DataFrame:
    """The summary row of a curve."""
    mean = rows["value"].mean()
    one = rows.iloc[:1].assign(metric="auc", value=mean, low=0.9 * mean, high=1.1 * mean)
    return one.assign(n_context=None)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Two GPT-2 and a Mamba trained with 10 examples, a Mamba trained with 20; all go to 40, also under orthants."""
    folder = tmp_path_factory.mktemp("lengths")
    parts = []
    runs = [
        ("gpt2-s0", "gpt2", 10, 1.0),
        ("gpt2-s1", "gpt2", 10, 3.0),
        ("mamba", "mamba", 10, 2.0),
        ("mamba-20", "mamba", 20, 4.0),
    ]
    for run, contestant, trained, level in runs:
        for shift, last in (("none", trained), (f"points-{FAR}", FAR), (f"orthants+points-{FAR}", FAR)):
            parts.append(curve(run, contestant, "backbone", shift, last, level))
    for shift, last in (("none", 10), ("none", 20), (f"points-{FAR}", FAR), (f"orthants+points-{FAR}", FAR)):
        parts.append(curve("least-squares", "least-squares", "baseline", shift, last, 0.5 if last == 10 else 0.7))
        parts.append(curve("zero", "zero", "baseline", shift, last).assign(value=1.0))
    rows = pd.concat([*parts, *(area(part) for part in parts)], ignore_index=True)
    tables.write("values", tables.frame("values", rows), folder / "a.values.parquet", {})
    return load(folder)


def figures(results: Results) -> dict[str, Figure]:
    blocks = [block for section in report(results, ["extrapolation"]) for block in section.walk()]
    return {block.name: block for block in blocks if isinstance(block, Figure)}


def test_every_run_knows_its_trained_length(found: Results) -> None:
    assert found.trained_lengths_by_run == {"gpt2-s0": 10, "gpt2-s1": 10, "mamba": 10, "mamba-20": 20}
    of_baseline = found.rows.assign(trained=trained_lengths(found.rows)).query(
        "run == 'zero' and metric == 'squared_error'"
    )
    by_prompts = of_baseline.groupby("prompt_set")["trained"].first()
    assert (by_prompts["none-10"], by_prompts["none-20"]) == (10, 20)
    assert pd.isna(by_prompts[f"points-{FAR}-{FAR}"]), "prompts that all lengths share"


def test_no_trained_length_is_set_aside_for_another(found: Results) -> None:
    assert found.excluded_rows == ()
    assert [(s.id, s.trained_length) for s in found.slices] == [
        ("linear-small-trained-10", 10),
        ("linear-small-trained-20", 20),
    ]


def test_lengths_are_never_averaged(found: Results) -> None:
    """Each part holds its own runs and the baselines that met the same prompts."""
    ten, twenty = found.slices
    at = "shift == 'none' and n_context == 10"
    assert ten.curves.query(at).set_index("contestant")["value"].to_dict() == pytest.approx(
        {"gpt2": 0.02, "mamba": 0.02, "least-squares": 0.005, "zero": 1.0}
    )
    assert twenty.curves.query(at).set_index("contestant")["value"].to_dict() == pytest.approx(
        {"mamba": 0.04, "least-squares": 0.007, "zero": 1.0}
    )
    for part, names in ((ten, {"gpt2", "mamba"}), (twenty, {"mamba"})):
        (board,) = leaderboard.section(part).blocks
        assert isinstance(board, Table)
        assert set(board.frame["contestant"]) == names | {"least-squares", "zero"}


def test_shifts_beyond_training_are_panels_beside_the_training_distribution(found: Results) -> None:
    figure = figures(found)[f"linear-small-trained-10-shifted-points-{FAR}-next-squared-error"]
    assert [panel.title for panel in figure.panels] == ["in-distribution", "orthants"]
    for panel, view in zip(figure.panels, figure.static["concat"], strict=True):
        rows = pd.DataFrame(view["data"]["values"])
        assert set(rows["panel"]) == {panel.where["panel"]}
        assert set(rows["series"]) == {"gpt2-s0", "gpt2-s1", "mamba", "least-squares", "zero"}
        assert rows["n_context"].max() == FAR


def test_trained_lengths_stand_side_by_side_with_a_rule_each(found: Results) -> None:
    figure = figures(found)[f"linear-small-trained-10-by-trained-length-points-{FAR}-next-squared-error"]
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
    assert "10 and 20 examples" in figure.caption
    assert sum("by-trained-length" in name for name in figures(found)) == 1


def test_one_trained_length_makes_one_part(found: Results, tmp_path: Path) -> None:
    rows = found.rows[found.rows["run"] != "mamba-20"].drop(columns="backbone")
    tables.write("values", rows, tmp_path / "a.values.parquet", {})
    (alone,) = load(tmp_path).slices
    assert (alone.id, alone.title, alone.trained_length) == ("linear-small", "linear · small", 10)


@pytest.mark.slow
def test_lines_that_end_where_no_more_is_taken_are_named(tmp_path: Path) -> None:
    """Ten examples are all that one of them takes: its line ends there, and its dashes are none of a grid."""
    shift = f"points-{FAR}"
    parts = [curve("gpt2", "gpt2", "backbone", shift, FAR), curve("zero", "zero", "baseline", shift, FAR)]
    parts += [curve(run, run, "backbone", "none", 10) for run in ("gpt2", "gpt2-learned")]
    tables.write("values", tables.frame("values", pd.concat(parts)), tmp_path / "a.values.parquet", {})
    said = figures(load(tmp_path))[f"linear-small-{shift}-next-squared-error"].caption
    assert "gpt2-learned" not in said
    ending = curve("gpt2-learned", "gpt2-learned", "backbone", shift, FAR)
    short = {"value": np.nan, "low": np.nan, "high": np.nan, "status": "skipped", "reason": "it takes 10"}
    taken = ending["n_context"] <= 10
    parts += [ending[taken], ending[~taken].assign(**short)]
    tables.write("values", tables.frame("values", pd.concat(parts)), tmp_path / "a.values.parquet", {})
    found = load(tmp_path)
    said = figures(found)[f"linear-small-{shift}-next-squared-error"].caption
    assert "gpt2-learned" in said
    blocks = [block for section in report(found, ["learning-curves", "extrapolation"]) for block in section.walk()]
    captions = {block.name: block.caption for block in blocks if isinstance(block, Table)}
    assert "more examples" in captions[f"linear-small-{shift}-next-squared-error"]
    assert "more examples" not in captions["linear-small-curves-next-squared-error"]


@pytest.mark.slow
def test_who_was_trained_at_one_length_alone_stands_in_its_panel(
    found: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what failed at one length is left out of its panel alone where lines are means over seeds."""
    rows = found.rows[found.rows["run"] != "mamba"].drop(columns="backbone")
    tables.write("values", rows, tmp_path / "a.values.parquet", {})
    name = f"linear-small-trained-10-by-trained-length-points-{FAR}-next-squared-error"
    drawn = figures(load(tmp_path))[name]
    assert {"gpt2", "mamba"} <= set(drawn.legend)
    assert set(drawn.data.loc[drawn.data["kind"] == "backbone", "series"]) == {"gpt2-s0", "gpt2-s1", "mamba-20"}
    monkeypatch.setattr(learning, "FEW_BACKBONES", 0)
    rows = found.rows.drop(columns="backbone")
    lost = rows["run"].eq("mamba-20") & rows["n_context"].eq(30) & rows["shift"].eq(f"points-{FAR}")
    rows.loc[lost, ["value", "low", "high", "status", "reason"]] = [pd.NA, pd.NA, pd.NA, "failed", "nan"]
    tables.write("values", rows, tmp_path / "a.values.parquet", {})
    data = figures(load(tmp_path))[name].data.query("contestant == 'mamba' and n_context == 30")
    assert set(data["panel"]) == {"trained with 10 examples"}


def test_tasks_with_several_trained_lengths_have_a_row_for_each(found: Results) -> None:
    about = {"task": "linear", "preset": "small", "phase": "model", "metric": "parameters", "device": "cpu"}
    about |= {"threads": 1, "version": "0"}
    sizes = {"gpt2-s0": ("gpt2", 100.0), "mamba": ("mamba", 110.0), "mamba-20": ("mamba", 120.0)}
    costs = [about | {"run": run, "contestant": who, "value": value} for run, (who, value) in sizes.items()]
    results = replace(found, costs=tables.frame("costs", costs))
    assert footing(results.slices)[["task", "parameters_high"]].to_numpy().tolist() == [
        ["linear (10)", 110.0],
        ["linear (20)", 120.0],
    ]
