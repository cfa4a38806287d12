"""Comparisons of pairs that are named before training: differences by seed, and intervals over complete seeds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from iclbench.analysis import normalised
from iclbench.config.pairs import Pair
from iclbench.report.blocks import Figure, Table
from iclbench.report.data import Results
from iclbench.report.sections import named_pairs
from tests.report.synthetic_grid import Grid, score

PAIR = Pair(a="gpt2", b="s4d", tasks=["linear", "bursty"])


def test_differences_are_by_seed(grid: Grid, grid_results: Results) -> None:
    rows = named_pairs.compare_pairs(normalised.contests(grid_results, "grid"), "grid", [PAIR])
    assert rows["row"].tolist() == ["linear", "bursty · ICL", "bursty · IWL"]
    for row, evaluator in zip(rows.to_dict("records"), ("next", "icl", "iwl"), strict=True):
        task = "linear" if evaluator == "next" else "bursty"
        gaps = [
            float(score(grid.raw[task, evaluator, "gpt2", seed].mean(), evaluator))
            - float(score(grid.raw[task, evaluator, "s4d", seed].mean(), evaluator))
            for seed in (0, 1)
        ]
        assert row["gaps"] == pytest.approx(gaps)
        assert row["value"] == pytest.approx(np.mean(gaps))
        assert np.isnan(row["low"]) and row["verdict"] == "seeds 2, 3, 4, 5, 6, 7 are missing"
        assert row["seeds"] == "2 of 8"
    assert named_pairs.compare_pairs(normalised.contests(grid_results, "grid"), "small", [PAIR]).empty


def test_the_interval_is_over_the_named_seeds(grid_results: Results) -> None:
    """Two additional seeds do not change Welch's interval over the eight named seeds."""
    contest = next(c for c in normalised.contests(grid_results, "grid") if c.title == "linear")
    rng = np.random.default_rng(0)
    seed_rows = contest.rows[contest.rows["contestant"].isin(["gpt2", "s4d"]) & contest.rows["seed"].eq(0)]
    rows = pd.concat(
        [seed_rows.assign(seed=seed, value=rng.normal(0.5, 0.2, 2)) for seed in range(10)], ignore_index=True
    )
    contest = replace(contest, rows=rows)
    wide = rows.pivot_table("value", index="seed", columns="contestant").astype(float)
    a, b = wide["gpt2"][:8].to_numpy(), wide["s4d"][:8].to_numpy()
    compared_pair = named_pairs.mean_difference(PAIR, named_pairs.scores_by_seed(PAIR, contest))
    assert compared_pair is not None
    mean = compared_pair[0]
    welch = stats.ttest_ind(a, b, equal_var=False)
    assert (mean.low, mean.high) == pytest.approx(tuple(welch.confidence_interval()), rel=1e-9)
    (row,) = named_pairs.compare_pairs([contest], "grid", [PAIR]).to_dict("records")
    better = "gpt2 is better" if mean.low > 0 else "s4d is better" if mean.high < 0 else "not significantly different"
    assert (row["seeds"], row["verdict"]) == ("8 of 8", better)
    without_seed = replace(contest, rows=rows[rows["seed"].ne(3)])
    assert named_pairs.mean_difference(PAIR, named_pairs.scores_by_seed(PAIR, without_seed)) is None
    without_gpt2 = replace(contest, rows=rows[rows["contestant"].eq("s4d")])
    (row,) = named_pairs.compare_pairs([without_gpt2], "grid", [PAIR]).to_dict("records")
    assert row["seeds"] == "0 of 8" and row["verdict"] == "seeds 0, 1, 2, 3, 4, 5, 6, 7 are missing"


def test_significance_is_corrected_by_holms_method(grid_results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    """The expected verdicts follow from adjusted p-values. A pair with a missing seed has no p-value and is not counted
    by the correction."""
    rng = np.random.default_rng(5)
    pairs = [Pair(a="gpt2", b="s4d", tasks=["linear"], seeds=[0, 1, 2, n]) for n in range(3, 12)]
    pair_scores = {pair.seeds[-1]: (rng.normal(0.4 * n, 1.0, 4), rng.normal(0, 1.0, 4)) for n, pair in enumerate(pairs)}
    incomplete = pairs[4].seeds[-1]
    monkeypatch.setattr(
        named_pairs,
        "scores_by_seed",
        lambda pair, _: pd.DataFrame(dict(zip("ab", pair_scores[n := pair.seeds[-1]], strict=True)), pair.seeds).iloc[
            : 3 if n == incomplete else 4
        ],
    )
    contest = next(c for c in normalised.contests(grid_results, "grid") if c.title == "linear")
    rows = named_pairs.compare_pairs([contest], "grid", pairs)
    p_values = sorted(
        (float(stats.ttest_ind(*pair_scores[pair.seeds[-1]], equal_var=False).pvalue), n)
        for n, pair in enumerate(pairs)
        if n != 4
    )
    adjusted = [max((len(p_values) - j) * p_values[j][0] for j in range(i + 1)) for i in range(len(p_values))]
    expected = {n for (_, n), p in zip(p_values, adjusted, strict=True) if p <= 0.05}
    assert 0 < len(expected) < sum(p <= 0.05 for p, _ in p_values)
    assert set(rows.index[rows["among_all"].eq("holds")]) == expected and pd.isna(rows["among_all"][4])


def test_the_section_shows_single_seeds_if_the_interval_is_missing(
    grid_results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(named_pairs, "shipped_pairs", lambda: (PAIR,))
    section = named_pairs.section(grid_results)
    assert section is not None
    (figure,) = (block for block in section.walk() if isinstance(block, Figure))
    (table,) = (block for block in section.walk() if isinstance(block, Table))
    assert set(figure.data["part"]) == {"draw"} and len(figure.data) == 6
    assert table.frame["each"].str.count(",").eq(1).all()


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"a": "s4d"}, "'s4d'"),
        ({"seeds": [0, 1]}, "seeds"),
        ({"seeds": [0, 1, 1]}, "1"),
        ({"tasks": []}, "tasks"),
        ({"b": "gpt9"}, "'gpt9'"),
    ],
)
def test_invalid_pairs_are_refused(settings: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Pair(**{"a": "gpt2", "b": "s4d", "tasks": ["linear"]} | settings)


def test_names_in_pairs_are_canonical() -> None:
    pair = Pair(a="GPT2", b="s4d", tasks=["noisy_linear"])
    assert (pair.a, pair.tasks) == ("gpt2", ["noisy-linear"])
