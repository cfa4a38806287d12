"""Pairs that are named beforehand: differences seed by seed, intervals over trainings, none from two seeds."""

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


def test_differences_are_those_of_single_seeds(grid: Grid, grid_results: Results) -> None:
    rows = named_pairs.compared(normalised.contests(grid_results, "grid"), "grid", [PAIR])
    assert rows["row"].tolist() == ["linear", "bursty · ICL", "bursty · IWL"]
    for own, test in zip(rows.to_dict("records"), ("next", "icl", "iwl"), strict=True):
        task = "linear" if test == "next" else "bursty"
        each = [
            float(score(grid.raw[task, test, "gpt2", seed].mean(), test))
            - float(score(grid.raw[task, test, "s4d", seed].mean(), test))
            for seed in (0, 1)
        ]
        assert own["gaps"] == pytest.approx(each)
        assert own["value"] == pytest.approx(np.mean(each))
        assert np.isnan(own["low"]) and own["verdict"] == "seeds 2, 3, 4 are missing" and own["seeds"] == "2 of 5"
    assert named_pairs.compared(normalised.contests(grid_results, "grid"), "small", [PAIR]).empty


def test_an_interval_is_students_over_the_seeds_that_were_named(
    grid_results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two more seeds than named, which nobody may choose from afterwards."""
    contest = next(c for c in normalised.contests(grid_results, "grid") if c.title == "linear")
    draw = np.random.default_rng(0)
    made = [
        contest.rows[contest.rows["contestant"].isin(["gpt2", "s4d"]) & contest.rows["seed"].eq(0)].assign(
            seed=seed, value=draw.normal(0.5, 0.2, 2)
        )
        for seed in range(7)
    ]
    contest = replace(contest, rows=pd.concat(made, ignore_index=True))
    wide = contest.rows.pivot_table("value", index="seed", columns="contestant").astype(float)
    each = (wide["gpt2"] - wide["s4d"])[:5]
    found = named_pairs.mean_gap(PAIR, named_pairs.gaps(PAIR, contest))
    assert found is not None
    assert (found.low, found.high) == pytest.approx(stats.t.interval(0.95, 4, each.mean(), stats.sem(each)), rel=1e-9)
    (row,) = named_pairs.compared([contest], "grid", [PAIR]).to_dict("records")
    assert row["seeds"] == "5 of 5" and row["verdict"] in (
        "not significantly different",
        "gpt2 is better",
        "s4d is better",
    )
    one_less = replace(contest, rows=contest.rows[contest.rows["seed"].ne(3)])
    assert named_pairs.mean_gap(PAIR, named_pairs.gaps(PAIR, one_less)) is None
    alone = replace(contest, rows=contest.rows[contest.rows["contestant"].eq("s4d")])
    (row,) = named_pairs.compared([alone], "grid", [PAIR]).to_dict("records")
    assert row["seeds"] == "0 of 5" and row["verdict"] == "seeds 0, 1, 2, 3, 4 are missing"


def test_many_differences_hold_as_far_as_holms_method_says(
    grid_results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against its adjusted chances, of which each is the largest of those before it; a pair without all of its seeds
    has none and does not count."""
    draw = np.random.default_rng(5)
    pairs = [Pair(a="gpt2", b="s4d", tasks=["linear"], seeds=[0, 1, 2, n]) for n in range(3, 12)]
    of = {pair.seeds[-1]: draw.normal(0.3 * n, 1.0, 4) for n, pair in enumerate(pairs)}
    short = pairs[4].seeds[-1]
    monkeypatch.setattr(
        named_pairs,
        "gaps",
        lambda pair, _: pd.Series(of[n := pair.seeds[-1]], pair.seeds).iloc[: 3 if n == short else 4],
    )
    contest = next(c for c in normalised.contests(grid_results, "grid") if c.title == "linear")
    rows = named_pairs.compared([contest], "grid", pairs)
    chances = sorted(
        (float(stats.ttest_1samp(of[pair.seeds[-1]], 0.0).pvalue), n) for n, pair in enumerate(pairs) if n != 4
    )
    adjusted = [max((len(chances) - j) * chances[j][0] for j in range(i + 1)) for i in range(len(chances))]
    expected = {n for (_, n), each in zip(chances, adjusted, strict=True) if each <= 0.05}
    assert 0 < len(expected) < sum(chance <= 0.05 for chance, _ in chances)
    assert set(rows.index[rows["among_all"].eq("holds")]) == expected and pd.isna(rows["among_all"][4])


def test_the_page_shows_both_seeds_and_no_interval(grid_results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_pairs, "shipped_pairs", lambda: (PAIR,))
    made = named_pairs.section(grid_results)
    assert made is not None
    (figure,) = (block for block in made.walk() if isinstance(block, Figure))
    (table,) = (block for block in made.walk() if isinstance(block, Table))
    assert set(figure.data["part"]) == {"draw"} and len(figure.data) == 6
    assert table.frame["each"].str.count(",").eq(1).all()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"a": "s4d"}, "a pair is of two backbones, got 's4d' twice"),
        ({"seeds": [0, 1]}, "at least 3 items"),
        ({"seeds": [0, 1, 1]}, "1 is listed twice"),
        ({"tasks": []}, "at least 1 item"),
        ({"b": "gpt9"}, "unknown backbone 'gpt9'"),
    ],
)
def test_pairs_that_make_no_sense_are_refused(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Pair(**{"a": "gpt2", "b": "s4d", "tasks": ["linear"]} | wrong)


def test_names_are_those_of_the_tables() -> None:
    pair = Pair(a="GPT2", b="s4d", tasks=["noisy_linear"])
    assert (pair.a, pair.tasks) == ("gpt2", ["noisy-linear"])
