"""Parsing of numbers in data files, in spellings that all programs read as the same number."""

from __future__ import annotations


def number(text: str) -> float | None:
    """Return the number that a text represents, or None if it is not a number. Unlike `float`, this function does not
    read 1_5 or digits of other scripts.

    >>> number("-1e-3"), number("1_5"), number("٣"), number("inf")
    (-0.001, None, None, inf)
    """
    if "_" in text or not text.isascii():
        return None
    try:
        return float(text)
    except ValueError:
        return None


def resembles_number(text: str) -> bool:
    """Return whether a text is a number or looks like a misspelled number, so that it cannot be the name of a column.

    >>> resembles_number("1_5"), resembles_number("٣"), resembles_number("1,5"), resembles_number("x1")
    (True, True, True, False)
    """
    return number(text) is not None or (any(map(str.isnumeric, text)) and not any(map(str.isalpha, text)))
