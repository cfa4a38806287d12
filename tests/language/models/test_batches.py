"""Batches of rows: order, equal lengths, and smaller batches after running out of memory."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from iclbench.language.models.batches import Batches, is_failed_allocation, pad_positions, pad_tokens


@given(st.lists(st.integers(1, 9), max_size=20), st.integers(1, 25), st.booleans())
def test_every_row_is_processed_once_in_descending_order_of_length(lengths: list[int], size: int, equal: bool) -> None:
    row_batches = [rows for rows, result in Batches(size).run(lengths, lambda rows: rows, equal) if rows == result]
    all_rows = [row for rows in row_batches for row in rows]
    assert sorted(all_rows) == list(range(len(lengths)))
    assert [lengths[row] for row in all_rows] == sorted(lengths, reverse=True)
    assert all(len(rows) <= size for rows in row_batches)
    assert not equal or all(len({lengths[row] for row in rows}) == 1 for rows in row_batches)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you tried"),
    ],
)
def test_the_batch_size_is_halved_permanently_after_running_out_of_memory(error: RuntimeError) -> None:
    batches, sizes = Batches(16), []

    def work(rows: list[int]) -> None:
        sizes.append(len(rows))
        if len(rows) > 5:
            raise error

    finished_sizes = [len(rows) for rows, _ in batches.run([1] * 20, work)]
    assert sizes[:3] == [16, 8, 4] and finished_sizes == [4] * 5 and batches.size == 4
    assert [len(rows) for rows, _ in batches.run([1] * 20, work)] == [4] * 5


def test_other_errors_and_running_out_of_memory_with_a_single_row_are_raised() -> None:
    def fail(rows: list[int]) -> None:
        raise RuntimeError("shapes do not fit")

    def run_out_of_memory(rows: list[int]) -> None:
        raise torch.OutOfMemoryError("out of memory")

    for work, batches in ((fail, Batches(8)), (run_out_of_memory, Batches(8))):
        with pytest.raises(RuntimeError):
            list(batches.run([1] * 8, work))
        assert batches.size == (8 if work is fail else 1)
    assert not is_failed_allocation(RuntimeError("shapes do not fit"))


def test_rows_are_padded_on_the_right() -> None:
    ids, mask = pad_tokens([[3, 4, 5], [6]])
    assert ids.tolist() == [[3, 4, 5], [6, 0, 0]]
    assert mask.tolist() == [[True, True, True], [True, False, False]]
    assert pad_positions([range(1, 3), range(0, 1)]).tolist() == [[1, 2], [0, 0]]
