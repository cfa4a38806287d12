"""Markdown as paragraphs, sentences and the numbers in them, and the quantities that stand in comments below."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

_WORDS = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
    "twenty",
]
# 'one' is a pronoun more often than a number.
WORDS = {word: n for n, word in enumerate(_WORDS) if n > 1} | {"twice": 2}
OPEN, CLOSE = "<!-- numbers", "-->"
_SINGLE = re.compile(rf"{OPEN}: (.*) {CLOSE}")

# What holds digits and is no number that could be another tomorrow: places in papers, years of papers, names (GPT-2,
# S4, k1), targets of links, HTML.
_NAMES = re.compile(
    r"""\]\([^)]*\)|<[^>]*>|https?://\S+
    |\b(?:[Ff]igures?|[Tt]ables?|[Ee]quations?|[Ss]ections?)\s\d+(?:\.\d+)*(?:(?:,|\sand|\sto)\s\d+)*
    |\bet\sal\.(?:'s)?,?\s\(?\d{4}\)?
    |(?<![\w.])[A-Za-z][A-Za-z+-]*-?\d[\w-]*""",
    re.VERBOSE,
)
_TOKEN = re.compile(
    r"(?P<code>`[^`]*`)"
    r"|(?P<version>(?<![\w.])\d+\.\d+\.\d+(?:\.\d+)*)"
    r"|(?P<number>(?:(?<![\w)\]])[−-])?(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e[−-]?\d+)?(?<!,))"
    r"|(?P<word>\b(?:" + "|".join(WORDS) + r")\b)",
    re.IGNORECASE,
)
_END = re.compile(r"(?<=[.?!:])(?:\*{1,2}|[)\"])*\s+(?=(?:- |\d\. )?[\"*(`\[A-Z])|\n(?=- )")


@dataclass(frozen=True)
class Token:
    """A number, a number word, or code in a text.

    Attributes:
        kind: "number", "word", "version" or "code".
        text: as it stands there.
        start: its first letter's place in the text.
    """

    kind: str
    text: str
    start: int

    def must(self, words: int) -> bool:
        """Whether it must be a quantity: all numbers, and number words from this count on."""
        return self.kind in ("number", "version") or (self.kind == "word" and WORDS[self.text.lower()] >= words)

    def shows(self, value: Any) -> bool:
        """Whether this is the value, rounded to the decimals that stand here."""
        if isinstance(value, str):
            return self.kind in ("code", "version") and self.text.strip("`") == value
        return self.kind in ("number", "word") and self.like(value) == self.text

    def takes(self, value: Any) -> bool:
        """Whether another value may have stood here: no name for a number, no count for a measure."""
        if isinstance(value, str):
            return self.kind == "version" and value[:1].isdigit()
        if self.kind == "word":
            return float(value).is_integer() and value >= 0
        return self.kind == "number" and not (isinstance(value, int) and "." in self.text)

    def keeps_sign(self, value: Any) -> bool:
        """Whether the value, written as this number is, has its sign: another one makes another sentence."""
        signs = [text.startswith(("-", "−")) for text in (self.text, self.like(value))]
        return signs[0] == signs[1]

    def like(self, value: Any) -> str:
        """The value, written as this number is."""
        if isinstance(value, str):
            return value
        if self.kind == "word":
            if not (float(value).is_integer() and 1 < value < len(_WORDS)):
                return f"{value:,.{0 if float(value).is_integer() else 2}f}"
            word = self.text if WORDS.get(self.text.lower()) == value else _WORDS[int(value)]
            return word.capitalize() if self.text[0].isupper() else word
        sign, shown = "-" if "-" in self.text else "−", self.text.lstrip("−-")
        mantissa, power, _ = shown.partition("e")
        decimals = len(mantissa.partition(".")[2])
        if power:
            text = re.sub(r"e([+-])0*(\d)", lambda m: f"e{m[1].strip('+')}{m[2]}", f"{float(value):.{decimals}e}")
        else:
            text = f"{round(float(value), decimals) + 0.0:{',' if ',' in shown else ''}.{decimals}f}"
        return text.replace("-", sign)


@dataclass(frozen=True)
class Paragraph:
    """A text that stands between empty lines, and the quantities below it.

    Attributes:
        line: its first line, counted from 1.
        text: its lines.
        quantities: what its comment says, an entry per sentence with numbers; None: it has no comment.
    """

    line: int
    text: str
    quantities: tuple[str, ...] | None

    def sentences(self) -> Iterator[tuple[int, str]]:
        """Start and text of every sentence."""
        start = 0
        for end in [*(m.end() for m in _END.finditer(self.text)), len(self.text)]:
            yield start, self.text[start:end]
            start = end


@dataclass(frozen=True)
class Problem:
    """A sentence that does not hold.

    Attributes:
        where: file and line.
        sentence: its words.
        wrong: what is wrong with it.
    """

    where: str
    sentence: str
    wrong: str

    def __str__(self) -> str:
        return f"{self.where}: “{self.sentence}”: {self.wrong}"


def paragraphs(markdown: str) -> Iterator[Paragraph]:
    """All text but code."""
    lines = markdown.split("\n")
    at = 0
    while at < len(lines):
        if lines[at].startswith("```"):
            at = next(n for n in range(at + 1, len(lines)) if lines[n].startswith("```")) + 1
        elif lines[at].startswith("    ") or not lines[at].strip():
            at += 1
        else:
            start = at
            while at < len(lines) and lines[at].strip() and not lines[at].lstrip().startswith("<!--"):
                at += 1
            text = "\n".join(lines[start:at])
            found = None
            if at < len(lines) and (single := _SINGLE.fullmatch(lines[at].strip())):
                found, at = (single[1],), at + 1
            elif at < len(lines) and lines[at].strip() == OPEN:
                end = next((n for n in range(at, len(lines)) if lines[n].strip() == CLOSE), len(lines))
                found, at = tuple(_entries(lines[at + 1 : end])), end + 1
            elif at < len(lines) and lines[at].lstrip().startswith("<!--"):
                at += 1
            if text:
                yield Paragraph(start + 1, text, found)


def _entries(lines: Sequence[str]) -> Iterator[str]:
    """Lines with those put behind that are indented further."""
    entry: list[str] = []
    margin = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    for line in lines:
        if entry and not line[margin:].startswith(" "):
            yield " ".join(entry)
            entry = []
        entry.append(line.strip())
    if entry:
        yield " ".join(entry)


def tokens(text: str) -> list[Token]:
    """Numbers, number words and code of a text, in order."""
    names = [m.span() for m in _NAMES.finditer(re.sub(r"`[^`]*`", lambda m: "`" + "." * (len(m[0]) - 2) + "`", text))]
    found = [Token(str(m.lastgroup), m[0], m.start()) for m in _TOKEN.finditer(text)]
    return [t for t in found if not any(a <= t.start < b for a, b in names)]


def check(name: str, markdown: str, quantities: Mapping[str, Any], words: int = 2) -> list[Problem]:
    """The sentences of a text that do not hold.

    Args:
        name: the file's.
        markdown: its text.
        quantities: what entries are written in, by name.
        words: from which count on a number word must be a quantity, too, as every number must.
    """
    return [problem for each in paragraphs(markdown) for problem, _ in _compared(name, each, quantities, words)]


def rewritten(markdown: str, quantities: Mapping[str, Any], words: int = 2) -> str:
    """The text with every number that is another as it is computed."""
    lines = markdown.split("\n")
    for paragraph in paragraphs(markdown):
        text = paragraph.text
        found = [change for _, changes in _compared("", paragraph, quantities, words) for change in changes]
        for token, written in sorted(found, key=lambda change: change[0].start, reverse=True):
            text = text[: token.start] + written + text[token.start + len(token.text) :]
        first = paragraph.line - 1
        lines[first : first + text.count("\n") + 1] = text.split("\n")
    return "\n".join(lines)


Change: TypeAlias = tuple[Token, str]


def _compared(
    name: str, paragraph: Paragraph, quantities: Mapping[str, Any], words: int
) -> Iterator[tuple[Problem, list[Change]]]:
    """What is wrong with the sentences of a paragraph, and which other numbers would mend them."""
    stated = []
    for start, sentence in paragraph.sentences():
        own = [Token(t.kind, t.text, start + t.start) for t in tokens(sentence)]
        if any(token.must(words) for token in own):
            stated.append((start, " ".join(sentence.split()), own))
    entries = paragraph.quantities or ()
    if len(entries) != len(stated):
        sentence = stated[len(entries)][1] if len(entries) < len(stated) else " ".join(paragraph.text.split())
        wrong = f"{len(stated)} sentences of this paragraph have numbers, and {len(entries)} lines below it say which"
        yield Problem(f"{name}:{paragraph.line}", sentence, wrong), []
        return
    for (start, sentence, own), entry in zip(stated, entries, strict=True):
        try:
            values = list(_flat(eval(f"({entry},)", {"__builtins__": {}} | dict(quantities))))
        except Exception as error:
            found: list[tuple[str, list[Change]]] = [(f"cannot be computed: {error}", [])]
        else:
            found = list(_matched(own, values, words))
        if found:
            where = f"{name}:{paragraph.line + paragraph.text.count(chr(10), 0, start)}"
            wrong = "; ".join(said for said, _ in found)
            yield Problem(where, sentence, f"{wrong}, by {entry}"), [each for _, changes in found for each in changes]


def _matched(own: Sequence[Token], values: Sequence[Any], words: int) -> Iterator[tuple[str, list[Change]]]:
    """What is wrong with the numbers of a sentence: those that are others, are missing, or are not said to be any."""
    left = list(own)
    for number, value in enumerate(values):
        if isinstance(value, bool):
            if not value:
                yield f"statement {number + 1} of its line is not true", []
            continue
        # Where it may stand: up to the next number that must be one.
        end = next((n for n, token in enumerate(left, 1) if token.must(words)), len(left))
        at = next((n for n, token in enumerate(left[:end]) if token.shows(value)), None)
        if at is not None:
            left = left[at + 1 :]
        elif end and left[end - 1].must(words) and left[end - 1].takes(value):
            token, left = left[end - 1], left[end:]
            known = token.keeps_sign(value)
            said = f"{token.text} is {token.like(value)}" + ("" if known else ", of another sign: rewrite the sentence")
            yield said, [(token, token.like(value))] if known else []
        else:
            yield f"{_short(value)} is not in it", []
    if rest := [token.text for token in left if token.must(words)]:
        yield f"nothing says what {', '.join(rest)} {'is' if len(rest) == 1 else 'are'}", []


def _short(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str) else f"{float(value):.4g}"


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    """Single numbers, names and statements; a mean difference is its three numbers."""
    for value in values:
        if hasattr(value, "low"):
            yield from (value.value, value.low, value.high)
        elif isinstance(value, (list, tuple, set, frozenset)):
            yield from _flat(value)
        elif isinstance(value, (bool, str)):
            yield value
        else:
            yield value.item() if hasattr(value, "item") else value
