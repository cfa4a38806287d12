"""The section on learning rates: windows, the best of k rates, and ranks at one rate, from `iclbench tune`."""

import shutil
from pathlib import Path

import pandas as pd
import pytest
from scipy.stats import kendalltau

from iclbench import tables
from iclbench.analysis.rate_curves import RateCurves, rate_curves
from iclbench.report.blocks import Figure, Table, Text
from iclbench.report.data import Results, load_results
from iclbench.report.sections.rate_window import section

# Mean areas by rate. The areas of the two seeds are 0.01 below and above the mean. None means that a seed diverged.
AREAS = {
    "gpt2": {1e-3: 0.30, 3e-3: 0.20, 1e-2: 0.22, 3e-2: 0.90},
    "mamba": {1e-3: 0.40, 3e-3: 0.18, 1e-2: None},
    "s4d": {3e-4: 0.10, 1e-3: 0.50, 3e-3: 0.60, 1e-2: 0.70},
}


def trials(
    task: str = "linear", areas: dict[str, dict[float, float | None]] = AREAS, **columns: object
) -> pd.DataFrame:
    rows = []
    for name, by_rate in areas.items():
        for lr, area in by_rate.items():
            for seed, deviation in enumerate((-0.01, 0.01)):
                has_failed = area is None and seed == 1
                row = {"task": task, "family": "linear", "contestant": name, "preset": "grid", "seed": 1000 + seed}
                row |= {"variant": f"{lr:g}", "lr": lr, "optimiser": "adam", "warmup": 10, "weight_decay": 0.0}
                row |= {"beta_1": 0.9, "beta_2": 0.98, "steps": 100, "metric": "auc", "evaluator": "next"}
                row |= {"n_episodes": 8, "prompt_set": "validation", "version": "0"}
                value = None if has_failed else (area or 0.5) + deviation
                rows.append(row | {"value": value, "status": "failed" if has_failed else "ok"} | columns)
    return tables.frame("trials", rows)


@pytest.fixture(scope="module")
def linear() -> RateCurves:
    curves = rate_curves(trials())
    assert curves is not None
    return curves


def test_a_rate_with_a_diverged_seed_has_no_mean(linear: RateCurves) -> None:
    assert linear.by_contestant["mamba"] == {1e-3: pytest.approx(0.4), 3e-3: pytest.approx(0.18), 1e-2: None}
    assert linear.rows.loc[linear.rows["contestant"].eq("gpt2"), "spread"].iloc[0] == pytest.approx(0.01 * 2**0.5)
    assert [linear.best_rate(name) for name in ("gpt2", "mamba", "s4d")] == [3e-3, 3e-3, 3e-4]


def test_the_window_has_neighbouring_rates_with_similar_means(linear: RateCurves) -> None:
    # Means range from 0.1 to 0.9. They are similar if they differ by at most a tenth of this range.
    assert linear.window("gpt2") == [3e-3, 1e-2]
    assert linear.window("mamba") == [3e-3]
    curves = rate_curves(trials(areas={"gpt2": {1e-4: 0.1, 1e-3: 0.9, 1e-2: 0.1}, "mamba": {1e-4: 0.5, 1e-3: 0.5}}))
    assert curves is not None and curves.window("gpt2") == [1e-4] and curves.window("mamba") == [1e-4, 1e-3]


def test_the_expected_best_score_is_a_mean_over_all_choices_of_k_common_rates(linear: RateCurves) -> None:
    assert linear.common_rates == [1e-3, 3e-3, 1e-2]
    assert [linear.expected_score("gpt2", k) for k in (1, 2, 3)] == [
        pytest.approx((0.30 + 0.20 + 0.22) / 3), pytest.approx((0.20 + 0.22 + 0.20) / 3), pytest.approx(0.20)
    ]  # fmt: skip
    assert linear.expected_score("mamba", 1) is None  # one of the rates diverged
    assert linear.expected_score("mamba", 2) == pytest.approx((0.18 + 0.40 + 0.18) / 3)


def test_ranks_at_one_rate_are_compared_with_ranks_at_the_best_rates(linear: RateCurves) -> None:
    assert linear.ranks(None) == {"s4d": 1, "mamba": 2, "gpt2": 3}
    assert linear.ranks(1e-3) == {"gpt2": 1, "mamba": 2, "s4d": 3}
    assert linear.ranks(1e-2) == {"gpt2": 1, "s4d": 2, "mamba": None}
    assert linear.rank_agreement(1e-3) == pytest.approx(-1)
    assert linear.rank_agreement(1e-2) == pytest.approx(-1 / 3)


def test_equal_scores_have_equal_ranks() -> None:
    areas = {"a": {1e-3: 0.1, 1e-2: 0.9}, "b": {1e-3: 0.2, 1e-2: 0.9}, "c": {1e-3: 0.3, 1e-2: 0.8}}
    curves = rate_curves(trials(areas=areas))
    assert curves is not None
    assert curves.ranks(1e-2) == {"a": 2, "b": 2, "c": 1}
    tau = kendalltau([0.9, 0.9, 0.8], [0.1, 0.2, 0.3]).statistic
    assert curves.rank_agreement(1e-2) == pytest.approx(tau)


def test_a_higher_log_likelihood_is_better() -> None:
    curves = rate_curves(trials(metric="log_likelihood"))
    assert curves is not None and curves.best_rate("gpt2") == 3e-2
    assert curves.expected_score("gpt2", 2) == pytest.approx((0.30 + 0.30 + 0.22) / 3)
    assert curves.ranks(None)["gpt2"] == 1


def test_trials_with_different_steps_or_settings_are_ignored() -> None:
    others = [trials(areas={"gpt2": {1e-5: 0.01}}, steps=7), trials(areas={"gpt2": {1e-5: 0.01}}, weight_decay=0.1)]
    curves = rate_curves(tables.union("trials", [trials(), *others]))
    assert curves is not None and curves.rates == [3e-4, 1e-3, 3e-3, 1e-2, 3e-2]
    assert rate_curves(trials(areas={"gpt2": {1e-3: 0.1}, "s4d": {1e-2: 0.1}})) is None
    assert rate_curves(tables.frame("trials", [])) is None


@pytest.mark.slow
def test_the_section_has_a_figure_windows_and_rankings(results: Path, report_results: Results, tmp_path: Path) -> None:
    task = next(task for task in report_results.slices if task.task == "linear")
    assert section(task) is None, "without trials, the section is omitted"
    shutil.copytree(results, tmp_path, dirs_exist_ok=True)
    folder = tmp_path / "rates" / task.preset
    folder.mkdir(parents=True)
    tables.write("trials", trials(preset=task.preset), folder / "linear-all.trials.parquet", {})
    task = next(task for task in load_results(tmp_path).slices if task.task == "linear")
    rate_window = section(task)
    assert rate_window is not None
    figure, windows, text, ranks = rate_window.blocks
    assert isinstance(figure, Figure) and len(figure.data) == 10
    assert isinstance(windows, Table) and isinstance(ranks, Table) and isinstance(text, Text)
    assert [row[0].text for row in windows.rows()] == ["s4d", "mamba", "gpt2"]
    assert [row[3].text for row in windows.rows()] == ["< 3e-4", "3e-3", "3e-3 to 1e-2"]
    assert [cell.text for cell in windows.rows()[2]][4:] == ["0.240", "0.207", "0.200"]
    assert [cell.text for cell in ranks.rows()[1]] == ["mamba", "2", "2", "1", "–"]
    assert "(first: s4d)" in text.text and "-1.00 at 1e-3 (first: gpt2)" in text.text


@pytest.mark.slow
def test_the_section_has_no_figure_if_all_runs_diverged(results: Path, tmp_path: Path) -> None:
    shutil.copytree(results, tmp_path, dirs_exist_ok=True)
    (task,) = (task for task in load_results(tmp_path).slices if task.task == "linear")
    folder = tmp_path / "rates" / task.preset
    folder.mkdir(parents=True)
    diverged = trials(areas={"gpt2": {1.0: 0.1, 10.0: 0.1}}, preset=task.preset, value=None, status="failed")
    tables.write("trials", diverged, folder / "linear-all.trials.parquet", {})
    (task,) = (task for task in load_results(tmp_path).slices if task.task == "linear")
    rate_window = section(task)
    assert rate_window is not None and not any(isinstance(block, Figure) for block in rate_window.blocks)


def test_rank_agreement_is_computed_over_selected_contestants() -> None:
    curves = rate_curves(
        trials(areas={"a": {1e-3: 0.1, 3e-3: 0.5}, "b": {1e-3: 0.2, 3e-3: 0.6}, "c": {1e-3: 0.9, 3e-3: 0.05}})
    )
    assert curves is not None
    assert curves.of_contestants(["a", "b"]).rank_agreement(1e-3) == 1 and curves.rank_agreement(1e-3) == pytest.approx(
        -1 / 3
    )
