"""Numbers and words in printed texts, so that tests do not depend on the prose."""

import re

# Not part of a name, path or version, such as the 0 in `pytest-0`.
_NUMBER = re.compile(r"(?<![\w\-/])(?<!\d\.)-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?(?![\w/])")


def numbers(text: str) -> list[float]:
    """Return the numbers in a text, in order.

    >>> numbers("run-0: 1,024 of 2e3 bytes (-0.5 %), f3, 1..4, 0.2.1")
    [1024.0, 2000.0, -0.5, 1.0, 4.0, 0.2]
    """
    return [float(number.replace(",", "")) for number in _NUMBER.findall(text)]


def words(text: str) -> set[str]:
    """Return the words and names in a text.

    >>> sorted(words("(the oracle knn-3 failed)"))
    ['failed', 'knn-3', 'oracle', 'the']
    """
    return set(re.findall(r"[\w-]+", text))
