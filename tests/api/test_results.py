"""Results folders as frames, a page, and charts."""

from pathlib import Path

import altair as alt
import pandas as pd
import pytest

import iclbench as icl
from iclbench.api.tasks import Task
from iclbench.config.runs import Run
from iclbench.core.errors import UsageError


def test_a_folder_gives_its_tables_runs_and_page(run: Run, results: Path) -> None:
    found = icl.open_results(results)
    assert [each.name for each in found.runs()] == ["tour"]
    assert {"values", "costs", "errors", "examples", "answers", "cells"} <= set(dir(found))
    assert (found.values()["run"] == "tour").any() and "parameters" in set(found.costs()["metric"])
    assert found.load("tour").run.name == "tour"
    assert icl.write_report(results).read_text().count("tour")
    with pytest.raises(UsageError, match="no folder"):
        icl.open_results(results / "elsewhere")


@pytest.fixture(scope="module")
def scores(linear: Task, run: Run) -> pd.DataFrame:
    return icl.evaluate({"tnp": run, "ridge": "ridge", "zero": "zero"}, linear, ["none", "orthants"], extrapolate=30)


@pytest.mark.parametrize("chart", ["learning_curves", "extrapolation", "shifts", "leaderboard", "heat_map"])
def test_charts_are_altair_with_every_contestant(chart: str, scores: pd.DataFrame) -> None:
    found = getattr(icl.plot, chart)(scores)
    assert isinstance(found, alt.TopLevelMixin)
    spec = found.to_json()  # validated
    assert '"tnp"' in spec
    if chart != "heat_map":
        assert '"ridge"' in spec and '"zero"' in spec


def test_a_metric_is_drawn_where_it_is_asked_for(scores: pd.DataFrame) -> None:
    for chart in (icl.plot.learning_curves, icl.plot.extrapolation, icl.plot.shifts):
        assert "log-likelihood" in chart(scores, metric="log_likelihood").to_json()
        assert "log-likelihood" not in chart(scores).to_json()
        with pytest.raises(UsageError, match="metric"):
            chart(scores, metric="nope")


def test_charts_say_what_is_missing(scores: pd.DataFrame) -> None:
    for chart in ("probe", "learning_curves"):
        with pytest.raises(UsageError, match=r"no rows|nothing to draw: there are no finished rows"):
            getattr(icl.plot, chart)(scores[scores["shift"] == "sideways"] if chart != "probe" else scores)
    with pytest.raises(UsageError, match="linear"):
        icl.plot.learning_curves(scores, "linaer")
    both = pd.concat([scores, scores.assign(task="other")])
    with pytest.raises(UsageError, match="say which with task="):
        icl.plot.leaderboard(both)
    assert "orthants" in icl.plot.leaderboard(both, "other", shift="orthants").to_json()
