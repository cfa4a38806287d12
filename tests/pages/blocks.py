"""The code blocks of a page."""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterator
from dataclasses import dataclass

_FENCE = re.compile(r"(?P<margin> *)(?P<fence>```+)(?:\{code-block\} *)?(?P<language>[\w-]*)$")
_MARK = re.compile(r"<!-- (?P<mark>long|not run): ?(?P<reason>.*?) ?-->|<!-- (?P<bare>long) -->")


@dataclass(frozen=True)
class Command:
    """A command of a console block, and the output that the page shows.

    Attributes:
        text: the command without a trailing comment.
        output: the lines below the command.
        line: the index of the first of these lines in the page.
    """

    text: str
    output: tuple[str, ...]
    line: int


@dataclass(frozen=True)
class Block:
    """A fenced code block.

    Attributes:
        language: `console`, `python`, `toml`, ...
        lines: the lines between the fences.
        line: the index of the first of these lines in the page.
        caption: the name of the file that the block defines, or "".
        mark: "long" or "not run", from an HTML comment above the block, or "" without a comment.
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
        """Yield the commands of a console block."""
        starts = [n for n, line in enumerate(self.lines) if line.startswith("$ ")]
        for start, end in zip(starts, [*starts[1:], len(self.lines)], strict=True):
            text = re.sub(r"\s+# .*", "", self.lines[start][2:])
            index = start + 1
            while text.endswith("\\"):
                text = text[:-1] + self.lines[index].strip()
                index += 1
            yield Command(text, self.lines[index:end], self.line + index)

    def examples(self) -> list[doctest.Example]:
        """Return the examples of a Python block with `>>>`."""
        return doctest.DocTestParser().get_examples(self.text)


def blocks(markdown: str) -> Iterator[Block]:
    """Yield all fenced code blocks in order, except Sphinx directives."""
    lines = markdown.split("\n")
    index = 0
    while index < len(lines):
        if not (fence := _FENCE.match(lines[index])):
            other_fence = re.match(r" *(```+)", lines[index])
            index = _closing_fence(lines, index + 1, other_fence[1]) + 1 if other_fence else index + 1
            continue
        start, end = index + 1, _closing_fence(lines, index + 1, fence["fence"])
        caption = ""
        while option := re.match(r"\s*:(\w+): (.*)", lines[start]):
            caption, start = option[2] if option[1] == "caption" else caption, start + 1
        start += bool(start > index + 1 and not lines[start].strip())
        above = next((line for line in reversed(lines[:index]) if line.strip()), "")
        mark = _MARK.fullmatch(above.strip())
        margin = len(fence["margin"])
        yield Block(
            fence["language"],
            tuple(line[margin:] for line in lines[start:end]),
            start,
            caption,
            (mark["mark"] or mark["bare"]) if mark else "",
        )
        index = end + 1


def _closing_fence(lines: list[str], start: int, fence: str) -> int:
    """Return the index of the closing fence, or of the last line if the fence is missing."""
    return next((n for n in range(start, len(lines)) if lines[n].strip() == fence), len(lines) - 1)
