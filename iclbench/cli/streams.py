"""Let standard output and error print any text, even if it contains invalid file names or characters that the encoding
lacks."""

from __future__ import annotations

import codecs
import io
import sys
import unicodedata

# The non-ASCII characters in tables and texts, with their ASCII spelling.
_ASCII_SPELLINGS = {
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


def encode_plain(error: UnicodeError) -> tuple[str | bytes, int]:
    """Handle an encoding error: return the ASCII spelling of the character, or the original byte of an invalid file
    name.

    >>> encode_plain(UnicodeEncodeError("ascii", "±1", 0, 1, "not in ASCII"))
    ('+-', 1)
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    character, end = error.object[error.start], error.start + 1
    if "\udc80" <= character <= "\udcff":
        return bytes([ord(character) & 0xFF]), end
    nearest = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return _ASCII_SPELLINGS.get(character) or nearest or "?", end


def set_encoding_fallback() -> None:
    """Let standard output and error print any text in any encoding."""
    codecs.register_error("iclbench.plain", encode_plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="iclbench.plain")
