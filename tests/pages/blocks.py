"""The blocks of a page."""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterator
from dataclasses import dataclass

_FENCE = re.compile(r"(?P<margin> *)(?P<fence>```+)(?:\{code-block\} *)?(?P<language>[\w-]*)$")
_MARK = re.compile(r"<!-- (?P<mark>long|not run): ?(?P<reason>.*?) ?-->|<!-- (?P<bare>long) -->")


@dataclass(frozen=True)
class Command:
    """One command of a block and its shown output.

    Attributes:
        text: the command, without a comment after `#`.
        shown: the lines below the command.
        line: the number of the first of these lines, from 0.
    """

    text: str
    shown: tuple[str, ...]
    line: int


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        language: `console`, `python`, `toml`, ...
        lines: the contents of the block.
        line: the number of the first of these lines, from 0.
        caption: the name of the file, if the block is a file.
        mark: "long", "not run" or empty.
    """

    language: str
    lines: tuple[str, ...]
    line: int
    caption: str = ""
    mark: str = ""

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    def commands(self) -> Iterator[Command]:
        """The commands of a console block."""
        starts = [n for n, line in enumerate(self.lines) if line.startswith("$ ")]
        for start, end in zip(starts, [*starts[1:], len(self.lines)], strict=True):
            text = re.sub(r"\s+# .*", "", self.lines[start][2:])
            at = start + 1
            while text.endswith("\\"):
                text = text[:-1] + self.lines[at].strip()
                at += 1
            yield Command(text, self.lines[at:end], self.line + at)

    def examples(self) -> list[doctest.Example]:
        """The expressions of a Python block with `>>>`."""
        return doctest.DocTestParser().get_examples(self.text)


def blocks(markdown: str) -> Iterator[Block]:
    """All fenced blocks of code, in order, without directives of Sphinx."""
    lines = markdown.split("\n")
    at = 0
    while at < len(lines):
        if not (fence := _FENCE.match(lines[at])):
            inside = re.match(r" *(```+)", lines[at])
            at = _end(lines, at + 1, inside[1]) + 1 if inside else at + 1
            continue
        start, end = at + 1, _end(lines, at + 1, fence["fence"])
        caption = ""
        while option := re.match(r"\s*:(\w+): (.*)", lines[start]):
            caption, start = option[2] if option[1] == "caption" else caption, start + 1
        start += bool(start > at + 1 and not lines[start].strip())
        above = next((line for line in reversed(lines[:at]) if line.strip()), "")
        mark = _MARK.fullmatch(above.strip())
        margin = len(fence["margin"])
        yield Block(
            fence["language"],
            tuple(line[margin:] for line in lines[start:end]),
            start,
            caption,
            (mark["mark"] or mark["bare"]) if mark else "",
        )
        at = end + 1


def _end(lines: list[str], start: int, fence: str) -> int:
    return next((n for n in range(start, len(lines)) if lines[n].strip() == fence), len(lines) - 1)
