"""Checks of API arguments. Each check returns the converted value, or raises an error with advice."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from iclbench.core.errors import UsageError

# `_MAX_NUMBER` is larger than any size that a machine can handle. `_MAX_SEED` is the maximum of `RunConfig.seed`.
_MAX_NUMBER = 1_000_000_000
_MAX_SEED = 2**63 - 1


def brief_repr(value: Any) -> str:
    """Format a value for a message: its `repr` on one line, or its type if the `repr` is long.

    >>> brief_repr(2.5), brief_repr([0] * 99)
    ('2.5', 'a list')
    """
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"a {type(value).__name__}"


def integer(name: str, value: Any, minimum: int = 1, maximum: int = _MAX_NUMBER) -> int:
    """Return a Python or NumPy integer as an `int`. Booleans are not accepted.

    Raises:
        UsageError: the value is not an integer, or is out of range.

    >>> import numpy as np
    >>> integer("steps", np.int64(3))
    3
    """
    is_bool = type(value).__name__ in ("bool", "bool_")
    number = None if is_bool or not hasattr(value, "__index__") else operator.index(value)
    if number is None or number < minimum:
        raise _bad_value(name, f"a whole number of at least {minimum}", value)
    if number > maximum:
        raise _bad_value(name, f"at most {maximum}", value)
    return number


def seed(value: Any) -> int:
    """Return a seed in the range that runs allow; raise `UsageError` for any other value."""
    return integer("seed", value, 0, _MAX_SEED)


def text(name: str, value: Any) -> str:
    """Return a string; raise `UsageError` for any other value."""
    if not isinstance(value, str):
        raise _bad_value(name, "a string", value)
    return value


def names(name: str, value: Any) -> list[str]:
    """Return one or several names as a list; raise `UsageError` for any other value."""
    if isinstance(value, str):
        return [value]
    items = list(value) if isinstance(value, Iterable) else [value]
    if not all(isinstance(item, str) for item in items):
        raise _bad_value(name, "a string or a list of strings", value)
    return items


def folder(name: str, value: Any) -> Path:
    """Return a path; raise `UsageError` for any other value."""
    if not isinstance(value, str | os.PathLike):
        raise _bad_value(name, "a path", value)
    return Path(value)


def settings(name: str, value: Any) -> dict[str, Any]:
    """Return settings by name, with values as in cards: NumPy numbers become Python numbers, and tuples become lists.

    Raises:
        UsageError: the value is not a mapping.

    >>> import numpy as np
    >>> settings("settings", {"layers": np.int64(2), "betas": (0.9, 0.99)})
    {'layers': 2, 'betas': [0.9, 0.99]}
    """
    if not isinstance(value, Mapping):
        raise _bad_value(name, "settings by name, like {'layers': 2}", value)
    return {key: _plain(setting) for key, setting in value.items()}


def _bad_value(name: str, expected: str, value: Any) -> UsageError:
    return UsageError(f"{name}: expected {expected}, got {brief_repr(value)}", code="bad-value")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    # NumPy and torch scalars become Python numbers.
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value
