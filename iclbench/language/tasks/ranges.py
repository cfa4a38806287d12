"""Several whole numbers as they are typed: `0:10` (0 to 9), `0,2,4,8`, `5`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from iclbench.core.errors import UsageError

# More of them are a slip of the finger.
_MOST = 10_000


def parse(text: str, option: str) -> list[int]:
    """The numbers, each once, in their order in the text.

    >>> parse("0:3,7", "--demo-seeds")
    [0, 1, 2, 7]

    Raises:
        UsageError: this is something else; the line names the option.
    """
    numbers: dict[int, None] = {}
    for item in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?::(\d{1,9}))?\s*", item)
        low, high = (int(match[1]), int(match[2] or int(match[1]) + 1)) if match else (0, 0)
        if not low < high <= low + _MOST:
            raise UsageError(f"{option} takes whole numbers (5, or 0,2,4,8, or 0:10 for 0 to 9), not {text!r}")
        numbers |= dict.fromkeys(range(low, high))
    return list(numbers)


def written(numbers: Sequence[int]) -> str:
    """The text that `parse` reads as these numbers.

    >>> written([0, 1, 2, 3]), written([0, 2, 4])
    ('0:4', '0,2,4')
    """
    start, several = numbers[0], len(numbers) > 1
    if several and list(numbers) == list(range(start, start + len(numbers))):
        return f"{start}:{start + len(numbers)}"
    return ",".join(map(str, numbers))
