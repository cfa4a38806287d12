"""Bytes of tensors that are alive at once, counted: the same on every machine and in every run.

The resident set of a process (`measure`) also holds what the allocator keeps and rounds to pages. Here every tensor
that an operation of torch hands out is counted from its making to its freeing, each storage once. What operations use
inside and free again is not seen.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """`with LiveBytes() as count: ...`, then `count.peak`. What was there before is not counted."""

    def __init__(self) -> None:
        super().__init__()
        self.current = 0
        self.peak = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {_address(t) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        output = func(*args, **(kwargs or {}))
        for t in tree_leaves(output):
            if isinstance(t, Tensor) and (address := _address(t)) not in before and address not in self._sizes:
                self._add(t.untyped_storage())
        return output

    def _add(self, storage: torch.UntypedStorage) -> None:
        address, size = storage._cdata, storage.nbytes()
        self._sizes[address] = size
        self.current += size
        self.peak = max(self.peak, self.current)
        weakref.finalize(storage, self._remove, address).atexit = False

    def _remove(self, address: int) -> None:
        self.current -= self._sizes.pop(address)


def _address(t: Tensor) -> int:
    """Tells storages apart while they live."""
    return t.untyped_storage()._cdata
