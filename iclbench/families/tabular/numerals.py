"""Parsing of numbers in data files, in spellings that all programs read as the same number."""

from __future__ import annotations

import re

import numpy as np

# Signs around numbers: currencies, percent and spaces.
_SIGNS = re.compile(r"[$€£¥₹%\s\u00a0\u202f]+|\b(?:USD|EUR|GBP|CHF|JPY)\b", re.IGNORECASE)
_GROUPED = r"[+-]?(?:[1-9]\d{{0,2}}(?:[{separators}]\d{{3}})+|\d+)?(?:[{decimal}]\d*)?(?:[eE][+-]?\d{{1,3}})?"
# For each decimal mark, the separators of thousands that go with it, and the pattern of numbers.
_SEPARATORS = {".": ",'’", ",": ".'’"}
_PATTERNS = {mark: re.compile(_GROUPED.format(separators=s, decimal=mark)) for mark, s in _SEPARATORS.items()}
DECIMAL_MARKS = tuple(_PATTERNS)


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


def marked_numeral(text: str, mark: str) -> str | None:
    """Return a number with this decimal mark as a number with a decimal point and without separators of thousands and
    signs of currencies; None if the text is not such a number.

    >>> marked_numeral("1.234,50 €", ","), marked_numeral("-1,234.5", "."), marked_numeral("1.23", ",")
    ('1234.50', '-1234.5', None)
    """
    text = _SIGNS.sub("", text).replace("−", "-")
    if not text.isascii() and "’" not in text:
        return None
    if not any(map(str.isdigit, text)) or _PATTERNS[mark].fullmatch(text) is None:
        return None
    return text.translate({ord(separator): None for separator in _SEPARATORS[mark]}).replace(mark, ".")


def marked_number(text: str, mark: str) -> float:
    """Return the number that a text with this decimal mark represents (see `marked_numeral`), or NaN."""
    numeral = marked_numeral(text, mark)
    return np.nan if numeral is None else float(numeral)
