"""Standard streams that have a limited encoding or are closed, and file names that are not text. None of these is an
error."""

from __future__ import annotations

import codecs
import io
import sys
import unicodedata

# The letters beyond ASCII in tables and texts, with their ASCII spelling.
_PLAIN = {
    "±": "+-",
    "–": "-",
    "−": "-",
    "·": "*",
    "²": "^2",
    "³": "^3",
    "µ": "u",
    "∞": "inf",
    "π": "pi",
    "→": "->",
    "…": "...",
    "‘": "'",
    "’": "'",
    "“": '"',
    "”": '"',
    "≤": "<=",
    "≥": ">=",
    "×": "x",
    "ρ": "rho",
    "γ": "gamma",
    "σ": "sigma",
}


def plain(error: UnicodeError) -> tuple[str | bytes, int]:
    """An error handler for encoders: a letter's nearest spelling in ASCII, or the byte of a file name that is not text.

    >>> plain(UnicodeEncodeError("ascii", "±1", 0, 1, "not in ASCII"))
    ('+-', 1)
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letter, end = error.object[error.start], error.start + 1
    if "\udc80" <= letter <= "\udcff":
        return bytes([ord(letter) & 0xFF]), end
    nearest = unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode()
    return _PLAIN.get(letter) or nearest or "?", end


def set_encoding_fallback() -> None:
    """Let standard output and error print every text in any encoding."""
    codecs.register_error("iclbench.plain", plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="iclbench.plain")
