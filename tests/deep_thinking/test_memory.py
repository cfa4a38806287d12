"""Memories: selection of rows and tokens, broadcasting without a copy, and sums and norms, compared with NumPy."""

from pathlib import Path

import numpy as np
import pytest
import torch

from iclbench.deep_thinking.memory import Memory


def random_memory(seed: int, rows: int = 3, length: int = 5, dtype: torch.dtype = torch.float32) -> Memory:
    """Return a random memory of two layers with different numbers of heads and channels."""
    generator = torch.Generator().manual_seed(seed)
    keys, values = (
        tuple(torch.randn(rows, heads, length, channels, generator=generator).to(dtype) for heads, channels in shapes)
        for shapes in (((2, 4), (1, 6)), ((2, 3), (1, 6)))
    )
    return Memory(keys, values)


def test_a_memory_is_broadcast_to_many_sequences_without_a_copy() -> None:
    memory = random_memory(0, rows=1)
    expanded = memory.expand(64)
    assert (expanded.batch, expanded.length) == (64, 5)
    assert [t.data_ptr() for t in expanded.tensors().values()] == [t.data_ptr() for t in memory.tensors().values()]
    assert random_memory(0).expand(3).batch == 3


def test_rows_and_last_tokens_are_selected_in_every_layer() -> None:
    memory = random_memory(1)
    for index in (torch.tensor([2, 0]), [2, 0]):
        selected = memory.rows(index).last(2)
        for tensor, slice_ in zip(memory.tensors().values(), selected.tensors().values(), strict=True):
            np.testing.assert_array_equal(slice_.numpy(), tensor.numpy()[[2, 0], :, -2:])
    assert memory.rows(slice(1, 3)).batch == 2
    assert memory.last(0).length == 0


def test_sums_and_relative_norms_equal_numpy() -> None:
    first, second = random_memory(2), random_memory(3)
    pairs = [(a.numpy(), b.numpy()) for a, b in zip(first.tensors().values(), second.tensors().values(), strict=True)]
    for total, (a, b) in zip(first.plus(second, -0.25).tensors().values(), pairs, strict=True):
        np.testing.assert_allclose(total.numpy(), a - 0.25 * b, rtol=1e-6)
    norms = [np.linalg.norm(a.reshape(3, -1), axis=1) / np.linalg.norm(b.reshape(3, -1), axis=1) for a, b in pairs]
    np.testing.assert_allclose(first.relative_to(second).numpy(), np.mean(norms, 0), rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sum_has_the_dtype_of_the_first_summand(dtype: torch.dtype) -> None:
    assert random_memory(4, dtype=dtype).plus(random_memory(5, dtype=torch.float64), 0.5).dtype == dtype


def test_a_memory_can_be_saved_and_loaded(tmp_path: Path) -> None:
    memory = random_memory(6)
    memory.save(tmp_path / "memory.safetensors")
    loaded = Memory.load(tmp_path / "memory.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(memory.keys + memory.values, loaded.keys + loaded.values, strict=True))
