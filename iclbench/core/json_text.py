"""JSON of the user: every problem is one line with its place."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from iclbench.core.errors import DataError, said
from iclbench.core.formats import in_a_line

Pairs = list[tuple[str, Any]]


def parse_json(text: str, where: str, pairs: Callable[[Pairs], Any] | None = None) -> Any:
    """The value of a text.

    Args:
        text: the JSON.
        where: its place, which begins the message of an error.
        pairs: makes a value of the pairs of an object; None: a dictionary.

    Raises:
        DataError: the text is not valid JSON, or an object has a key twice while `pairs` is None.
    """

    def without_twins(key_values: Pairs) -> dict[str, Any]:
        value = dict(key_values)
        if len(value) < len(key_values):
            keys = [key for key, _ in key_values]
            duplicate = next(key for key in keys if keys.count(key) > 1)
            raise DataError(f"{where}: the key '{in_a_line(duplicate)}' is there twice in one object; remove one")
        return value

    try:
        return json.loads(text, object_pairs_hook=pairs or without_twins)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not valid JSON ({error.msg}, column {error.colno})") from None
    except RecursionError:
        raise DataError(f"{where}: not valid JSON (nested too deeply)") from None
    except ValueError as error:  # a number of thousands of digits
        raise DataError(f"{where}: not valid JSON ({said(error)})") from None
