"""One function per architecture of iclbench, named like the class of the architecture: `Mamba(task, layers=4)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from iclbench.api.models import backbone
from iclbench.api.tasks import Task
from iclbench.backbones.base import Backbone
from iclbench.core.guard import guarded
from iclbench.registry import BACKBONES

# The task and the head in the doctest of each function. Event models need a task with events.
_EXAMPLE = ("gp-mixture", "gaussian")
_EVENT_EXAMPLE = ("point-process", "event")
_EVENT_MODELS = ("cmhp", "thp")


def _factory(name: str, class_name: str) -> Callable[..., Backbone]:
    @guarded
    def build(task: Task, *, seed: int = 0, **settings: Any) -> Backbone:
        return backbone(name, task, seed=seed, **settings)

    task_name, head = _EVENT_EXAMPLE if name in _EVENT_MODELS else _EXAMPLE
    build.__name__ = build.__qualname__ = class_name
    build.__doc__ = f"""`backbone("{name}", task, seed=seed, **settings)`: {BACKBONES.entry(name).summary}.

    >>> from iclbench.api.tasks import task
    >>> {class_name}(task("{task_name}", "smoke")).shape.head
    '{head}'
    """
    return build


def _factories() -> dict[str, Callable[..., Backbone]]:
    entries = {name: BACKBONES.entry(name) for name in BACKBONES.architectures()}
    classes = {name: entry.target.partition(":")[2] for name, entry in entries.items() if entry.package == "iclbench"}
    return {class_name: _factory(name, class_name) for name, class_name in classes.items()}


if TYPE_CHECKING:

    def __getattr__(name: str) -> Callable[..., Backbone]: ...


globals().update(_factories())
