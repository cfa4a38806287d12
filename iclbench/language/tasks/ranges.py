"""Several whole numbers as they are typed: `0:10` (0 to 9), `0,2,4,8`, `5`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from iclbench.core.errors import UsageError

# More of them are a slip of the finger.
_MOST = 10_000


def parse(text: str, option: str) -> list[int]:
    """The numbers, each once, in the order in which they stand there.

    >>> parse("0:3,7", "--demo-seeds")
    [0, 1, 2, 7]

    Raises:
        UsageError: this is something else; the line names the option.
    """
    found: dict[int, None] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?::(\d{1,9}))?\s*", part)
        low, high = (int(match[1]), int(match[2] or int(match[1]) + 1)) if match else (0, 0)
        if not low < high <= low + _MOST:
            raise UsageError(f"{option} takes whole numbers (5, or 0,2,4,8, or 0:10 for 0 to 9), not {text!r}")
        found |= dict.fromkeys(range(low, high))
    return list(found)


def written(numbers: Sequence[int]) -> str:
    """What `parse` reads these numbers from.

    >>> written([0, 1, 2, 3]), written([0, 2, 4])
    ('0:4', '0,2,4')
    """
    first, several = numbers[0], len(numbers) > 1
    if several and list(numbers) == list(range(first, first + len(numbers))):
        return f"{first}:{first + len(numbers)}"
    return ",".join(map(str, numbers))
