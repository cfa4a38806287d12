"""Named random streams."""

import numpy as np
import torch
from scipy import stats

from iclbench.core.seeds import generator, global_stream, stream_seed


def test_samples_of_a_stream_depend_only_on_seed_name_and_counter():
    draws = torch.randn(3, generator=generator(7, "data", 1000))
    torch.randn(99, generator=generator(7, "data", 0))
    assert torch.equal(torch.randn(3, generator=generator(7, "data", 1000)), draws)


def test_streams_differ_by_seed_name_and_counter():
    seeds = {stream_seed(s, n, c) for s in range(20) for n in ("weights", "data", "prompts") for c in range(20)}
    seeds |= {stream_seed(s, n) for s in range(20) for n in ("weights", "data", "prompts")}
    assert len(seeds) == 20 * 3 * 21
    assert all(0 <= s < 2**63 for s in seeds)


def test_consecutive_samples_of_a_stream_are_uncorrelated():
    draws = np.array([torch.randn(1, generator=generator(0, "data", step)).item() for step in range(2000)])
    assert stats.kstest(draws, "norm").pvalue > 1e-3
    assert abs(np.corrcoef(draws[1:], draws[:-1])[0, 1]) < 4 / np.sqrt(2000)


def test_the_global_stream_is_reproducible_and_does_not_change_the_global_state():
    state = torch.get_rng_state()
    draws = []
    for name in ("weights", "weights", "other"):
        with global_stream(3, name):
            draws.append(torch.randn(2))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert torch.equal(torch.get_rng_state(), state)


def test_the_global_stream_does_not_depend_on_the_default_dtype():
    torch.set_default_dtype(torch.float64)
    try:
        with global_stream(3, "weights"):
            draws = torch.randn(2)
    finally:
        torch.set_default_dtype(torch.float32)
    with global_stream(3, "weights"):
        assert torch.equal(draws, torch.randn(2))
