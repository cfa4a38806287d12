"""Format values and names for readers and for file names."""

import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, SupportsInt
from zlib import crc32

Number = float | int
# Control characters, direction marks, line and paragraph separators, and surrogates.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def text(value: Any) -> str:
    """Convert a value to a string."""
    return str(value)


def canonical(name: str) -> str:
    """Return the canonical spelling of a name: lower case with hyphens."""
    return name.strip().lower().replace("_", "-")


def printable(text: str) -> str:
    r"""Escape control characters, direction marks, and the surrogates in names that are not valid UTF-8.

    Line breaks and tabs are not escaped. All output to a terminal and to the report is passed through this function.

    >>> print(printable("a\x1b[31m b\u202e c"))
    a\x1b[31m b\u202e c
    """
    return _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def printable_all(value: Any) -> Any:
    """Apply `printable` to all strings in a value, including strings in dictionaries and lists."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {printable_all(key): printable_all(item) for key, item in value.items()}
    return [printable_all(item) for item in value] if isinstance(value, list | tuple) else value


def as_one_line(text: str, max_length: int = 80) -> str:
    r"""Format a text for use within one line: replace each run of whitespace with a blank, apply `printable`, and
    shorten long texts in the middle.

    >>> print(as_one_line("wind\n speed\x07"), as_one_line("abcdefgh", 7))
    wind speed\x07 ab...gh
    """
    line = printable(" ".join(text.split()))
    half = max(1, (max_length - 3) // 2)
    return line if len(line) <= max_length else f"{line[:half]}...{line[-half:]}"


def number(value: Number) -> str:
    """Format a number with three significant digits, or with two if its absolute value is below 0.001.

    >>> number(0.12345), number(1.0), number(1234.5), number(2e-9), number(0)
    ('0.123', '1.00', '1230', '2.0e-09', '0')
    """
    value = float(value)
    if value == 0:
        return "0"
    if abs(value) == float("inf"):
        return "∞" if value > 0 else "−∞"
    if abs(value) < 1e-3:
        return f"{value:.1e}"
    if abs(value) >= 1e5:
        return f"{value:.2e}"
    if abs(value) >= 99.95:
        return f"{float(f'{value:.3g}'):.0f}"
    return f"{value:#.3g}"


def fixed(value: Number, decimals: int = 3) -> str:
    """Format a number with a fixed number of decimals, so that columns of scores are aligned. Minus zero becomes zero.

    >>> fixed(0.61549), fixed(-0.00002), fixed(-0.004, 2)
    ('0.615', '0.000', '0.00')
    """
    return f"{round(float(value), decimals) + 0.0:.{decimals}f}"


def one_decimal(value: Number) -> str:
    return fixed(value, 1)


def two_decimals(value: Number) -> str:
    return fixed(value, 2)


def signed(value: Number) -> str:
    """Format a number with three decimals and its sign, such as '+0.123'."""
    return ("+" if float(fixed(value)) > 0 else "") + fixed(value)


def integer(value: SupportsInt) -> str:
    """Format a number without its decimals, with commas between thousands.

    >>> integer(1234567.0)
    '1,234,567'
    """
    return f"{int(value):,}"


def count(value: Number) -> str:
    """Format a large number with a unit prefix.

    >>> count(950), count(9_483_265), count(22_400)
    ('950', '9.48 M', '22.4 k')
    """
    return _scaled(value, 1000, ("", " k", " M", " G", " T"))


def nbytes(value: Number) -> str:
    """Format a number of bytes with a binary unit.

    >>> nbytes(512), nbytes(3 * 1024**2)
    ('512 B', '3.00 MiB')
    """
    return _scaled(value, 1024, (" B", " KiB", " MiB", " GiB", " TiB"))


def flops(value: Number) -> str:
    """Format a number of floating-point operations.

    >>> flops(60), flops(1_234_000_000)
    ('60 FLOP', '1.23 GFLOP')
    """
    return _scaled(value, 1000, (" FLOP", " kFLOP", " MFLOP", " GFLOP", " TFLOP", " PFLOP"))


def seconds(value: Number) -> str:
    """Format a duration in readable units.

    >>> seconds(2.1e-5), seconds(0.0021), seconds(3.25), seconds(222), seconds(7500)
    ('21.0 µs', '2.10 ms', '3.25 s', '3 min 42 s', '2 h 5 min')
    """
    if value < 1e-3:
        return f"{_three(1e6 * value)} µs"
    if value < 1:
        return f"{_three(1000 * value)} ms"
    if value < 60:
        return f"{_three(value)} s"
    if value < 3600:
        return f"{int(value) // 60} min {int(value) % 60} s"
    return f"{int(value) // 3600:,} h {int(value) % 3600 // 60} min"


def plural(n: int, noun: str) -> str:
    """Format a number with a noun in the singular or plural.

    >>> plural(1, "task"), plural(3, "task")
    ('1 task', '3 tasks')
    """
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def assignments(settings: Mapping[str, object]) -> str:
    """Format settings in one line, in the form of command-line options.

    >>> assignments({"glyphs": "omniglot", "size": 28, "tables": ["a", "b"]})
    'glyphs=omniglot size=28 tables=a, b'
    """
    texts = {key: ", ".join(map(str, v)) if isinstance(v, list | tuple) else v for key, v in settings.items()}
    return " ".join(f"{key}={value}" for key, value in texts.items())


def shared_words(names: Sequence[str]) -> str:
    """Return the hyphen-separated words with which all names begin.

    >>> shared_words(["bursty-p09-alpha1", "bursty-p09-alpha0"]), shared_words(["left", "right"])
    ('bursty-p09', '')
    """
    words = zip(*(name.split("-") for name in names), strict=False)
    return "-".join(word[0] for word in takewhile(lambda word: len(set(word)) == 1, words))


def slug(*names: str) -> str:
    """Join names to a string that is valid in file names and HTML ids. If characters must be replaced, a checksum is
    appended so that different names have different slugs.

    >>> slug("linear", "small"), slug("next", "squared_error"), slug("../a b")
    ('linear-small', 'next-squared-error', 'a-b-75e96e29')
    """
    text = "-".join(names).replace("_", "-")
    safe = re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")[:100]
    return safe if safe == text else f"{safe}-{crc32(text.encode()):08x}"


def _scaled(value: Number, base: int, units: tuple[str, ...]) -> str:
    value, power = float(value), 0
    while abs(value) >= base and power < len(units) - 1:
        value, power = value / base, power + 1
    return f"{value:.0f}{units[0]}" if power == 0 else f"{_three(value)}{units[power]}"


def _three(value: Number) -> str:
    """Format a value below 1,024 with three significant digits, or as an integer from 100. Integers have no final dot
    as in '201.'."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:#.3g}"
