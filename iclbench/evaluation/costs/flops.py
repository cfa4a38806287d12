"""Floating-point operations (FLOPs) of a function, counted for each torch operation while it runs.

    >>> import torch
    >>> count_flops(lambda: torch.ones(2, 3) @ torch.ones(3, 5))
    60

The count includes the executed operations, so different algorithms for the same result may have different counts. An
example is attention that recomputes its scores in the backward pass. On the CPU, the count is the same on all machines.
Conventions and formulas are in `iclbench.evaluation.costs.flop_formulas`.

Operations inside custom autograd functions and custom Python operations are counted. Kernels (Triton, CUDA extensions)
and libraries that work on arrays cannot be counted. An operation without a formula, or the conversion of a tensor to an
array, raises an error, because a wrong count is worse than no count.
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
from iclbench.evaluation.costs.flop_formulas import FORMULAS, WITHOUT_ARITHMETIC, Formula, per_input, per_output


class UncountedError(IclbenchError):
    """The FLOPs of some operations cannot be counted."""

    code = "not-supported"


def count_flops(work: Callable[[], object]) -> int:
    """Call the function once and return its number of FLOPs.

    Raises:
        UncountedError: an operation has no formula, or some of the work is done outside torch.
    """
    counter = _Counter()
    with counter.array_detector, counter:
        work()
    if uncounted := sorted(counter.uncounted | counter.array_detector.uncounted):
        raise UncountedError(f"cannot be counted: {', '.join(uncounted)}")
    return counter.flops


class _Counter(TorchDispatchMode):
    """A mode that counts FLOPs of all operations below autograd, in forward and backward passes."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0
        self.uncounted: set[str] = set()
        self.array_detector = _ArrayDetector()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload):
            self.uncounted.add(str(func))
            return func(*args, **kwargs)
        formula = _formula(func)
        if formula is None:
            output = self._run_decomposed(func, args, kwargs)
            if output is not NotImplemented:
                return output
        out = func(*args, **kwargs)
        if any(t.is_floating_point() or t.is_complex() for t in _tensors(out)):
            if formula is None:
                self.uncounted.add(_operation_name(func))
            else:
                self.flops += formula(args, out)
        return out

    def _run_decomposed(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation that is composed of other operations, which are counted, and return its output.

        Return NotImplemented if the operation is not composed of others.
        """
        custom = _maybe_get_opdef(func)
        if custom is None:
            with self:
                return func.decompose(*args, **kwargs)
        implementation = custom._backend_fns.get("cpu") or custom._backend_fns[None]
        flops_before = self.flops
        with torch.no_grad(), self.array_detector, self:
            out = implementation(*args, **kwargs)
        if self.flops == flops_before:  # the work is done outside torch
            self.uncounted.add(_operation_name(func))
        return out


class _ArrayDetector(TorchFunctionMode):
    """A mode that detects conversions of tensors to NumPy arrays, on which other libraries may do uncounted work."""

    def __init__(self) -> None:
        super().__init__()
        self.uncounted: set[str] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (Tensor.numpy, Tensor.__array__):
            self.uncounted.add("work on NumPy arrays")
        return func(*args, **(kwargs or {}))


@cache
def _formula(func: OpOverload) -> Formula | None:
    name = _operation_name(func)
    if name in FORMULAS:
        return FORMULAS[name]
    if name in WITHOUT_ARITHMETIC or _is_view(func):
        return _zero
    if _has_tag(func, torch.Tag.pointwise):
        return per_output()
    if _has_tag(func, torch.Tag.reduction):
        return per_input()
    return None


def _zero(args: Any, out: Any) -> int:
    return 0


def _operation_name(func: OpOverload) -> str:
    """Return the name of an operation without torch's namespace and without the underscore of in-place operations."""
    name = func._schema.name.removeprefix("aten::")
    return name.removesuffix("_") if func._schema.is_mutable else name


def _is_view(func: OpOverload) -> bool:
    return any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)


def _has_tag(func: OpOverload, tag: torch.Tag) -> bool:
    """Return whether any overload of the operation has the tag, because torch does not tag all overloads."""
    packet = func.overloadpacket
    return any(tag in getattr(packet, name).tags for name in packet.overloads())


def _tensors(out: Any) -> Iterator[Tensor]:
    if isinstance(out, Tensor):
        yield out
    elif isinstance(out, list | tuple):
        yield from (t for t in out if isinstance(t, Tensor))
