"""Scores against learning rates: means, windows, the best of k and ranks, against counting by hand."""

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
# Mean areas (lower is better); None: a training diverged.
AREAS: dict[str, list[float | None]] = {
    "a": [0.55, 0.50, 0.52, 1.00],
    "b": [0.90, 0.60, 0.30, None],
    "c": [0.40, 0.41, 0.45, 0.44],
}


def trials(areas: dict[str, list[float | None]] = AREAS, **settings: object) -> pd.DataFrame:
    """Two seeds of each contestant at each rate, 0.01 above and below the mean."""
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


@pytest.fixture
def curves() -> RateCurves:
    made = rate_curves(trials())
    assert made is not None
    return made


def test_rows_are_means_and_spreads_over_seeds(curves: RateCurves) -> None:
    row = curves.rows.set_index(["contestant", "lr"]).loc[("a", 1e-3)]
    assert row["value"] == pytest.approx(0.5) and row["seeds"] == 2
    assert row["spread"] == pytest.approx(np.std([0.49, 0.51], ddof=1))
    assert curves.over_seeds("a", 1e-3) == pytest.approx((0.49, 0.51))
    assert curves.steps == 100 and curves.metric.name == "auc"


def test_a_rate_with_one_diverged_seed_has_no_mean() -> None:
    some = trials()
    some.loc[some["contestant"].eq("a") & some["lr"].eq(1e-4) & some["seed"].eq(1), ["status", "value"]] = [
        "diverged",
        None,
    ]
    made = rate_curves(some)
    assert made is not None and made.by_contestant["a"][1e-4] is None


def test_the_best_rate_has_the_lowest_area_among_those_asked(curves: RateCurves) -> None:
    assert [curves.best(name) for name in AREAS] == [1e-3, 1e-2, 1e-4]
    assert curves.best("a", among=[1e-4, 1e-1]) == 1e-4
    assert curves.best("b", among=[1e-1]) is None


def test_a_metric_of_which_more_is_better_turns_everything_round() -> None:
    made = rate_curves(trials(metric="log_likelihood"))
    assert made is not None and made.best("c") == 1e-2
    assert made.expected("c", 2) == pytest.approx(np.mean([max(pair) for pair in combinations(AREAS["c"], 2)]))


def test_the_window_is_the_run_of_rates_around_the_best_within_a_tenth_of_the_range(curves: RateCurves) -> None:
    # The range of all means is 1.0 - 0.3 = 0.7: a rate is near if it is worse by at most 0.07.
    assert curves.window("a") == [1e-4, 1e-3, 1e-2]
    assert curves.window("b") == [1e-2]
    assert curves.window("c") == RATES


def test_the_window_ends_where_a_worse_rate_lies_between() -> None:
    made = rate_curves(trials({"a": [0.31, 0.9, 0.30, 0.32], "b": [1.0, 1.0, 1.0, 1.0]}))
    assert made is not None and made.window("a") == [1e-2, 1e-1]


def test_a_rate_exactly_at_the_end_of_the_tenth_is_in_the_window() -> None:
    made = rate_curves(trials({"a": [0.25, 0.0, 1.0, 2.5], "b": [2.0, 2.0, 2.0, 2.0]}))
    assert made is not None and made.window("a") == [1e-4, 1e-3]


def test_the_best_of_k_is_the_mean_over_all_choices_of_common_rates(curves: RateCurves) -> None:
    assert curves.rates == RATES and curves.common == RATES
    for k in (1, 2, 3, 4):
        by_hand = np.mean([min(choice) for choice in combinations(AREAS["a"], k)])
        assert curves.expected("a", k) == pytest.approx(by_hand)
    assert curves.expected("b", 1) is None, "one choice is a rate at which it diverged"
    chosen = [[v for v in choice if v is not None] for choice in combinations(AREAS["b"], 2)]
    assert curves.expected("b", 2) == pytest.approx(np.mean([min(values) for values in chosen]))


def test_common_rates_are_those_that_all_were_tried_with() -> None:
    made = rate_curves(trials({"a": [0.5, 0.4, 0.6, 0.7], "b": [0.3, 0.2]}))
    assert made is not None and made.rates == RATES and made.common == RATES[:2]


def test_ranks_share_places_and_a_diverged_model_has_none(curves: RateCurves) -> None:
    assert curves.ranks(1e-1) == {"a": 2, "b": None, "c": 1}
    assert curves.ranks(None) == {"a": 3, "b": 1, "c": 2}
    equal = rate_curves(trials({"a": [0.5, 0.5], "b": [0.5, 0.6], "c": [0.7, 0.8]}))
    assert equal is not None and equal.ranks(1e-4) == {"a": 1, "b": 1, "c": 3}


def test_agreement_is_kendalls_tau_with_diverged_models_last(curves: RateCurves) -> None:
    best = [3, 1, 2]
    assert curves.agreement(1e-3) == pytest.approx(stats.kendalltau([2, 3, 1], best).statistic)
    assert curves.agreement(1e-1) == pytest.approx(stats.kendalltau([2, 4, 1], best).statistic)
    assert curves.among(["a"]).agreement(1e-3) is None
    assert list(curves.among(["a", "c"]).by_contestant) == ["a", "c"]


def test_only_trials_of_the_settings_with_most_models_are_compared() -> None:
    both = pd.concat([trials(), trials({"d": [0.1, 0.2]}, steps=50)])
    made = rate_curves(both)
    assert made is not None and set(made.by_contestant) == set(AREAS)


def test_without_two_rates_of_a_model_there_is_nothing_to_compare() -> None:
    assert rate_curves(trials({"a": [0.5], "b": [0.4]})) is None
    assert rate_curves(trials().iloc[:0]) is None
    made = rate_curves(trials({"a": [0.5, 0.4], "b": [0.4]}))
    assert made is not None and set(made.by_contestant) == {"a"}
