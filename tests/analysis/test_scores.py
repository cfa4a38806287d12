"""The frame of scores, compared with SciPy and plain pandas."""

import functools
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from iclbench import tables
from iclbench.analysis.episode_scores import EpisodeScores
from iclbench.analysis.scores import (
    COLUMNS,
    displayed_columns,
    leaderboard,
    metric_columns,
    metric_of_curves,
    run_leaderboard,
    scores,
)
from iclbench.analysis.slices import Results, Slice
from tests.analysis.hand_made import SHARED, ZERO, slice_of

EPISODES, SIZES = 60, (0, 1, 2)
PROMPTS = "t-smoke-none-0"
DIFFICULTY = np.random.default_rng(0).gamma(2.0, 1.0, EPISODES)
# The kind of each contestant, and the mean and the standard deviation of the errors of its episodes.
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
    """Tables of values and errors. `columns` are additional columns by contestant."""
    values, errors = new_tables(**columns) if columns else cached_tables()
    return values.copy(), errors.copy()


def new_tables(**columns: dict[str, object]) -> tuple[pd.DataFrame, pd.DataFrame]:
    values, errors = [], []
    for name, (kind, *_) in CONTESTANTS.items():
        for seed in SEEDS.get(name, (0,)):
            run = f"{name}-s{seed}" if kind == "backbone" else name
            episode_errors = errors_of(name, seed)
            row = SHARED | {"run": run, "contestant": name, "kind": kind, "seed": seed if kind == "backbone" else None}
            row |= {"evaluator": "next", "prompt_set": PROMPTS}
            row |= {"n_episodes": EPISODES, "low": episode_errors.mean() - 0.1, "high": episode_errors.mean() + 0.1}
            row |= {"variant": name if kind == "backbone" else None} | columns.get(name, {})
            keys = [{"n_context": n, "metric": "squared_error"} for n in SIZES] + [{"metric": "auc"}]
            values += [row | key | {"value": episode_errors.mean()} for key in keys]
            errors += [
                {"run": run, "prompt_set": PROMPTS, "metric": "squared_error", "n_context": n, "episode": i, "value": v}
                for n in SIZES
                for i, v in enumerate(episode_errors)
            ]
    return tables.frame("values", values), tables.frame("errors", errors)


cached_tables = functools.cache(new_tables)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return scores(*tables_of()).set_index("contestant")


def mean_errors(name: str) -> np.ndarray:
    return np.mean([errors_of(name, seed) for seed in SEEDS.get(name, (0,))], axis=0)


def test_values_are_means_over_seeds_sorted_from_best_to_worst(frame: pd.DataFrame) -> None:
    means = {name: mean_errors(name).mean() for name in CONTESTANTS}
    assert frame.index.tolist() == sorted(means, key=means.__getitem__)
    assert frame["value"].to_dict() == pytest.approx(means)
    assert frame["metric"].eq("auc").all() and frame["n_episodes"].eq(EPISODES).all()
    assert frame["seeds"].dropna().to_dict() == {"gpt2": 2, "mamba": 1, "s4d": 1}
    ends = [[errors_of("gpt2", seed).mean() + end for seed in (0, 1)] for end in (-0.1, 0.1)]
    assert (frame.loc["gpt2", "low"], frame.loc["gpt2", "high"]) == pytest.approx((min(ends[0]), max(ends[1])))


def test_differences_from_the_row_above_are_paired_t_tests(frame: pd.DataFrame) -> None:
    assert pd.isna(frame["different"].iloc[0])
    for upper, lower in pairwise(frame.index):
        test = stats.ttest_rel(mean_errors(lower), mean_errors(upper))
        interval, row = test.confidence_interval(0.95), frame.loc[lower]
        assert (row["behind_low"], row["behind_high"]) == pytest.approx((interval.low, interval.high))
        assert row["different"] == (test.pvalue < 0.05)
    assert set(frame["different"].dropna()) == {True, False}


def test_contestants_share_a_rank_unless_they_differ_significantly_from_the_best_of_this_rank(
    frame: pd.DataFrame,
) -> None:
    ranked = [name for name in frame.index if CONTESTANTS[name][0] != "oracle"]
    assert pd.isna(frame.loc["ridge", "rank"])
    first, expected = ranked[0], {}
    for place, name in enumerate(ranked, start=1):
        if name != first and stats.ttest_rel(mean_errors(name), mean_errors(first)).pvalue < 0.05:
            first = name
        expected[name] = expected.get(first, place)
    assert frame["rank"].dropna().to_dict() == expected
    assert len(set(expected.values())) < len(expected)


def test_without_errors_of_episodes_no_rank_is_shared_and_differences_are_unknown() -> None:
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
    """A diverged run is listed in every leaderboard, so an additional leaderboard would not be empty."""
    values = tables_of()[0]
    zero = values[values["run"].eq("zero") & values["metric"].eq("auc")]
    published = zero.assign(kind="published", run="paper", contestant="paper")
    published = pd.concat([published, published.assign(shift="noisy-1")])
    branch_row = zero.assign(axis="branch", axis_value=10, value=99.0)
    training_row = zero.assign(evaluator="icl", axis="train_step", axis_value=10)
    diverged = {"run": "s4-s0", "contestant": "s4", "kind": "backbone", "status": "failed", "reason": REASON}
    diverged |= {"evaluator": "train", "axis": "train_step", "axis_value": 20, "prompt_set": None}
    rows = pd.concat([values, published, branch_row, training_row, zero.assign(**diverged)], ignore_index=True)
    frame = scores(tables.frame("values", rows))
    assert frame[["evaluator", "shift"]].drop_duplicates().to_numpy().tolist() == [["next", "none"]]
    assert frame["contestant"].iloc[-1] == "s4" and set(frame["contestant"]) == {*CONTESTANTS, "s4"}
    assert frame["value"].max() < 10


def test_the_value_of_tuned_is_missing_if_it_is_unknown() -> None:
    tuned = scores(*tables_of(gpt2={"tuned": True}, mamba={"tuned": False})).set_index("contestant")["tuned"]
    assert tuned["gpt2"] and not tuned["mamba"] and pd.isna(tuned["s4d"]) and pd.isna(tuned["zero"])


@pytest.mark.slow
def test_a_leaderboard_uses_only_a_metric_that_every_contestant_has() -> None:
    values, errors = tables_of()
    score_rows = values[values["metric"].eq("auc")].assign(metric="score", score_of="squared_error", score_one="ridge")
    score_rows = score_rows.assign(normaliser=1.0)  # areas are used as scores, which reverses the order
    by_score = scores(pd.concat([values, score_rows], ignore_index=True), errors)
    assert by_score["metric"].eq("score").all() and by_score["contestant"].iloc[0] == "zero"
    by_area = scores(pd.concat([values, score_rows[score_rows["contestant"].ne("s4d")]], ignore_index=True), errors)
    assert by_area["metric"].eq("auc").all() and by_area["contestant"].iloc[0] == "ridge"


def test_the_only_metric_is_used_whatever_its_name() -> None:
    """Curves are compared by their areas, not by another metric."""
    values, errors = tables_of()
    frame = scores(values[values["metric"].eq("auc")].assign(metric="nll"), errors)
    assert frame["metric"].eq("nll").all() and len(frame) == len(CONTESTANTS) and frame["behind"].isna().all()


def test_the_metric_of_curves_depends_on_question_and_shift() -> None:
    values = tables_of()[0]
    curve = values[values["run"].eq("gpt2-s0") & values["n_context"].notna()]
    likelihoods, accuracies = curve.assign(metric="nll"), curve.assign(metric="accuracy", shift="noisy-1")
    test_curve = curve.assign(metric="cross_entropy", evaluator="icl")
    rows = pd.concat([likelihoods, accuracies, test_curve], ignore_index=True)
    task = slice_of_frame(rows)
    assert metric_of_curves(task, "next") == "nll"
    assert metric_of_curves(task, "next", "noisy-1") == "accuracy"
    assert metric_of_curves(task, "icl") == "cross_entropy"


def test_an_empty_table_gives_an_empty_frame_with_all_columns() -> None:
    values, errors = tables_of()
    expected = {
        "string": ["task", "preset", "evaluator", "shift", "contestant", "kind", "metric", "reason"],
        "Int64": ["length", "n_related", "rank", "seeds", "n_episodes", "failed_seeds"],
        "Float64": ["value", "low", "high", "behind", "behind_low", "behind_high"],
        "boolean": ["tuned", "different"],
    }
    dtypes = {name: dtype for dtype, names in expected.items() for name in names}
    for frame in (scores(values.iloc[:0]), scores(values, errors)):
        assert frame.columns.tolist() == [*COLUMNS] and frame.dtypes.astype(str).to_dict() == dtypes


def target_rows(
    run: str, kind: str, metric: str, by_count: dict[int, float], **columns: object
) -> list[dict[str, object]]:
    row = SHARED | {"run": run, "contestant": run, "kind": kind, "evaluator": "targets", "metric": metric} | columns
    return [row | {"n_related": n, "value": value} for n, value in by_count.items()]


def slice_of_frame(values: pd.DataFrame) -> Slice:
    return Slice(Results(values, EpisodeScores((), set()), tables.frame("costs", [])), "t", "smoke")


def order(frame: pd.DataFrame) -> list[tuple[object, ...]]:
    return [tuple(row) for row in frame[["contestant", "n_related", "metric"]].astype(object).to_numpy()]


TARGETS = [
    *target_rows("m", "backbone", "log_likelihood", {0: 0.1, 1: 0.4, 2: 9.0, 4: 0.5}),
    *target_rows("m", "backbone", "squared_error", {0: 0.3, 1: 0.2, 2: 0.0, 4: 0.2}),
    *target_rows("knn", "baseline", "squared_error", {0: 0.2}),
    *target_rows("ridge", "baseline", "squared_error", {0: 0.1}),
    *target_rows("ridge", "baseline", "brand_new", {0: 0.1}),
    *target_rows("n", "backbone", "log_likelihood", {0: 0.4}),
]


def test_contestants_have_one_row_for_each_main_number_of_related_datasets() -> None:
    """Contestants without the likelihood come last, ordered by error. Rows of strata, of other shifts,
    and with numbers of related datasets other than 0, 1 and the largest are omitted."""
    others = [
        *target_rows("n", "backbone", "log_likelihood", {0: 7.0}, axis="stratum:a", stratum="a"),
        *target_rows("n", "backbone", "log_likelihood", {8: 7.0}, shift="far"),
    ]
    task = slice_of(*TARGETS, *others)
    board = leaderboard(task, "targets")
    assert order(board) == [
        ("m", 4, "log_likelihood"),
        ("m", 1, "log_likelihood"),
        ("n", 0, "log_likelihood"),
        ("m", 0, "log_likelihood"),
        ("ridge", 0, "squared_error"),
        ("knn", 0, "squared_error"),
    ]
    assert board["value"].tolist() == pytest.approx([0.5, 0.4, 0.4, 0.1, 0.1, 0.2])
    assert board["rank"].tolist() == [1, 2, 3, 4, pd.NA, pd.NA]
    assert order(leaderboard(task, "targets", "far")) == [("n", 8, "log_likelihood")]


def test_equal_scores_are_sorted_by_contestant_and_number_of_related_datasets() -> None:
    rows = [
        *target_rows("b", "baseline", "squared_error", {4: 0.5, 0: 0.5}),
        *target_rows("a", "baseline", "squared_error", {1: 0.5}),
    ]
    board = leaderboard(slice_of(*rows), "targets")
    assert [row[:2] for row in order(board)] == [("a", 1), ("b", 0), ("b", 4)]


def test_contestants_are_ordered_by_a_metric_only_if_all_of_them_have_it() -> None:
    """Rows with equal errors are ordered by likelihood."""
    task = slice_of(*TARGETS)
    assert order(leaderboard(task, "targets", by="squared_error")) == order(leaderboard(task, "targets"))
    error = target_rows("n", "backbone", "squared_error", {0: 0.15})
    by_error = leaderboard(slice_of(*TARGETS, *error), "targets", by="squared_error")
    assert by_error["metric"].eq("squared_error").all()
    assert [row[:2] for row in order(by_error)] == [("ridge", 0), ("n", 0), ("m", 4), ("m", 1), ("knn", 0), ("m", 0)]


@pytest.mark.parametrize("preferred", range(6))
def test_the_first_available_fallback_metric_is_used_or_else_the_first_metric_by_name(preferred: int) -> None:
    metrics = ["auc", "log_likelihood", "squared_error", "accuracy_within_choices", "accuracy", "aaa", "aab"][
        preferred:
    ]
    row = ZERO | {"evaluator": "next"}
    frame = leaderboard(slice_of(*(row | {"metric": name} for name in reversed(metrics))), "next")
    assert frame["metric"].tolist() == metrics[:1]


@pytest.mark.parametrize("by_score", [False, True])
@pytest.mark.parametrize("metric", ["squared_error", "log_likelihood"])
def test_differences_of_targets_are_positive_if_the_lower_row_is_worse(metric: str, by_score: bool) -> None:
    """Each difference is computed at the number of related datasets of its row. If rows are ordered by score, the
    differences are in the metric from which the score was computed."""
    sign = 1 if metric == "squared_error" else -1
    noise = {"m": np.array([0.1, -0.1, 0.2, 0.0]), "k": np.array([0.0, 0.3, 0.1, -0.2])}
    means = {("m", 0): 1.0, ("m", 2): 0.5, ("k", 0): 3.0}
    rows, errors = [], []
    for (run, n), mean in means.items():
        values, kind = sign * (mean + noise[run]), "backbone" if run == "m" else "baseline"
        rows += target_rows(run, kind, metric, {n: values.mean()})
        if by_score:
            rows += target_rows(run, kind, "score", {n: -mean}, score_of=metric, score_one="ridge")
        row = {"run": run, "prompt_set": "p", "metric": metric, "n_context": 4, "n_related": n}
        errors += [row | {"episode": i, "value": value} for i, value in enumerate(values)]
    by = "score" if by_score else metric
    board = scores(tables.frame("values", rows), tables.frame("errors", errors), by)
    assert order(board) == [("m", 2, by), ("m", 0, by), ("k", 0, by)]
    assert board["behind"].tolist()[1:] == pytest.approx([0.5, (2.0 + noise["k"] - noise["m"]).mean()])
    interval = stats.ttest_rel(noise["k"] + 3, noise["m"] + 1).confidence_interval(0.95)
    assert (board["behind_low"].iloc[2], board["behind_high"].iloc[2]) == pytest.approx((interval.low, interval.high))
    assert board["rank"].tolist() == [1, 2, 3] and board["different"].tolist() == [pd.NA, True, True]


def test_each_question_and_shift_has_a_leaderboard() -> None:
    row = ZERO | {"metric": "auc"}
    rows = [
        row | {"evaluator": "next"},
        row | {"evaluator": "next", "shift": "far"},
        row | {"evaluator": "icl", "metric": "accuracy_within_choices"},
        row | {"evaluator": "rank"},
        row | {"evaluator": "train"},
        row | {"evaluator": "next", "n_context": 4, "metric": "squared_error"},
    ]
    frame = scores(tables.frame("values", rows))
    assert frame[["preset", "evaluator", "shift", "metric"]].to_numpy().tolist() == [
        ["smoke", "icl", "none", "accuracy_within_choices"],
        ["smoke", "next", "far", "auc"],
        ["smoke", "next", "none", "auc"],
    ]
    assert frame.index.tolist() == [0, 1, 2] and frame["length"].isna().all()


def test_a_question_without_rows_has_an_empty_leaderboard() -> None:
    row = ZERO | {"metric": "auc"}
    task = slice_of(row | {"evaluator": "next"})
    for evaluator, shift in (("icl", "none"), ("targets", "none"), ("next", "far")):
        empty = leaderboard(task, evaluator, shift)
        assert empty.empty and empty.columns.tolist() == [*COLUMNS]


def test_reasons_of_failed_runs_are_joined_without_repetition() -> None:
    row = SHARED | {"contestant": "m", "kind": "backbone", "evaluator": "next", "metric": "auc"}
    failed = row | {"status": "failed", "value": None}
    rows = [
        *(
            failed | {"run": f"m-s{seed}", "seed": seed, "reason": reason}
            for seed, reason in enumerate(("b", "a", "b"))
        ),
        failed | {"run": "m-s0", "seed": 0, "reason": "a", "n_context": 4},
        failed | {"run": "n-s0", "contestant": "n", "reason": "c", "shift": "far"},
        failed | {"run": "n-s0", "contestant": "n", "reason": "d", "evaluator": "icl"},
        row | {"run": "n-s0", "contestant": "n", "value": 1.0},
    ]
    task = slice_of(*rows)
    frame = leaderboard(task, "next").set_index("contestant")
    assert frame.loc["m", ["kind", "failed_seeds", "reason"]].tolist() == ["backbone", 3, "b; a"]
    assert frame.loc["n", "failed_seeds"] == 0 and pd.isna(frame.loc["n", "reason"])
    assert frame.loc["n", "rank"] == 1 and pd.isna(frame.loc["m", "rank"])
    assert leaderboard(task, "next", "far")["reason"].tolist() == ["c"]


def test_a_contestant_that_failed_at_one_number_of_related_datasets_has_no_row_without_a_value() -> None:
    """The run that failed has no other score, and does not prevent the comparison of the first run."""
    rows = target_rows("m", "backbone", "squared_error", {0: 0.1, 4: 0.2})
    failed = rows[1] | {"run": "m-s1", "status": "failed", "reason": "r", "value": None}
    zero = target_rows("zero", "baseline", "squared_error", {0: 0.4})
    row = {"prompt_set": "p", "metric": "squared_error", "n_context": 4, "n_related": 0}
    errors = [
        row | {"run": run, "episode": i, "value": value + 0.01 * i}
        for run, value in (("m", 0.1), ("zero", 0.4))
        for i in range(3)
    ]
    board = scores(tables.frame("values", [*rows, failed, *zero]), tables.frame("errors", errors))
    assert order(board) == [("m", 0, "squared_error"), ("zero", 0, "squared_error")]
    assert board["failed_seeds"].tolist() == [1, 0] and board["reason"].isna().all()
    assert board["behind"].iloc[1] == pytest.approx(0.3)


def test_displayed_columns_have_titles_and_ends_of_intervals(frame: pd.DataFrame) -> None:
    board = frame.reset_index()
    tuned = pd.Series([pd.NA, True, False, True, pd.NA, pd.NA], dtype="boolean")
    displayed = displayed_columns(board.assign(tuned=tuned))
    assert displayed.columns.tolist() == [
        "contestant",
        "n_related",
        "rank",
        "kind",
        "seeds",
        "tuned",
        "behind",
        "behind_low",
        "behind_high",
        "reason",
    ]
    assert displayed["tuned"].fillna("").tolist() == ["", "yes", "no", "yes", "", ""]
    assert displayed["tuned"].dtype == "string"
    assert displayed_columns(board.drop(columns="reason")).columns.tolist() == displayed.columns.tolist()[:-1]
    for same in (True, False, pd.NA):
        assert displayed_columns(board.assign(tuned=tuned.where(tuned.isna(), same)))["tuned"].isna().all()


def test_single_runs_are_not_averaged() -> None:
    runs = run_leaderboard(tables_of()[0].assign(shift="far"), "next").set_index("contestant")
    means = {f"gpt2-s{seed}": errors_of("gpt2", seed).mean() for seed in (0, 1)}
    assert runs.loc[list(means), "value"].to_dict() == pytest.approx(means)
    assert len(runs) == len(CONTESTANTS) + 1 and runs["behind"].isna().all()
    assert runs[["task", "preset", "shift"]].drop_duplicates().to_numpy().tolist() == [["t", "smoke", "far"]]
    zero = tables_of()[0].iloc[-1:]
    assert run_leaderboard(zero, "next")["contestant"].tolist() == ["zero"]


def test_metrics_of_a_leaderboard_are_columns_named_after_the_metric() -> None:
    ends = {"low": 0.0, "high": 1.0, "n_episodes": 7}
    task = slice_of(*(row | ends for row in TARGETS))
    columns = metric_columns(task, "targets", ["squared_error", "crps"], fields=["value", "high", "n_episodes"])
    names = ["squared_error", "squared_error_high", "squared_error_episodes", "crps", "crps_high", "crps_episodes"]
    assert columns.columns.tolist() == ["contestant", "n_related", *names]
    frame = leaderboard(task, "targets").merge(columns, "left", ["contestant", "n_related"])
    assert order(frame) == order(leaderboard(task, "targets"))
    assert frame["squared_error"].fillna(-1).tolist() == pytest.approx([0.2, 0.2, -1, 0.3, 0.1, 0.2])
    assert frame["squared_error_episodes"].dropna().eq(7).all() and frame["crps"].isna().all()
    empty = metric_columns(task, "targets", ["auc"], "near")
    assert empty.empty and empty.columns.tolist() == ["contestant", "n_related", "auc", "auc_low", "auc_high"]


def test_metrics_of_single_runs_are_added_to_their_leaderboard() -> None:
    values = tables_of()[0]
    plain, board = run_leaderboard(values, "next"), run_leaderboard(values, "next", metrics=["auc", "score"])
    pd.testing.assert_frame_equal(board[plain.columns], plain)
    assert board["auc"].tolist() == board["value"].tolist() and board["auc_low"].tolist() == board["low"].tolist()
    assert board["score"].isna().all()


def test_scores_are_the_default_metric() -> None:
    rows = [
        SHARED
        | {"run": run, "contestant": run, "kind": "baseline", "evaluator": "next", "metric": metric, "value": value}
        for run, value in (("a", 0.1), ("b", 0.9))
        for metric in ("auc", "score")
    ]
    values = tables.frame("values", rows)
    for board in (scores(values), run_leaderboard(values, "next"), leaderboard(slice_of(*rows), "next")):
        assert board["metric"].tolist() == ["score", "score"] and board["contestant"].tolist() == ["b", "a"]
    curve = {"prompt_set": "p", "metric": "squared_error"}
    errors = [
        curve | {"run": run, "n_context": n, "episode": i, "value": value + i}
        for run, value in (("a", 0.9), ("b", 0.1))
        for n in (0, 1)
        for i in range(3)
    ]
    assert scores(values, tables.frame("errors", errors))["behind"].iloc[1] == pytest.approx(0.8)


def test_a_leaderboard_may_have_a_metric_that_some_contestants_lack() -> None:
    values = tables_of()[0]
    score_rows = values[values["metric"].eq("auc") & values["run"].isin(["zero", "ridge"])].assign(metric="score")
    task = slice_of_frame(pd.concat([values, score_rows]))
    complete, partial = leaderboard(task, "next"), leaderboard(task, "next", partial=True)
    assert complete["metric"].eq("auc").all()
    assert partial["contestant"].tolist() == ["zero", "ridge", *complete["contestant"].drop([0, 5])]
    assert partial["metric"].tolist() == ["score"] * 2 + ["auc"] * 4


def test_scores_without_a_known_metric_have_no_differences() -> None:
    rows, errors = [], []
    for run, value in (("a", 0.9), ("b", 0.1)):
        rows += target_rows(run, "baseline", "score", {0: value})
        row = {"run": run, "prompt_set": "p", "metric": "squared_error", "n_context": 4, "n_related": 0}
        errors += [row | {"episode": i, "value": value} for i in range(3)]
    frame = scores(tables.frame("values", rows), tables.frame("errors", errors))
    assert frame["contestant"].tolist() == ["a", "b"] and frame["behind"].isna().all()


def test_differences_are_in_the_metric_of_the_leaderboard() -> None:
    """The scores were computed from likelihoods, but the leaderboard is ordered by errors."""
    rows, errors = [], []
    for run, error in (("a", 0.1), ("b", 0.4)):
        for metric, value in (("squared_error", error), ("log_likelihood", 5 * error)):
            rows += target_rows(run, "baseline", metric, {0: value})
            row = {"run": run, "prompt_set": "p", "metric": metric, "n_context": 4, "n_related": 0}
            errors += [row | {"episode": i, "value": value} for i in range(3)]
        rows += target_rows(run, "baseline", "score", {0: error}, score_of="log_likelihood", score_one="ridge")
    frame = scores(tables.frame("values", rows), tables.frame("errors", errors), "squared_error")
    assert frame["contestant"].tolist() == ["a", "b"] and frame["behind"].iloc[1] == pytest.approx(0.3)


def test_accuracies_on_a_test_of_the_family_are_compared_by_episode() -> None:
    rows, errors = [], []
    for run, values in (("a", [1.0, 1.0, 0.0, 1.0]), ("b", [0.0, 1.0, 0.0, 0.0])):
        row = SHARED | {"run": run, "contestant": run, "kind": "baseline", "evaluator": "icl", "metric": "accuracy"}
        rows.append(row | {"value": sum(values) / 4})
        row = {"run": run, "prompt_set": "p", "metric": "accuracy", "n_context": 8, "n_related": 0}
        errors += [row | {"episode": i, "value": value} for i, value in enumerate(values)]
    frame = scores(tables.frame("values", rows), tables.frame("errors", errors))
    assert frame["contestant"].tolist() == ["a", "b"] and frame["behind"].iloc[1] == pytest.approx(0.5)


def test_columns_of_leaderboards_have_headings() -> None:
    titles = {name: column.title for name, column in COLUMNS.items() if column.title}
    assert (
        titles.items()
        >= {"contestant": "contestant", "rank": "rank", "kind": "kind", "seeds": "seeds", "tuned": "tuned"}.items()
    )
    assert set(titles) == {"contestant", "n_related", "rank", "kind", "seeds", "tuned", "behind", "reason"}
    assert [name for name, column in COLUMNS.items() if column.on_terminal] == ["tuned"]
    assert [name for name, column in COLUMNS.items() if column.interval] == ["behind"]
    assert [name for name, column in COLUMNS.items() if column.help] == ["rank", "tuned", "behind", "reason"]
    assert [COLUMNS[name].show(1234) for name in ("n_related", "rank", "seeds")] == ["1,234"] * 3
    assert COLUMNS["behind"].show(0.25) == "+0.250" and COLUMNS["kind"].show("oracle") == "oracle"


def test_rows_without_prompts_have_values_and_no_differences() -> None:
    """All rows of `zero` and `mamba`, and the first row of `knn-3`, have no prompt set."""
    values, errors = tables_of()
    without_prompts = values["run"].isin(["zero", "mamba-s0"]) | (values["run"].eq("knn-3") & values["n_context"].eq(0))
    frame = scores(values.assign(prompt_set=values["prompt_set"].mask(without_prompts)), errors)
    assert frame.set_index("contestant")["value"].to_dict() == pytest.approx(
        {name: mean_errors(name).mean() for name in CONTESTANTS}
    )
    assert frame["contestant"].tolist() == ["ridge", "mamba", "gpt2", "s4d", "knn-3", "zero"]
    assert frame["behind"].isna().tolist() == [True, True, True, False, False, True]


def test_curves_under_a_shift_are_compared_by_the_metric_that_was_measured_under_it(frame: pd.DataFrame) -> None:
    """Errors under the shift are twice as large as without it."""
    values, errors = tables_of()
    values = values.assign(shift="far", metric=values["metric"].replace("squared_error", "cross_entropy"))
    far = scores(values, errors.assign(metric="cross_entropy", value=2 * errors["value"])).set_index("contestant")
    assert (far["behind"] / 2).dropna().to_dict() == pytest.approx(frame["behind"].dropna().to_dict())
