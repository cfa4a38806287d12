"""Results folders as frames, a page, and charts."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import altair as alt
import pandas as pd
import pytest

import iclbench as icl
from iclbench.api.tasks import Task
from iclbench.core.errors import UsageError
from iclbench.core.metrics import metric
from iclbench.report.figures import board
from iclbench.report.style import ORACLE
from iclbench.store.runs import Run


@pytest.mark.slow
def test_a_folder_gives_its_tables_runs_and_page(run: Run, results: Path) -> None:
    found = icl.open_results(results)
    assert [each.name for each in found.runs()] == ["tour"]
    assert {"values", "costs", "errors", "examples", "answers", "cells"} <= set(dir(found))
    assert (found.values()["run"] == "tour").any() and "parameters" in set(found.costs()["metric"])
    assert found.load("tour").run.name == "tour"
    assert icl.write_report(results).read_text().count("tour")
    with pytest.raises(UsageError, match="no folder"):
        icl.open_results(results / "elsewhere")


def test_what_a_page_could_not_be_given_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = SimpleNamespace(
        page=tmp_path,
        failed_sections={"Shifts": "ValueError"},
        missing_pictures={"a.png": "no memory"},
        script_error="",
    )
    monkeypatch.setattr("iclbench.report.build", lambda *_, **__: made)
    with pytest.warns(UserWarning) as seen:
        assert icl.write_report(tmp_path) == tmp_path
    said = ["section 'Shifts' could not be made: ValueError", "picture 'a.png' is missing: no memory"]
    assert [str(each.message) for each in seen] == said and seen[0].filename == __file__


@pytest.fixture(scope="module")
def scores(linear: Task, run: Run) -> pd.DataFrame:
    return icl.evaluate({"tnp": run, "ridge": "ridge", "zero": "zero"}, linear, ["none", "orthants"], extrapolate=30)


@pytest.fixture(scope="module")
def charts(scores: pd.DataFrame) -> dict[str, alt.TopLevelMixin]:
    """Every chart of these scores without further wishes."""
    names = ("learning_curves", "extrapolation", "shifts", "leaderboard", "heat_map")
    return {name: getattr(icl.plot, name)(scores) for name in names}


@pytest.fixture(scope="module")
def specs(charts: dict[str, alt.TopLevelMixin]) -> dict[str, str]:
    """What they are drawn from, validated."""
    return {name: chart.to_json() for name, chart in charts.items()}


@pytest.mark.parametrize("chart", ["learning_curves", "extrapolation", "shifts", "leaderboard", "heat_map"])
def test_charts_are_altair_with_every_contestant(
    chart: str, charts: dict[str, alt.TopLevelMixin], specs: dict[str, str]
) -> None:
    assert isinstance(charts[chart], alt.TopLevelMixin)
    spec = specs[chart]
    assert '"tnp"' in spec
    if chart != "heat_map":
        assert '"ridge"' in spec and '"zero"' in spec


@pytest.mark.slow
def test_a_metric_is_drawn_where_it_is_asked_for(scores: pd.DataFrame, specs: dict[str, str]) -> None:
    for chart in (icl.plot.learning_curves, icl.plot.extrapolation, icl.plot.shifts):
        assert "log-likelihood" in chart(scores, metric="log_likelihood").to_json(validate=False)
        assert "log-likelihood" not in specs[chart.__name__]
        with pytest.raises(UsageError, match="metric"):
            chart(scores, metric="nope")


def order_of(chart: alt.TopLevelMixin) -> list[str]:
    """The contestants from the top."""
    return chart.to_dict()["layer"][0]["encoding"]["y"]["sort"]


def ranked(rows: pd.DataFrame, name: str, ascending: bool) -> list[str]:
    own = rows[rows["metric"].eq(name) & rows["axis"].isna() & rows["n_context"].isna()]
    return own.sort_values(["value", "contestant"], ascending=[ascending, True])["contestant"].tolist()


def test_the_leaderboard_ranks_by_the_metric_in_its_direction(scores: pd.DataFrame) -> None:
    plain = scores[scores["shift"].eq("none")]
    for name, ascending in (("auc", True), ("score", False)):
        chart = icl.plot.leaderboard(scores, metric=name)
        assert order_of(chart) == ranked(plain, name, ascending)
        assert f"({'lower' if ascending else 'higher'} is better)" in chart.to_json(validate=False)
    shifted = icl.plot.leaderboard(scores, shift="orthants")
    assert order_of(shifted) == ranked(scores[scores["shift"].eq("orthants")], "auc", True)
    assert "shift orthants" in shifted.to_json(validate=False)
    for wrong in ({"shift": "orthant"}, {"metric": "acu"}, {"evaluator": "nxet"}):
        with pytest.raises(UsageError, match=f"unknown {next(iter(wrong))}"):
            icl.plot.leaderboard(scores, **wrong)


@pytest.mark.slow
def test_the_leaderboard_knows_accuracies_and_tests_of_a_family() -> None:
    task = icl.task("bursty", "smoke", episodes=8)
    rows = icl.evaluate([icl.CNP(task), *task.baselines], task)
    of_task = icl.plot.leaderboard(rows)
    accuracy = "accuracy_within_choices"
    assert order_of(of_task) == ranked(rows[rows["evaluator"].eq("targets")], accuracy, False)
    assert "accuracy (higher is better)" in of_task.to_json(validate=False)
    for name in ("icl", "icl-paired"):
        own = rows[rows["evaluator"].eq(name.replace("-", "_"))]
        assert order_of(icl.plot.leaderboard(rows, evaluator=name)) == ranked(own, accuracy, False)
        assert "chance" in order_of(icl.plot.leaderboard(rows, evaluator=name))
    by_entropy = icl.plot.leaderboard(rows, metric="cross_entropy")
    assert order_of(by_entropy) == ranked(rows[rows["evaluator"].eq("targets")], "cross_entropy", True)


@pytest.mark.parametrize(("huge", "log"), [("knn-3", False), ("tnp", True)])
def test_one_huge_error_leaves_room_for_the_others(huge: str, log: bool) -> None:
    values = {"ridge": 0.1, "mamba": 0.6, "zero": 0.7, "tnp": 0.72, "knn-3": 0.8, huge: 800.0}
    kinds = {"mamba": "backbone", "tnp": "backbone"}
    rows = pd.DataFrame({"contestant": values.keys(), "value": values.values()})
    rows = rows.assign(low=rows["value"] * 0.9, high=rows["value"] * 1.1, kind=rows["contestant"].map(kinds))
    looks = dict.fromkeys(values, ORACLE)
    chart = board.chart(rows.fillna({"kind": "baseline"}), metric("auc"), looks, "a title").to_dict()
    scale = chart["layer"][0]["encoding"]["x"]["scale"]
    assert scale["type"] == ("log" if log else "linear")
    low, high = map(math.log, scale["domain"]) if log else scale["domain"]
    places = [((math.log(v) if log else v) - low) / (high - low) for v in (0.1, 0.6, 0.7)]
    assert places[2] - places[0] > 0.2 and places[1] < places[2] <= 1, "told apart"
    assert (f"beyond the axis: {huge}" in str(chart)) != log


def test_charts_of_a_notebook_have_titles(specs: dict[str, str]) -> None:
    titles = {name: json.loads(spec)["title"] for name, spec in specs.items() if name != "leaderboard"}
    assert titles["shifts"]["text"] == "linear: shifted prompts"
    assert titles["learning_curves"]["text"] == "linear: learning curves"
    assert titles["heat_map"]["subtitle"][0].startswith("Score 0: ")


def test_charts_say_what_is_missing(scores: pd.DataFrame) -> None:
    for chart in ("probe", "learning_curves"):
        with pytest.raises(UsageError, match="rows"):
            getattr(icl.plot, chart)(scores[scores["shift"] == "sideways"] if chart != "probe" else scores)
    with pytest.raises(UsageError, match="linear"):
        icl.plot.learning_curves(scores, "linaer")
    both = pd.concat([scores, scores.assign(task="other")])
    with pytest.raises(UsageError, match="task="):
        icl.plot.leaderboard(both)
    assert "orthants" in icl.plot.leaderboard(both, "other", shift="orthants").to_json(validate=False)


def test_a_task_and_a_preset_are_found_in_any_spelling() -> None:
    rows = icl.evaluate(["zero", "ridge"], icl.task("noisy-linear", "smoke", dim=2, points=3, episodes=4))
    chart = icl.plot.learning_curves(rows, task="Noisy_Linear", preset="SMOKE")
    assert "ridge" in chart.to_json(validate=False)
