"""Points and episodes: counts, spans, compaction, and queries."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from iclbench.core.episodes import Episodes, Points, take


@pytest.fixture
def points():
    points = Points.full(torch.arange(24.0).reshape(2, 4, 3), torch.arange(8.0).reshape(2, 4, 1))
    return Points(points.x, points.y, torch.tensor([[True, False, True, True], [True, True, False, False]]))


def test_counts_excludes_padding_but_count_includes_it(points):
    assert points.count == 4
    assert points.counts.tolist() == [3, 2]
    assert len(points) == 2


def test_a_span_contains_consecutive_points_of_each_episode(points):
    span = points.span(1, 3)
    assert span.x.tolist() == points.x[:, 1:3].tolist()
    assert span.mask.tolist() == [[False, True], [True, False]]
    assert points.span(0, 0).count == 0


def test_appending_consecutive_spans_restores_points_and_mask(points):
    joined = points.span(0, 1).append(points.span(1))
    assert torch.equal(joined.x, points.x)
    assert torch.equal(joined.y, points.y)
    assert torch.equal(joined.mask, points.mask)


def test_compact_moves_valid_points_to_the_front_in_order(points):
    compact, order = points.compact()
    assert compact.y[0, :3, 0].tolist() == [0.0, 2.0, 3.0]
    assert compact.y[1, :2, 0].tolist() == [4.0, 5.0]
    assert compact.mask.tolist() == [[True, True, True, False], [True, True, False, False]]
    assert torch.equal(take(points.x, order), compact.x)


@given(st.lists(st.booleans(), min_size=1, max_size=9))
def test_compact_equals_boolean_indexing(mask):
    points = Points(torch.randn(1, len(mask), 2), torch.arange(len(mask))[None], torch.tensor([mask]))
    compact, _ = points.compact()
    assert torch.equal(compact.y[0, : sum(mask)], points.y[0][points.mask[0]])
    assert torch.equal(compact.x[0, : sum(mask)], points.x[0][points.mask[0]])


def test_outputs_are_labels_or_vectors():
    labels = Points.full(torch.zeros(2, 3, 5), torch.zeros(2, 3, dtype=torch.long))
    assert labels.repeat_interleave(2).y.shape == (4, 3)
    sets = Points.full(torch.zeros(2, 6, 3, 5), torch.zeros(2, 6, 3, 1))
    assert sets.mask.shape == (2, 6, 3)


def test_without_targets_the_context_points_are_the_queries(points):
    episodes = Episodes(points, points.mask, truth={"w": torch.zeros(2, 1)})
    assert episodes.queries is points
    assert len(episodes) == 2
    assert episodes.without_truth().truth == {}
    other = points.span(0, 2)
    assert Episodes(points, other.mask, targets=other).queries is other


def test_context_targets_follow_the_targets_and_only_valid_ones_are_scored(points):
    targets = points.map(lambda t: t[:, :3] + 100 if t.is_floating_point() else t[:, :3])
    scored = torch.tensor([[True, False, True], [True, False, False]])
    episodes = Episodes(points, scored, targets=targets).with_context_targets()
    assert torch.equal(episodes.context.x, points.x)
    assert torch.equal(episodes.queries.x, torch.cat([targets.x, points.x], 1))
    assert torch.equal(episodes.queries.y, torch.cat([targets.y, points.y], 1))
    assert episodes.scored.tolist() == [
        [True, False, True, True, False, True, True],
        [True, False, False, True, True, False, False],
    ]
