"""The separation of contestants, compared with closed forms."""

import math
import warnings
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t, ttest_ind

from iclbench.analysis.separation import Separation, separation


def scores(runs: dict[str, list[float]]) -> pd.Series:
    rows = [(name, f"{name}-{seed}", value) for name, values in runs.items() for seed, value in enumerate(values)]
    return pd.DataFrame(rows, columns=["contestant", "run", "value"]).set_index(["contestant", "run"])["value"]


def test_the_ratio_is_the_median_gap_between_quartiles_over_the_pooled_sd_without_best_and_worst() -> None:
    """Without the best and the worst, the means are 1 to 5, with quartiles 1 apart. Seeds m ± d have variance 2 d²."""
    d = [9.0, 0.1, 0.2, 0.3, 0.1, 0.2, 9.0]  # the first and the last are ignored
    result = separation(scores({str(mean): [mean - d[mean], mean + d[mean]] for mean in range(7)}))
    assert result is not None
    assert (result.contestants, result.gap) == (7, pytest.approx(1.0))
    assert result.sd == pytest.approx(math.sqrt(2 * np.mean(np.square(d[1:-1]))))
    assert result.ratio == pytest.approx(result.gap / result.sd) and result.is_clear


def test_an_outlier_does_not_change_the_median_gap() -> None:
    """The gaps between the quartiles 1, 1.04, 1.05, 1.07 and 50 are 0.04, 0.01, 0.02 and 48.93."""
    result = separation(scores({str(mean): [mean, mean + 0.1] for mean in (0, 1.00, 1.04, 1.05, 1.07, 50, 99)}))
    assert result is not None and result.gap == pytest.approx((0.02 + 0.04) / 2) and not result.is_clear


def test_single_runs_have_no_sd_and_four_contestants_no_separation() -> None:
    single = separation(scores({str(mean): [float(mean)] for mean in range(6)}))
    assert single is not None and math.isnan(single.sd) and not single.is_clear
    mixed = separation(scores({str(mean): [mean, mean + 0.1][: 1 + mean % 2] for mean in range(6)}))
    assert mixed is not None and mixed.sd == pytest.approx(0.1 / math.sqrt(2))
    assert separation(scores({str(mean): [mean, mean] for mean in range(4)})) is None


def test_equal_scores_do_not_separate_contestants() -> None:
    result = separation(scores({name: [1.0, 1.0] for name in "abcdef"}))
    assert result is not None and result.ratio == 0 and not result.is_clear


def test_pairs_are_compared_by_welchs_test_as_in_scipy() -> None:
    draw = np.random.default_rng(0)
    runs = {f"{mean}": list(draw.normal(mean, 0.1 + mean % 2, 2 + mean % 3)) for mean in range(8)}
    tests = [ttest_ind(runs[a], runs[b], equal_var=False) for a, b in combinations(sorted(runs), 2)]
    result = separation(scores(runs | {"single": [20.0]}))
    assert result is not None
    assert (result.pairs, result.significant_pairs) == (28, sum(test.pvalue < 0.05 for test in tests))
    assert 5 < result.significant_pairs < 23


def test_without_spread_pairs_are_significant_if_their_means_differ() -> None:
    values = scores({"a": [1.0, 1.0], "b": [1.0, 1.0], "c": [2.0, 2.0], "d": [3.0], "e": [4.0]})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = separation(values)
    assert result is not None and (result.pairs, result.significant_pairs) == (3, 2)
    assert separation(values.astype("Float64")) == result


def test_the_separation_is_clear_if_the_gap_is_more_than_two_standard_deviations() -> None:
    for ratio, is_clear in ((1.9, False), (2.1, True)):
        result = separation(
            scores({str(mean): [mean - 0.5, mean + 0.5] for mean in np.arange(7) * ratio / math.sqrt(2)})
        )
        assert result is not None
        assert result.ratio == pytest.approx(ratio) and result.is_clear == is_clear
    assert not Separation(5, 2.0, 1.0, 0, 0).is_clear


def test_the_contestants_with_the_extreme_means_are_excluded() -> None:
    """The remaining means are 1, 2 and 3. In alphabetical order, the extremes are in the middle."""
    result = separation(scores({"a": [2.0], "b": [-9.0], "c": [50.0, 99.0], "d": [1.0, 1.5, 0.5], "e": [3.0]}))
    assert result is not None and result.gap == pytest.approx(0.5) and result.sd == pytest.approx(0.5)


def test_every_separation_is_clear_if_all_seeds_have_equal_scores() -> None:
    result = separation(scores({str(mean): [float(mean)] * 2 for mean in range(7)}))
    assert result is not None and result.ratio == math.inf and result.is_clear and result.sd == 0


def test_variances_are_pooled_in_proportion_to_their_degrees_of_freedom() -> None:
    """Two of the three middle contestants have variances, 2 and 0.5, with 1 and 2 degrees of freedom."""
    spread = math.sqrt(0.5)
    runs = {"a": [0.0], "b": [9.0, 11.0], "c": [20.0 - spread, 20.0, 20.0 + spread], "d": [30.0], "e": [40.0]}
    result = separation(scores(runs))
    assert result is not None and result.sd == pytest.approx(math.sqrt((2 * 1 + 0.5 * 2) / 3))
    assert (result.contestants, result.gap, result.pairs) == (5, pytest.approx(5.0), 1)


@pytest.mark.parametrize(("p", "significant"), [(0.04, 1), (0.06, 0)])
def test_pairs_are_significant_at_the_5_percent_level(p: float, significant: int) -> None:
    """The difference between the means of two samples m ± 1 has the standard error √2 and 2 degrees of freedom."""
    mean = float(t.isf(p / 2, 2)) * math.sqrt(2)
    runs = {"a": [-1.0, 1.0], "b": [mean - 1, mean + 1], "c": [50.0], "d": [60.0], "e": [70.0]}
    assert ttest_ind(runs["a"], runs["b"], equal_var=False).pvalue == pytest.approx(p)
    result = separation(scores(runs))
    assert result is not None and (result.pairs, result.significant_pairs) == (1, significant)
