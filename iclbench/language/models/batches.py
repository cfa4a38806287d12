"""Batches of rows of similar length, padded on the right. The batches become smaller when memory runs out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TypeVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

log = logging.getLogger("iclbench")

_Result = TypeVar("_Result")


class Batches:
    """Runs a function on batches of rows. When memory runs out, the batch size is halved permanently.

    Attributes:
        size: maximum number of rows in a batch.
    """

    def __init__(self, size: int) -> None:
        self.size = size

    def run(
        self, lengths: Sequence[int], work: Callable[[list[int]], _Result], equal: bool = False
    ) -> Iterator[tuple[list[int], _Result]]:
        """Run `work` on all rows, longest first, and yield the row numbers and the result of each batch.

        Args:
            lengths: lengths of the rows.
            work: function that takes a list of row numbers and returns the result for these rows. When memory runs
                out, it is called again with half of the rows.
            equal: whether all rows of a batch must have the same length.

        Raises:
            RuntimeError: `work` raises it for another reason, or memory runs out with a single row.
        """
        order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
        row_groups = [list(group) for _, group in groupby(order, key=lengths.__getitem__)] if equal else [order]
        for remaining in row_groups:
            while remaining:
                rows = remaining[: self.size]
                try:
                    value = work(rows)
                except RuntimeError as error:
                    if len(rows) == 1 or not is_failed_allocation(error):
                        raise
                else:
                    yield rows, value
                    remaining = remaining[len(rows) :]
                    continue
                # Release memory outside of the handler, because the error holds references to tensors.
                self.size = min(self.size, (len(rows) + 1) // 2)
                _release_cached_memory()
                log.info("out of memory with %d rows: the batch size is now %d", len(rows), self.size)


def pad_tokens(rows: Sequence[Sequence[int]], device: str = "cpu") -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """Pad rows of tokens on the right with 0. Return them as one tensor, with a mask of the tokens that are not
    padding."""
    longest = max(len(row) for row in rows)
    ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], dtype=torch.long)
    mask = torch.tensor([[True] * len(row) + [False] * (longest - len(row)) for row in rows])
    return ids.to(device), mask.to(device)


def pad_positions(rows: Sequence[range], device: str = "cpu") -> Int[Tensor, "B K"]:
    """Return positions in rows as one tensor. A row with fewer positions repeats its last position."""
    longest = max(len(row) for row in rows)
    padded_rows = [[*row, *[row[-1]] * (longest - len(row))] for row in rows]
    return torch.tensor(padded_rows, dtype=torch.long, device=device)


def is_failed_allocation(error: RuntimeError) -> bool:
    """Return whether the error is a failed allocation on an accelerator or on the CPU."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _release_cached_memory() -> None:
    """Release the cached memory of the accelerator."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
