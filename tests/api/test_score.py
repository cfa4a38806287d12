"""Scores in memory: the rows of the command."""

import doctest
from pathlib import Path

import pandas as pd
import pytest

import iclbench as icl
from iclbench import tables
from iclbench.api import score
from iclbench.api.tasks import Task
from iclbench.cli.main import main
from iclbench.config.runs import Run
from iclbench.core.errors import UsageError

KEYS = ["contestant", "shift", "metric", "n_context", "n_related", "stratum", "axis", "axis_value"]


def test_rows_are_those_of_the_command_but_for_the_model_of_a_notebook(run: Run, linear: Task, results: Path) -> None:
    named = ["least-squares", "zero", "knn-3"]
    asked = [part for name in named for part in ("--baseline", name)]
    assert main(["eval", "tour", "--results", str(results), "--shift", "orthants", *asked]) == 0
    values = tables.read_all("values", results)
    theirs = values[values["prompt_set"].notna() & values["evaluator"].eq("next")]
    ours = icl.evaluate({"tnp": run, **{name: name for name in named}}, linear, ["none", "orthants"])
    assert list(ours.columns) == list(tables.SCHEMAS["values"])
    one, other = (f.sort_values(KEYS, ignore_index=True)[[*KEYS, "value", "low", "high"]] for f in (ours, theirs))
    pd.testing.assert_frame_equal(one, other)
    assert {"auc", "score"} <= set(ours["metric"])


def test_models_are_numbered_where_they_have_one_name() -> None:
    task = icl.task("linear", "smoke", dim=2, episodes=8)
    models = [icl.CNP(task, width=8, seed=seed) for seed in (0, 1)]
    found = icl.evaluate([*models, "ridge"], task)
    assert set(found["contestant"]) == {"cnp", "cnp-2", "ridge"}
    assert set(icl.evaluate({"mine": models[0]}, task)["contestant"]) == {"mine"}
    assert set(icl.evaluate(models[0], task)["contestant"]) == {"cnp"}


def test_nobody_is_lost_where_names_meet() -> None:
    task = icl.task("linear", "smoke", dim=2, episodes=8)
    one, other = (icl.CNP(task, width=8, seed=seed) for seed in (0, 1))

    own = type("ridge", (type(one),), {})(one.settings, one.shape)  # a class by the name of a baseline
    found = icl.evaluate([own, one, other, "ridge", "zero", "zero"], task, "none")
    assert set(found["contestant"]) == {"ridge-2", "cnp", "cnp-2", "ridge", "zero"}
    with pytest.raises(UsageError, match="'b': a baseline goes by its own name"):
        icl.evaluate({"a": one, "b": "zero"}, task)


def test_more_examples_than_in_training_are_rows_of_their_own() -> None:
    task = icl.task("linear", "smoke", dim=2, points=5, episodes=8)
    found = icl.evaluate(["ridge"], task, extrapolate=9)
    assert set(found["extrapolated_to"].dropna()) == {9} and found["n_context"].max() == 9


def test_what_does_not_fit_is_one_line() -> None:
    task = icl.task("linear", "smoke", dim=2, episodes=8)
    for models, line in ((["rigde"], "ridge"), ([3], "not int"), (["majority"], "predicts class labels")):
        with pytest.raises(UsageError, match=line):
            icl.evaluate(models, task)
    with pytest.raises(UsageError, match="shift"):
        icl.evaluate(["ridge"], task, ["sideways"])


def test_a_model_for_other_inputs_is_refused() -> None:
    task, other = (icl.task("linear", "smoke", dim=dim, episodes=8) for dim in (2, 3))
    with pytest.raises(UsageError, match="built for x_dim=2"):
        icl.evaluate([icl.CNP(task, width=8)], other)


def test_examples_of_the_documentation_hold() -> None:
    assert doctest.testmod(score).failed == 0
