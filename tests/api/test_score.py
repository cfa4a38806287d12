"""`icl.evaluate` returns the rows that `iclbench eval` writes."""

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
from iclbench.store.runs import Run
from tests.refusals import refused

GP = {"episodes": 6, "points": 8, "targets": 5, "max_related": 2, "related_points": [4, 9]}


def assert_rows_of_the_command(rows: pd.DataFrame, results: Path, *options: str) -> None:
    """Check that `iclbench eval` writes exactly these rows."""
    assert main(["eval", "--results", str(results), *options]) == 0
    command_rows = tables.read_all("values", results / "tables").query("kind != 'published'")
    keys = tables.key_columns("values")
    actual, expected = (f.sort_values([*keys, "stratum"], ignore_index=True) for f in (rows, command_rows))
    pd.testing.assert_frame_equal(actual, expected, check_exact=True)


def baseline_options(baselines: list[str]) -> list[str]:
    return [part for name in baselines for part in ("--baseline", name)]


@pytest.mark.slow
def test_rows_equal_those_of_the_command(run: Run, linear: Task, results: Path) -> None:
    # The baseline mlp is slow, and the next test evaluates it. Decision trees would have to be compiled first.
    fast_baselines = [name for name in linear.baselines if name not in ("mlp", "decision-tree-2")]
    rows = icl.evaluate([run, *fast_baselines], linear, ["none", "orthants"])
    assert_rows_of_the_command(rows, results, "--shift", "orthants", *baseline_options(fast_baselines))
    assert {"auc", "score"} <= set(rows["metric"])
    model = rows[rows["kind"].eq("backbone")]
    assert set(model["contestant"]) == {"tnp"} and set(model["run"]) == {"tour"}
    assert model["variant"].notna().all() and model["seed"].eq(0).all()


@pytest.mark.slow
def test_rows_of_a_random_estimator_equal_those_of_the_command(tmp_path: Path) -> None:
    task = icl.task("linear", "smoke", dim=2, points=4, episodes=2)
    run = icl.train(task, "cnp", results=tmp_path, steps=1, progress=False)
    baselines = ["mlp", "ridge", "zero"]
    assert_rows_of_the_command(icl.evaluate([run, *baselines], task), tmp_path, *baseline_options(baselines))


@pytest.mark.slow
def test_rows_of_a_run_that_was_trained_on_another_task_name_this_task(run: Run, results: Path) -> None:
    other_task = icl.task("noisy-linear", "smoke", dim=10, head="gaussian", points=20, episodes=16)
    rows = icl.evaluate([run, "ridge", "zero"], other_task, device="cpu")
    model = rows[rows["kind"].eq("backbone")]
    assert set(model["contestant"]) == {"tnp@linear"} and set(model["trained_on"]) == {"linear"}
    assert "tnp@linear" in icl.plot.learning_curves(rows).to_json(validate=False)
    with refused("not-applicable", "'tour'", "'linear'"):
        icl.evaluate(run, icl.task("linear", "smoke", dim=3))


@pytest.mark.slow
def test_rows_of_family_tests_equal_those_of_the_command(tmp_path: Path) -> None:
    task = icl.task("bursty", "smoke", episodes=8)
    run = icl.train(task, "cnp", results=tmp_path, steps=1, evaluate_every=0, progress=False)
    rows = icl.evaluate([run, *task.baselines], task)
    assert set(rows["evaluator"]) == {"targets", "icl", "icl_paired", "iwl", "flip"} and "chance" in set(rows["run"])
    assert_rows_of_the_command(rows, tmp_path)
    model = icl.CNP(task)
    assert set(icl.evaluate(model, task, evaluators="icl-paired")["evaluator"]) == {"targets", "icl_paired"}
    assert set(icl.evaluate(model, task, evaluators=())["evaluator"]) == {"targets"}
    assert set(icl.evaluate(model, task, (), evaluators=["iwl", "flip"])["evaluator"]) == {"iwl", "flip"}
    with refused("unknown-name", "evaluator", "'ilc'"):
        icl.evaluate(model, task, evaluators="ilc")
    with refused("unknown-name", "evaluator", "'icl'"):
        icl.evaluate("ridge", icl.task("linear", "smoke", dim=2), evaluators="icl")


@pytest.mark.slow
def test_gaps_and_scores_of_targets_equal_those_of_the_command(tmp_path: Path) -> None:
    task = icl.task("gp-mixture", "smoke", **GP)
    run = icl.train(task, "tnp", results=tmp_path, steps=1, progress=False)
    baselines = ["oracle-kernel", "zero", "gp-rbf"]
    rows = icl.evaluate([run, *baselines], task)
    assert {"gap", "score", "log_likelihood"} <= set(rows["metric"])
    assert_rows_of_the_command(rows, tmp_path, *baseline_options(baselines))


def test_the_word_all_selects_the_shifts_of_the_card() -> None:
    task = icl.task("linear", "smoke", dim=2, episodes=8)
    assert set(icl.evaluate("zero", task, "all")["shift"]) == {task.config.shift_name(s) for s in task.config.shifts}


def test_rows_of_a_model_in_memory_contain_variant_task_and_seed_of_its_training() -> None:
    task, other = (icl.task(name, "smoke", dim=2, episodes=8) for name in ("linear", "noisy-linear"))
    model, untrained = (icl.CNP(task, width=8) for _ in range(2))
    icl.fit(model, task, 1, seed=7, progress=False)

    def identity(models: object, task: Task) -> dict[str, object]:
        columns = ["contestant", "run", "model", "seed", "variant", "trained_on"]
        (row,) = icl.evaluate(models, task)[columns].astype(object).drop_duplicates().to_dict("records")
        return row

    row = identity(model, task)
    assert list(row.values())[:4] == ["cnp", "cnp", "cnp", 7] and pd.isna(row["trained_on"])
    assert identity(copy.deepcopy(model), other) == row | {"contestant": "cnp@linear", "trained_on": "linear"}
    variants = {row["variant"], identity(untrained, task)["variant"]}
    icl.fit(untrained, task, 1, seed=8, progress=False)
    assert identity(untrained, task)["variant"] == row["variant"], "variants do not depend on seeds"
    icl.fit(untrained, task, 2, progress=False)
    variants.add(identity(untrained, task)["variant"])
    assert len(variants) == 3
    expected = row | {"contestant": "mine", "run": "mine", "trained_on": "linear"}
    assert identity({"mine": model}, other) == expected


@pytest.mark.slow
def test_charts_omit_rows_with_different_task_settings_with_a_warning() -> None:
    tasks = [icl.task("linear", "smoke", dim=dim, episodes=8) for dim in (2, 3)]
    frames = [icl.evaluate([icl.CNP(task, width=8), "zero", "ridge"], task) for task in tasks]
    with pytest.warns(UserWarning, match=r"linear · smoke · none.* 3 ") as warnings:
        chart = icl.plot.learning_curves(pd.concat(frames)).to_json(validate=False)
    assert warnings[0].filename == __file__
    (contestant,) = set(re.findall(r'"contestant": "(cnp[^"]*)"', chart))
    assert contestant in {f"cnp-{frame['variant'].dropna().iloc[0][:4]}" for frame in frames}


@pytest.mark.slow
def test_rows_of_two_calls_can_be_in_one_chart_if_the_names_of_models_differ() -> None:
    task = icl.task("linear", "smoke", dim=2, episodes=8)
    one, other = (icl.CNP(task, width=8, seed=seed) for seed in (0, 1))
    rows = [icl.evaluate([model, "zero", name], task) for model, name in ((one, "ridge"), (other, "mean"))]
    with refused("duplicate", "'cnp'"):
        icl.plot.learning_curves(pd.concat(rows))
    rows[1] = icl.evaluate({"second": other, "zero": "zero", "mean": "mean"}, task)
    with pytest.warns(UserWarning, match="mean, second"):
        chart = icl.plot.learning_curves(pd.concat(rows)).to_json(validate=False)
    assert all(f'"{name}"' in chart for name in ("cnp", "second", "zero", "ridge", "mean"))


@pytest.mark.slow
def test_models_trained_with_several_seeds_are_runs_of_one_contestant() -> None:
    task = icl.task("linear", "smoke", dim=2, episodes=8)
    frames = []
    for seed in (0, 1):
        model = icl.CNP(task, width=8, seed=seed)
        icl.fit(model, task, 1, seed=seed, progress=False)
        frames.append(icl.evaluate([model, "zero"], task))
    chart = icl.plot.learning_curves(pd.concat(frames)).to_json(validate=False)
    variant = frames[0]["variant"].dropna().iloc[0][:4]
    assert set(re.findall(r'"contestant": "(cnp[^"]*)"', chart)) == {"cnp"}
    runs = [f"cnp-{variant}-s{seed}" for seed in (0, 1)]
    assert set(re.findall(r'"series": "(cnp[^"]*)"', chart)) == {*runs, "; ".join(runs)}, (
        "the chart contains all runs and their mean"
    )


def test_models_with_the_same_name_are_numbered() -> None:
    task = icl.task("linear", "smoke", dim=2, episodes=8)
    models = [icl.CNP(task, width=8, seed=seed) for seed in (0, 1)]
    values = icl.evaluate([*models, "ridge"], task)
    assert set(values["contestant"]) == {"cnp", "cnp-2", "ridge"}
    assert set(icl.evaluate({"mine": models[0]}, task)["contestant"]) == {"mine"}
    assert set(icl.evaluate(models[0], task)["contestant"]) == {"cnp"}


def test_models_and_baselines_with_the_same_name_have_separate_rows() -> None:
    task = icl.task("linear", "smoke", dim=2, episodes=8)
    one, other = (icl.CNP(task, width=8, seed=seed) for seed in (0, 1))
    same_name_model = type("ridge", (type(one),), {})(
        one.settings, one.shape
    )  # a class with the same name as a baseline
    values = icl.evaluate([same_name_model, one, other, "ridge", "zero", "zero"], task, "none")
    assert set(values["contestant"]) == {"ridge-2", "cnp", "cnp-2", "ridge", "zero"}
    with refused("bad-value", "'b'", "'zero'"):
        icl.evaluate({"a": one, "b": "zero"}, task)


def test_models_can_be_evaluated_with_more_examples_than_in_training() -> None:
    task = icl.task("linear", "smoke", dim=2, points=5, episodes=8)
    values = icl.evaluate(["ridge"], task, extrapolate=9)
    assert set(values["extrapolated_to"].dropna()) == {9} and values["n_context"].max() == 9


@pytest.mark.parametrize(
    ("models", "shifts", "code", "names"),
    [
        (["rigde"], "none", "unknown-name", ["'rigde'", "'ridge'"]),
        ([3], "none", "bad-value", ["int"]),
        (["majority"], "none", "not-applicable", ["majority"]),
        (["ridge"], ["sideways"], "not-applicable", ["shift", "'sideways'"]),
    ],
)
def test_unknown_and_unsuitable_models_and_shifts_are_refused(
    models: list[object], shifts: str, code: str, names: list[str]
) -> None:
    task = icl.task("linear", "smoke", dim=2, episodes=8)
    with refused(code, *names):
        icl.evaluate(models, task, shifts)


def test_a_model_with_another_input_dimension_is_refused() -> None:
    task, other_task = (icl.task("linear", "smoke", dim=dim, episodes=8) for dim in (2, 3))
    with refused("not-applicable", "x_dim=2", "x_dim=3"):
        icl.evaluate([icl.CNP(task, width=8)], other_task)


def test_examples_in_docstrings_are_correct() -> None:
    assert doctest.testmod(score).failed == 0


def test_a_model_cannot_have_the_name_of_a_baseline() -> None:
    task = icl.task("linear", "smoke", dim=2, points=3, episodes=4)
    for name in ("zero", "gp-rbf", "published-tnp"):
        with refused("exists", f"'{name}'"):
            icl.evaluate({name: icl.CNP(task, width=8), "ridge": "ridge"}, task)
