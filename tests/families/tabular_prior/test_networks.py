"""Random networks: batched propagation against a loop over tables, and distributions of hyperparameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from iclbench.families.tabular_prior import networks
from iclbench.families.tabular_prior.causes import Causes
from iclbench.families.tabular_prior.draws import log_uniform, log_uniform_integers, truncated_normal_integers
from iclbench.families.tabular_prior.networks import ACTIVATIONS, Networks, draw_networks
from tests.families.sampling import new_generator

FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "identity": lambda h: h,
    "tanh": np.tanh,
    "relu": lambda h: np.maximum(h, 0),
}


def draw(tables: int = 60, size: int = 5, seed: int = 0) -> tuple[list[tuple[torch.Tensor, Networks]], torch.Tensor]:
    """Draw groups of networks, and the number of columns of each table, 1 to `size`. Every second network is causal."""
    is_causal = torch.arange(tables) % 2 == 0
    columns = 1 + torch.arange(tables) % size
    return draw_networks(is_causal, columns, size, new_generator(seed)), columns


def naive_table(network: Networks, table: int, causes: np.ndarray) -> tuple[dict[int, np.ndarray], np.ndarray]:
    """Return, without noise, the hidden units of layers 2 to L by their index in padded layers, and the output."""
    units, width = int(network.units[table]), network.biases.shape[2]
    biases = network.biases[table].double().numpy()
    hidden = causes @ network.first_weights[table].double().numpy()[:, :units] + biases[0, :units]
    functions = [FUNCTIONS[ACTIVATIONS[kind]] for kind in network.activation[table].tolist()]
    values: dict[int, np.ndarray] = {}
    for layer in range(2, int(network.layers[table]) + 1):
        weights = network.weights[layer - 2][table].double().numpy()[:units, :units]
        hidden = functions[layer - 2](hidden) @ weights + biases[layer - 1, :units]
        values |= {(layer - 2) * width + unit: hidden[:, unit] for unit in range(units)}
    last = functions[int(network.layers[table]) - 1](hidden) @ network.out_weights[table].double().numpy()[:units]
    return values, last + float(network.out_bias[table])


def test_batched_propagation_equals_a_loop_over_tables() -> None:
    """Columns have no noise, so columns and targets differ only by rounding errors."""
    groups, columns = draw()
    assert len(groups) == 3
    for index, network in groups:
        quiet = replace(network, noise=torch.zeros_like(network.noise))
        causes = network.causes.sample(9, new_generator(1))
        batch_columns, batch_target = quiet.propagate(causes, new_generator(2))
        for table, original in enumerate(index.tolist()):
            values, output = naive_table(network, table, causes[table].double().numpy())
            used = int(columns[original])
            if network.is_causal[table]:
                expected = [values[unit] for unit in network.columns[table, :used].tolist()]
                target = values[int(network.target[table])]
            else:
                expected, target = list(causes[table, :, :used].double().numpy().T), output
            for ours, reference in zip(
                [*batch_columns[table].T[:used], batch_target[table]], [*expected, target], strict=True
            ):
                scale = max(1.0, np.abs(reference).max())
                np.testing.assert_allclose(ours.numpy() / scale, reference / scale, atol=1e-5)


def test_columns_and_target_are_different_units_of_the_network() -> None:
    in_last_layer = are_neighbours = causal = 0
    for seed in range(20):
        groups, columns = draw(seed=seed)
        for index, network in groups:
            width = network.biases.shape[2]
            for table, original in enumerate(index.tolist()):
                if not network.is_causal[table]:
                    continue
                units, layers = int(network.units[table]), int(network.layers[table])
                target_and_columns = [int(network.target[table]), *network.columns[table, : columns[original]].tolist()]
                assert len(set(target_and_columns)) == len(target_and_columns)
                assert all(unit % width < units and unit // width < layers - 1 for unit in target_and_columns)
                numbers = [unit // width * units + unit % width for unit in target_and_columns]
                causal += 1
                in_last_layer += target_and_columns[0] // width == layers - 2
                are_neighbours += max(numbers[1:]) - min(numbers[1:]) <= columns[original]
    # Half of the targets are placed in the last layer. Some of the other targets are in it by chance.
    assert 0.5 < in_last_layer / causal < 0.9
    assert 0.5 < are_neighbours / causal < 0.8


def test_every_table_is_in_one_group_and_groups_are_sorted_by_number_of_layers() -> None:
    groups, _ = draw(200)
    assert torch.cat([index for index, _ in groups]).sort().values.tolist() == list(range(200))
    for index, network in groups:
        layers = network.layers.tolist()
        assert layers == sorted(layers, reverse=True)
        assert [len(weights) for weights in network.weights] == [
            sum(n >= k for n in layers) for k in range(2, layers[0] + 1)
        ]
        assert torch.equal(network.is_causal, index % 2 == 0)


def test_padding_is_zero_and_the_columns_of_bayesian_networks_are_their_causes() -> None:
    for _, network in draw()[0]:
        for table, units in enumerate(network.units.tolist()):
            assert not network.biases[table, : int(network.layers[table]), units:].any()
            for weights in network.weights:
                if table < len(weights):
                    assert not weights[table, units:].any() and not weights[table, :, units:].any()
    groups, columns = draw()
    for index, network in groups:
        x, _ = network.propagate(causes := network.causes.sample(4, new_generator()), new_generator())
        bayesian = ~network.is_causal
        assert torch.equal(x[bayesian], causes[bayesian][..., :5])
        # A Bayesian network does not read causes beyond its columns.
        unused = torch.arange(causes.shape[2]) >= columns[index].unsqueeze(1)
        assert not network.first_weights[bayesian][unused[bayesian]].any()


def test_weights_are_block_diagonal_or_dense() -> None:
    """In half of the networks, a matrix whose shorter side is n has 1 to ceil(sqrt(n)) blocks.

    The mean square over all weights, including zeros, equals the variance.
    """
    count, units = 4000, 20
    size, std = torch.full((count,), units), torch.full((count,), 2.0)
    weights = networks._weights(size, size, (units, units), std, torch.arange(count) % 2 == 0, new_generator())
    is_kept = weights != 0
    assert is_kept[1::2].all()
    sides = is_kept[::2].sum(2)[:, 0]
    blocks = units // sides
    assert set(blocks.tolist()) == {1, 2, 3, 4, 5}
    shares = torch.bincount(blocks, minlength=6)[1:] / len(blocks)
    assert (shares - 0.2).abs().max() < 4 * math.sqrt(0.2 * 0.8 / len(blocks))
    expected = torch.block_diag(*[torch.ones(6, 6)] * 3, torch.zeros(2, 2)).bool()
    assert (is_kept[::2][blocks == 3] == expected).all()
    squares = weights.square().mean((1, 2))
    assert float(squares.mean()) == pytest.approx(4.0, abs=4 * float(squares.std()) / math.sqrt(count))


def test_hyperparameters_have_the_stated_distributions() -> None:
    numbers = log_uniform((5000,), (1e-4, 0.3), new_generator()).double().log().numpy()
    assert stats.kstest(numbers, stats.uniform(math.log(1e-4), math.log(0.3) - math.log(1e-4)).cdf).pvalue > 1e-3
    layers = log_uniform_integers((20_000,), (2, 6), new_generator())
    expected = np.diff(np.log(np.arange(2, 8))) / np.log(7 / 2)
    shares = np.bincount(layers, minlength=7)[2:] / 20_000
    np.testing.assert_allclose(shares, expected, atol=4 * math.sqrt(0.25 / 20_000))
    causes = truncated_normal_integers(20_000, 12, new_generator())
    assert set(causes.tolist()) == set(range(1, 13))
    # The mean is log-uniform, so half of the means are below sqrt(12). Truncation changes this share only slightly.
    assert float((causes <= 3).double().mean()) == pytest.approx(0.5, abs=0.05)


def test_sizes_and_noise_of_networks_have_the_stated_ranges() -> None:
    all_networks = [network for seed in range(5) for _, network in draw(200, seed=seed)[0]]
    layers = torch.cat([network.layers for network in all_networks])
    noise = torch.cat([network.noise for network in all_networks])
    units = torch.cat([network.units[~network.is_causal] for network in all_networks])
    assert (int(layers.min()), int(layers.max())) == (2, 6)
    assert 1e-4 <= float(noise.min()) < 2e-4 and 0.2 < float(noise.max()) <= 0.3
    assert int(units.min()) == 4 and 120 < int(units.max()) <= 130
    kinds = torch.cat([network.activation.flatten() for network in all_networks])
    assert (torch.bincount(kinds) / len(kinds) - 1 / 3).abs().max() < 0.05


def test_noise_has_the_standard_deviation_of_its_network() -> None:
    """If all weights and biases are 0, the target of a Bayesian network is only noise."""
    _, network = draw(seed=3)[0][0]
    silent = replace(
        network,
        weights=tuple(torch.zeros_like(weights) for weights in network.weights),
        biases=torch.zeros_like(network.biases),
        out_weights=torch.zeros_like(network.out_weights),
        out_bias=torch.zeros_like(network.out_bias),
    )
    _, target = silent.sample(5000, new_generator())
    ratio = target.std(1) / network.noise
    assert (ratio - 1).abs().max() < 5 / math.sqrt(2 * 5000)


def test_discrete_causes_are_standardised_and_normal_causes_have_their_moments() -> None:
    causes = Causes.draw(300, 4, new_generator())
    assert 0.25 < float(causes.is_discrete.double().mean()) < 0.42
    rows = causes.sample(4000, new_generator(1)).double()
    mean, std = rows.mean(1), rows.std(1)
    discrete = causes.is_discrete
    assert mean[discrete].abs().max() < 6 / math.sqrt(4000)
    assert (std[discrete] - 1).abs().mean() < 0.05
    assert all(len(rows[t, :, k].unique()) <= 10 for t, k in discrete.nonzero().tolist())
    errors = (mean - causes.mean)[~discrete].abs() / causes.std[~discrete].clamp_min(1e-6)
    assert errors.max() < 6 / math.sqrt(4000)
    assert ((std / causes.std)[~discrete] - 1).abs().max() < 0.1


def test_zipf_causes_follow_the_power_law_of_their_exponent() -> None:
    """P(1) / P(2) is 2^a with a from 2 to 4, and the largest value has the probability of the tail from 10 on."""
    causes = Causes.draw(500, 3, new_generator(2))
    probabilities = causes.cumulative.diff(dim=-1, prepend=torch.zeros(500, 3, 1)).double()
    ratios = probabilities[..., :-1] / probabilities[..., 1:]
    exponent = ratios[..., 0].log() / math.log(2)
    is_zipf = ((ratios[..., 1].log() / math.log(1.5) - exponent).abs() < 0.02) & (exponent > 1.9) & (exponent < 4.1)
    # Normal causes also have an exponent in this range, but do not use it.
    assert 0.6 < float(is_zipf.double().mean()) < 0.73
    for share, power in zip(probabilities[is_zipf][:50], exponent[is_zipf][:50], strict=True):
        law = stats.zipf(float(power))
        assert float(share[-1]) == pytest.approx(law.sf(9), rel=0.05, abs=1e-5)
