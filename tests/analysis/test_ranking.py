"""The ranking: corrected paired tests over tasks, rank ranges, and paired differences of curves and mean heights."""

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pandas as pd
import pytest

from iclbench import tables
from iclbench.analysis import normalised
from iclbench.analysis.episode_scores import EpisodeScores
from iclbench.analysis.normalised import Contest
from iclbench.analysis.pairs import difference, holm
from iclbench.analysis.ranking import (
    PairedTest,
    can_differ,
    complete_scores,
    rank_ranges,
    ranking,
    scores_by_task,
    smallest_p,
    unranked_backbones,
)
from iclbench.report.blocks import Table
from iclbench.report.data import Results
from iclbench.report.sections.ranking import section
from tests.analysis.hand_made import SHARED, results_of
from tests.report.synthetic_grid import TASKS, Grid, gap, score


def exact_p(gaps: np.ndarray) -> float:
    """The two-sided p-value of Wilcoxon's test from all 2^n combinations of signs. Absolute differences must be
    distinct."""
    ranks = np.argsort(np.argsort(np.abs(gaps))) + 1
    observed = abs(ranks @ np.sign(gaps))
    sums = [abs(ranks @ np.array(signs)) for signs in product((-1, 1), repeat=len(gaps))]
    return float(np.mean(np.array(sums) >= observed))


def test_p_values_equal_those_of_an_enumeration_of_all_signs() -> None:
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
    assert PairedTest.of(with_zeros, 0 * with_zeros).p == pytest.approx(exact_p(with_zeros.iloc[:5].to_numpy()))
    assert not PairedTest.of(0 * with_zeros, with_zeros).is_ahead
    balanced = pd.Series([3.0, -1.0, -2.0])
    assert not PairedTest.of(balanced, 0 * balanced).is_ahead


@pytest.mark.slow
def test_a_model_without_results_for_all_tests_of_a_task_has_no_score_for_it(grid: Grid, grid_results: Results) -> None:
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
    assert [verdict.startswith("not") for verdict in frame["verdict"].iloc[1:]] == [value >= 0.05 for value in holm(p)]
    behind = [by_contestant[lower].mean() - by_contestant[upper].mean() for upper, lower in pairwise(names)]
    assert frame["behind"].tolist()[1:] == pytest.approx(behind)
    counts = []
    for upper, lower in pairwise(names):
        gaps = [gap(grid, task, test, lower, upper) for task, tests in TASKS.items() for test in tests]
        better, worse = sum(low > 0 for _, low, _ in gaps), sum(high < 0 for *_, high in gaps)
        counts.append([better, len(gaps) - better - worse, worse])
    assert frame[["better", "not_different", "worse"]].iloc[1:].to_numpy().tolist() == counts
    assert len({sum(row) for row in counts}) == 1 and any(better != worse for better, _, worse in counts)


def test_the_table_of_neighbours_contains_the_score_of_the_lower_minus_the_score_of_the_upper_model(
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


def test_paired_differences_have_the_unit_of_scores(grid: Grid, grid_results: Results) -> None:
    for contest in normalised.contests(grid_results, "grid"):
        key = (contest.task.task, contest.evaluator)
        a, b = (np.mean([grid.raw[(*key, name, seed)] for seed in (0, 1)], 0) for name in ("gpt2", "s4d"))
        gaps = np.asarray(score(a, key[1])) - np.asarray(score(b, key[1]))
        gap = contest.difference("gpt2", "s4d")
        assert gap is not None and gap.value == pytest.approx(gaps.mean())
        half = gap.high - gap.value
        # 2.0117 is the 97.5 % quantile of Student's t distribution with 47 degrees of freedom.
        assert half == pytest.approx(2.0117 * gaps.std(ddof=1) / np.sqrt(len(gaps)), rel=1e-4)


def test_models_with_different_seeds_are_compared_on_common_seeds(grid: Grid, grid_results: Results) -> None:
    contest = normalised.contests(grid_results, "grid")[0]
    key = (contest.task.task, contest.evaluator)
    a, b = (np.asarray(score(grid.raw[(*key, name, 1)], key[1])) for name in ("gpt2", "s4d"))
    rows = contest.rows
    gap = replace(contest, rows=rows[~(rows["contestant"].eq("s4d") & rows["seed"].eq(0))]).difference("gpt2", "s4d")
    assert gap is not None and gap.value == pytest.approx((a - b).mean())
    # Without common seeds, all seeds are compared.
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


def hand_made_contests(scores: dict[str, dict[str, float]], test: str = "next") -> list[Contest]:
    """Return a contest for each task, with the given score of each contestant. The scores of its eight episodes are
    alternately 0.01 higher and lower.
    """
    shared = SHARED | {"metric": "score", "score_of": "squared_error", "score_one": "ridge", "normaliser": 1.0}
    values, errors = [], []
    for task, by_name in scores.items():
        for name, value in by_name.items():
            run = {"run": f"{task}-{name}", "prompt_set": f"{task}-{test}"}
            kind = "baseline" if name == "knn" else "backbone"
            values.append(
                shared | run | {"task": task, "contestant": name, "kind": kind, "evaluator": test, "value": value}
            )
            noise = 0.01 * (-1) ** (np.arange(8) + ord(name[0]))
            errors += [
                run
                | {"metric": "squared_error", "episode": i, "value": -value + e}
                | ({} if test == "next" else {"n_context": 0, "n_related": 0})
                for i, e in enumerate(noise)
            ]
    return normalised.contests(results_of(values, errors), "smoke")


def test_the_score_of_a_task_is_the_mean_over_its_tests_if_a_backbone_has_all_tests() -> None:
    next_scores = hand_made_contests({"t": {"a": 0.2, "b": 0.4, "knn": 0.9}, "u": {"a": 0.5}})
    contests = next_scores + hand_made_contests({"t": {"a": 0.6}, "u": {"a": 0.7, "b": 0.1}}, "targets")
    scores = scores_by_task(contests)
    assert scores.columns.tolist() == ["a", "b"] and scores.index.tolist() == ["t · smoke", "u · smoke"]
    assert scores["a"].tolist() == pytest.approx([0.4, 0.6]) and scores["b"].isna().all()


def test_the_smallest_p_value_is_reached_if_all_differences_have_the_same_sign() -> None:
    for tasks in (5, 6, 7):
        assert smallest_p(tasks) == pytest.approx(exact_p(np.arange(1.0, tasks + 1)))
    # Two contestants have one pair of neighbours, and 1/32 < 0.05; three have two pairs.
    assert [can_differ(6, n) for n in (2, 3)] == [True, False]
    assert can_differ(5, 2) is False and can_differ(7, 4) is True and can_differ(7, 5) is False


def test_tasks_with_scores_of_fewer_than_half_of_the_backbones_are_ignored() -> None:
    scores = pd.DataFrame(np.arange(32.0).reshape(8, 4), [f"t{n}" for n in range(8)], list("abcd"))
    assert complete_scores(scores).shape == (8, 4)
    half_scored, fewer_scored = scores.copy(), scores.copy()
    half_scored.iloc[7, 2:] = fewer_scored.iloc[7, 1:] = np.nan
    assert complete_scores(half_scored).shape == (8, 2), "half of the backbones have a score on the last task"
    assert complete_scores(fewer_scored).shape == (7, 4)
    two_tasks = pd.DataFrame({"a": [1.0, 2.0], "b": [1.0, np.nan], "c": [np.nan, 1.0]})
    assert complete_scores(two_tasks).shape == (2, 1), "no group is larger than one backbone"


def test_two_backbones_with_many_tasks_are_ranked_instead_of_all_backbones_on_one_shared_task() -> None:
    scores = pd.DataFrame({name: np.arange(8.0) for name in "abcde"})
    scores.loc[1:, ["c", "d", "e"]] = np.nan
    assert complete_scores(scores).shape == (8, 2)


def test_a_group_of_one_backbone_is_never_preferred() -> None:
    scores = pd.DataFrame({name: np.arange(8.0) for name in "abc"})
    scores.loc[3:, ["b", "c"]] = np.nan
    assert complete_scores(scores).shape == (3, 3)


def test_a_larger_group_with_fewer_tasks_is_preferred_if_its_tests_can_be_significant() -> None:
    """Nine backbones share 3 tasks, five share 8, and three share 10 tasks. 4 / 2^7 < 0.05, and 8 / 2^2 > 0.05."""
    scores = pd.DataFrame(np.random.default_rng(0).random((10, 9)))
    scores.iloc[3:, 5:] = scores.iloc[8:, 3:] = np.nan
    assert complete_scores(scores).shape == (8, 5)


def test_the_largest_group_is_ranked_on_all_of_its_tasks() -> None:
    """Twelve backbones share 3 tasks. Seven further tasks have scores of a to d and one other backbone, and four have
    scores of a to d only."""
    scores = pd.DataFrame(np.random.default_rng(0).random((14, 12)), columns=list("abcdefghijkl"))
    scores.iloc[3:, 4:] = np.nan
    for n in range(7):
        scores.iloc[3 + n, 4 + n] = 0.5
    ranked = complete_scores(scores)
    assert ranked.columns.tolist() == list("abcd") and ranked.index.tolist() == list(range(14))


def test_a_task_that_applies_to_some_backbones_does_not_remove_the_others() -> None:
    """The numbers are those of the reference results. Of 12 backbones, 5 lack one of 14 tasks, on which 6 further
    backbones are evaluated. On 9 tasks, only the 12 backbones are evaluated. All 12 are ranked on 13 tasks instead of
    7 on 14 tasks."""
    scores = pd.DataFrame(np.random.default_rng(0).random((14, 28)), columns=[f"b{n}" for n in range(28)])
    scores.iloc[4:13, 12:] = scores.iloc[13, 7:12] = scores.iloc[13, 18:] = np.nan
    ranked = complete_scores(scores)
    assert ranked.columns.tolist() == [f"b{n}" for n in range(12)] and ranked.index.tolist() == list(range(13))


def test_rank_ranges_follow_from_corrected_tests() -> None:
    """If all 8 differences of a pair have the same sign, p = 1/128. This is so for five of the six pairs, and p is less
    than 0.05 after correction for six tests (6/128)."""
    noise = np.array([1.0, -2.0, 3.0, -4.0, 5.0, -6.0, 7.0, -8.0]) / 1000
    scores = pd.DataFrame({"a": 1 + noise, "b": 1 - noise, "c": 0.9 + noise, "d": 0.5 + 0 * noise})
    assert rank_ranges(scores, list("abcd")) == {"a": (1, 2), "b": (1, 2), "c": (3, 3), "d": (4, 4)}
    assert rank_ranges(scores, ["d", "a"]) == {"d": (2, 2), "a": (1, 1)}
    six_tasks = scores.iloc[:6]  # p = 1/32, and 6/32 after correction for six tests
    assert set(rank_ranges(six_tasks, list("abcd")).values()) == {(1, 4)}
    assert rank_ranges(six_tasks, ["a", "d"]) == {"a": (1, 1), "d": (2, 2)}


def test_a_small_ranking_equals_one_computed_by_hand() -> None:
    """On six tasks, a is better than b by 0.1 times the number of the task."""
    scores = {f"t{n}": {"a": 0.5 + 0.1 * n, "b": 0.5, "knn": 2.0} for n in range(1, 7)}
    scores["t1"]["c"] = 0.9
    contests = hand_made_contests(scores)
    titles = [contest.task.title for contest in contests]
    frame, missing_tasks = ranking(contests)
    assert missing_tasks == {"c": ", ".join(titles[1:])}
    first, second = frame.to_dict("records")
    assert (first["contestant"], first["rank"], second["contestant"], second["rank"]) == ("a", "1", "b", "2")
    assert (first["mean_rank"], second["mean_rank"], first["tasks"]) == (1, 2, 6)
    assert (first["mean_score"], second["behind"]) == pytest.approx((0.85, -0.35))
    assert first["ranked_tasks"] == ", ".join(titles)
    assert second["p"] == pytest.approx(1 / 32) and second["p_alone"] == pytest.approx(1 / 32)
    assert pd.isna(first["p"]) and pd.isna(first["behind"]) and pd.isna(first["better"]) and first["verdict"] == ""
    assert (second["better"], second["not_different"], second["worse"]) == (0, 0, 6)
    assert frame[["better", "not_different", "worse"]].dtypes.eq("Int64").all()


def test_contests_with_equal_scores_of_all_episodes_are_tied() -> None:
    frame, _ = ranking(hand_made_contests({task: {"a": 0.5, "c": 0.5} for task in ("t", "u")}))
    assert frame[["better", "not_different", "worse"]].iloc[1].tolist() == [0, 2, 0]


def test_one_task_or_one_backbone_has_no_ranking() -> None:
    for scores in ({"t1": {"a": 1.0, "b": 0.5}}, {"t1": {"a": 1.0}, "t2": {"a": 1.0}}):
        assert ranking(hand_made_contests(scores))[0].empty
    two_tasks = hand_made_contests({"t1": {"a": 0.6, "b": 0.5, "c": 0.9}, "t2": {"a": 0.6, "c": 0.5}})
    assert ranking(two_tasks)[1] == {"b": two_tasks[1].task.title}


def test_backbones_with_equal_scores_are_not_significantly_different_and_share_a_rank() -> None:
    frame, _ = ranking(hand_made_contests({f"t{n}": {"b": 0.5, "a": 0.5, "c": 0.1} for n in range(7)}))
    assert frame["contestant"].tolist() == ["a", "b", "c"] and frame["rank"].tolist() == ["1–2", "1–2", "3"]
    assert frame["mean_rank"].tolist() == [1.5, 1.5, 3.0] and frame["p_alone"].tolist()[1:] == [1.0, 1 / 64]
    assert frame["p"].tolist()[1:] == [1.0, 2 / 64]
    assert frame[["better", "not_different", "worse"]].iloc[1:].to_numpy().tolist() == [[0, 7, 0], [0, 0, 7]]
    assert [verdict.startswith("not ") for verdict in frame["verdict"]] == [False, True, False]


def test_the_mean_score_orders_backbones_with_equal_mean_ranks() -> None:
    tasks = [{"b": 0.5, "a": 0.4}, {"b": 0.4, "a": 0.6}]
    frame, _ = ranking(hand_made_contests({f"t{n}": tasks[n % 2] for n in range(2)}))
    assert frame["contestant"].tolist() == ["a", "b"] and frame["mean_rank"].tolist() == [1.5, 1.5]


def test_an_unranked_backbone_is_placed_by_the_tasks_it_shares_with_all_ranked_backbones() -> None:
    """The task t3, on which m is better than a, does not count, because b has no score on it."""
    scores = {
        "t1": {"a": 0.9, "b": 0.5, "m": 0.7},
        "t2": {"a": 0.8, "b": 0.6, "m": 0.7},
        "t3": {"a": 0.1, "m": 0.7},
        "t4": {"a": 0.1, "b": 0.1, "x": 0.5},
    }
    contests = hand_made_contests(scores)
    by_name = unranked_backbones(contests, ["a", "b"]).set_index("contestant")
    m = by_name.loc["m"]
    assert (m["tasks"], m["place"], m["mean_rank"], m["neighbour"]) == (2, "2 of 3", 2, "a")
    assert (m["mean_score"], m["behind"]) == pytest.approx((0.7, -0.15))
    assert (m["better"], m["not_different"], m["worse"]) == (0, 0, 2)
    x = by_name.loc["x"]
    assert (x["tasks"], x["place"], x["neighbour"]) == (1, "1 of 3", "a") and x["behind"] == pytest.approx(0.4)
    assert (x["better"], x["not_different"], x["worse"]) == (1, 0, 0)
    assert unranked_backbones(contests, ["a", "b", "m", "x"]).empty
    assert unranked_backbones(contests, ["a"])["contestant"].tolist() == ["b", "m", "x"]
    assert unranked_backbones(contests, ["b", "x"])["contestant"].tolist() == ["a"], "m shares no task with b and x"
