"""Comparison of the shown and the actual output of commands."""

from __future__ import annotations

import re
from collections.abc import Sequence

MORE = "..."
_NUMBER = re.compile(r"(?P<before>[^\w.−-]*)(?P<number>[−-]?(?:\d[\d,]*\.?\d*|\.\d+)(?:e[+-]?\d+)?)(?P<after>\W*)")
# Dates and measurements (seconds, memory in MiB) differ between days and machines.
_MEASURED = re.compile(
    r"\b\d{4}-\d\d-\d\d\b|(?<![\w.])\d[\d.,]*\s(?:ns|µs|ms|s|min|h|MiB)\b(?:\s\d+\s(?:min|s)\b)*(?:\sleft)?"
)
# Commas that do not separate thousands.
_LIST = re.compile(r",(?!\d{3}(?!\d))|(?<=\.\d{3}),")
# Numbers agree if they are equal to two digits, or to two decimals if they are small.
RELATIVE, ABSOLUTE = 0.05, 0.0051


def difference(shown: Sequence[str], printed: Sequence[str]) -> str:
    """The shown lines that are not printed. It is empty if all are, in order and without gaps except for `...`."""
    at, gap = 0, False
    for line in shown:
        gap = gap or line.strip() == MORE
        if line.strip() == MORE or (gap and not line.strip()):
            continue
        places = range(at, len(printed)) if gap else range(at, min(at + 1, len(printed)))
        found = next((n for n in places if same(line, printed[n])), None)
        if found is None:
            there = printed[at] if at < len(printed) and not gap else "no such line"
            return f"'{line.strip()}' is printed as '{there.strip()}'"
        at, gap = found + 1, False
    return "" if gap or at == len(printed) else f"'{printed[at].strip()}' is printed, too"


def same(shown: str, printed: str) -> bool:
    """Whether two lines agree; a shown line that ends in `, ...` is a prefix."""
    a, b = (_LIST.sub(" , ", _MEASURED.sub("MEASURED", line)).split() for line in (shown, printed))
    if a and a[-1] == MORE:
        a, b = a[:-1], b[: len(a) - 1]
    return len(a) == len(b) and all(map(_agree, a, b))


def _agree(a: str, b: str) -> bool:
    if a == b:
        return True
    x, y = _NUMBER.fullmatch(a), _NUMBER.fullmatch(b)
    if x is None or y is None or (x["before"], x["after"]) != (y["before"], y["after"]):
        return False
    if all(m["number"].lstrip("−-").replace(",", "").isdigit() for m in (x, y)):
        return False  # counts
    first, second = (float(m["number"].replace(",", "").replace("−", "-")) for m in (x, y))
    return abs(first - second) <= max(RELATIVE * max(abs(first), abs(second)), ABSOLUTE)


def shortened(shown: Sequence[str], printed: Sequence[str]) -> list[str]:
    """The output, shortened like an older excerpt: the same or similar lines, with `...` between them."""
    if not any(line.strip() == MORE or line.endswith(f", {MORE}") for line in shown):
        return list(printed)
    kept: dict[int, str] = {}
    at = -1
    for line in shown:
        if line.strip() in ("", MORE):
            continue
        free = [n for n, other in enumerate(printed) if n not in kept and other.strip()]
        # Prefer the line after the previous one.
        free = [n for n in free if n > at] + [n for n in free if n < at]
        alike = [n for n in free if same(line, printed[n])]
        alike += [n for n in free if printed[n].split()[0] == line.split()[0]]
        if alike:
            at = alike[0]
            cut = line.endswith(f", {MORE}")
            kept[at] = (
                printed[at][: max(0, printed[at].rfind(", ", 0, len(line)))] + f", {MORE}" if cut else printed[at]
            )
    new: list[str] = []
    last = -1
    for at in [*sorted(kept), len(printed)]:
        between = printed[last + 1 : at]
        new += [MORE] if any(line.strip() for line in between) else list(between)
        new += [kept[at]] if at in kept else []
        last = at
    return new
