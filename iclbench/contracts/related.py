"""Contracts of related datasets: their order does not matter to set models, and absent datasets have no effect."""

from __future__ import annotations

from dataclasses import replace

import torch

from iclbench.contracts.contract import (
    DEFAULT,
    Tolerance,
    ask_targets,
    assert_close,
    contract,
    different_outputs,
    targets_of,
)
from iclbench.core.episodes import Episodes, Points
from iclbench.core.predictor import Predictor

# Related datasets have an effect if answers with and without them differ by more than this number.
_SMALLEST_EFFECT = 1e-6
# The same for different outputs in related datasets. This limit is smaller, because all tensors have the same shapes:
# without an effect, the answers are equal bit by bit.
_SMALLEST_EFFECT_OF_OUTPUTS = 1e-7


def _uses_related(predictor: Predictor) -> bool:
    return predictor.uses_related


def _is_set_of_sets(predictor: Predictor) -> bool:
    return predictor.uses_related and predictor.order == "set"


@contract(_uses_related, needs_related=True)
def related_datasets_have_an_effect(predictor: Predictor, episodes: Episodes, tolerance: Tolerance = DEFAULT) -> None:
    """The answers of a predictor with `uses_related` depend on related datasets."""
    context, x, related = episodes.context, targets_of(episodes).x, _related(episodes)
    expected = ask_targets(predictor, episodes, context, x)
    other_outputs = replace(episodes, related=replace(related, y=different_outputs(related.y, episodes)))
    for change, changed_episodes, smallest in (
        ("without related datasets", replace(episodes, related=None), _SMALLEST_EFFECT),
        ("with other outputs in related datasets", other_outputs, _SMALLEST_EFFECT_OF_OUTPUTS),
    ):
        answer = ask_targets(predictor, changed_episodes, context, x)
        pairs = zip(answer.tensors().values(), expected.tensors().values(), strict=True)
        differences = torch.stack([(a - b).abs().flatten(1).amax(1) for a, b in pairs]).amax(0)
        effects = differences[related.mask.any(-1).any(-1)]
        assert not (effects <= smallest).any(), (
            f"answers {change} differ by {effects.min().item():.1g}, expected more than {smallest:g}; use "
            "related datasets, a wider window, or slower initial decays"
        )


@contract(_uses_related, needs_related=True)
def absent_related_datasets_equal_none(
    predictor: Predictor, episodes: Episodes, tolerance: Tolerance = DEFAULT
) -> None:
    """Masked points of related datasets have no effect, and neither do completely masked datasets."""
    context, x, related = episodes.context, targets_of(episodes).x, _related(episodes)
    expected = ask_targets(predictor, episodes, context, x)
    more_points = _pad(related, 2)
    more_sets = more_points.map(lambda t: torch.cat([t, t.flip(1)], 1))
    more_sets.mask[:, related.mask.shape[1] :] = False
    for name, padded_sets in (("points", more_points), ("datasets", more_sets)):
        answer = ask_targets(predictor, replace(episodes, related=padded_sets), context, x)
        assert_close(answer, expected, tolerance, f"masked {name} change the answers")
    answer_without = ask_targets(predictor, replace(episodes, related=None), context, x)
    absent_sets = replace(related, mask=torch.zeros_like(related.mask))
    answer = ask_targets(predictor, replace(episodes, related=absent_sets), context, x)
    assert_close(
        answer, answer_without, tolerance, "masked related datasets and no related datasets give different answers"
    )


@contract(_uses_related, needs_related=True)
def related_datasets_of_batch_neighbours_change_nothing(
    predictor: Predictor, episodes: Episodes, tolerance: Tolerance = DEFAULT
) -> None:
    """The answers for an episode do not depend on the related datasets of other episodes in the batch."""
    context, x, related = episodes.context, targets_of(episodes).x, _related(episodes)
    expected = ask_targets(predictor, episodes, context, x)
    for b in range(len(episodes)):
        neighbours = torch.arange(len(episodes), device=x.device) != b
        y, mask = related.y.clone(), related.mask.clone()
        y[neighbours] = different_outputs(y[neighbours], episodes)
        mask[neighbours] = True
        changed_episodes = replace(episodes, related=replace(related, y=y, mask=mask))
        answer = ask_targets(predictor, changed_episodes, context, x)
        message = f"answers for episode {b} depend on its neighbours' related datasets"
        assert_close(answer[b : b + 1], expected[b : b + 1], tolerance, message)


@contract(_is_set_of_sets, needs_related=True)
def the_order_of_related_datasets_changes_nothing(
    predictor: Predictor, episodes: Episodes, tolerance: Tolerance = DEFAULT
) -> None:
    """The answers of a set model do not depend on the order of related datasets."""
    _assert_order_has_no_effect(
        predictor, episodes, tolerance, 1, "answers depend on the order of the related datasets"
    )


@contract(_is_set_of_sets, needs_related=True)
def the_order_within_a_related_dataset_changes_nothing(
    predictor: Predictor, episodes: Episodes, tolerance: Tolerance = DEFAULT
) -> None:
    """The answers of a set model do not depend on the order of points in a related dataset."""
    _assert_order_has_no_effect(
        predictor, episodes, tolerance, 2, "answers depend on the order of the points in a related dataset"
    )


def _assert_order_has_no_effect(
    predictor: Predictor, episodes: Episodes, tolerance: Tolerance, axis: int, message: str
) -> None:
    """Check that flipping the related datasets along an axis does not change the answers."""
    context, x = episodes.context, targets_of(episodes).x
    flipped_episodes = replace(episodes, related=_related(episodes).map(lambda t: t.flip(axis)))
    answer, expected = (ask_targets(predictor, case, context, x) for case in (flipped_episodes, episodes))
    assert_close(answer, expected, tolerance, message)


def _related(episodes: Episodes) -> Points:
    assert episodes.related is not None, "the checks require episodes with related datasets"
    return episodes.related


def _pad(points: Points, count: int) -> Points:
    """Append `count` masked points with nonzero values to every set."""
    axis = points.mask.dim() - 1
    padded_points = points.map(lambda t: torch.cat([t, t.narrow(axis, 0, count)], axis))
    padded_points.mask.narrow(axis, points.mask.shape[axis], count).fill_(False)
    return padded_points
