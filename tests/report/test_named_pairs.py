"""Pairs that are named beforehand: differences seed by seed, intervals over trainings, none from two seeds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from iclbench.config.pairs import Pair
from iclbench.report import normalised
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
        assert np.isnan(own["low"]) and own["verdict"] == "no interval from 2 seeds"
    assert named_pairs.compared(normalised.contests(grid_results, "grid"), "small", [PAIR]).empty


def test_an_interval_is_students_over_seeds() -> None:
    draw = np.random.default_rng(0)
    for n in (3, 5):
        gaps = pd.Series(draw.normal(0.1, 0.2, n))
        found = named_pairs.over_trainings(gaps)
        assert found is not None
        assert (found.low, found.high) == pytest.approx(
            stats.t.interval(0.95, n - 1, gaps.mean(), stats.sem(gaps)), rel=1e-9
        )
    assert named_pairs.over_trainings(gaps.head(2)) is None


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
        ({"seeds": [0, 1, 1]}, "seeds: one of them stands there twice"),
        ({"tasks": []}, "at least 1 item"),
        ({"b": "gpt9"}, "unknown backbone 'gpt9'"),
    ],
)
def test_pairs_that_make_no_sense_are_refused(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Pair(**{"a": "gpt2", "b": "s4d", "tasks": ["linear"]} | wrong)
