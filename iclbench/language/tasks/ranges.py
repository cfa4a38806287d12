"""Lists of integers as values of options: `0:10` (0 to 9), `0,2,4,8` or `5`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from iclbench.core.errors import UsageError

# A longer range is probably a typo.
_MAX_LENGTH = 10_000


def parse(text: str, option: str) -> list[int]:
    """Return the numbers in a text, in their order and without duplicates.

    >>> parse("0:3,7", "--demo-seeds")
    [0, 1, 2, 7]

    Raises:
        UsageError: the text is not a list of integers or ranges; the message names the option.
    """
    numbers: dict[int, None] = {}
    for item in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?::(\d{1,9}))?\s*", item)
        low, high = (int(match[1]), int(match[2] or int(match[1]) + 1)) if match else (0, 0)
        if not low < high <= low + _MAX_LENGTH:
            raise UsageError(
                f"{option} takes integers (5, or 0,2,4,8, or 0:10 for 0 to 9), got {text!r}", code="bad-syntax"
            )
        numbers |= dict.fromkeys(range(low, high))
    return list(numbers)


def as_text(numbers: Sequence[int]) -> str:
    """Return a text from which `parse` reads these numbers.

    >>> as_text([0, 1, 2, 3]), as_text([0, 2, 4])
    ('0:4', '0,2,4')
    """
    start = numbers[0]
    if len(numbers) > 1 and list(numbers) == list(range(start, start + len(numbers))):
        return f"{start}:{start + len(numbers)}"
    return ",".join(map(str, numbers))
