"""Errors of classes from outside iclbench, under the name of the class and the method that raised.

Whatever a plug-in raises becomes one line. Class and method are found in the traceback: the innermost public method,
inherited or not, that was called on an instance of such a class. Wrong answers are found by `iclbench.core.answers`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb
from typing import Any

from iclbench.core.errors import IclbenchError, PluginError, UsageError, is_ours, one_line, shortened
from iclbench.core.memory import is_out_of_memory

# What settings derive from, by the module that asks for them; elsewhere it is `BaseSettings`.
_SETTINGS = {"iclbench.backbones.base": "iclbench.backbones.base.BackboneSettings"}


def check_settings(cls: type, target: str) -> None:
    """Raise `UsageError` where the class behind `target` lacks the class that checks its settings."""
    for base in filter(is_ours, cls.__mro__):
        for name in {"Settings", "Parameters"} & inspect.get_annotations(base).keys():
            if not hasattr(cls, name):
                settings = _SETTINGS.get(base.__module__, "iclbench.core.settings.BaseSettings")
                raise UsageError(f"'{target}' lacks `{name}`: write a subclass of {settings} into the class")


def blamed(error: BaseException, part: Any = None) -> BaseException:
    """The `PluginError` that names what raised; the error itself if no class from outside took part, if it says what to
    do, and if memory is short.

    Args:
        error: as it was caught.
        part: an object or class to name if no method of a class from outside is in the traceback.
    """
    # By its name: this module does not import torch.
    if isinstance(error, IclbenchError) or is_out_of_memory(error) or type(error).__name__ == "OutOfMemoryError":
        return error
    found, method = _outside(part), ""
    for frame, _ in walk_tb(error.__traceback__):
        called = frame.f_code.co_name
        for name in ("self", "cls") if called == "__init__" or not called.startswith("_") else ():
            if cls := _outside(frame.f_locals.get(name)):
                found, method = cls, called
    if found is None:
        return error
    if isinstance(error, Exception):
        what = f"raised {one_line(error)}"
    else:
        what = f"called sys.exit({shortened(repr(getattr(error, 'code', None)))}); raise an exception instead"
    return PluginError.of(found, method, what)


def _outside(part: Any) -> type | None:
    """The class of an object, or the class that it is, if it is from outside and derives from one of iclbench."""
    cls = part if isinstance(part, type) else type(part)
    return cls if not is_ours(cls) and any(map(is_ours, cls.__mro__)) else None


@contextmanager
def named(part: Any) -> Iterator[None]:
    """Turn an error of a plug-in into its `PluginError` within the block; `part` as in `blamed`."""
    try:
        yield
    except (Exception, SystemExit) as error:
        found = blamed(error, part)
        if found is error:
            raise
        raise found from error
