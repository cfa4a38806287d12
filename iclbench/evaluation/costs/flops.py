"""Floating-point operations (FLOPs) of a piece of work, counted one torch operation at a time as it runs.

    >>> import torch
    >>> count_flops(lambda: torch.ones(2, 3) @ torch.ones(3, 5))
    60

What is counted is what is computed, so that two ways to the same numbers may differ: attention that recomputes its
scores on the way back, or a convolution by a product instead of by Fourier transforms. Work on the CPU gives the same
count on every machine; conventions and formulas stand in `iclbench.evaluation.costs.flop_formulas`.

Custom autograd functions and custom operations written in Python are seen from inside. Kernels (Triton, CUDA
extensions) and libraries that work on arrays are not. An operation without a formula, or numbers that leave torch, end
in an error: no figure is better than a wrong one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._library.custom_ops import _maybe_get_opdef
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from iclbench.core.errors import IclbenchError
from iclbench.evaluation.costs.flop_formulas import FORMULAS, MOVING, Formula, per_input, per_output


class UncountedError(IclbenchError):
    """Part of the work cannot be counted."""

    code = "not-supported"


def count_flops(work: Callable[[], object]) -> int:
    """FLOPs of the work, which is done once.

    Raises:
        UncountedError: some of it has no formula or is not done by torch.
    """
    counter = _Counter()
    with counter.exits, counter:
        work()
    if hidden := sorted(counter.uncounted | counter.exits.found):
        raise UncountedError(f"not to be counted: {', '.join(hidden)}")
    return counter.flops


class _Counter(TorchDispatchMode):
    """Sees every operation below autograd, on the way forth and back."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0
        self.uncounted: set[str] = set()
        self.exits = _Exits()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload):
            self.uncounted.add(str(func))
            return func(*args, **kwargs)
        formula = _formula(func)
        if formula is None:
            done = self._inside(func, args, kwargs)
            if done is not NotImplemented:
                return done
        out = func(*args, **kwargs)
        if any(t.is_floating_point() or t.is_complex() for t in _tensors(out)):
            if formula is None:
                self.uncounted.add(_name(func))
            else:
                self.flops += formula(args, out)
        return out

    def _inside(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The work of an operation that is made of others, those counted; NotImplemented for one that is not."""
        custom = _maybe_get_opdef(func)
        if custom is None:
            with self:
                return func.decompose(*args, **kwargs)
        written = custom._backend_fns.get("cpu") or custom._backend_fns[None]
        before = self.flops
        with torch.no_grad(), self.exits, self:
            out = written(*args, **kwargs)
        if self.flops == before:  # whatever it does, torch does not do it
            self.uncounted.add(_name(func))
        return out


class _Exits(TorchFunctionMode):
    """Notes where numbers leave torch for a library: an array is made of them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (Tensor.numpy, Tensor.__array__):
            self.found.add("work on NumPy arrays")
        return func(*args, **(kwargs or {}))


@cache
def _formula(func: OpOverload) -> Formula | None:
    name = _name(func)
    if name in FORMULAS:
        return FORMULAS[name]
    if name in MOVING or _is_view(func):
        return _nothing
    if _has(func, torch.Tag.pointwise):
        return per_output()
    if _has(func, torch.Tag.reduction):
        return per_input()
    return None


def _nothing(args: Any, out: Any) -> int:
    return 0


def _name(func: OpOverload) -> str:
    """The bare name of an operation of torch's own, without the underscore of those that work in place."""
    name = func._schema.name.removeprefix("aten::")
    return name.removesuffix("_") if func._schema.is_mutable else name


def _is_view(func: OpOverload) -> bool:
    return any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)


def _has(func: OpOverload, tag: torch.Tag) -> bool:
    """Whether any overload of the operation has the tag; not all of them are tagged."""
    packet = func.overloadpacket
    return any(tag in getattr(packet, name).tags for name in packet.overloads())


def _tensors(out: Any) -> Iterator[Tensor]:
    if isinstance(out, Tensor):
        yield out
    elif isinstance(out, list | tuple):
        yield from (t for t in out if isinstance(t, Tensor))
