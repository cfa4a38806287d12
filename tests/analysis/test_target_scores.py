"""Rows of the question `targets`: selection, numbers of related datasets, and methods that ignore related datasets."""

import pandas as pd
import pytest

from iclbench.analysis.target_scores import (
    has_joint,
    main_counts,
    over_all_episodes,
    related_counts,
    repeat_over_counts,
    shifts,
)


def rows(**columns: list[object]) -> pd.DataFrame:
    return pd.DataFrame(columns)


def test_overall_rows_are_those_without_an_axis() -> None:
    frame = rows(axis=[None, "n_context", None], metric=["gap", "gap", "squared_error"])
    assert over_all_episodes(frame).index.tolist() == [0, 2]
    assert over_all_episodes(frame, "gap").index.tolist() == [0]


@pytest.mark.parametrize(
    ("counts", "main"),
    [
        ([0, 1, 2, 3], [0, 1, 3]),
        ([0, 4, 8], [0, 8]),
        ([2, 3], [3]),
        ([0], [0]),
        ([], []),
        ([1], [1]),
        ([32, 1], [1, 32]),
    ],
)
def test_main_counts_are_zero_one_and_the_largest(counts: list[int], main: list[int]) -> None:
    frame = pd.DataFrame({"n_related": pd.Series([*counts, None], dtype="Int64")})
    assert related_counts(frame.iloc[::-1]) == sorted(counts)
    assert main_counts(frame) == main


@pytest.mark.parametrize(("joint", "expected"), [(0.5, False), (0.50005, False), (0.6, True)])
def test_joint_likelihoods_are_reported_if_they_differ_from_marginal_ones(joint: float, expected: bool) -> None:
    names = ["log_likelihood", "log_likelihood_joint", "squared_error", "log_likelihood"]
    frame = rows(contestant=["a", "a", "a", "b"], n_related=[0, 0, 0, 1], metric=names, value=[0.5, joint, 9.0, 7.0])
    assert has_joint(frame) == has_joint(frame.assign(run=frame["contestant"])) == expected
    assert not has_joint(frame[frame["metric"].ne("log_likelihood_joint")])


def test_rows_of_methods_that_ignore_related_datasets_are_repeated_for_every_count() -> None:
    frame = rows(
        run=["a", "a", "b", "c"],
        n_related=[0, 2, 0, 0],
        kind=["backbone", "backbone", "baseline", "published"],
        value=[1, 2, 3, 4],
    )
    repeated = repeat_over_counts(frame, [0, 1, 2])
    copies = repeated[repeated["level"]]
    assert copies[["run", "n_related", "value"]].to_numpy().tolist() == [["b", 1, 3], ["b", 2, 3]]
    assert copies["note"].str.len().gt(0).all() and repeated.loc[~repeated["level"], "note"].eq("").all()
    assert repeated.index.tolist() == list(range(6))


def test_shifts_are_sorted_by_name_after_the_training_distribution() -> None:
    assert shifts(rows(shift=["b", "none", "a", "b"])) == ["none", "a", "b"]
