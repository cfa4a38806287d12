"""Rows of different lengths in batches: rows of like length together, padded on the right, as many as memory holds."""

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
    """How many rows go through a model at a time. When memory runs out it is half of that, and stays so.

    Attributes:
        size: rows of a batch, at most.
    """

    def __init__(self, size: int) -> None:
        self.size = size

    def run(
        self, lengths: Sequence[int], work: Callable[[list[int]], _Result], equal: bool = False
    ) -> Iterator[tuple[list[int], _Result]]:
        """Do the work on all rows, the longest first, and yield numbers of rows with their result.

        Args:
            lengths: of the rows.
            work: takes numbers of rows; it is done again on half of them when memory runs out.
            equal: rows of a batch are of one length.

        Raises:
            RuntimeError: memory runs out with a single row.
        """
        order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
        runs = [list(group) for _, group in groupby(order, key=lengths.__getitem__)] if equal else [order]
        for remaining in runs:
            while remaining:
                rows = remaining[: self.size]
                try:
                    value = work(rows)
                except RuntimeError as error:
                    if len(rows) == 1 or not out_of_memory(error):
                        raise
                else:
                    yield rows, value
                    remaining = remaining[len(rows) :]
                    continue
                self.size = min(self.size, (len(rows) + 1) // 2)  # outside the handler, which holds what was computed
                _free()
                log.info("out of memory with %d rows: %d at a time from now on", len(rows), self.size)


def padded(rows: Sequence[Sequence[int]], device: str = "cpu") -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """Rows of tokens side by side, and which of them are no padding."""
    longest = max(len(row) for row in rows)
    ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], dtype=torch.long)
    mask = torch.tensor([[True] * len(row) + [False] * (longest - len(row)) for row in rows])
    return ids.to(device), mask.to(device)


def places(rows: Sequence[range], device: str = "cpu") -> Int[Tensor, "B K"]:
    """Places in rows, as many in each: the last one again where a row has fewer."""
    longest = max(len(row) for row in rows)
    filled = [[*row, *[row[-1]] * (longest - len(row))] for row in rows]
    return torch.tensor(filled, dtype=torch.long, device=device)


def out_of_memory(error: RuntimeError) -> bool:
    """Whether an allocator, of an accelerator or of the CPU, had nothing left."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _free() -> None:
    """Hand back what the allocator of an accelerator keeps for later."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
