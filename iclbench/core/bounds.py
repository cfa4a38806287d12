"""Checks of a backbone's size before its memory is allocated.

Modules are counted as they are registered, so a card with a billion layers is refused after the first few thousand.
Built-in classes are first built on torch's meta device, where tensors have shapes but no memory. No tensor above the
limit is then allocated. Other code may keep references to meta tensors, so its modules are counted while the real model
is built.
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

# A model may have one module for each `_BYTES_PER_MODULE` bytes of the limit: 4,096 modules for 1 GiB. Very deep
# networks have a few hundred modules.
_BYTES_PER_MODULE = 1 << 18

_RANDOM = ("normal_", "uniform_", "kaiming_uniform_", "trunc_normal_", "xavier_uniform_")
_FILLS = {
    *(getattr(nn.init, name) for name in (*_RANDOM, "constant_", "zeros_", "ones_")),
    *(getattr(torch.Tensor, name) for name in ("normal_", "uniform_", "exponential_", "fill_", "zero_")),
}


def build_within_limit(build: Callable[[], T], description: str, is_ours: bool) -> T:
    """Build a module, and raise `TooLargeError` if it exceeds the size limit.

    Args:
        build: function that builds the module.
        description: description of the module for the error message.
        is_ours: whether all code of the module is part of iclbench.

    Raises:
        TooLargeError: the weights and buffers are larger than `limits.max_bytes`, or there are too many submodules.
    """
    if is_ours:
        build_to_measure(build, description, allocate=False)
        return build()
    with exclusive(), _limited_size(description):
        return build()


def build_to_measure(build: Callable[[], T], description: str, allocate: bool) -> T:
    """Build a module only to measure its size, without changing the state of torch's global generator.

    Args:
        build: function that builds the module.
        description: description of the module for the error message.
        allocate: whether to allocate memory for its tensors. Code from outside iclbench needs this, and small modules
            are built faster in memory than on torch's meta device.

    Raises:
        TooLargeError: as in `build_within_limit`.
    """
    with exclusive(), torch.random.fork_rng(devices=[]), _limited_size(description):
        if allocate:
            return build()
        with torch.device("meta"), _NoInitialisation():
            return build()


class _NoInitialisation(TorchFunctionMode):
    """Skip the initialisation of weights.

    On the meta device, initialisation has no effect, but it imports torch's compiler or reference implementations,
    which takes up to two seconds.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _FILLS:
            return args[0] if args else kwargs["tensor"]
        if func is torch.randn:
            func = torch.empty
            kwargs.pop("generator", None)
        return func(*args, **kwargs)


@contextmanager
def _limited_size(description: str) -> Iterator[None]:
    """Raise `TooLargeError` if the modules built in the block have too many bytes or submodules."""
    max_size = limits.max_bytes()
    size = weights = modules = 0

    def refuse(excess: str) -> None:
        raise limits.TooLargeError(
            f"{description}: these settings give {excess}; use fewer layers or a smaller width, or {limits.ADVICE}"
        )

    def count_tensor(module: nn.Module, name: str, value: Any) -> None:
        nonlocal size, weights
        if isinstance(value, torch.Tensor):
            elements = value.numel()
            size, weights = size + elements * value.element_size(), weights + elements
            if size > max_size:
                refuse(f"at least {count(weights)} weights, which take more than {nbytes(max_size)}")

    def count_module(module: nn.Module, name: str, value: Any) -> None:
        nonlocal modules
        modules += 1
        if modules > max(1, max_size // _BYTES_PER_MODULE):
            refuse(f"more than {plural(modules - 1, 'module')}")

    handles = [
        hooks.register_module_parameter_registration_hook(count_tensor),
        hooks.register_module_buffer_registration_hook(count_tensor),
        hooks.register_module_module_registration_hook(count_module),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def check_size_of_episodes(episodes: int, points: int, numbers: int) -> None:
    """Raise `TooLargeError` if episodes are larger than the limit.

    Args:
        episodes: number of episodes.
        points: number of points of an episode.
        numbers: number of inputs and outputs of a point.
    """
    limits.check(4 * episodes * points * numbers, f"{episodes:,} episodes of {points:,} points take")


def check_task(shape: TaskShape, batch: int, episodes: int, description: str) -> None:
    """Raise `UsageError` if a training batch or the evaluation episodes are larger than the limit.

    Args:
        shape: the task.
        batch: number of episodes in a training batch.
        episodes: number of evaluation episodes.
        description: description of the task for the message.
    """
    numbers_per_episode = shape.points * (1 + shape.related) * (shape.x_dim + shape.y_dim)
    for name, n_episodes in (("train.batch", batch), ("task.episodes", episodes)):
        if 4 * n_episodes * numbers_per_episode > limits.max_bytes():
            raise UsageError(
                f"{description}: {name}={n_episodes:,} episodes of {shape.points:,} points take "
                f"{nbytes(4 * n_episodes * numbers_per_episode)}; use fewer episodes or points, or {limits.ADVICE}",
                code="too-large",
            )
