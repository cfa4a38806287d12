"""Memories: rows, copies that are none, sums and norms by NumPy."""

from pathlib import Path

import numpy as np
import pytest
import torch

from iclbench.deep_thinking.memory import Memory


def drawn(seed: int, rows: int = 3, length: int = 5, dtype: torch.dtype = torch.float32) -> Memory:
    """Two layers with different numbers of heads and channels."""
    draw = torch.Generator().manual_seed(seed)
    keys, values = (
        tuple(torch.randn(rows, heads, length, channels, generator=draw).to(dtype) for heads, channels in shapes)
        for shapes in (((2, 4), (1, 6)), ((2, 3), (1, 6)))
    )
    return Memory(keys, values)


def test_one_memory_for_many_sequences_is_not_copied() -> None:
    one = drawn(0, rows=1)
    many = one.expand(64)
    assert (many.batch, many.length) == (64, 5)
    assert [t.data_ptr() for t in many.tensors().values()] == [t.data_ptr() for t in one.tensors().values()]
    assert drawn(0).expand(3).batch == 3


def test_rows_and_last_tokens_are_cut_out_of_every_layer() -> None:
    memory = drawn(1)
    for index in (torch.tensor([2, 0]), [2, 0]):
        some = memory.rows(index).last(2)
        for whole, part in zip(memory.tensors().values(), some.tensors().values(), strict=True):
            np.testing.assert_array_equal(part.numpy(), whole.numpy()[[2, 0], :, -2:])
    assert memory.rows(slice(1, 3)).batch == 2
    assert memory.last(0).length == 0


def test_sums_and_relative_norms_are_those_of_numpy() -> None:
    one, other = drawn(2), drawn(3)
    pairs = [(a.numpy(), b.numpy()) for a, b in zip(one.tensors().values(), other.tensors().values(), strict=True)]
    for found, (a, b) in zip(one.plus(other, -0.25).tensors().values(), pairs, strict=True):
        np.testing.assert_allclose(found.numpy(), a - 0.25 * b, rtol=1e-6)
    norms = [np.linalg.norm(a.reshape(3, -1), axis=1) / np.linalg.norm(b.reshape(3, -1), axis=1) for a, b in pairs]
    np.testing.assert_allclose(one.relative_to(other).numpy(), np.mean(norms, 0), rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sum_has_the_precision_of_the_first(dtype: torch.dtype) -> None:
    assert drawn(4, dtype=dtype).plus(drawn(5, dtype=torch.float64), 0.5).dtype == dtype


def test_a_memory_is_saved_and_loaded(tmp_path: Path) -> None:
    memory = drawn(6)
    memory.save(tmp_path / "memory.safetensors")
    loaded = Memory.load(tmp_path / "memory.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(memory.keys + memory.values, loaded.keys + loaded.values, strict=True))
