"""Errors in classes from outside iclbench, reported with the names of the class and the method.

An exception raised in a plug-in becomes a one-line error that names a class and a method. Both are taken from the
innermost frame of the traceback in which a public method, possibly inherited, runs on a class from outside iclbench or
on an instance of such a class. `iclbench.core.answers` checks return values.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb
from typing import Any

from iclbench.core.errors import IclbenchError, PluginError, UsageError, is_ours, one_line, shorten
from iclbench.core.memory import is_out_of_memory

# The base class that a plug-in's settings must have (default: `BaseSettings`). The keys are the modules that define
# base classes of plug-ins.
_SETTINGS = {"iclbench.backbones.base": "iclbench.backbones.base.BackboneSettings"}


def check_settings(cls: type, target: str) -> None:
    """Raise `UsageError` if a class lacks the settings class that its base class requires. `target` is its name in the
    message."""
    for base in filter(is_ours, cls.__mro__):
        for name in {"Settings", "Parameters"} & inspect.get_annotations(base).keys():
            if not hasattr(cls, name):
                settings = _SETTINGS.get(base.__module__, "iclbench.core.settings.BaseSettings")
                raise UsageError(
                    f"'{target}' has no `{name}`: define a subclass of {settings} in the class", code="plugin"
                )


def as_plugin_error(error: BaseException, part: Any = None) -> BaseException:
    """Convert an error to a `PluginError` that names the class and the method in which it was raised.

    The error is returned unchanged if no class from outside iclbench was involved, or if it is an `IclbenchError` or an
    out-of-memory error.

    Args:
        error: the caught error.
        part: object or class to name if the traceback contains no method of a class from outside iclbench.
    """
    # Torch's error is recognised by its name, since this module does not import torch.
    if isinstance(error, IclbenchError) or is_out_of_memory(error) or type(error).__name__ == "OutOfMemoryError":
        return error
    faulty_class, method = _plugin_class(part), ""
    for frame, _ in walk_tb(error.__traceback__):
        function = frame.f_code.co_name
        for name in ("self", "cls") if function == "__init__" or not function.startswith("_") else ():
            if cls := _plugin_class(frame.f_locals.get(name)):
                faulty_class, method = cls, function
    if faulty_class is None:
        return error
    if isinstance(error, Exception):
        problem = f"raised {one_line(error)}"
    else:
        problem = f"called sys.exit({shorten(repr(getattr(error, 'code', None)))}); raise an exception instead"
    return PluginError.of(faulty_class, method, problem)


def _plugin_class(part: Any) -> type | None:
    """Return the class of an object (or the class itself) if it is from outside iclbench and has a base class in
    iclbench, else None."""
    cls = part if isinstance(part, type) else type(part)
    return cls if not is_ours(cls) and any(map(is_ours, cls.__mro__)) else None


@contextmanager
def plugin_errors(part: Any) -> Iterator[None]:
    """Within the block, convert errors in plug-ins to `PluginError`. For `part`, see `as_plugin_error`."""
    try:
        yield
    except (Exception, SystemExit) as error:
        plugin_error = as_plugin_error(error, part)
        if plugin_error is error:
            raise
        raise plugin_error from error
