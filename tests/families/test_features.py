"""Features of families: functions are linear in them, and each feature depends on a single direction."""

import numpy as np
import pytest
import torch

from iclbench.config.resolution import resolve_task
from iclbench.families.base import Family
from iclbench.families.request import Request

TASKS_WITH_FEATURES = ["linear", "sparse-linear", "quadratic", "relu-network-shared", "combination"]


def build_family(task: str) -> Family:
    return resolve_task(task, "small")[0].build()


@pytest.mark.parametrize("task", TASKS_WITH_FEATURES)
def test_every_function_is_a_linear_combination_of_the_features(task: str) -> None:
    family = build_family(task)
    episodes = family.sample(Request(8, 60, torch.Generator().manual_seed(0)))
    for x, y in zip(episodes.context.x, episodes.context.y, strict=True):
        features = family.features(x)
        assert features is not None
        matrix, outputs = features.double().numpy(), y.double().numpy()
        weights, _, rank, _ = np.linalg.lstsq(matrix, outputs, rcond=None)
        assert rank == matrix.shape[1]
        np.testing.assert_allclose(matrix @ weights, outputs, atol=1e-4)


@pytest.mark.parametrize("task", TASKS_WITH_FEATURES)
def test_a_feature_depends_only_on_its_direction(task: str) -> None:
    family, generator = build_family(task), torch.Generator().manual_seed(1)
    directions = family.feature_directions()
    assert directions is not None
    torch.testing.assert_close(directions.norm(dim=-1), torch.ones(len(directions)))
    x = torch.randn(50, family.x_dim, generator=generator)
    for j, u in enumerate(directions):
        other = torch.randn(50, family.x_dim, generator=generator)
        moved = other + ((x - other) @ u)[:, None] * u
        features, moved_features = family.features(x), family.features(moved)
        assert features is not None and moved_features is not None
        torch.testing.assert_close(features[:, j], moved_features[:, j], atol=1e-4, rtol=1e-4)
        assert not torch.allclose(features, moved_features, atol=1e-2), "other features change"


@pytest.mark.parametrize("task", ["relu-network", "decision-tree", "gp-mixture"])
def test_families_without_shared_features_return_none(task: str) -> None:
    family = build_family(task)
    assert family.features(torch.zeros(2, family.x_dim)) is None
    assert family.feature_directions() is None
