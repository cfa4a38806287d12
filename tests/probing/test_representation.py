"""Probes of sample representations: R² against scikit-learn, recovery of features, and curves."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score

from iclbench import tables
from iclbench.config.resolution import resolve_run
from iclbench.core.context import Context
from iclbench.core.errors import UsageError
from iclbench.evaluation.monitor import Monitor
from iclbench.families.combination import features
from iclbench.probing.representation import N_INPUTS, RepresentationSet, linear_map, probe_representation, r_squared
from iclbench.store.runs import Run, create
from iclbench.training.run import train
from tests.refusals import refused


def normal_sample(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, columns))


def test_r_squared_equals_scikit_learn() -> None:
    true_values, noise = normal_sample(50, 3) + 2, normal_sample(50, 3, 1)
    np.testing.assert_allclose(
        r_squared(true_values + noise, true_values),
        r2_score(true_values, true_values + noise, multioutput="raw_values")[None],
    )


def test_integer_weights_are_equivalent_to_repeated_inputs() -> None:
    true_values, fitted = normal_sample(6, 2), normal_sample(6, 2, 1)
    times = np.array([0, 2, 1, 1, 2, 0])
    repeated = r_squared(fitted.repeat(times, 0), true_values.repeat(times, 0))
    np.testing.assert_allclose(r_squared(fitted, true_values, times[None].astype(float)), repeated)


def test_the_linear_map_is_least_squares_without_an_intercept_even_if_columns_repeat() -> None:
    learned, true_values = normal_sample(40, 4), normal_sample(40, 3, 1)
    learned[:, 3] = learned[:, 0]
    expected = LinearRegression(fit_intercept=False).fit(learned, true_values).predict(learned)
    h = linear_map(torch.from_numpy(learned), torch.from_numpy(true_values))
    np.testing.assert_allclose(learned @ h.numpy(), expected, atol=1e-10)
    torch.testing.assert_close(h[0], h[3])


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    settings = ["train.steps=2", "train.batch=4", "backbone.sample_dim=5"]
    run = create(tmp_path_factory.mktemp("represent"), resolve_run("combination", "coqe", "smoke", 0, settings))
    train(run)
    return run


def rotated_features(backbone: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return the true features except cos(pi x4), mixed by an invertible matrix."""
    mix = torch.from_numpy(normal_sample(5, 5))
    true_features = features(x.double())
    return (true_features * torch.tensor([1.0, 1, 1, 0, 1], dtype=torch.float64)) @ mix


def test_features_in_the_representation_are_recovered_up_to_a_linear_map(
    trained_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(trained_run.load()), "represent", rotated_features)
    cells = list(probe_representation(Context(tmp_path), trained_run))
    assert [cell.reason for cell in cells] == [None] * 3
    rows = tables.read_all("values", tmp_path)
    assert set(rows["evaluator"]) == {"representation"} and set(rows["metric"]) == {"r_squared"}
    model_rows = rows[rows["contestant"] == "coqe"]
    by_feature = model_rows[model_rows["axis"] == "feature"].set_index("axis_value")["value"]
    assert by_feature.drop(4).to_list() == pytest.approx([1, 1, 1, 1], abs=1e-9)
    assert abs(by_feature[4]) < 0.02
    (mean,) = model_rows[model_rows["axis"].isna()].to_dict("records")
    assert mean["value"] == pytest.approx(by_feature.mean())
    assert mean["low"] <= mean["value"] <= mean["high"] and mean["n_episodes"] == N_INPUTS


def test_the_inputs_and_the_untrained_model_are_scored(trained_run: Run, tmp_path: Path) -> None:
    """For a normal x, the inputs explain E[x⁴]² / E[x⁶] = 9/15 of x³, and nothing of |x| or x²."""
    list(probe_representation(Context(tmp_path), trained_run))
    rows = tables.read_all("values", tmp_path)
    assert set(rows["run"]) == {trained_run.name, f"{trained_run.name}-untrained", "least-squares"}
    inputs = rows[rows["run"].eq("least-squares") & rows["axis"].eq("feature")].set_index("axis_value")
    assert inputs.loc[3, "low"] < 0.6 < inputs.loc[3, "high"]
    # Without an intercept, the mean is not fitted, so R² is -E[|x|]² / Var|x| for |x|, and -1/2 for x².
    assert inputs.loc[1, "value"] == pytest.approx(-(2 / math.pi) / (1 - 2 / math.pi), abs=0.15)
    assert inputs.loc[2, "value"] == pytest.approx(-0.5, abs=0.1)
    untrained_rows = rows[rows["run"].eq(f"{trained_run.name}-untrained")]
    assert set(untrained_rows["kind"]) == {"baseline"}
    trained_rows = rows[rows["run"].eq(trained_run.name)]
    assert not np.allclose(untrained_rows["value"], trained_rows["value"].to_numpy()), (
        "two training steps change the scores"
    )
    assert all(cell.cached for cell in probe_representation(Context(tmp_path), trained_run))


def test_curves_contain_the_features_and_their_regression(
    trained_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(trained_run.load()), "represent", rotated_features)
    list(probe_representation(Context(tmp_path), trained_run))
    rows = tables.read_all("examples", tmp_path)
    assert set(rows["role"]) == {"function", "predicted", "dimension"} and set(rows["contestant"]) == {"coqe"}
    formulas = [abs, lambda t: t**2, lambda t: t**3, lambda t: math.cos(math.pi * t), lambda t: math.exp(0.2 * t)]
    for output, formula in enumerate(formulas):
        function = rows[rows["role"].eq("function") & rows["output"].eq(output)]
        np.testing.assert_allclose(function["value"], [formula(t) for t in function["x1"]], atol=1e-9)
        predicted = rows[rows["role"].eq("predicted") & rows["output"].eq(output)]
        assert (predicted["low"] <= predicted["high"]).all()
        if output != 3:
            np.testing.assert_allclose(predicted["value"], function["value"], atol=1e-6)
            np.testing.assert_allclose(predicted["low"], predicted["high"], atol=1e-6)


def test_probes_are_fitted_and_scored_on_different_inputs(trained_run: Run) -> None:
    config = trained_run.config
    inputs = RepresentationSet(config.task, config.preset).inputs
    assert inputs.shape == (2 * N_INPUTS, 5)
    assert len(inputs.unique(dim=0)) == len(inputs)


def test_runs_that_cannot_be_probed_are_refused(tmp_path: Path) -> None:
    run = create(tmp_path, resolve_run("linear", "gpt2", "smoke", 0, ["train.steps=2"]))
    with pytest.raises(UsageError, match="linear"):
        list(probe_representation(Context(tmp_path), run))
    train(run)
    with refused("not-applicable", "'gpt2'", "represent"):
        list(probe_representation(Context(tmp_path), run))
    for task in ("decision-tree", "bursty"):  # the image encoder of the second run does not define `represent`
        other = create(tmp_path, resolve_run(task, "coqe", "smoke", 0, ["train.steps=2", "train.batch=2"]))
        train(other, monitor=Monitor)
        with refused("not-applicable", f"'{task}'", other.name):
            list(probe_representation(Context(tmp_path), other))


def test_curves_contain_each_dimension_along_every_input_direction(
    trained_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The curve of each of the five dimensions is averaged over the other directions of the inputs."""
    monkeypatch.setattr(type(trained_run.load()), "represent", rotated_features)
    list(probe_representation(Context(tmp_path), trained_run))
    rows = tables.read_all("examples", tmp_path).query("role == 'dimension'")
    assert set(rows["output"]) == set(rows["set"]) == set(range(5))
    for index in (1, 3):
        curves = rows[rows["set"].eq(index)].pivot(index="x1", columns="output", values="value").astype(float)
        mix = normal_sample(5, 5)
        # Along x2, the representation changes by x2² times the row of x2 in the mixing matrix. Along x4, whose
        # feature is missing, it is constant.
        expected = (curves.index.to_numpy() ** 2)[:, None] * mix[1] if index == 1 else np.zeros((len(curves), 5))
        np.testing.assert_allclose(curves - curves.iloc[30], expected - expected[30], atol=1e-6)


def test_wide_representations_have_no_curves_of_dimensions(tmp_path: Path) -> None:
    wide = create(tmp_path, resolve_run("combination", "coqe", "smoke", 0, ["train.steps=1", "train.batch=4"]))
    train(wide)
    list(probe_representation(Context(tmp_path), wide))
    assert not tables.read_all("examples", tmp_path)["role"].eq("dimension").any()
