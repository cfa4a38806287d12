"""Sample moments of every family against closed forms, within about four standard errors."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from iclbench.config.resolution import resolve_task
from iclbench.families.combination import Combination, features
from iclbench.families.decision_tree import DecisionTree
from iclbench.families.linear import Linear, NoisyLinear, SkewedLinear, SparseLinear
from iclbench.families.quadratic import Quadratic
from iclbench.families.relu_network import ReluNetwork
from iclbench.families.request import Request
from iclbench.families.sampling import skewed_inputs
from tests.families.sampling import new_generator


def build_family(cls, **parameters):
    return cls(cls.Parameters(**parameters))


def second_moment(y: Tensor) -> tuple[float, float]:
    """Return the mean of y² over independent episodes, and its standard error."""
    episode_means = y.double().square().mean(dim=tuple(range(1, y.dim())))
    return episode_means.mean().item(), (episode_means.std() / math.sqrt(len(episode_means))).item()


@pytest.mark.parametrize(
    ("cls", "parameters", "variance"),
    [
        (Linear, {"dim": 7}, 7.0),
        (SparseLinear, {"dim": 9, "sparsity": 4}, 4.0),
        (SkewedLinear, {"dim": 6}, 6.0),
        (SkewedLinear, {"dim": 6, "exponent": 4.0}, 6.0),
        (NoisyLinear, {"dim": 5, "noise": 0.0}, 5.0),
        (ReluNetwork, {"dim": 5, "hidden": 20}, 5.0),
        (DecisionTree, {"dim": 5}, 1.0),
        (Quadratic, {"dim": 5}, 5.0),
        (Combination, {}, 1 + 3 + 15 + 0.5 * (1 + math.exp(-2 * math.pi**2)) + math.exp(0.08)),
    ],
)
def test_the_normaliser_is_the_variance_of_the_noiseless_output(cls, parameters, variance):
    family = build_family(cls, **parameters)
    assert family.normaliser == pytest.approx(variance, rel=1e-6)
    moment, error = second_moment(family.sample(Request(30_000, 6, new_generator())).context.y)
    assert abs(moment - variance) < 4 * error


def test_the_variance_of_combinations_agrees_with_quadrature():
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    x = torch.tensor(nodes)[:, None].expand(-1, 5)
    expected = (features(x).square() * torch.tensor(weights / weights.sum())[:, None]).sum()
    # The cosine needs 80 nodes because of its frequency. The other features need fewer.
    assert build_family(Combination).normaliser == pytest.approx(expected.item(), abs=1e-6)
    assert build_family(Combination).normaliser == pytest.approx(20.58, abs=5e-3)


def test_noise_adds_its_variance_to_the_labels_but_not_to_the_normaliser():
    family = build_family(NoisyLinear, dim=5, noise=2.0)
    moment, error = second_moment(family.sample(Request(30_000, 6, new_generator())).context.y)
    assert family.normaliser == 5
    assert abs(moment - (5 + 4)) < 4 * error


def test_renormalised_noisy_labels_have_variance_d_and_keep_the_noise_to_signal_ratio():
    family = build_family(NoisyLinear, dim=5, noise=2.0, renormalise=True)
    episodes = family.sample(Request(30_000, 6, new_generator()))
    moment, error = second_moment(episodes.context.y)
    assert abs(moment - 5) < 4 * error
    signal = math.sqrt(5 / 9) * family.apply(episodes.truth, episodes.context.x)
    noise, error = second_moment(episodes.context.y[..., 0] - signal)
    assert abs(noise - 4 * 5 / 9) < 4 * error
    assert family.noise_to_signal() == 4


def test_linear_inputs_and_weights_are_standard_normal():
    episodes = build_family(Linear, dim=4).sample(Request(20_000, 3, new_generator()))
    weights = episodes.truth["weights"]
    torch.testing.assert_close(weights.T @ weights / len(weights), torch.eye(4), atol=4 * math.sqrt(2 / 20_000), rtol=0)
    x = episodes.context.x.reshape(-1, 4)
    torch.testing.assert_close(x.T @ x / len(x), torch.eye(4), atol=4 * math.sqrt(2 / 60_000), rtol=0)
    expected = (episodes.context.x * weights[:, None]).sum(-1, keepdim=True)
    torch.testing.assert_close(episodes.context.y, expected)


def test_sparse_weights_have_exactly_s_nonzero_entries_at_uniform_positions():
    episodes = build_family(SparseLinear, dim=8, sparsity=3).sample(Request(16_000, 1, new_generator()))
    nonzero = episodes.truth["weights"] != 0
    assert (nonzero.sum(1) == 3).all()
    assert (nonzero == episodes.truth["support"]).all()
    share = nonzero.double().mean(0)
    assert (share - 3 / 8).abs().max() < 4 * math.sqrt(3 / 8 * 5 / 8 / 16_000)


@pytest.mark.parametrize("active", [1, 3, 5])
def test_the_sparse_support_lies_within_the_dimensions_of_a_curriculum(active):
    support = (
        build_family(SparseLinear, dim=8, sparsity=3)
        .sample(Request(500, 1, new_generator(), active_dims=active))
        .truth["support"]
    )
    assert not support[:, active:].any()
    assert (support.sum(1) == min(3, active)).all()


@pytest.mark.parametrize(("exponent", "rotation"), [(2.0, "episode"), (4.0, "episode"), (2.0, "batch"), (2.0, "fixed")])
def test_skewed_covariance_has_power_law_eigenvalues_and_trace_d(exponent, rotation):
    dim = 6
    # With the rows of the identity instead of random z, the covariance is exact.
    maps = skewed_inputs(torch.eye(dim).expand(3, dim, dim), new_generator(), exponent, rotation)
    covariance = maps.transpose(1, 2) @ maps
    expected = torch.arange(1, dim + 1).double() ** -exponent
    expected = expected * dim / expected.sum()
    torch.testing.assert_close(
        torch.linalg.eigvalsh(covariance.double()).flip(1), expected.expand(3, dim), atol=1e-5, rtol=1e-4
    )
    other = skewed_inputs(torch.eye(dim).expand(3, dim, dim), new_generator(1), exponent, rotation)
    same_in_call = torch.allclose(maps[0], maps[1], atol=1e-5)
    same_between_calls = torch.allclose(maps[0], other[0], atol=1e-5)
    assert (same_in_call, same_between_calls) == {
        "episode": (False, False),
        "batch": (True, False),
        "fixed": (True, True),
    }[rotation]


def test_skewed_rotations_are_uniform():
    """The mean covariance over episodes is the identity."""
    x = build_family(SkewedLinear, dim=4).sample(Request(20_000, 1, new_generator())).context.x[:, 0]
    error = (x.unsqueeze(2) * x.unsqueeze(1)).std(0) / math.sqrt(len(x))
    assert ((x.T @ x / len(x) - torch.eye(4)).abs() < 4 * error).all()


def test_relu_networks_agree_with_the_formula_in_the_paper():
    family = build_family(ReluNetwork, dim=3, hidden=7)
    episodes = family.sample(Request(4, 5, new_generator()))
    for b in range(4):
        for n in range(5):
            inner = episodes.truth["hidden"][b].numpy() @ episodes.context.x[b, n].numpy()
            expected = np.sqrt(2 / 7) * np.sum(episodes.truth["output"][b].numpy() * np.maximum(inner, 0))
            assert episodes.context.y[b, n, 0].item() == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_shared_hidden_weights_are_the_same_in_every_episode_and_call():
    family = build_family(ReluNetwork, dim=5, hidden=10, shared_hidden=True)
    first, second = (family.sample(Request(50, 3, new_generator(seed))) for seed in (0, 1))
    assert (first.truth["hidden"] == second.truth["hidden"][:1]).all()
    assert not torch.equal(first.truth["output"], second.truth["output"])
    other = build_family(ReluNetwork, dim=5, hidden=10, shared_hidden=True, hidden_seed=1)
    assert not torch.equal(other.sample(Request(50, 3, new_generator())).truth["hidden"], first.truth["hidden"])


def test_the_normaliser_is_the_variance_given_the_shared_hidden_weights_and_d_on_average():
    # E[relu(w.x)²] = |w|²/2, so the variance given the hidden weights is sum_j |w_j|² / h.
    normalisers = []
    for seed in range(100):
        family = build_family(ReluNetwork, dim=5, hidden=10, shared_hidden=True, hidden_seed=seed)
        hidden = family.sample(Request(1, 1, new_generator())).truth["hidden"].double()
        assert family.normaliser == pytest.approx(hidden.square().sum().item() / 10)
        normalisers.append(family.normaliser)
    assert abs(np.mean(normalisers) - 5) < 4 * np.std(normalisers) / 10
    assert max(normalisers) > 6 > 4 > min(normalisers), "seeds differ"


def test_the_normaliser_of_the_shipped_shared_network_is_its_mean_squared_output():
    family = resolve_task("relu-network-shared", "small")[0].build()
    moment, error = second_moment(family.sample(Request(30_000, 6, new_generator())).context.y)
    assert abs(moment / family.normaliser - 1) < 4 * error / family.normaliser < 0.05


def naive_tree(splits, leaves, x, node=0):
    """Evaluate a tree in heap order at x."""
    if node >= len(splits):
        return leaves[node - len(splits)]
    return naive_tree(splits, leaves, x, 2 * node + (2 if x[splits[node]] > 0 else 1))


@pytest.mark.parametrize("depth", [1, 4])
def test_decision_trees_agree_with_a_recursive_evaluation(depth):
    episodes = build_family(DecisionTree, dim=4, depth=depth).sample(Request(6, 20, new_generator()))
    for b in range(6):
        splits, leaves = (episodes.truth[k][b].tolist() for k in ("splits", "leaves"))
        expected = [naive_tree(splits, leaves, x) for x in episodes.context.x[b].tolist()]
        assert episodes.context.y[b, :, 0].tolist() == expected


def test_split_coordinates_are_drawn_uniformly_with_replacement():
    splits = build_family(DecisionTree, dim=20).sample(Request(400, 1, new_generator())).truth["splits"]
    assert splits.shape == (400, 15)
    share = torch.bincount(splits.flatten(), minlength=20) / (400 * 15)
    assert (share - 1 / 20).abs().max() < 4 * math.sqrt(0.05 * 0.95 / 6000)


def test_decision_trees_reach_all_leaves():
    episodes = build_family(DecisionTree, dim=300).sample(Request(30, 300, new_generator()))
    trees_without_repeats = [b for b, splits in enumerate(episodes.truth["splits"].tolist()) if len(set(splits)) == 15]
    assert trees_without_repeats, "every tree repeats a coordinate"
    # If no coordinate repeats, each of the 16 leaves has probability 1/16, so 300 points miss a leaf in one of 1e7
    # trees.
    for b in trees_without_repeats:
        assert set(episodes.context.y[b, :, 0].tolist()) == set(episodes.truth["leaves"][b].tolist())


def test_quadratic_functions_agree_with_their_formula():
    episodes = build_family(Quadratic, dim=3).sample(Request(10, 4, new_generator()))
    expected = (episodes.context.x**2 * episodes.truth["weights"][:, None]).sum(-1) / math.sqrt(3)
    torch.testing.assert_close(episodes.context.y[..., 0], expected)


def test_combination_features_agree_with_the_paper():
    x = torch.tensor([[-2.0, 3.0, -1.5, 0.5, 1.0]])
    expected = torch.tensor([[2.0, 9.0, -3.375, 0.0, math.exp(0.2)]])
    torch.testing.assert_close(features(x), expected, atol=1e-6, rtol=1e-6)
    family = build_family(Combination, dim=7)
    episodes = family.sample(Request(5, 3, new_generator()))
    x = episodes.context.x.clone()
    x[..., 5:] = 9.0
    torch.testing.assert_close(family.apply(episodes.truth, x).unsqueeze(-1), episodes.context.y)
