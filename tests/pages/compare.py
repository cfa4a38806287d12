"""Compare the output shown on a page with the printed output."""

from __future__ import annotations

import re
from collections.abc import Sequence

MORE = "..."
_NUMBER = re.compile(r"(?P<before>[^\w.−-]*)(?P<number>[−-]?(?:\d[\d,]*\.?\d*|\.\d+)(?:e[+-]?\d+)?)(?P<after>\W*)")
# Dates, times and memory in MiB, which differ between days and machines.
_MEASURED = re.compile(
    r"\b\d{4}-\d\d-\d\d\b|(?<![\w.])\d[\d.,]*\s(?:ns|µs|ms|s|min|h|MiB)\b(?:\s\d+\s(?:min|s)\b)*(?:\sleft)?"
)
# Commas, except those that separate thousands.
_LIST = re.compile(r",(?!\d{3}(?!\d))|(?<=\.\d{3}),")
# Numbers agree if they are equal to about two digits or, if they are small, to two decimals.
RELATIVE, ABSOLUTE = 0.05, 0.0051


def difference(shown: Sequence[str], printed: Sequence[str]) -> str:
    """Describe the first difference, or return "" if the shown lines are printed in this order. Printed lines
    may be omitted only at `...`."""
    index, gap = 0, False
    for line in shown:
        gap = gap or line.strip() == MORE
        if line.strip() == MORE or (gap and not line.strip()):
            continue
        candidates = range(index, len(printed)) if gap else range(index, min(index + 1, len(printed)))
        match = next((n for n in candidates if lines_agree(line, printed[n])), None)
        if match is None:
            printed_line = printed[index] if index < len(printed) and not gap else "no such line"
            return f"'{line.strip()}' is printed as '{printed_line.strip()}'"
        index, gap = match + 1, False
    return "" if gap or index == len(printed) else f"'{printed[index].strip()}' is printed, too"


def lines_agree(shown: str, printed: str) -> bool:
    """Return whether a printed line agrees with a shown line. A shown line that ends in `, ...` is compared up to
    this end.
    """
    a, b = (_LIST.sub(" , ", _MEASURED.sub("MEASURED", line)).split() for line in (shown, printed))
    if a and a[-1] == MORE:
        a, b = a[:-1], b[: len(a) - 1]
    return len(a) == len(b) and all(map(_words_agree, a, b))


def _words_agree(a: str, b: str) -> bool:
    if a == b:
        return True
    x, y = _NUMBER.fullmatch(a), _NUMBER.fullmatch(b)
    if x is None or y is None or (x["before"], x["after"]) != (y["before"], y["after"]):
        return False
    if all(m["number"].lstrip("−-").replace(",", "").isdigit() for m in (x, y)):
        return False  # counts must be equal
    first, second = (float(m["number"].replace(",", "").replace("−", "-")) for m in (x, y))
    return abs(first - second) <= max(RELATIVE * max(abs(first), abs(second)), ABSOLUTE)


def new_excerpt(shown: Sequence[str], printed: Sequence[str]) -> list[str]:
    """Return the printed lines that correspond to the shown lines, with `...` for omitted lines. Lines correspond if
    they agree or have the same first word."""
    if not any(line.strip() == MORE or line.endswith(f", {MORE}") for line in shown):
        return list(printed)
    excerpt: dict[int, str] = {}
    index = -1
    for line in shown:
        if line.strip() in ("", MORE):
            continue
        unused = [n for n, other in enumerate(printed) if n not in excerpt and other.strip()]
        # Prefer lines after the previous match.
        unused = [n for n in unused if n > index] + [n for n in unused if n < index]
        matches = [n for n in unused if lines_agree(line, printed[n])]
        matches += [n for n in unused if printed[n].split()[0] == line.split()[0]]
        if matches:
            index = matches[0]
            text = printed[index]
            is_cut = line.endswith(f", {MORE}")
            excerpt[index] = text[: max(0, text.rfind(", ", 0, len(line)))] + f", {MORE}" if is_cut else text
    lines: list[str] = []
    last = -1
    for index in [*sorted(excerpt), len(printed)]:
        between = printed[last + 1 : index]
        lines += [MORE] if any(line.strip() for line in between) else list(between)
        lines += [excerpt[index]] if index in excerpt else []
        last = index
    return lines
