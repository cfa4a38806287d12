"""Intervals of means if episodes of the same cluster are dependent."""

import numpy as np
import pytest

from iclbench.evaluation.bootstrap import bootstrap_interval, summaries


def test_clusters_are_resampled_as_a_whole() -> None:
    """The reference is a bootstrap over the means of equally large clusters."""
    rng = np.random.default_rng(0)
    means = rng.normal(size=(8, 1))
    scores = np.repeat(means, 10, axis=0) + 0.01 * rng.normal(size=(80, 1))
    clusters = np.repeat(np.arange(8), 10)
    low, high = bootstrap_interval(scores, clusters=clusters)
    expected = bootstrap_interval(scores.reshape(8, 10).mean(1, keepdims=True))
    np.testing.assert_allclose([low, high], expected, rtol=1e-12)
    independent = bootstrap_interval(scores)
    assert (high - low)[0] > 2 * (independent[1] - independent[0])[0]


def test_the_interval_does_not_depend_on_the_order_or_labels_of_clusters() -> None:
    rng = np.random.default_rng(1)
    scores, clusters = rng.normal(size=(30, 2)), np.tile([7, 3, 5], 10)
    order = np.argsort(clusters, kind="stable")
    a = bootstrap_interval(scores, clusters=clusters)
    b = bootstrap_interval(scores[order], clusters=clusters[order])
    np.testing.assert_allclose(a, b, rtol=1e-12)


def test_a_single_cluster_or_clusters_of_one_episode_give_the_bootstrap_over_episodes() -> None:
    scores = np.random.default_rng(2).normal(size=(20, 1))
    expected = bootstrap_interval(scores)
    for clusters in (np.arange(20), np.zeros(20, dtype=int)):
        np.testing.assert_array_equal(bootstrap_interval(scores, clusters=clusters), expected)


def test_the_mean_is_over_episodes_with_a_score() -> None:
    scores = np.array([[1.0], [np.nan], [3.0], [5.0]])
    (summary,) = summaries(scores, 0, np.array([0, 0, 1, 1]))
    assert summary["value"] == pytest.approx(3.0) and summary["n_episodes"] == 3
    assert summary["low"] == pytest.approx(1.0) and summary["high"] == pytest.approx(4.0)
