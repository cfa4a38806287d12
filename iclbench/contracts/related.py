"""Related datasets: a set of sets, of which those that are not there leave no trace."""

from __future__ import annotations

from dataclasses import replace

import torch

from iclbench.contracts.contract import (
    DEFAULT,
    Tolerance,
    ask_targets,
    assert_close,
    contract,
    other_labels,
    targets_of,
)
from iclbench.core.episodes import Episodes, Points
from iclbench.core.predictor import Predictor


def _uses_related(predictor: Predictor) -> bool:
    return predictor.uses_related


def _is_set_of_sets(predictor: Predictor) -> bool:
    return predictor.uses_related and predictor.order == "set"


@contract(_uses_related, of_related=True)
def related_datasets_matter(predictor: Predictor, episodes: Episodes, tolerance: Tolerance = DEFAULT) -> None:
    """A predictor that says it uses related datasets answers otherwise when they change."""
    context, x, related = episodes.context, targets_of(episodes).x, _related(episodes)
    expected = ask_targets(predictor, episodes, context, x)
    changed = replace(episodes, related=replace(related, y=other_labels(related.y, episodes)))
    for change, changed_episodes in (
        ("without them", replace(episodes, related=None)),
        ("with other outputs in them", changed),
    ):
        answer = ask_targets(predictor, changed_episodes, context, x)
        pairs = zip(answer.tensors().values(), expected.tensors().values(), strict=True)
        moved = torch.stack([(a - b).abs().flatten(1).amax(1) for a, b in pairs]).amax(0)
        silent = (moved <= 1e-6) & related.mask.any(-1).any(-1)
        assert not silent.any(), f"related datasets make no difference: answers are the same {change}"


@contract(_uses_related, of_related=True)
def absent_related_datasets_equal_none(
    predictor: Predictor, episodes: Episodes, tolerance: Tolerance = DEFAULT
) -> None:
    """Masked points in a related dataset are ignored, and so is a dataset of masked points only."""
    context, x, related = episodes.context, targets_of(episodes).x, _related(episodes)
    expected = ask_targets(predictor, episodes, context, x)
    more_points = _padded(related, 2)
    more_sets = more_points.map(lambda t: torch.cat([t, t.flip(1)], 1))
    more_sets.mask[:, related.mask.shape[1] :] = False
    for kind, padded in (("points", more_points), ("datasets", more_sets)):
        answer = ask_targets(predictor, replace(episodes, related=padded), context, x)
        assert_close(answer, expected, tolerance, f"masked {kind} change the answers")
    without = ask_targets(predictor, replace(episodes, related=None), context, x)
    absent = replace(related, mask=torch.zeros_like(related.mask))
    answer = ask_targets(predictor, replace(episodes, related=absent), context, x)
    assert_close(answer, without, tolerance, "related datasets that are all masked are not the same as none")


@contract(_uses_related, of_related=True)
def related_datasets_of_batch_neighbours_change_nothing(
    predictor: Predictor, episodes: Episodes, tolerance: Tolerance = DEFAULT
) -> None:
    """Every episode reads its own related datasets and no other's, however many those are."""
    context, x, related = episodes.context, targets_of(episodes).x, _related(episodes)
    expected = ask_targets(predictor, episodes, context, x)
    for b in range(len(episodes)):
        neighbours = torch.arange(len(episodes), device=x.device) != b
        y, mask = related.y.clone(), related.mask.clone()
        y[neighbours] = other_labels(y[neighbours], episodes)
        mask[neighbours] = True
        changed = replace(episodes, related=replace(related, y=y, mask=mask))
        answer = ask_targets(predictor, changed, context, x)
        message = f"answers for episode {b} depend on its neighbours' related datasets"
        assert_close(answer[b : b + 1], expected[b : b + 1], tolerance, message)


@contract(_is_set_of_sets, of_related=True)
def the_order_of_related_datasets_changes_nothing(
    predictor: Predictor, episodes: Episodes, tolerance: Tolerance = DEFAULT
) -> None:
    """A set model reads a set of sets."""
    _assert_order_is_nothing(predictor, episodes, tolerance, 1, "answers depend on the order of the related datasets")


@contract(_is_set_of_sets, of_related=True)
def the_order_within_a_related_dataset_changes_nothing(
    predictor: Predictor, episodes: Episodes, tolerance: Tolerance = DEFAULT
) -> None:
    """A set model reads every related dataset as a set."""
    _assert_order_is_nothing(
        predictor, episodes, tolerance, 2, "answers depend on the order of the points in a related dataset"
    )


def _assert_order_is_nothing(
    predictor: Predictor, episodes: Episodes, tolerance: Tolerance, axis: int, message: str
) -> None:
    """The related datasets, backwards along an axis, get the same answers."""
    context, x = episodes.context, targets_of(episodes).x
    flipped = replace(episodes, related=_related(episodes).map(lambda t: t.flip(axis)))
    answer, expected = (ask_targets(predictor, case, context, x) for case in (flipped, episodes))
    assert_close(answer, expected, tolerance, message)


def _related(episodes: Episodes) -> Points:
    assert episodes.related is not None, "the checks need episodes with related datasets"
    return episodes.related


def _padded(points: Points, count: int) -> Points:
    """`count` masked points more in every set, which hold something else than zeros."""
    axis = points.mask.dim() - 1
    padded = points.map(lambda t: torch.cat([t, t.narrow(axis, 0, count)], axis))
    padded.mask.narrow(axis, points.mask.shape[axis], count).fill_(False)
    return padded
