"""The features that a family says its functions are linear in: they are, and depend on one direction each."""

import numpy as np
import pytest
import torch

from iclbench.config.resolution import resolve_task
from iclbench.families.base import Family
from iclbench.families.request import Request

NAMED = ["linear", "sparse-linear", "quadratic", "relu-network-shared", "combination"]


def family(task: str) -> Family:
    return resolve_task(task, "small")[0].build()


@pytest.mark.parametrize("task", NAMED)
def test_every_function_is_a_linear_combination_of_the_features(task: str) -> None:
    chosen = family(task)
    episodes = chosen.sample(Request(8, 60, torch.Generator().manual_seed(0)))
    for x, y in zip(episodes.context.x, episodes.context.y, strict=True):
        known = chosen.features(x)
        assert known is not None
        matrix, outputs = known.double().numpy(), y.double().numpy()
        weights, _, rank, _ = np.linalg.lstsq(matrix, outputs, rcond=None)
        assert rank == matrix.shape[1]
        np.testing.assert_allclose(matrix @ weights, outputs, atol=1e-4)


@pytest.mark.parametrize("task", NAMED)
def test_a_feature_depends_on_its_direction_alone(task: str) -> None:
    chosen, generator = family(task), torch.Generator().manual_seed(1)
    directions = chosen.feature_directions()
    assert directions is not None
    torch.testing.assert_close(directions.norm(dim=-1), torch.ones(len(directions)))
    x = torch.randn(50, chosen.x_dim, generator=generator)
    for j, u in enumerate(directions):
        other = torch.randn(50, chosen.x_dim, generator=generator)
        moved = other + ((x - other) @ u)[:, None] * u
        one, same = chosen.features(x), chosen.features(moved)
        assert one is not None and same is not None
        torch.testing.assert_close(one[:, j], same[:, j], atol=1e-4, rtol=1e-4)
        assert not torch.allclose(one, same, atol=1e-2), "the others do move"


@pytest.mark.parametrize("task", ["relu-network", "decision-tree", "gp-mixture"])
def test_families_without_shared_features_name_none(task: str) -> None:
    chosen = family(task)
    assert chosen.features(torch.zeros(2, chosen.x_dim)) is None
    assert chosen.feature_directions() is None
