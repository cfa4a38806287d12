"""Checks that apply to all commands. Each check returns a list of complaints, which is empty on success."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from html.parser import HTMLParser
from pathlib import Path

from tests.hostile.process import Outcome

CODES = frozenset({0, 1, 2, 130})
# The longest permitted line on stderr, in characters. Paths may be long, but quoted inputs are shortened.
LONGEST = 900
_FAILED = re.compile(r"^error: ", re.MULTILINE)


def check_outcome(outcome: Outcome, codes: Collection[int] = CODES) -> list[str]:
    """Check that the exit code is one of `codes`, that a failure is reported in one line, and that the output has no
    traceback, no "this is a bug" and no control characters."""
    if outcome.hung:
        return [f"hangs: still running after {outcome.seconds:.0f} s; last output {outcome.last!r}"]
    output, errors = outcome.out + outcome.err, len(_FAILED.findall(outcome.err))
    complaints = []
    if outcome.code not in codes:
        complaints.append(f"exit code {outcome.code}, expected {sorted(codes)}: {outcome.last[:300]!r}")
    if "Traceback (most recent call last)" in output:
        complaints.append(f"traceback: {outcome.last[:300]!r}")
    if "this is a bug" in output:
        complaints.append(f"'this is a bug': {outcome.last[:300]!r}")
    if errors > 1 or (outcome.code == 2 and errors != 1):
        complaints.append(
            f"exit code {outcome.code} with {errors} lines of 'error:', expected 1: {outcome.err[-300:]!r}"
        )
    if outcome.code == 1 and not output.strip():
        complaints.append("exit code 1 without output")
    if outcome.code == 130 and not any(line.startswith("interrupted") for line in outcome.err.splitlines()):
        complaints.append(f"exit code 130 without 'interrupted': {outcome.last[:300]!r}")
    long_lines = [line for line in outcome.err.splitlines() if len(line) > LONGEST]
    if long_lines:
        complaints.append(f"a line of {len(long_lines[0])} characters on stderr: {long_lines[0][:100]!r}...")
    control_characters = {c for c in output if not c.isprintable() and c not in "\n\t\r"}
    if control_characters:
        complaints.append(f"control characters reach the terminal: {sorted(control_characters)!r}")
    return complaints


def contents(folder: Path, pattern: str = "**/*") -> dict[str, bytes]:
    """Return the contents of all regular files below a folder."""
    paths = (path for path in folder.glob(pattern) if path.is_file() and not path.is_symlink())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def value_tables(results: Path) -> dict[str, bytes]:
    return contents(results, "tables/**/*.values.parquet")


def check_same_numbers(
    expected: Mapping[str, bytes],
    actual: Mapping[str, bytes],
    damaged: Mapping[str, bytes] | None = None,
    complete: bool = True,
) -> list[str]:
    """Check that value tables are equal byte for byte, or have the bytes in `damaged`. If `complete`, none may be
    missing.
    """
    complaints = []
    for name, content in expected.items():
        if name not in actual:
            complaints += [f"{name} is missing"] * complete
        elif actual[name] != content and actual[name] != (damaged or {}).get(name):
            complaints.append(f"{name} has different numbers")
    return complaints[:5]


def check_unchanged(
    before: Mapping[str, bytes], after: Mapping[str, bytes], names: Iterable[str] | None = None
) -> list[str]:
    """Check that the files with these names (default: all files) are unchanged."""
    checked_names = before if names is None else names
    return [
        f"{name} is {'changed' if name in after else 'lost'}"
        for name in checked_names
        if after.get(name) != before[name]
    ][:5]


def check_no_temporary_files(results: Path) -> list[str]:
    """Check that no temporary files remain."""
    return [f"{path.name} remains" for path in results.rglob("*.tmp")][:3]


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.injections = list[str]()
        self._tag = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._tag = tag
        for name, value in attrs:
            active = name.startswith("on") or (value or "").strip().lower().startswith("javascript:")
            if active and "canary" in (value or ""):
                self.injections.append(f"<{tag} {name}={value!r}>")
            if (
                name in ("src", "href")
                and "canary" in (value or "")
                and not (value or "").startswith(("#", "tables/", "figures/"))
            ):
                self.injections.append(f"<{tag} {name}={value!r}>")
        if tag == "canary":
            self.injections.append("<canary>")

    def handle_data(self, data: str) -> None:
        if self._tag == "script" and data.strip().startswith("canary"):
            self.injections.append(f"<script>{data[:40]}")


def check_page(html: Path) -> list[str]:
    """Check that the report has no tag, handler or script from a hostile name."""
    parser = _Page()
    parser.feed(html.read_text(encoding="utf-8"))
    return [f"injected: {code}" for code in parser.injections[:3]]


def check_formulas(folder: Path) -> list[str]:
    """Check that no cell of an exported table is a formula for a spreadsheet."""
    import csv

    for path in folder.rglob("*.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.reader(file):
                for cell in row:
                    if (cell[:1] in "=@\t\r" and cell) or (cell[:1] in "+-" and "canary" in cell):
                        return [f"{path.name} contains the formula {cell[:60]!r}"]
    return []
