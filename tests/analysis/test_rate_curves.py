"""Scores as a function of the learning rate: means, windows, expected best of k rates, and ranks."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from iclbench.analysis.rate_curves import RateCurves, rate_curves

SETTINGS = {
    "optimiser": "adam",
    "warmup": 0,
    "weight_decay": 0.0,
    "beta_1": 0.9,
    "beta_2": 0.999,
    "steps": 100,
    "budget": 10,
    "prompt_set": "p",
    "metric": "auc",
}
RATES = [1e-4, 1e-3, 1e-2, 1e-1]
# Mean areas (lower is better); None if a run diverged.
AREAS: dict[str, list[float | None]] = {
    "a": [0.55, 0.50, 0.52, 1.00],
    "b": [0.90, 0.60, 0.30, None],
    "c": [0.40, 0.41, 0.45, 0.44],
}


def trials(areas: dict[str, list[float | None]] = AREAS, **settings: object) -> pd.DataFrame:
    """Trials of each contestant at each rate, with two seeds 0.01 above and below the mean."""
    rows = [
        SETTINGS
        | settings
        | {"contestant": name, "lr": lr, "seed": seed, "status": "ok" if mean is not None else "diverged"}
        | {"value": None if mean is None else mean + (0.01 if seed else -0.01)}
        for name, means in areas.items()
        for lr, mean in zip(RATES, means, strict=False)
        for seed in (0, 1)
    ]
    return pd.DataFrame(rows)


def curves_of(rows: pd.DataFrame) -> RateCurves:
    curves = rate_curves(rows)
    assert curves is not None
    return curves


@pytest.fixture
def curves() -> RateCurves:
    return curves_of(trials())


def test_rows_are_means_and_spreads_over_seeds(curves: RateCurves) -> None:
    row = curves.rows.set_index(["contestant", "lr"]).loc[("a", 1e-3)]
    assert row["value"] == pytest.approx(0.5) and row["seeds"] == 2
    assert row["spread"] == pytest.approx(np.std([0.49, 0.51], ddof=1))
    assert (row["lowest"], row["highest"]) == pytest.approx((0.49, 0.51))
    assert curves.steps == 100 and curves.metric.name == "auc"
    assert set(curves.rows) == {"contestant", "lr", "value", "spread", "lowest", "highest", "seeds"}
    assert curves.rows.index.tolist() == list(range(12))


def test_a_rate_with_one_diverged_seed_has_no_mean() -> None:
    rows = trials()
    is_diverged = rows["contestant"].eq("a") & rows["lr"].eq(1e-4) & rows["seed"].eq(1)
    rows.loc[is_diverged, ["status", "value"]] = ["diverged", None]
    assert curves_of(rows).by_contestant["a"][1e-4] is None


def test_the_best_rate_has_the_lowest_area(curves: RateCurves) -> None:
    assert [curves.best_rate(name) for name in AREAS] == [1e-3, 1e-2, 1e-4]
    assert curves.best_rate("a", candidates=[1e-4, 1e-1]) == 1e-4
    assert curves.best_rate("b", candidates=[1e-1]) is None


def test_the_highest_log_likelihood_is_the_best() -> None:
    curves = curves_of(trials(metric="log_likelihood"))
    assert curves.best_rate("c") == 1e-2
    assert curves.expected_score("c", 2) == pytest.approx(np.mean([max(pair) for pair in combinations(AREAS["c"], 2)]))


def test_the_window_contains_adjacent_rates_whose_scores_are_within_a_tenth_of_the_range(curves: RateCurves) -> None:
    # The range of all means is 1.0 - 0.3 = 0.7, and a tenth of it is 0.07.
    assert curves.window("a") == [1e-4, 1e-3, 1e-2]
    assert curves.window("b") == [1e-2]
    assert curves.window("c") == RATES


def test_the_order_of_the_rows_does_not_matter(curves: RateCurves) -> None:
    reverse = replace(curves, rows=curves.rows.iloc[::-1])
    assert reverse.rates == RATES and reverse.window("a") == [1e-4, 1e-3, 1e-2]


def test_the_window_ends_at_a_worse_rate() -> None:
    assert curves_of(trials({"a": [0.31, 0.9, 0.30, 0.32], "b": [1.0, 1.0, 1.0, 1.0]})).window("a") == [1e-2, 1e-1]


def test_a_rate_at_exactly_a_tenth_of_the_range_is_in_the_window() -> None:
    assert curves_of(trials({"a": [0.25, 0.0, 1.0, 2.5], "b": [2.0, 2.0, 2.0, 2.0]})).window("a") == [1e-4, 1e-3]


def test_the_range_is_the_difference_between_the_highest_and_the_lowest_mean_of_all_contestants() -> None:
    """The range is 2.0 - 1.0. The score 1.05 is therefore in the window, and 1.15 is not."""
    curves = curves_of(trials({"a": [1.05, 1.0, 1.15, 1.2], "b": [2.0, 1.9, 1.9, 1.9]}))
    assert curves.window("a") == [1e-4, 1e-3]


def test_the_expected_best_of_k_rates_is_the_mean_over_all_choices_of_k_common_rates(curves: RateCurves) -> None:
    assert curves.rates == RATES and curves.common_rates == RATES
    for k in (1, 2, 3, 4):
        by_hand = np.mean([min(choice) for choice in combinations(AREAS["a"], k)])
        assert curves.expected_score("a", k) == pytest.approx(by_hand)
    assert curves.expected_score("b", 1) is None, "the model b diverged at one of the rates"
    choices = [[v for v in choice if v is not None] for choice in combinations(AREAS["b"], 2)]
    assert curves.expected_score("b", 2) == pytest.approx(np.mean([min(values) for values in choices]))


def test_rates_are_common_if_all_models_have_trials_with_them() -> None:
    curves = curves_of(trials({"a": [0.5, 0.4, 0.6, 0.7], "b": [0.3, 0.2]}))
    assert curves.rates == RATES and curves.common_rates == RATES[:2]


def test_equal_scores_share_a_rank_and_diverged_models_have_no_rank(curves: RateCurves) -> None:
    assert curves.ranks(1e-1) == {"a": 2, "b": None, "c": 1}
    assert curves.ranks(None) == {"a": 3, "b": 1, "c": 2}
    equal = curves_of(trials({"a": [0.5, 0.5], "b": [0.5, 0.6], "c": [0.7, 0.8]}))
    assert equal.ranks(1e-4) == {"a": 1, "b": 1, "c": 3}


def test_rank_agreement_is_kendalls_tau_with_diverged_models_ranked_last(curves: RateCurves) -> None:
    best_ranks = [3, 1, 2]
    assert curves.rank_agreement(1e-3) == pytest.approx(stats.kendalltau([2, 3, 1], best_ranks).statistic)
    assert curves.rank_agreement(1e-1) == pytest.approx(stats.kendalltau([2, 4, 1], best_ranks).statistic)
    assert curves.of_contestants(["a"]).rank_agreement(1e-3) is None
    assert list(curves.of_contestants(["a", "c"]).by_contestant) == ["a", "c"]


def test_only_trials_with_the_most_common_settings_are_compared() -> None:
    shorter = trials({"d": [0.1, 0.2]}, steps=50)
    assert set(curves_of(pd.concat([trials(), shorter])).by_contestant) == set(AREAS)


def test_models_with_only_one_rate_are_not_compared() -> None:
    assert rate_curves(trials({"a": [0.5], "b": [0.4]})) is None
    assert rate_curves(trials().iloc[:0]) is None
    assert set(curves_of(trials({"a": [0.5, 0.4], "b": [0.4]})).by_contestant) == {"a"}


@pytest.mark.parametrize("setting", [*SETTINGS])
def test_trials_with_a_different_setting_are_not_compared(setting: str) -> None:
    value = SETTINGS[setting]
    other = {"metric": "log_likelihood"}.get(setting, f"{value}x" if isinstance(value, str) else 2 * value + 1)
    curves = curves_of(pd.concat([trials(), trials({"d": [0.1, 0.2]}, **{setting: other})]))
    assert set(curves.by_contestant) == set(AREAS)


def test_the_settings_with_the_most_contestants_are_compared_and_the_first_by_name_if_equal() -> None:
    """Two contestants outweigh one contestant, even if the latter has more trials."""
    one = trials({"d": [0.1, 0.2, 0.3, 0.4]}, steps=50)
    two = pd.concat([trials({"a": [0.1, 0.2]}), trials({"b": [0.3]})])
    assert set(curves_of(pd.concat([one, two])).by_contestant) == {"a"}
    assert curves_of(pd.concat([trials(steps=50), trials()])).steps == 100, "'100' is sorted before '50'"
    without_budget = trials(budget=None)
    assert set(curves_of(pd.concat([without_budget, one])).by_contestant) == set(AREAS)


def test_a_diverged_trial_has_no_value_even_if_it_has_a_score() -> None:
    rows = trials()
    rows.loc[rows["contestant"].eq("a") & rows["lr"].eq(1e-4), "status"] = "diverged"
    assert curves_of(rows).by_contestant["a"] == pytest.approx({1e-4: None, 1e-3: 0.5, 1e-2: 0.52, 1e-1: 1.0})


def test_rank_agreement_is_undefined_if_all_ranks_are_equal() -> None:
    curves = curves_of(trials({"a": [0.5, 0.5], "b": [0.5, 0.6]}))
    assert curves.rank_agreement(1e-4) is None
    two = curves_of(trials({"a": [0.5, 0.4], "b": [0.6, 0.3]}))
    assert two.rank_agreement(1e-4) == pytest.approx(-1) and two.rank_agreement(1e-3) == pytest.approx(1)


def test_a_contestant_that_diverged_at_all_rates_has_no_best_rate_and_no_window() -> None:
    curves = curves_of(trials(AREAS | {"d": [None, None]}))
    assert curves.best_rate("d") is None and curves.window("d") == []
    assert curves.ranks(None)["d"] is None and curves.expected_score("d", 1) is None
    assert curves.common_rates == RATES[:2] and curves.expected_score("a", 3) is None
