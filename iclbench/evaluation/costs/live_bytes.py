"""The peak total size of live tensors, which is the same on all machines and in all runs.

The resident set of a process (`iclbench.core.measure`) also includes free memory of the allocator and is rounded to
pages. This module counts each storage that a torch operation returns, from its allocation until it is freed. Memory
that an operation uses only internally is not counted.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """A context manager that counts the bytes of tensors created inside it.

    After `with LiveBytes() as count: ...`, the peak is `count.peak`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.current = 0
        self.peak = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        input_addresses = {_address(t) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        output = func(*args, **(kwargs or {}))
        for t in tree_leaves(output):
            if not isinstance(t, Tensor):
                continue
            if (address := _address(t)) not in input_addresses and address not in self._sizes:
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
    """Return the address of a tensor's storage, which is unique among live storages."""
    return t.untyped_storage()._cdata
