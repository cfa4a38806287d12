"""The ranking: paired tests with tasks as units, corrected, ties as ties; whole curves and mean heights pair alike."""

from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from iclbench import tables
from iclbench.analysis import normalised
from iclbench.analysis.episode_scores import EpisodeScores
from iclbench.analysis.pairs import difference, holm
from iclbench.analysis.ranking import Paired, by_task, places, ranking, to_rank
from iclbench.report.blocks import Table
from iclbench.report.data import Results
from iclbench.report.sections.ranking import section
from tests.report.synthetic_grid import TASKS, Grid, gap, score


def exact(gaps: np.ndarray) -> float:
    """Wilcoxon's two-sided p by all 2^n signs, for differences of which no two are alike."""
    ranks = np.argsort(np.argsort(np.abs(gaps))) + 1
    observed = abs(ranks @ np.sign(gaps))
    sums = [abs(ranks @ np.array(signs)) for signs in product((-1, 1), repeat=len(gaps))]
    return float(np.mean(np.array(sums) >= observed))


def test_p_is_that_of_all_sign_flips_over_tasks() -> None:
    draw = np.random.default_rng(0)
    for shift in (0.0, 0.5, 3.0):
        gaps = draw.normal(shift, 1, 9)
        found = Paired.of(pd.Series(gaps), pd.Series(np.zeros(9)))
        assert found.p == pytest.approx(exact(gaps))
        assert found.mean == pytest.approx(gaps.mean())
        assert found.ahead == (np.sign(gaps) @ (np.argsort(np.argsort(np.abs(gaps))) + 1) > 0)


def test_who_is_ahead_is_told_by_signed_ranks_without_the_tasks_that_are_alike() -> None:
    alone = pd.Series([16.0, -1.0, -2.0, -3.0, -4.0, -5.0])
    assert alone.mean() > 0 and not Paired.of(alone, 0 * alone).ahead
    some = pd.Series([5.0, 4.0, -1.0, -2.0, -3.0, 0.0, 0.0, 0.0, 0.0])
    assert Paired.of(some, 0 * some).ahead and not Paired.of(0 * some, some).ahead


def test_a_task_counts_for_whoever_has_all_of_its_tests(grid: Grid, grid_results: Results) -> None:
    contests = [contest for contest in normalised.contests(grid_results, "grid") if contest.task.task == "bursty"]
    title, both = contests[0].task.title, by_task(contests)
    means = [
        np.mean([score(grid.raw["bursty", test, "s4d", s].mean(), test) for s in (0, 1)]) for test in ("icl", "iwl")
    ]
    assert both.loc[title, "s4d"] == pytest.approx(np.mean(means))
    rows = contests[1].rows
    contests[1] = replace(contests[1], rows=rows[rows["contestant"].ne("s4d")])
    fewer = by_task(contests)
    assert np.isnan(fewer.loc[title, "s4d"])
    pd.testing.assert_frame_equal(fewer.drop(columns="s4d"), both.drop(columns="s4d"))


def test_the_best_of_those_who_know_nothing_scores_0(grid_results: Results) -> None:
    contest = next(c for c in normalised.contests(grid_results, "grid") if c.title == "linear")
    assert contest.guess == "zero"
    zero = contest.rows[contest.rows["contestant"].eq("zero")]
    for value, nobody in ((0.1, "mean-image"), (-0.1, "zero")):
        other = zero.assign(contestant="mean-image", run="mean-image", value=value)
        assert replace(contest, rows=pd.concat([contest.rows, other], ignore_index=True)).guess == nobody
    assert replace(contest, rows=contest.rows[contest.rows["contestant"].ne("zero")]).guess is None


def test_holm_stops_at_the_first_that_fails() -> None:
    assert holm([0.04, 0.01, 0.02, 0.5]) == pytest.approx([0.08, 0.04, 0.06, 0.5])
    assert holm([0.5, 0.6]) == [1.0, 1.0]


def test_scores_and_ranks_are_means_over_tasks_whose_tests_count_as_one(grid: Grid, grid_results: Results) -> None:
    frame, lacking = ranking(normalised.contests(grid_results, "grid"))
    assert set(lacking) == {"tnp", "icicl-tnp"} and "quadratic" in lacking["tnp"]
    names = frame["contestant"].tolist()
    means = {
        name: [
            np.mean(
                [
                    np.mean(
                        [
                            score(grid.raw[task, test, name, seed].mean(), test)
                            for seed in (0, 1)
                            if (task, test, name, seed) in grid.raw
                        ]
                    )
                    for test in tests
                ]
            )
            for task, tests in TASKS.items()
        ]
        for name in names
    }
    wide = pd.DataFrame(means)
    assert frame["mean_score"].tolist() == pytest.approx(wide[names].mean().tolist())
    ranks = pd.DataFrame({name: 1 + (wide.gt(wide[name], axis=0)).sum(axis=1) for name in names}).mean()
    assert frame["mean_rank"].tolist() == pytest.approx(ranks[names].tolist())
    assert frame["mean_rank"].is_monotonic_increasing
    p = [exact((wide[lower] - wide[upper]).to_numpy()) for upper, lower in pairwise(names)]
    assert frame["p_alone"].tolist()[1:] == pytest.approx(p)
    assert frame["tied"].tolist()[1:] == ["tied" if value >= 0.05 else "told apart" for value in holm(p)]
    behind = [wide[lower].mean() - wide[upper].mean() for upper, lower in pairwise(names)]
    assert frame["behind"].tolist()[1:] == pytest.approx(behind)
    counts = []
    for upper, lower in pairwise(names):
        gaps = [gap(grid, task, test, lower, upper) for task, tests in TASKS.items() for test in tests]
        better, worse = sum(low > 0 for _, low, _ in gaps), sum(high < 0 for *_, high in gaps)
        counts.append([better, len(gaps) - better - worse, worse])
    assert frame[["better", "tied_on", "worse"]].iloc[1:].to_numpy().tolist() == counts
    assert len({sum(each) for each in counts}) == 1 and any(better != worse for better, _, worse in counts)


def test_neighbours_are_compared_task_by_task_the_lower_minus_the_upper(grid: Grid, grid_results: Results) -> None:
    found = section(grid_results)
    assert found is not None
    table = next(b for b in found.walk() if isinstance(b, Table) and b.name == "ranking-grid-neighbours")
    rows = table.frame.set_index("row")
    *_, upper, lower = ranking(normalised.contests(grid_results, "grid"))[0]["contestant"]
    assert table.columns[-1].header == f"{lower} − {upper}"
    cell = rows.loc["linear", [lower, f"{lower} low", f"{lower} high"]].tolist()
    assert cell == pytest.approx(gap(grid, "linear", "next", lower, upper), rel=1e-4)


def test_tasks_that_cannot_tell_anybody_apart_give_way_to_more_that_fewer_backbones_have() -> None:
    """Of 12 backbones 8 stand on 5 tasks alone: with 11 neighbours the least p is 0.06 times 11. Four stand on 9 more,
    and 0.0001 times 3 tells."""
    draw = np.random.default_rng(0)
    names, tasks = [f"b{n}" for n in range(12)], [f"t{n}" for n in range(14)]
    scores = pd.DataFrame(draw.random((14, 12)), tasks, names)
    scores.iloc[5:, 4:] = np.nan
    found = to_rank(scores)
    assert found.columns.tolist() == names[:4] and found.index.tolist() == tasks
    assert to_rank(scores.iloc[:5]).shape == (5, 12), "nothing better is there"
    assert to_rank(scores.iloc[:, :4]).shape == (14, 4)


def test_near_equals_share_places_and_the_clearly_worse_do_not(grid_results: Results) -> None:
    scores = by_task(normalised.contests(grid_results, "grid"))
    names = ["gpt2", "transformer", "mamba", "s4d", "cnp"]
    found = places(scores, names)
    assert [found[name] for name in names] == [(1, 3), (1, 3), (1, 3), (4, 4), (5, 5)]
    same = pd.DataFrame({"a": scores["gpt2"], "b": scores["gpt2"]})
    assert places(same, ["a", "b"]) == {"a": (1, 2), "b": (1, 2)}


def test_episodes_are_paired_in_units_of_the_score_and_more_is_better(grid: Grid, grid_results: Results) -> None:
    for contest in normalised.contests(grid_results, "grid"):
        key = (contest.task.task, contest.evaluator)
        a, b = (np.mean([grid.raw[(*key, name, seed)] for seed in (0, 1)], 0) for name in ("gpt2", "s4d"))
        gaps = np.asarray(score(a, key[1])) - np.asarray(score(b, key[1]))
        gap = contest.difference("gpt2", "s4d")
        assert gap is not None and gap.value == pytest.approx(gaps.mean())
        half = gap.high - gap.value
        assert half == pytest.approx(2.0117 * gaps.std(ddof=1) / np.sqrt(len(gaps)), rel=1e-4)  # t of 47 degrees


def test_whoever_has_further_seeds_is_compared_on_those_of_the_other(grid: Grid, grid_results: Results) -> None:
    contest = normalised.contests(grid_results, "grid")[0]
    key = (contest.task.task, contest.evaluator)
    a, b = (np.asarray(score(grid.raw[(*key, name, 1)], key[1])) for name in ("gpt2", "s4d"))
    rows = contest.rows
    gap = replace(contest, rows=rows[~(rows["contestant"].eq("s4d") & rows["seed"].eq(0))]).difference("gpt2", "s4d")
    assert gap is not None and gap.value == pytest.approx((a - b).mean())
    # None in common: all that there are.
    apart = rows.assign(seed=rows["seed"].mask(rows["contestant"].eq("s4d"), rows["seed"] + 2))
    other = replace(contest, rows=apart).difference("gpt2", "s4d")
    assert other == contest.difference("gpt2", "s4d")


def test_mean_heights_and_whole_curves_give_the_same_differences() -> None:
    draw, sizes, episodes = np.random.default_rng(1), np.array([0, 1, 2, 4, 8]), 12
    curves = {run: draw.random((episodes, len(sizes))) for run in ("a", "b")}
    whole, packed = [], []
    for run, values in curves.items():
        base = {"run": run, "prompt_set": "p", "metric": "squared_error", "n_related": pd.NA}
        heights = [sum((w[i] + w[i + 1]) / 2 * (sizes[i + 1] - sizes[i]) for i in range(4)) / 8 for w in values]
        whole += [
            base | {"n_context": n, "episode": e, "value": values[e, i]}
            for e in range(episodes)
            for i, n in enumerate(sizes)
        ]
        packed += [base | {"n_context": pd.NA, "episode": e, "value": height} for e, height in enumerate(heights)]
    types = {"n_context": "Int64", "n_related": "Int64"}
    found = []
    for first, second in ((whole, whole), (packed, packed), (whole, packed)):
        rows = pd.DataFrame([r for r in first if r["run"] == "a"] + [r for r in second if r["run"] == "b"])
        scores = EpisodeScores([tables.frame("errors", rows.astype(types))], {"p"})
        a, b = scores.curves(["a"], "p", "squared_error"), scores.curves(["b"], "p", "squared_error")
        assert a is not None and b is not None
        gap = difference(a, b)
        assert gap is not None
        found.append((gap.value, gap.low, gap.high))
    assert found[1] == pytest.approx(found[0]) and found[2] == pytest.approx(found[0])


def test_seeds_of_both_sorts_are_averaged(tmp_path: Path) -> None:
    rows = pd.DataFrame(
        {
            "run": ["s0", "s0", "s0", "s0", "s1", "s1"],
            "prompt_set": "p",
            "metric": "squared_error",
            "n_context": pd.array([0, 2, 0, 2, pd.NA, pd.NA], dtype="Int64"),
            "n_related": pd.array([pd.NA] * 6, dtype="Int64"),
            "episode": [0, 0, 1, 1, 0, 1],
            "value": [1.0, 3.0, 2.0, 2.0, 4.0, 6.0],
        }
    )
    found = EpisodeScores([tables.frame("errors", rows)], {"p"}).curves(["s0", "s1"], "p", "squared_error")
    assert found is not None and found.iloc[:, 0].tolist() == [3.0, 4.0]
