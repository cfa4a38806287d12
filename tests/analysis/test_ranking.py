"""The ranking: corrected paired tests over tasks, shared ranks, and paired differences of curves and mean heights."""

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pandas as pd
import pytest

from iclbench import tables
from iclbench.analysis import normalised
from iclbench.analysis.episode_scores import EpisodeScores
from iclbench.analysis.pairs import difference, holm
from iclbench.analysis.ranking import PairedTest, complete_scores, rank_ranges, ranking, scores_by_task
from iclbench.report.blocks import Table
from iclbench.report.data import Results
from iclbench.report.sections.ranking import section
from tests.report.synthetic_grid import TASKS, Grid, gap, score


def exact_p(gaps: np.ndarray) -> float:
    """Wilcoxon's two-sided p from all 2^n signs, for distinct absolute differences."""
    ranks = np.argsort(np.argsort(np.abs(gaps))) + 1
    observed = abs(ranks @ np.sign(gaps))
    sums = [abs(ranks @ np.array(signs)) for signs in product((-1, 1), repeat=len(gaps))]
    return float(np.mean(np.array(sums) >= observed))


def test_p_equals_that_of_all_sign_flips() -> None:
    rng = np.random.default_rng(0)
    for shift in (0.0, 0.5, 3.0):
        gaps = rng.normal(shift, 1, 9)
        test = PairedTest.of(pd.Series(gaps), pd.Series(np.zeros(9)))
        assert test.p == pytest.approx(exact_p(gaps))
        assert test.mean == pytest.approx(gaps.mean())
        assert test.is_ahead == (np.sign(gaps) @ (np.argsort(np.argsort(np.abs(gaps))) + 1) > 0)


def test_signed_ranks_of_nonzero_differences_decide_which_model_is_ahead() -> None:
    outlier = pd.Series([16.0, -1.0, -2.0, -3.0, -4.0, -5.0])
    assert outlier.mean() > 0 and not PairedTest.of(outlier, 0 * outlier).is_ahead
    with_zeros = pd.Series([5.0, 4.0, -1.0, -2.0, -3.0, 0.0, 0.0, 0.0, 0.0])
    assert PairedTest.of(with_zeros, 0 * with_zeros).is_ahead
    assert not PairedTest.of(0 * with_zeros, with_zeros).is_ahead
    balanced = pd.Series([3.0, -1.0, -2.0])
    assert not PairedTest.of(balanced, 0 * balanced).is_ahead


@pytest.mark.slow
def test_a_task_has_a_score_for_models_with_all_of_its_tests(grid: Grid, grid_results: Results) -> None:
    contests = [contest for contest in normalised.contests(grid_results, "grid") if contest.task.task == "bursty"]
    title, scores = contests[0].task.title, scores_by_task(contests)
    means = [
        np.mean([score(grid.raw["bursty", test, "s4d", s].mean(), test) for s in (0, 1)]) for test in ("icl", "iwl")
    ]
    assert scores.loc[title, "s4d"] == pytest.approx(np.mean(means))
    rows = contests[1].rows
    contests[1] = replace(contests[1], rows=rows[rows["contestant"].ne("s4d")])
    incomplete = scores_by_task(contests)
    assert np.isnan(incomplete.loc[title, "s4d"])
    pd.testing.assert_frame_equal(incomplete.drop(columns="s4d"), scores.drop(columns="s4d"))


def test_the_best_method_that_ignores_the_context_scores_0(grid_results: Results) -> None:
    contest = next(c for c in normalised.contests(grid_results, "grid") if c.title == "linear")
    assert contest.guessing_method == "zero"
    zero = contest.rows[contest.rows["contestant"].eq("zero")]
    for value, guess in ((0.1, "mean-image"), (-0.1, "zero")):
        other = zero.assign(contestant="mean-image", run="mean-image", value=value)
        assert replace(contest, rows=pd.concat([contest.rows, other], ignore_index=True)).guessing_method == guess
    assert replace(contest, rows=contest.rows[contest.rows["contestant"].ne("zero")]).guessing_method is None


def test_holm_stops_at_the_first_p_value_above_the_level() -> None:
    assert holm([0.04, 0.01, 0.02, 0.5]) == pytest.approx([0.08, 0.04, 0.06, 0.5])
    assert holm([0.5, 0.6]) == [1.0, 1.0]


def test_scores_and_ranks_are_means_over_tasks(grid: Grid, grid_results: Results) -> None:
    frame, missing_tasks = ranking(normalised.contests(grid_results, "grid"))
    assert set(missing_tasks) == {"tnp", "icicl-tnp"} and "quadratic" in missing_tasks["tnp"]
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
    by_contestant = pd.DataFrame(means)
    assert frame["mean_score"].tolist() == pytest.approx(by_contestant[names].mean().tolist())
    ranks = pd.DataFrame(
        {name: 1 + (by_contestant.gt(by_contestant[name], axis=0)).sum(axis=1) for name in names}
    ).mean()
    assert frame["mean_rank"].tolist() == pytest.approx(ranks[names].tolist())
    assert frame["mean_rank"].is_monotonic_increasing
    p = [exact_p((by_contestant[lower] - by_contestant[upper]).to_numpy()) for upper, lower in pairwise(names)]
    assert frame["p_alone"].tolist()[1:] == pytest.approx(p)
    assert [verdict.startswith("not") for verdict in frame["tied"].iloc[1:]] == [value >= 0.05 for value in holm(p)]
    behind = [by_contestant[lower].mean() - by_contestant[upper].mean() for upper, lower in pairwise(names)]
    assert frame["behind"].tolist()[1:] == pytest.approx(behind)
    counts = []
    for upper, lower in pairwise(names):
        gaps = [gap(grid, task, test, lower, upper) for task, tests in TASKS.items() for test in tests]
        better, worse = sum(low > 0 for _, low, _ in gaps), sum(high < 0 for *_, high in gaps)
        counts.append([better, len(gaps) - better - worse, worse])
    assert frame[["better", "tied_on", "worse"]].iloc[1:].to_numpy().tolist() == counts
    assert len({sum(row) for row in counts}) == 1 and any(better != worse for better, _, worse in counts)


def test_the_table_of_neighbours_has_the_score_of_the_lower_minus_that_of_the_upper_model(
    grid: Grid, grid_results: Results
) -> None:
    ranking_section = section(grid_results)
    assert ranking_section is not None
    table = next(b for b in ranking_section.walk() if isinstance(b, Table) and b.name == "ranking-grid-neighbours")
    rows = table.frame.set_index("row")
    *_, upper, lower = ranking(normalised.contests(grid_results, "grid"))[0]["contestant"]
    assert table.columns[-1].header == f"{lower} − {upper}"
    cell = rows.loc["linear", [lower, f"{lower} low", f"{lower} high"]].tolist()
    assert cell == pytest.approx(gap(grid, "linear", "next", lower, upper), rel=1e-4)


def test_backbones_with_few_tasks_are_not_ranked_if_the_others_can_then_be_ranked_on_more_tasks() -> None:
    """All 12 backbones share 5 tasks, so the smallest corrected p is 11 · 0.06. Four share 14 tasks, which gives
    3 · 0.0001."""
    rng = np.random.default_rng(0)
    names, tasks = [f"b{n}" for n in range(12)], [f"t{n}" for n in range(14)]
    scores = pd.DataFrame(rng.random((14, 12)), tasks, names)
    scores.iloc[5:, 4:] = np.nan
    ranked = complete_scores(scores)
    assert ranked.columns.tolist() == names[:4] and ranked.index.tolist() == tasks
    assert complete_scores(scores.iloc[:5]).shape == (5, 12), "no group has more tasks"
    assert complete_scores(scores.iloc[:, :4]).shape == (14, 4)


def test_models_share_ranks_unless_they_are_significantly_different(grid_results: Results) -> None:
    scores = scores_by_task(normalised.contests(grid_results, "grid"))
    names = ["gpt2", "transformer", "mamba", "s4d", "cnp"]
    ranks = rank_ranges(scores, names)
    assert [ranks[name] for name in names] == [(1, 3), (1, 3), (1, 3), (4, 4), (5, 5)]
    frame = ranking(normalised.contests(grid_results, "grid"))[0].set_index("contestant")
    assert frame.loc[names, "rank"].tolist() == ["1–3", "1–3", "1–3", "4", "5"]
    equal = pd.DataFrame({"a": scores["gpt2"], "b": scores["gpt2"]})
    assert rank_ranges(equal, ["a", "b"]) == {"a": (1, 2), "b": (1, 2)}


def test_paired_differences_have_the_scale_of_the_score(grid: Grid, grid_results: Results) -> None:
    for contest in normalised.contests(grid_results, "grid"):
        key = (contest.task.task, contest.evaluator)
        a, b = (np.mean([grid.raw[(*key, name, seed)] for seed in (0, 1)], 0) for name in ("gpt2", "s4d"))
        gaps = np.asarray(score(a, key[1])) - np.asarray(score(b, key[1]))
        gap = contest.difference("gpt2", "s4d")
        assert gap is not None and gap.value == pytest.approx(gaps.mean())
        half = gap.high - gap.value
        assert half == pytest.approx(
            2.0117 * gaps.std(ddof=1) / np.sqrt(len(gaps)), rel=1e-4
        )  # t of 47 degrees of freedom


def test_models_with_different_seeds_are_compared_on_common_seeds(grid: Grid, grid_results: Results) -> None:
    contest = normalised.contests(grid_results, "grid")[0]
    key = (contest.task.task, contest.evaluator)
    a, b = (np.asarray(score(grid.raw[(*key, name, 1)], key[1])) for name in ("gpt2", "s4d"))
    rows = contest.rows
    gap = replace(contest, rows=rows[~(rows["contestant"].eq("s4d") & rows["seed"].eq(0))]).difference("gpt2", "s4d")
    assert gap is not None and gap.value == pytest.approx((a - b).mean())
    # Without common seeds all seeds are compared.
    disjoint = rows.assign(seed=rows["seed"].mask(rows["contestant"].eq("s4d"), rows["seed"] + 2))
    assert replace(contest, rows=disjoint).difference("gpt2", "s4d") == contest.difference("gpt2", "s4d")


def test_mean_heights_and_curves_give_the_same_differences() -> None:
    rng, sizes, episodes = np.random.default_rng(1), np.array([0, 1, 2, 4, 8]), 12
    curves = {run: rng.random((episodes, len(sizes))) for run in ("a", "b")}
    unpacked, packed = [], []
    for run, values in curves.items():
        base = {"run": run, "prompt_set": "p", "metric": "squared_error", "n_related": pd.NA}
        heights = [sum((w[i] + w[i + 1]) / 2 * (sizes[i + 1] - sizes[i]) for i in range(4)) / 8 for w in values]
        unpacked += [
            base | {"n_context": n, "episode": e, "value": values[e, i]}
            for e in range(episodes)
            for i, n in enumerate(sizes)
        ]
        packed += [base | {"n_context": pd.NA, "episode": e, "value": height} for e, height in enumerate(heights)]
    types = {"n_context": "Int64", "n_related": "Int64"}
    gaps = []
    for first, second in ((unpacked, unpacked), (packed, packed), (unpacked, packed)):
        rows = pd.DataFrame([r for r in first if r["run"] == "a"] + [r for r in second if r["run"] == "b"])
        scores = EpisodeScores([tables.frame("errors", rows.astype(types))], {"p"})
        a, b = scores.curves(["a"], "p", "squared_error"), scores.curves(["b"], "p", "squared_error")
        assert a is not None and b is not None
        gap = difference(a, b)
        assert gap is not None
        gaps.append((gap.value, gap.low, gap.high))
    assert gaps[1] == pytest.approx(gaps[0]) and gaps[2] == pytest.approx(gaps[0])


def test_curves_and_mean_heights_of_two_seeds_are_averaged() -> None:
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
    mean = EpisodeScores([tables.frame("errors", rows)], {"p"}).curves(["s0", "s1"], "p", "squared_error")
    assert mean is not None and mean.iloc[:, 0].tolist() == [3.0, 4.0]
