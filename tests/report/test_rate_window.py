"""What the trials of `iclbench tune` say of learning rates: windows, the best of k, places at one rate for all."""

import shutil
from pathlib import Path

import pandas as pd
import pytest
from scipy.stats import kendalltau

from iclbench import tables
from iclbench.analysis.rate_curves import RateCurves, rate_curves
from iclbench.report.blocks import Figure, Table, Text
from iclbench.report.data import Results, load
from iclbench.report.sections.rate_window import section

# Mean areas by rate; one seed lies 0.01 above, one 0.01 below. None: a seed diverged.
AREAS = {
    "gpt2": {1e-3: 0.30, 3e-3: 0.20, 1e-2: 0.22, 3e-2: 0.90},
    "mamba": {1e-3: 0.40, 3e-3: 0.18, 1e-2: None},
    "s4d": {3e-4: 0.10, 1e-3: 0.50, 3e-3: 0.60, 1e-2: 0.70},
}


def trials(task: str = "linear", areas: dict[str, dict[float, float | None]] = AREAS, **more: object) -> pd.DataFrame:
    rows = []
    for who, own in areas.items():
        for lr, area in own.items():
            for seed, off in enumerate((-0.01, 0.01)):
                failed = area is None and seed == 1
                about = {"task": task, "family": "linear", "contestant": who, "preset": "grid", "seed": 1000 + seed}
                about |= {"variant": f"{lr:g}", "lr": lr, "optimiser": "adam", "warmup": 10, "weight_decay": 0.0}
                about |= {"beta_1": 0.9, "beta_2": 0.98, "steps": 100, "metric": "auc", "evaluator": "next"}
                about |= {"n_episodes": 8, "prompt_set": "validation", "version": "0"}
                value = None if failed else (area or 0.5) + off
                rows.append(about | {"value": value, "status": "failed" if failed else "ok"} | more)
    return tables.frame("trials", rows)


@pytest.fixture(scope="module")
def found() -> RateCurves:
    curves = rate_curves(trials())
    assert curves is not None
    return curves


def test_a_rate_counts_only_where_every_seed_came_to_its_end(found: RateCurves) -> None:
    assert found.by_contestant["mamba"] == {1e-3: pytest.approx(0.4), 3e-3: pytest.approx(0.18), 1e-2: None}
    assert found.rows.loc[found.rows["contestant"].eq("gpt2"), "spread"].iloc[0] == pytest.approx(0.01 * 2**0.5)
    assert [found.best(who) for who in ("gpt2", "mamba", "s4d")] == [3e-3, 3e-3, 3e-4]


def test_the_window_reaches_as_far_as_means_are_near_without_a_gap(found: RateCurves) -> None:
    # All means lie between 0.1 and 0.9: near is within 0.08.
    assert found.window("gpt2") == [3e-3, 1e-2]
    assert found.window("mamba") == [3e-3]
    gap = rate_curves(trials(areas={"gpt2": {1e-4: 0.1, 1e-3: 0.9, 1e-2: 0.1}, "mamba": {1e-4: 0.5, 1e-3: 0.5}}))
    assert gap is not None and gap.window("gpt2") == [1e-4] and gap.window("mamba") == [1e-4, 1e-3]


def test_the_best_of_k_is_a_mean_over_all_choices_of_common_rates(found: RateCurves) -> None:
    assert found.common == [1e-3, 3e-3, 1e-2]
    assert [found.expected("gpt2", k) for k in (1, 2, 3)] == [
        pytest.approx((0.30 + 0.20 + 0.22) / 3), pytest.approx((0.20 + 0.22 + 0.20) / 3), pytest.approx(0.20)
    ]  # fmt: skip
    assert found.expected("mamba", 1) is None  # one of them leads nowhere
    assert found.expected("mamba", 2) == pytest.approx((0.18 + 0.40 + 0.18) / 3)


def test_places_at_one_rate_and_how_far_they_agree(found: RateCurves) -> None:
    assert found.ranks(None) == {"s4d": 1, "mamba": 2, "gpt2": 3}
    assert found.ranks(1e-3) == {"gpt2": 1, "mamba": 2, "s4d": 3}
    assert found.ranks(1e-2) == {"gpt2": 1, "s4d": 2, "mamba": None}
    assert found.agreement(1e-3) == pytest.approx(-1)
    assert found.agreement(1e-2) == pytest.approx(-1 / 3)


def test_equal_scores_share_a_place() -> None:
    areas = {"a": {1e-3: 0.1, 1e-2: 0.9}, "b": {1e-3: 0.2, 1e-2: 0.9}, "c": {1e-3: 0.3, 1e-2: 0.8}}
    curves = rate_curves(trials(areas=areas))
    assert curves is not None
    assert curves.ranks(1e-2) == {"a": 2, "b": 2, "c": 1}
    tau = kendalltau([0.9, 0.9, 0.8], [0.1, 0.2, 0.3]).statistic
    assert curves.agreement(1e-2) == pytest.approx(tau)


def test_more_is_better_where_the_metric_says_so() -> None:
    found = rate_curves(trials(metric="log_likelihood"))
    assert found is not None and found.best("gpt2") == 3e-2
    assert found.expected("gpt2", 2) == pytest.approx((0.30 + 0.30 + 0.22) / 3)
    assert found.ranks(None)["gpt2"] == 1


def test_other_steps_or_settings_are_no_points_of_a_curve() -> None:
    others = [trials(areas={"gpt2": {1e-5: 0.01}}, steps=7), trials(areas={"gpt2": {1e-5: 0.01}}, weight_decay=0.1)]
    found = rate_curves(tables.union("trials", [trials(), *others]))
    assert found is not None and found.rates == [3e-4, 1e-3, 3e-3, 1e-2, 3e-2]
    assert rate_curves(trials(areas={"gpt2": {1e-3: 0.1}, "s4d": {1e-2: 0.1}})) is None
    assert rate_curves(tables.frame("trials", [])) is None


@pytest.mark.slow
def test_the_section(results: Path, loaded: Results, tmp_path: Path) -> None:
    task = next(each for each in loaded.slices if each.task == "linear")
    assert section(task) is None
    shutil.copytree(results, tmp_path, dirs_exist_ok=True)
    folder = tmp_path / "rates" / task.preset
    folder.mkdir(parents=True)
    tables.write("trials", trials(preset=task.preset), folder / "linear-all.trials.parquet", {})
    task = next(each for each in load(tmp_path).slices if each.task == "linear")
    made = section(task)
    assert made is not None
    figure, windows, text, places = made.blocks
    assert isinstance(figure, Figure) and len(figure.data) == 10
    assert isinstance(windows, Table) and isinstance(places, Table) and isinstance(text, Text)
    assert [row[0].text for row in windows.rows()] == ["s4d", "mamba", "gpt2"]
    assert [row[3].text for row in windows.rows()] == ["< 3e-4", "3e-3", "3e-3 to 1e-2"]
    assert [cell.text for cell in windows.rows()[2]][4:] == ["0.240", "0.207", "0.200"]
    assert [cell.text for cell in places.rows()[1]] == ["mamba", "2", "2", "1", "–"]
    assert "(first: s4d)" in text.text and "-1.00 at 1e-3 (first: gpt2)" in text.text


@pytest.mark.slow
def test_where_every_training_diverged_there_is_a_table_and_no_figure(results: Path, tmp_path: Path) -> None:
    shutil.copytree(results, tmp_path, dirs_exist_ok=True)
    (task,) = (each for each in load(tmp_path).slices if each.task == "linear")
    folder = tmp_path / "rates" / task.preset
    folder.mkdir(parents=True)
    gone = trials(areas={"gpt2": {1.0: 0.1, 10.0: 0.1}}, preset=task.preset, value=None, status="failed")
    tables.write("trials", gone, folder / "linear-all.trials.parquet", {})
    (task,) = (each for each in load(tmp_path).slices if each.task == "linear")
    made = section(task)
    assert made is not None and not any(isinstance(block, Figure) for block in made.blocks)


def test_orders_are_those_of_the_contestants_that_are_asked_about() -> None:
    """Of three the two that agree at one rate with everybody's best, and the seeds of one of them."""
    curves = rate_curves(
        trials(areas={"a": {1e-3: 0.1, 3e-3: 0.5}, "b": {1e-3: 0.2, 3e-3: 0.6}, "c": {1e-3: 0.9, 3e-3: 0.05}})
    )
    assert curves is not None
    assert curves.among(["a", "b"]).agreement(1e-3) == 1 and curves.agreement(1e-3) == pytest.approx(-1 / 3)
