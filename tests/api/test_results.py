"""Results folders: tables as data frames, reports, and charts."""

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace

import altair as alt
import pandas as pd
import pytest

import iclbench as icl
from iclbench.api.tasks import Task
from iclbench.core.metrics import metric
from iclbench.report.figures import board
from iclbench.report.style import ORACLE
from iclbench.store.runs import Run
from tests.refusals import refused


@pytest.mark.slow
def test_a_results_folder_has_tables_runs_and_a_report(run: Run, results: Path) -> None:
    folder = icl.open_results(results)
    assert [run.name for run in folder.runs()] == ["tour"]
    assert {"values", "costs", "errors", "examples", "answers", "cells"} <= set(dir(folder))
    assert (folder.values()["run"] == "tour").any() and "parameters" in set(folder.costs()["metric"])
    assert folder.load("tour").run.name == "tour"
    assert icl.write_report(results).read_text().count("tour")
    with refused("missing-file", results / "absent"):
        icl.open_results(results / "absent")


def test_missing_sections_and_pictures_of_a_report_raise_warnings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = SimpleNamespace(
        page=tmp_path,
        failed_sections={"Shifts": "ValueError"},
        missing_pictures={"a.png": "no memory"},
        script_error="",
    )
    monkeypatch.setattr("iclbench.report.build", lambda *_, **__: report)
    with pytest.warns(UserWarning) as warnings:
        assert icl.write_report(tmp_path) == tmp_path
    section, picture = (str(warning.message) for warning in warnings)
    assert "'Shifts'" in section and "ValueError" in section
    assert "'a.png'" in picture and "no memory" in picture
    assert warnings[0].filename == __file__


@pytest.fixture(scope="module")
def scores(linear: Task, run: Run) -> pd.DataFrame:
    return icl.evaluate({"tnp": run, "ridge": "ridge", "zero": "zero"}, linear, ["none", "orthants"], extrapolate=30)


@pytest.fixture(scope="module")
def charts(scores: pd.DataFrame) -> dict[str, alt.TopLevelMixin]:
    """All charts of the scores, with default arguments."""
    names = ("learning_curves", "extrapolation", "shifts", "leaderboard", "heat_map")
    return {name: getattr(icl.plot, name)(scores) for name in names}


@pytest.fixture(scope="module")
def specs(charts: dict[str, alt.TopLevelMixin]) -> dict[str, str]:
    """The Vega-Lite specifications of the charts, which Altair has validated."""
    return {name: chart.to_json() for name, chart in charts.items()}


@pytest.mark.parametrize("chart", ["learning_curves", "extrapolation", "shifts", "leaderboard", "heat_map"])
def test_every_chart_is_an_altair_chart_with_all_contestants(
    chart: str, charts: dict[str, alt.TopLevelMixin], specs: dict[str, str]
) -> None:
    assert isinstance(charts[chart], alt.TopLevelMixin)
    spec = specs[chart]
    assert '"tnp"' in spec
    if chart != "heat_map":
        assert '"ridge"' in spec and '"zero"' in spec


@pytest.mark.slow
def test_a_chart_shows_the_requested_metric(scores: pd.DataFrame, specs: dict[str, str]) -> None:
    for chart in (icl.plot.learning_curves, icl.plot.extrapolation, icl.plot.shifts):
        assert "log-likelihood" in chart(scores, metric="log_likelihood").to_json(validate=False)
        assert "log-likelihood" not in specs[chart.__name__]
        with refused("unknown-name", "metric", "'nope'"):
            chart(scores, metric="nope")


def contestant_order(chart: alt.TopLevelMixin) -> list[str]:
    """Return the contestants of a leaderboard, from top to bottom."""
    return chart.to_dict()["layer"][0]["encoding"]["y"]["sort"]


def sorted_contestants(rows: pd.DataFrame, name: str, ascending: bool) -> list[str]:
    rows = rows[rows["metric"].eq(name) & rows["axis"].isna() & rows["n_context"].isna()]
    return rows.sort_values(["value", "contestant"], ascending=[ascending, True])["contestant"].tolist()


@pytest.mark.slow
def test_the_leaderboard_sorts_by_the_metric_from_best_to_worst(scores: pd.DataFrame) -> None:
    plain = scores[scores["shift"].eq("none")]
    for name, ascending in (("auc", True), ("score", False)):
        chart = icl.plot.leaderboard(scores, metric=name)
        assert contestant_order(chart) == sorted_contestants(plain, name, ascending)
        assert f"({'lower' if ascending else 'higher'} is better)" in chart.to_json(validate=False)
    shifted = icl.plot.leaderboard(scores, shift="orthants")
    assert contestant_order(shifted) == sorted_contestants(scores[scores["shift"].eq("orthants")], "auc", True)
    assert "shift orthants" in shifted.to_json(validate=False)
    for argument, name in {"shift": "orthant", "metric": "acu", "evaluator": "nxet"}.items():
        with refused("unknown-name", argument, repr(name)):
            icl.plot.leaderboard(scores, **{argument: name})


@pytest.mark.slow
def test_the_leaderboard_can_rank_by_accuracy_and_by_tests_of_a_family() -> None:
    task = icl.task("bursty", "smoke", episodes=8)
    rows = icl.evaluate([icl.CNP(task), *task.baselines], task)
    leaderboard = icl.plot.leaderboard(rows)
    accuracy = "accuracy_within_choices"
    assert contestant_order(leaderboard) == sorted_contestants(rows[rows["evaluator"].eq("targets")], accuracy, False)
    assert "accuracy (higher is better)" in leaderboard.to_json(validate=False)
    for name in ("icl", "icl-paired"):
        test_rows = rows[rows["evaluator"].eq(name.replace("-", "_"))]
        accuracies = test_rows[test_rows["metric"].eq(accuracy)].set_index("contestant")["value"]
        order = contestant_order(icl.plot.leaderboard(rows, evaluator=name))
        assert sorted(order) == sorted(accuracies.index) and "chance" in order
        assert accuracies[order].is_monotonic_decreasing, "contestants with equal accuracies may be in any order"
    entropy_leaderboard = icl.plot.leaderboard(rows, metric="cross_entropy")
    assert contestant_order(entropy_leaderboard) == sorted_contestants(
        rows[rows["evaluator"].eq("targets")], "cross_entropy", True
    )


@pytest.mark.parametrize(("outlier", "is_log"), [("knn-3", False), ("tnp", True)])
def test_the_axis_of_the_leaderboard_is_robust_to_one_huge_error(outlier: str, is_log: bool) -> None:
    values = {"ridge": 0.1, "mamba": 0.6, "zero": 0.7, "tnp": 0.72, "knn-3": 0.8, outlier: 800.0}
    kinds = {"mamba": "backbone", "tnp": "backbone"}
    rows = pd.DataFrame({"contestant": values.keys(), "value": values.values()})
    rows = rows.assign(low=rows["value"] * 0.9, high=rows["value"] * 1.1, kind=rows["contestant"].map(kinds))
    looks = dict.fromkeys(values, ORACLE)
    chart = board.chart(rows.fillna({"kind": "baseline"}), metric("auc"), looks, "a title").to_dict()
    scale = chart["layer"][0]["encoding"]["x"]["scale"]
    assert scale["type"] == ("log" if is_log else "linear")
    low, high = map(math.log, scale["domain"]) if is_log else scale["domain"]
    positions = [((math.log(v) if is_log else v) - low) / (high - low) for v in (0.1, 0.6, 0.7)]
    assert positions[2] - positions[0] > 0.2 and positions[1] < positions[2] <= 1
    assert (f"beyond the axis: {outlier}" in str(chart)) != is_log


def test_charts_have_titles(specs: dict[str, str]) -> None:
    titles = {name: json.loads(spec)["title"] for name, spec in specs.items() if name != "leaderboard"}
    assert titles["shifts"]["text"] == "linear: shifted prompts"
    assert titles["learning_curves"]["text"] == "linear: learning curves"
    assert titles["heat_map"]["subtitle"][0].startswith("Score 0: ")


@pytest.mark.slow
def test_charts_of_no_rows_or_of_an_ambiguous_task_are_refused(scores: pd.DataFrame) -> None:
    with refused("nothing-to-do"):
        icl.plot.probe(scores)
    with refused("nothing-to-do"):
        icl.plot.learning_curves(scores[scores["shift"] == "sideways"])
    with refused("unknown-name", "'linaer'", "linear"):
        icl.plot.learning_curves(scores, "linaer")
    two_tasks = pd.concat([scores, scores.assign(task="other")])
    with refused("missing-value", "task=", "linear", "other"):
        icl.plot.leaderboard(two_tasks)
    assert "orthants" in icl.plot.leaderboard(two_tasks, "other", shift="orthants").to_json(validate=False)


def test_names_of_tasks_and_presets_are_normalised() -> None:
    rows = icl.evaluate(["zero", "ridge"], icl.task("noisy-linear", "smoke", dim=2, points=3, episodes=4))
    chart = icl.plot.learning_curves(rows, task="Noisy_Linear", preset="SMOKE")
    assert "ridge" in chart.to_json(validate=False)


def test_the_default_metric_of_learning_curves_is_the_main_metric_of_the_task() -> None:
    tokens = icl.evaluate(["uniform", "unigram"], icl.task("markov", "smoke", points=4, episodes=4))
    functions = icl.evaluate(["zero", "ridge"], icl.task("linear", "smoke", dim=2, points=3, episodes=4))
    for chart in (
        icl.plot.learning_curves(tokens),
        icl.plot.learning_curves(pd.concat([functions, tokens]), "markov"),
        icl.plot.learning_curves(tokens, metric="cross_entropy"),
    ):
        titles = set(re.findall(r'"title": "([^"]*)"', chart.to_json(validate=False)))
        assert {"cross-entropy", "elements in context"} <= titles and "accuracy" not in titles
    chart = icl.plot.learning_curves(pd.concat([functions, tokens]), "linear").to_json(validate=False)
    assert "squared error" in chart and "examples in context" in chart
    with refused("unknown-name", "'squared_error'", "accuracy"):
        icl.plot.learning_curves(pd.concat([functions, tokens]), "markov", metric="squared_error")
