"""Sequences of labelled vectors: items, classes and labels in training and in every test."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from iclbench.config.cards import load_task
from iclbench.core.episodes import Episodes
from iclbench.core.seeds import generator
from iclbench.families.bursty_vectors import BurstyVectorParameters, BurstyVectors
from iclbench.families.request import Request
from tests.refusals import refused


def family(**parameters: Any) -> BurstyVectors:
    return BurstyVectors(BurstyVectorParameters(**({"dim": 8, "classes": 64, "labels": 16} | parameters)))


def sample_training(count: int = 2000, points: int = 8, **parameters: Any) -> Episodes:
    return family(**parameters).sample(Request(count, points, generator(1, "data")))


def draw_test(evaluator: str, count: int = 2000, **parameters: Any) -> Episodes:
    return family(**parameters).sample_test(evaluator, count, generator(1, "test"))


def all_labels(episodes: Episodes) -> np.ndarray:
    """Return the labels of all items of each sequence, with the query last."""
    return torch.cat([episodes.context.y, episodes.targets.y], 1).numpy()


def all_items(episodes: Episodes) -> np.ndarray:
    return torch.cat([episodes.context.x, episodes.targets.x], 1).numpy()


def test_items_are_rescaled_class_means_plus_noise() -> None:
    """Means and noise have variances 1 / D and eps² / D, and their sum is divided by sqrt(1 + eps²)."""
    episodes = sample_training(20_000, classes=5000, noise=0.5)
    x, classes = all_items(episodes), episodes.truth["class"].numpy()
    assert x.var(axis=(0, 1)) == pytest.approx(np.full(8, 1 / 8), rel=0.05)
    first, second = x[:, 0], x[:, 1]
    is_same = classes[:, 0] == classes[:, 1]
    assert is_same.sum() > 5000
    # Two items of a class differ only in their noise.
    noise_variance = ((first - second)[is_same] ** 2).mean() / 2
    assert noise_variance == pytest.approx(0.25 / 8 / 1.25, rel=0.03)
    assert (first * second)[~is_same].mean() == pytest.approx(0, abs=2e-3)


def test_half_of_a_bursty_context_has_the_class_of_the_query() -> None:
    episodes = sample_training()
    classes = episodes.truth["class"].numpy()
    counts = (classes[:, :-1] == classes[:, -1:]).sum(1)
    # Both classes are drawn with replacement, so they are equal in one of 64 sequences.
    assert set(counts) == {4, 8} and (counts == 8).mean() == pytest.approx(1 / 64, abs=0.01)
    assert all(len(set(row)) <= 2 for row in classes[:, :-1])
    assert (classes[:, :4] == classes[:, :1]).all(1).mean() < 0.1, "the order is random"
    assert (all_labels(episodes) == classes % 16).all() and episodes.choices.all()


def test_classes_of_sequences_without_bursts_are_independent() -> None:
    classes = sample_training(p_bursty=0.0).truth["class"].numpy()
    assert (classes[:, :-1] == classes[:, -1:]).mean() == pytest.approx(1 / 64, abs=0.005)
    bursty = sample_training(p_bursty=0.3).truth["class"].numpy()
    assert (bursty[:, :-1] == bursty[:, -1:]).any(1).mean() == pytest.approx(0.3 + 0.7 * 8 / 64, abs=0.04)


def test_contexts_can_have_any_length() -> None:
    for points, copies in ((0, 0), (1, 1), (3, 1), (5, 2), (11, 4)):
        classes = sample_training(300, points).truth["class"].numpy()
        counts = (classes[:, :-1] == classes[:, -1:]).sum(1)
        assert classes.shape == (300, points + 1) and np.median(counts) == copies


def test_classes_have_zipf_weights() -> None:
    classes = sample_training(20_000, classes=16, alpha=1.0, p_bursty=0.0).truth["class"].numpy()
    shares = np.sort(np.bincount(classes.ravel(), minlength=16) / classes.size)[::-1]
    weights = 1 / np.arange(1, 17)
    assert shares == pytest.approx(weights / weights.sum(), rel=0.05)


@pytest.mark.parametrize("name", ["icl", "flip"])
def test_tests_with_two_classes_have_four_items_of_each_and_their_labels_as_choices(name: str) -> None:
    episodes = draw_test(name)
    labels, is_choice = all_labels(episodes), episodes.choices.numpy()
    assert (is_choice.sum(1) == 2).all()
    for row, is_allowed in zip(labels, is_choice, strict=True):
        (first, second) = np.flatnonzero(is_allowed)
        assert sorted(np.bincount(row[:-1], minlength=16)[[first, second]]) == [4, 4] and is_allowed[row[-1]]
    assert (labels[:, -1] == labels[:, 0]).mean() == pytest.approx(0.5, abs=0.04)
    # The label of the nearest item in context is almost always right.
    x = all_items(episodes)
    nearest = ((x[:, :-1] - x[:, -1:]) ** 2).sum(2).argmin(1)
    assert (labels[np.arange(len(labels)), nearest] == labels[:, -1]).mean() > 0.99


def test_the_test_icl_has_new_classes_in_every_sequence() -> None:
    episodes = draw_test("icl", 4000, noise=0.0)
    assert (episodes.truth["class"] == -1).all()
    x = all_items(episodes)[:, 0]
    assert len(np.unique(x.round(6), axis=0)) == 4000 and x.var(0) == pytest.approx(np.full(8, 1 / 8), rel=0.1)
    shares = np.bincount(all_labels(episodes)[:, -1], minlength=16) / 4000
    assert shares == pytest.approx(np.full(16, 1 / 16), abs=0.015)


def test_paired_sequences_have_the_same_items_and_exchanged_labels() -> None:
    episodes = draw_test("icl_paired", 200)
    x, labels = all_items(episodes), all_labels(episodes)
    assert (x[::2] == x[1::2]).all() and (labels[::2] != labels[1::2]).all()
    assert (labels[::2, -1:] == labels[::2, :-1]).tolist() == (labels[1::2, -1:] == labels[1::2, :-1]).tolist()
    with refused("bad-value", "icl_paired", 201):
        draw_test("icl_paired", 201)


def test_flip_exchanges_the_labels_of_the_two_classes() -> None:
    """Since 50 classes share 16 labels, two labels have four classes and the others have three."""
    episodes = draw_test("flip", 20_000, classes=50)
    classes, labels = episodes.truth["class"].numpy(), all_labels(episodes)
    trained_labels = classes % 16
    assert (labels != trained_labels).all()
    for numbers, row, trained_row in zip(classes[:500], labels[:500], trained_labels[:500], strict=True):
        other = {label for label, number in zip(trained_row, numbers, strict=True) if number != numbers[-1]}
        assert other == {row[-1]}
    shares = np.bincount(classes[:, -1], minlength=50) / len(classes)
    assert shares.min() > 0.01 and shares.max() < 0.03


def test_iwl_contexts_do_not_contain_the_class_of_the_query() -> None:
    episodes = draw_test("iwl", 4000)
    classes, labels = episodes.truth["class"].numpy(), all_labels(episodes)
    assert not (classes[:, :-1] == classes[:, -1:]).any()
    assert (labels == classes % 16).all() and episodes.choices.all()
    assert np.bincount(classes[:, -1], minlength=64) / 4000 == pytest.approx(np.full(64, 1 / 64), abs=0.01)


def test_class_means_depend_on_the_split_seed() -> None:
    first, repeated, other = (family(split_seed=seed, noise=0.0, p_bursty=0.0) for seed in (0, 0, 1))
    draws = [bursty.sample(Request(50, 8, generator(3, "data"))) for bursty in (first, repeated, other)]
    assert torch.equal(draws[0].context.x, draws[1].context.x)
    assert not torch.equal(draws[0].context.x, draws[2].context.x)


@pytest.mark.parametrize(("name", "classes"), [("bursty-vectors-64", 64), ("bursty-vectors-1024", 1024)])
def test_cards_with_few_and_many_classes_differ_only_in_their_number(name: str, classes: int) -> None:
    card, other = load_task("bursty-vectors")[1], load_task(name)[1]
    same = {"parameters", "question", "head", "baselines", "evaluators"}
    assert all(getattr(card, key) == getattr(other, key) for key in same)
    assert card.presets.keys() == other.presets.keys()
    for preset, settings in other.presets.items():
        expected = card.presets[preset]
        parameters = expected.parameters | {"classes": classes}
        assert settings == expected.model_copy(update={"parameters": parameters})


def test_few_classes_are_the_first_of_many() -> None:
    few, many = (BurstyVectors(BurstyVectorParameters(dim=8, classes=classes)) for classes in (64, 1024))
    means = [family._classes(torch.device("cpu"))[1] for family in (few, many)]
    torch.testing.assert_close(means[0], means[1][:64], rtol=0, atol=0)


def test_more_labels_than_classes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"labels: .*64 labels and 32 classes"):
        BurstyVectorParameters(classes=32, labels=64)
