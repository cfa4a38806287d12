"""A backbone's size, known before it is allocated.

Modules are counted while they are registered, so that a card that asks for a billion layers is refused after the
first thousands. Classes of iclbench are first built on torch's meta device, where tensors have shapes and no memory and
nothing is drawn: not even one tensor that is too large is made. Code from elsewhere may keep what it makes there, and
is counted while it is built for good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.modules import module as hooks
from torch.overrides import TorchFunctionMode

from iclbench.core import limits
from iclbench.core.errors import UsageError
from iclbench.core.formats import count, nbytes, plural
from iclbench.core.guard import exclusive
from iclbench.core.task import TaskShape

T = TypeVar("T", bound=nn.Module)

# One module may be there for so many bytes of the limit: 4,096 in 1 GiB. The deepest networks have some hundreds.
_MODULE = 1 << 18

_DRAWN = ("normal_", "uniform_", "kaiming_uniform_", "trunc_normal_", "xavier_uniform_")
_FILLS = {
    *(getattr(nn.init, name) for name in (*_DRAWN, "constant_", "zeros_", "ones_")),
    *(getattr(torch.Tensor, name) for name in ("normal_", "uniform_", "exponential_", "fill_", "zero_")),
}


def bounded(build: Callable[[], T], what: str, own: bool) -> T:
    """The module that `build` makes.

    Args:
        what: the module, for the message.
        own: whether all of its code is iclbench's.

    Raises:
        TooLargeError: its weights and buffers, or its modules, take more than `limits.max_bytes`.
    """
    if own:
        measured(build, what, memory=False)
        return build()
    with exclusive(), _counted(what):
        return build()


def measured(build: Callable[[], T], what: str, memory: bool) -> T:
    """The same module to ask for its size; drawing its weights moves no random stream.

    Args:
        memory: whether its tensors have memory: for code from elsewhere, and for small modules, which are built in less
            time than torch's meta device takes for their shapes.

    Raises:
        TooLargeError: as `bounded`.
    """
    with exclusive(), torch.random.fork_rng(devices=[]), _counted(what):
        if memory:
            return build()
        with torch.device("meta"), _Undrawn():
            return build()


class _Undrawn(TorchFunctionMode):
    """Within, initial weights are neither drawn nor filled: for tensors without memory torch would import its compiler,
    or the reference implementations of its functions, which takes up to two seconds, to find out that there is nothing
    to fill."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _FILLS:
            return args[0] if args else kwargs["tensor"]
        if func is torch.randn:
            func = torch.empty
            kwargs.pop("generator", None)
        return func(*args, **kwargs)


@contextmanager
def _counted(what: str) -> Iterator[None]:
    """Within, modules that register too much are refused."""
    max_size = limits.max_bytes()
    size = weights = modules = 0

    def refuse(excess: str) -> None:
        raise limits.TooLargeError(
            f"{what}: {excess} at these settings; make layers, width or the like smaller, or {limits.RAISE}"
        )

    def tensor(module: nn.Module, name: str, value: Any) -> None:
        nonlocal size, weights
        if isinstance(value, torch.Tensor):
            numbers = value.numel()
            size, weights = size + numbers * value.element_size(), weights + numbers
            if size > max_size:
                refuse(f"{count(weights)} weights and more, beyond {nbytes(max_size)},")

    def submodule(module: nn.Module, name: str, value: Any) -> None:
        nonlocal modules
        modules += 1
        if modules > max(1, max_size // _MODULE):
            refuse(f"more than {plural(modules - 1, 'module')}")

    handles = [
        hooks.register_module_parameter_registration_hook(tensor),
        hooks.register_module_buffer_registration_hook(tensor),
        hooks.register_module_module_registration_hook(submodule),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def check_task(shape: TaskShape, batch: int, episodes: int, what: str) -> None:
    """Raise `UsageError` where a training batch, or the evaluation episodes, cannot be held.

    Args:
        shape: the task.
        batch, episodes: how many there are side by side.
        what: the task, for the message.
    """
    numbers = shape.points * (1 + shape.related) * (shape.x_dim + shape.y_dim)
    for name, n_episodes in (("train.batch", batch), ("task.episodes", episodes)):
        if 4 * n_episodes * numbers > limits.max_bytes():
            raise UsageError(
                f"{what}: {name}={n_episodes:,} episodes of {shape.points:,} points take "
                f"{nbytes(4 * n_episodes * numbers)}; make "
                f"one of them smaller, or {limits.RAISE}"
            )
