"""Parse JSON from the user. Errors have one line and name the location."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from iclbench.core.errors import DataError, error_text
from iclbench.core.formats import as_one_line

Pairs = list[tuple[str, Any]]


def parse_json(text: str, where: str, pairs: Callable[[Pairs], Any] | None = None) -> Any:
    """Parse a JSON text.

    Args:
        text: the JSON text.
        where: source of the text, with which error messages begin.
        pairs: function that builds an object from its key-value pairs (default: a dictionary).

    Raises:
        DataError: the text is not valid JSON (code `bad-syntax`), or an object has a key twice and `pairs` is None
            (code `duplicate`).
    """

    def dict_with_unique_keys(key_values: Pairs) -> dict[str, Any]:
        value = dict(key_values)
        if len(value) < len(key_values):
            keys = [key for key, _ in key_values]
            duplicate = next(key for key in keys if keys.count(key) > 1)
            raise DataError(
                f"{where}: an object has the key '{as_one_line(duplicate)}' twice; remove one", code="duplicate"
            )
        return value

    try:
        return json.loads(text, object_pairs_hook=pairs or dict_with_unique_keys)
    except json.JSONDecodeError as error:
        problem = f"{error.msg}, column {error.colno}"
    except RecursionError:
        problem = "nested too deeply"
    except ValueError as error:  # a number with thousands of digits
        problem = error_text(error)
    raise DataError(f"{where}: not valid JSON ({problem})", code="bad-syntax")
