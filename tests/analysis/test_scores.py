"""The frame of scores against SciPy and plain pandas."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from iclbench import tables
from iclbench.analysis.episode_scores import EpisodeScores
from iclbench.analysis.scores import metric_of_curves, run_leaderboard, scores
from iclbench.analysis.slices import Results, Slice

EPISODES, SIZES = 60, (0, 1, 2)
PROMPTS = "t-smoke-none-0"
DIFFICULTY = np.random.default_rng(0).gamma(2.0, 1.0, EPISODES)
# Kind, mean error and standard deviation of single episodes.
CONTESTANTS = {
    "ridge": ("oracle", 0.0, 0.01),
    "gpt2": ("backbone", 0.30, 0.05),
    "mamba": ("backbone", 0.301, 0.05),
    "s4d": ("backbone", 0.32, 0.05),
    "knn-3": ("baseline", 0.6, 0.01),
    "zero": ("baseline", 1.0, 0.01),
}
SEEDS = {"gpt2": (0, 1)}
REASON = "diverged at step 20: loss is nan"


def errors_of(name: str, seed: int) -> np.ndarray:
    _, mean, spread = CONTESTANTS[name]
    noise = np.random.default_rng([*name.encode(), seed]).normal(0, spread, EPISODES)
    return DIFFICULTY + mean + noise


def tables_of(**columns: dict[str, object]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Tables of values and errors; `columns` are further columns of the rows of a contestant."""
    values, errors = [], []
    for name, (kind, *_) in CONTESTANTS.items():
        for seed in SEEDS.get(name, (0,)):
            run = f"{name}-s{seed}" if kind == "backbone" else name
            scored = errors_of(name, seed)
            row: dict[str, object] = {"run": run, "task": "t", "family": "f", "contestant": name, "kind": kind}
            row |= {"preset": "smoke", "seed": seed if kind == "backbone" else None, "shift": "none"}
            row |= {"evaluator": "next", "status": "ok", "prompt_set": PROMPTS, "card": "c", "version": "0"}
            row |= {"n_episodes": EPISODES, "low": scored.mean() - 0.1, "high": scored.mean() + 0.1}
            row |= {"variant": name if kind == "backbone" else None} | columns.get(name, {})
            keys = [{"n_context": n, "metric": "squared_error"} for n in SIZES] + [{"metric": "auc"}]
            values += [row | key | {"value": scored.mean()} for key in keys]
            errors += [
                {"run": run, "prompt_set": PROMPTS, "metric": "squared_error", "n_context": n, "episode": i, "value": v}
                for n in SIZES
                for i, v in enumerate(scored)
            ]
    return tables.frame("values", values), tables.frame("errors", errors)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return scores(*tables_of()).set_index("contestant")


def mean_errors(name: str) -> np.ndarray:
    return np.mean([errors_of(name, seed) for seed in SEEDS.get(name, (0,))], axis=0)


def test_values_are_means_over_seeds_best_first(frame: pd.DataFrame) -> None:
    means = {name: mean_errors(name).mean() for name in CONTESTANTS}
    assert frame.index.tolist() == sorted(means, key=means.__getitem__)
    assert frame["value"].to_dict() == pytest.approx(means)
    assert frame["metric"].eq("auc").all() and frame["n_episodes"].eq(EPISODES).all()
    assert frame["seeds"].dropna().to_dict() == {"gpt2": 2, "mamba": 1, "s4d": 1}
    ends = [[errors_of("gpt2", seed).mean() + end for seed in (0, 1)] for end in (-0.1, 0.1)]
    assert (frame.loc["gpt2", "low"], frame.loc["gpt2", "high"]) == pytest.approx((min(ends[0]), max(ends[1])))


def test_differences_to_the_row_above_are_paired_t_tests(frame: pd.DataFrame) -> None:
    assert pd.isna(frame["different"].iloc[0])
    for upper, lower in pairwise(frame.index):
        test = stats.ttest_rel(mean_errors(lower), mean_errors(upper))
        interval, row = test.confidence_interval(0.95), frame.loc[lower]
        assert (row["behind_low"], row["behind_high"]) == pytest.approx((interval.low, interval.high))
        assert row["different"] == (test.pvalue < 0.05)
    assert set(frame["different"].dropna()) == {True, False}


def test_contestants_share_a_rank_unless_a_t_test_separates_them_from_its_first(frame: pd.DataFrame) -> None:
    ranked = [name for name in frame.index if CONTESTANTS[name][0] != "oracle"]
    assert pd.isna(frame.loc["ridge", "rank"])
    first, expected = ranked[0], {}
    for place, name in enumerate(ranked, start=1):
        if name != first and stats.ttest_rel(mean_errors(name), mean_errors(first)).pvalue < 0.05:
            first = name
        expected[name] = expected.get(first, place)
    assert frame["rank"].dropna().to_dict() == expected
    assert len(set(expected.values())) < len(expected)


def test_without_errors_no_rank_is_shared_and_no_difference_known() -> None:
    frame = scores(tables_of()[0])
    assert frame["rank"].dropna().tolist() == [1, 2, 3, 4, 5] and frame["different"].isna().all()


def test_methods_with_access_to_the_truth_have_no_rank() -> None:
    values, errors = tables_of()
    values["contestant"] = values["contestant"].replace("knn-3", "periodic-mean")
    values["run"] = values["run"].replace("knn-3", "periodic-mean")
    ranks = scores(values, errors).set_index("contestant")["rank"]
    assert pd.isna(ranks["periodic-mean"]) and pd.notna(ranks["zero"])


def test_a_contestant_with_a_failed_seed_has_a_reason_and_no_value() -> None:
    values, errors = tables_of()
    is_failed = values["run"].eq("gpt2-s1") & values["metric"].eq("auc")
    values.loc[is_failed, ["value", "low", "high", "n_episodes"]] = pd.NA
    values.loc[is_failed, ["status", "reason"]] = ["failed", REASON]
    last = scores(values, errors).iloc[-1]
    assert (last["contestant"], last["failed_seeds"], last["reason"]) == ("gpt2", 1, REASON)
    assert last[["value", "rank", "different"]].isna().all()
    assert scores(values, errors)["failed_seeds"].tolist() == [0] * (len(CONTESTANTS) - 1) + [1]
    runs = run_leaderboard(values, "next").set_index("contestant")
    assert pd.notna(runs.loc["gpt2-s0", "value"]) and runs.loc["gpt2-s1", "reason"] == REASON


def test_published_rows_and_rows_during_training_have_no_leaderboard() -> None:
    """A diverged run has a row in every leaderboard, so an additional one would not be empty."""
    values = tables_of()[0]
    zero = values[values["run"].eq("zero") & values["metric"].eq("auc")]
    published = zero.assign(kind="published", shift="noisy-1")
    in_training = zero.assign(evaluator="icl", axis="train_step", axis_value=10)
    diverged = {"run": "s4-s0", "contestant": "s4", "kind": "backbone", "status": "failed", "reason": REASON}
    diverged |= {"evaluator": "train", "axis": "train_step", "axis_value": 20, "prompt_set": None}
    rows = pd.concat([values, published, in_training, zero.assign(**diverged)], ignore_index=True)
    frame = scores(tables.frame("values", rows))
    assert frame[["evaluator", "shift"]].drop_duplicates().to_numpy().tolist() == [["next", "none"]]
    assert frame["contestant"].iloc[-1] == "s4" and len(frame) == len(CONTESTANTS) + 1


def test_tuned_is_missing_if_it_is_unknown() -> None:
    tuned = scores(*tables_of(gpt2={"tuned": True}, mamba={"tuned": False})).set_index("contestant")["tuned"]
    assert tuned["gpt2"] and not tuned["mamba"] and pd.isna(tuned["s4d"]) and pd.isna(tuned["zero"])


@pytest.mark.slow
def test_a_leaderboard_uses_only_a_metric_that_every_contestant_has() -> None:
    values, errors = tables_of()
    scored = values[values["metric"].eq("auc")].assign(metric="score", score_of="squared_error", score_one="ridge")
    scored = scored.assign(normaliser=1.0)  # the values of areas as scores: the order is reversed
    by_score = scores(pd.concat([values, scored], ignore_index=True), errors)
    assert by_score["metric"].eq("score").all() and by_score["contestant"].iloc[0] == "zero"
    by_area = scores(pd.concat([values, scored[scored["contestant"].ne("s4d")]], ignore_index=True), errors)
    assert by_area["metric"].eq("auc").all() and by_area["contestant"].iloc[0] == "ridge"


def test_the_only_metric_is_used_whatever_its_name() -> None:
    values = tables_of()[0]
    frame = scores(values[values["metric"].eq("auc")].assign(metric="nll"))
    assert frame["metric"].eq("nll").all() and len(frame) == len(CONTESTANTS)


def test_the_metric_of_curves_is_that_of_their_question_and_shift() -> None:
    values = tables_of()[0]
    curve = values[values["run"].eq("gpt2-s0") & values["n_context"].notna()]
    likelihoods, accuracies = curve.assign(metric="nll"), curve.assign(metric="accuracy", shift="noisy-1")
    of_test = curve.assign(metric="cross_entropy", evaluator="icl")
    rows = pd.concat([likelihoods, accuracies, of_test], ignore_index=True)
    task = Slice(Results(rows, EpisodeScores((), set()), tables.frame("costs", [])), "t", "smoke")
    assert metric_of_curves(task, "next") == "nll"
    assert metric_of_curves(task, "next", "noisy-1") == "accuracy"
    assert metric_of_curves(task, "icl") == "cross_entropy"


def test_an_empty_table_gives_an_empty_frame_with_all_columns() -> None:
    values, errors = tables_of()
    assert scores(values.iloc[:0]).columns.tolist() == scores(values, errors).columns.tolist()
