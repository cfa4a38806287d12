"""Assertions about errors: the code, the exit code and the names in the message, never the prose."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from iclbench.core.errors import CODES, IclbenchError


@contextmanager
def refused(code: str, *names: object, exit_code: int = 2) -> Iterator[pytest.ExceptionInfo[IclbenchError]]:
    """Assert that the block raises an error with this code, this exit code, and all `names` in a one-line message."""
    assert code in CODES
    with pytest.raises(IclbenchError) as error:
        yield error
    message = str(error.value)
    assert (error.value.code, error.value.exit_code) == (code, exit_code), message
    assert not (missing := [str(name) for name in names if str(name) not in message]), f"{missing} not in: {message}"
    assert "\n" not in message
