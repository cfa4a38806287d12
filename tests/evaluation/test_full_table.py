"""Real tables: remarks, and out-of-fold errors of XGBoost."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from xgboost import XGBRegressor

from iclbench.config.resolution import TaskConfig, resolve_task
from iclbench.evaluation.full_table import full_table_error, out_of_fold_predictions, remarks
from iclbench.evaluation.prompts import PromptSet
from iclbench.families.tabular.real_tables import RealTables
from iclbench.families.tabular.table_file import Table
from iclbench.families.tabular.tabular import Tabular


def make_table(rows: int = 60, features: int = 3, noise: bool = False) -> Table:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, features))
    y = rng.normal(size=rows) if noise else 1000 + 300 * np.sign(x[:, 0]) + rng.normal(size=rows)
    return Table("made", x, y, tuple(f"f{i}" for i in range(features)), "price")


def prompts(*tables: Table, variance: float = 1.0, encoding: str = "pad", episodes: int = 32) -> PromptSet:
    parameters = Tabular.Parameters(dim=2, variance=variance, encoding=encoding)  # type: ignore[arg-type]
    task: TaskConfig = resolve_task("tabular", "smoke")[0].model_copy(
        update={"points": 20, "episodes": episodes, "parameters": parameters.model_dump(mode="json")}
    )
    return PromptSet(task, "smoke", built_family=Tabular(parameters, tables=tables))


def test_rows_are_predicted_by_models_that_were_not_fitted_on_them() -> None:
    """The target is noise, so only a model fitted on the predicted rows would beat the mean."""
    table = make_table(200, noise=True)
    assert ((out_of_fold_predictions(table) - table.y) ** 2).mean() > table.y.var()
    in_sample = XGBRegressor(n_estimators=50, max_depth=4, learning_rate=0.1).fit(table.x, table.y).predict(table.x)
    assert ((in_sample - table.y) ** 2).mean() < 0.5 * table.y.var()


@pytest.mark.parametrize("variance", [1.0, 5.0])
def test_the_area_is_computed_from_errors_in_the_units_of_the_episodes(variance: float) -> None:
    """The reference divides labels by the standard deviation of the first ten rows, and integrates over context sizes
    from 10 to 20.
    """
    table, prompt_set = make_table(), prompts(make_table(), variance=variance)
    rows = prompt_set.episodes.truth["rows"].numpy()
    deviation = table.y[rows[:, :10]].std(1, keepdims=True)
    errors = ((out_of_fold_predictions(table)[rows] - table.y[rows]) / deviation) ** 2
    expected = np.trapezoid(errors[:, 10:], axis=1).mean() / 10
    assert full_table_error(prompt_set)["value"] == pytest.approx(expected, rel=1e-4)
    assert expected < 0.1, "every fit on 54 rows finds the step in the target"


@pytest.mark.slow
def test_results_do_not_depend_on_the_units_of_the_file() -> None:
    table = make_table()
    expected = out_of_fold_predictions(table)
    area = full_table_error(prompts(table))["value"]
    for unit in (1e100, 1e-100, 1e300, 1e-300):
        scaled = replace(table, y=table.y * unit, x=table.x * unit)
        assert out_of_fold_predictions(scaled) / unit == pytest.approx(expected, rel=1e-4)
        assert full_table_error(prompts(scaled))["value"] == pytest.approx(area, rel=1e-4)
    mixed_units = replace(table, y=np.where(np.arange(60) % 2, 1e300, 1e-300))
    assert np.isfinite(out_of_fold_predictions(mixed_units)).all()
    assert np.isfinite(float(str(full_table_error(prompts(mixed_units))["value"])))
    assert out_of_fold_predictions(replace(table, y=np.full(60, 7.0))) == pytest.approx(np.full(60, 7.0))


def test_folds_are_fitted_once_for_several_runs_on_the_same_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs have different prompts."""
    fits, fit = [], XGBRegressor.fit
    monkeypatch.setattr(XGBRegressor, "fit", lambda model, *data: (fits.append(1), fit(model, *data))[1])
    table = make_table()
    first, second = (remarks(prompts(table, variance=variance)) for variance in (1.0, 5.0))
    assert len(fits) == 10 and first != second
    remarks(replace(prompts(table), seed=1))
    assert len(fits) == 20, "folds depend on the seed"


def test_folds_and_intervals_depend_on_the_seed_and_a_single_episode_has_no_interval() -> None:
    summary = full_table_error(prompts(make_table()))
    assert summary == full_table_error(prompts(make_table()))
    low, high = (float(str(summary[end])) for end in ("low", "high"))
    assert remarks(prompts(make_table()))[-1].endswith(f" {summary['value']:.3f} ±{(high - low) / 2:.3f}")
    assert "±" not in remarks(prompts(make_table(), episodes=1))[-1]
    assert (
        out_of_fold_predictions(make_table(noise=True), 0) != out_of_fold_predictions(make_table(noise=True), 1)
    ).any()


def test_remarks_name_features_rows_and_units() -> None:
    lines = remarks(prompts(make_table(features=4), variance=4.0))
    names = [
        ["made", "2 of 4 features", "f0, f1, f2, f3", "60 rows"],
        ["21 rows", "'price'", "first 10 rows", "times 2"],
        ["10 to 20"],
        ["XGBoost"],
    ]
    assert all(name in line for line, line_names in zip(lines, names, strict=True) for name in line_names)
    assert all(
        name in remarks(prompts(make_table(features=1)))[0] for name in ("1 features (f0)", "1 columns of zeros")
    )
    assert "2 projections of 3 features" in remarks(prompts(make_table(), encoding="project"))[0]


@pytest.mark.parametrize(("episodes", "splits"), [(64, "10 splits"), (7, "2 or 3 splits"), (6, "2 splits")])
def test_remarks_on_random_splits_count_the_splits_of_the_prompts(episodes: int, splits: str) -> None:
    parameters = RealTables.Parameters(dim=3, kind="class", classes=3)
    task: TaskConfig = resolve_task("real-tables-classes", "smoke")[0].model_copy(update={"episodes": episodes})
    prompt_set = PromptSet(task, "smoke", built_family=RealTables(parameters))
    tables = prompt_set.episodes.truth["table"].bincount()
    assert {int(count) for count in tables} == {int(word) for word in splits.split() if word.isdigit()}
    assert remarks(prompt_set)[-1].startswith(f"{splits} of every table")


def test_other_families_have_no_remarks(card_path: Path) -> None:
    assert remarks(PromptSet(resolve_task(str(card_path), "smoke")[0], "smoke")) == []
