"""What the functions of the API are given: each check returns the value as it is worked with, or says in one line what
to give instead."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from iclbench.core.errors import UsageError

# Sizes end where no machine follows, seeds where they end in the configuration of a run.
_LARGEST = 1_000_000_000
_LAST_SEED = 2**63 - 1


def shown(value: Any) -> str:
    """A value as a message names it: its Python code in one line, or its type where that is long.

    >>> shown(2.5), shown([0] * 99)
    ('2.5', 'a list')
    """
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"a {type(value).__name__}"


def integer(name: str, value: Any, least: int = 1, most: int = _LARGEST) -> int:
    """A whole number; those of NumPy are some, booleans are none.

    Raises:
        UsageError: it is none, or out of range.

    >>> import numpy as np
    >>> integer("steps", np.int64(3))
    3
    """
    is_bool = type(value).__name__ in ("bool", "bool_")
    number = None if is_bool or not hasattr(value, "__index__") else operator.index(value)
    if number is None or number < least:
        raise UsageError(f"{name}: expected a whole number of at least {least}, got {shown(value)}")
    if number > most:
        raise UsageError(f"{name}: expected at most {most}, got {shown(value)}")
    return number


def seed(value: Any) -> int:
    """A seed, as the configurations of runs take it."""
    return integer("seed", value, 0, _LAST_SEED)


def text(name: str, value: Any) -> str:
    """A string; raises `UsageError` for anything else."""
    if not isinstance(value, str):
        raise UsageError(f"{name}: expected a string, got {shown(value)}")
    return value


def names(name: str, value: Any) -> list[str]:
    """One name or several; raises `UsageError` for anything else."""
    if isinstance(value, str):
        return [value]
    found = list(value) if isinstance(value, Iterable) else [value]
    if not all(isinstance(each, str) for each in found):
        raise UsageError(f"{name}: expected a string or a list of strings, got {shown(value)}")
    return found


def folder(name: str, value: Any) -> Path:
    """A path; raises `UsageError` for what is none."""
    if not isinstance(value, str | os.PathLike):
        raise UsageError(f"{name}: expected a path, got {shown(value)}")
    return Path(value)


def settings(name: str, value: Any) -> dict[str, Any]:
    """Settings by name as cards hold them: numbers of NumPy as those of Python, tuples as lists.

    Raises:
        UsageError: it is no mapping.

    >>> import numpy as np
    >>> settings("settings", {"layers": np.int64(2), "betas": (0.9, 0.99)})
    {'layers': 2, 'betas': [0.9, 0.99]}
    """
    if not isinstance(value, Mapping):
        raise UsageError(f"{name}: expected settings by name, like {{'layers': 2}}, got {shown(value)}")
    return {key: _plain(each) for key, each in value.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    # A single number of NumPy or torch.
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value
