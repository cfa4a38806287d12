"""Scores in memory: the rows of the command."""

import copy
import doctest
import re
from pathlib import Path

import pandas as pd
import pytest

import iclbench as icl
from iclbench import tables
from iclbench.api import score
from iclbench.api.tasks import Task
from iclbench.cli.main import main
from iclbench.core.errors import UsageError
from iclbench.store.runs import Run

GP = {"episodes": 6, "points": 8, "targets": 5, "max_related": 2, "related_points": [4, 9]}


def assert_those_of_the_command(ours: pd.DataFrame, results: Path, *options: str) -> None:
    """Every row and column of `ours` is in the tables of `iclbench eval`, to the last digit, and nothing else is."""
    assert main(["eval", "--results", str(results), *options]) == 0
    theirs = tables.read_all("values", results / "tables").query("kind != 'published'")
    keys = tables.keys("values")
    one, other = (f.sort_values([*keys, "stratum"], ignore_index=True) for f in (ours, theirs))
    pd.testing.assert_frame_equal(one, other, check_exact=True)


def typed(baselines: list[str]) -> list[str]:
    return [part for name in baselines for part in ("--baseline", name)]


@pytest.mark.slow
def test_rows_are_those_of_the_command(run: Run, linear: Task, results: Path) -> None:
    # A network has to be trained for every context and trees to be compiled first: the next test asks the former.
    quick = [name for name in linear.baselines if name not in ("mlp", "decision-tree-2")]
    ours = icl.evaluate([run, *quick], linear, ["none", "orthants"])
    assert_those_of_the_command(ours, results, "--shift", "orthants", *typed(quick))
    assert {"auc", "score"} <= set(ours["metric"])
    model = ours[ours["kind"].eq("backbone")]
    assert set(model["contestant"]) == {"tnp"} and set(model["run"]) == {"tour"}
    assert model["variant"].notna().all() and model["seed"].eq(0).all()


def test_rows_of_an_estimator_that_draws_numbers_are_those_of_the_command(tmp_path: Path) -> None:
    task = icl.task("linear", "smoke", dim=2, points=4, episodes=2)
    run = icl.train(task, "cnp", results=tmp_path, steps=1, progress=False)
    named = ["mlp", "ridge", "zero"]
    assert_those_of_the_command(icl.evaluate([run, *named], task), tmp_path, *typed(named))


def test_a_run_on_the_prompts_of_another_task_says_where_it_was_trained(run: Run, results: Path) -> None:
    other = icl.task("noisy-linear", "smoke", dim=10, head="gaussian", points=20, episodes=16)
    ours = icl.evaluate([run, "ridge", "zero"], other, device="cpu")
    model = ours[ours["kind"].eq("backbone")]
    assert set(model["contestant"]) == {"tnp@linear"} and set(model["trained_on"]) == {"linear"}
    assert "tnp@linear" in icl.plot.learning_curves(ours).to_json(validate=False)
    with pytest.raises(UsageError, match=r"'tour'.*'linear'"):
        icl.evaluate(run, icl.task("linear", "smoke", dim=3))


@pytest.mark.slow
def test_tests_of_a_family_are_asked_as_by_the_command(tmp_path: Path) -> None:
    task = icl.task("bursty", "smoke", episodes=8)
    run = icl.train(task, "cnp", results=tmp_path, steps=1, evaluate_every=0, progress=False)
    ours = icl.evaluate([run, *task.baselines], task)
    assert set(ours["evaluator"]) == {"targets", "icl", "icl_paired", "iwl", "flip"} and "chance" in set(ours["run"])
    assert_those_of_the_command(ours, tmp_path)
    model = icl.CNP(task)
    assert set(icl.evaluate(model, task, evaluators="icl-paired")["evaluator"]) == {"targets", "icl_paired"}
    assert set(icl.evaluate(model, task, evaluators=())["evaluator"]) == {"targets"}
    assert set(icl.evaluate(model, task, (), evaluators=["iwl", "flip"])["evaluator"]) == {"iwl", "flip"}
    with pytest.raises(UsageError, match="unknown evaluator 'ilc'"):
        icl.evaluate(model, task, evaluators="ilc")
    with pytest.raises(UsageError, match="unknown evaluator 'icl'"):
        icl.evaluate("ridge", icl.task("linear", "smoke", dim=2), evaluators="icl")


def test_gaps_and_scores_of_targets_are_those_of_the_command(tmp_path: Path) -> None:
    task = icl.task("gp-mixture", "smoke", **GP)
    run = icl.train(task, "tnp", results=tmp_path, steps=1, progress=False)
    named = ["oracle-kernel", "zero", "gp-rbf"]
    ours = icl.evaluate([run, *named], task)
    assert {"gap", "score", "log_likelihood"} <= set(ours["metric"])
    assert_those_of_the_command(ours, tmp_path, *typed(named))


def test_all_shifts_are_those_of_the_card() -> None:
    task = icl.task("linear", "smoke", dim=2, episodes=8)
    assert set(icl.evaluate("zero", task, "all")["shift"]) == {task.config.shift_name(s) for s in task.config.shifts}


def test_models_of_a_notebook_say_what_was_trained_where_and_from_which_seed() -> None:
    task, other = (icl.task(name, "smoke", dim=2, episodes=8) for name in ("linear", "noisy-linear"))
    model, untrained = (icl.CNP(task, width=8) for _ in range(2))
    icl.fit(model, task, 1, seed=7, progress=False)

    def rows(model: object, task: Task) -> pd.DataFrame:
        columns = ["contestant", "run", "model", "seed", "variant", "trained_on"]
        return icl.evaluate(model, task)[columns].astype(object)

    (one,) = rows(model, task).drop_duplicates().to_dict("records")
    variant = one["variant"]
    assert list(one.values())[:4] == ["cnp", "cnp", "cnp", 7] and pd.isna(one["trained_on"])
    (elsewhere,) = rows(copy.deepcopy(model), other).drop_duplicates().to_dict("records")
    assert elsewhere == one | {"contestant": "cnp@linear", "trained_on": "linear"}
    variants = {variant, *rows(untrained, task)["variant"]}
    icl.fit(untrained, task, 1, seed=8, progress=False)
    assert set(rows(untrained, task)["variant"]) == {variant}, "seeds are no variants"
    icl.fit(untrained, task, 2, progress=False)
    variants |= {*rows(untrained, task)["variant"]}
    assert len(variants) == 3
    (named,) = rows({"mine": model}, other).drop_duplicates().to_dict("records")
    assert (named["contestant"], named["run"], named["model"], named["trained_on"]) == ("mine", "mine", "cnp", "linear")


def test_charts_tell_apart_what_differs_in_changes_alone() -> None:
    tasks = [icl.task("linear", "smoke", dim=dim, episodes=8) for dim in (2, 3)]
    frames = [icl.evaluate([icl.CNP(task, width=8), "zero", "ridge"], task) for task in tasks]
    line = "not in the chart: linear · smoke · none: 3 runs on another prompt set"
    with pytest.warns(UserWarning, match=line) as seen:
        chart = icl.plot.learning_curves(pd.concat(frames)).to_json(validate=False)
    assert seen[0].filename == __file__
    (shown,) = set(re.findall(r'"contestant": "(cnp[^"]*)"', chart))
    assert shown in {f"cnp-{frame['variant'].dropna().iloc[0][:4]}" for frame in frames}


def test_rows_of_two_calls_are_drawn_together_where_their_models_have_names_of_their_own() -> None:
    task = icl.task("linear", "smoke", dim=2, episodes=8)
    one, other = (icl.CNP(task, width=8, seed=seed) for seed in (0, 1))
    rows = [icl.evaluate([model, "zero", best], task) for model, best in ((one, "ridge"), (other, "mean"))]
    with pytest.raises(UsageError, match="'cnp'"):
        icl.plot.learning_curves(pd.concat(rows))
    rows[1] = icl.evaluate({"second": other, "zero": "zero", "mean": "mean"}, task)
    with pytest.warns(UserWarning, match="scores of mean, second left out"):
        chart = icl.plot.learning_curves(pd.concat(rows)).to_json(validate=False)
    assert all(f'"{name}"' in chart for name in ("cnp", "second", "zero", "ridge", "mean"))


def test_trainings_from_several_seeds_are_runs_of_one_contestant() -> None:
    task = icl.task("linear", "smoke", dim=2, episodes=8)
    frames = []
    for seed in (0, 1):
        model = icl.CNP(task, width=8, seed=seed)
        icl.fit(model, task, 1, seed=seed, progress=False)
        frames.append(icl.evaluate([model, "zero"], task))
    chart = icl.plot.learning_curves(pd.concat(frames)).to_json(validate=False)
    variant = frames[0]["variant"].dropna().iloc[0][:4]
    assert set(re.findall(r'"contestant": "(cnp[^"]*)"', chart)) == {"cnp"}
    assert set(re.findall(r'"series": "(cnp[^"]*)"', chart)) == {f"cnp-{variant}-s{seed}" for seed in (0, 1)}


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
    with pytest.raises(UsageError, match="'b'"):
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


def test_no_model_goes_by_the_name_of_a_baseline() -> None:
    task = icl.task("linear", "smoke", dim=2, points=3, episodes=4)
    for name in ("zero", "gp-rbf", "published-tnp"):
        with pytest.raises(UsageError, match=f"'{name}' is the name of a baseline or published row .*choose another$"):
            icl.evaluate({name: icl.CNP(task, width=8), "ridge": "ridge"}, task)
