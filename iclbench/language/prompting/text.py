"""Prompts as text, from examples and the template of a card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iclbench.language.tasks.cards import LanguageCard
from iclbench.language.tasks.pools import Example


@dataclass(frozen=True)
class Prompt:
    """A prompt in three consecutive parts.

    Attributes:
        demonstrations: all demonstrations, up to the end of the last answer; empty without demonstrations.
        query: the separator, and the query up to the answer.
        answers: the text of each candidate, with the white space before it, so that no prompt ends in a space.
    """

    demonstrations: str
    query: str
    answers: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return self.demonstrations + self.query


def prompt(
    card: LanguageCard, demonstrations: Sequence[Example], x: str, candidates: Sequence[str] = (), times: int = 1
) -> Prompt:
    """The query `x` after the demonstrations, which are written `times` times.

    >>> from iclbench.language.tasks.cards import load_language_card
    >>> _, card = load_language_card("to-upper")
    >>> prompt(card, [Example("a", "A")], "b", ["B"])
    Prompt(demonstrations='example:a->A', query='\\nexample:b->', answers=('B',))
    """
    written = card.separator.join(example(card, e.x, e.y) for e in list(demonstrations) * times)
    head, tail = written.rstrip(), written[len(written.rstrip()) :]
    opening, space = _up_to_answer(card, x)
    between = tail + card.separator if written else ""
    return Prompt(head, between + opening, tuple(space + answer for answer in candidates))


def example(card: LanguageCard, x: str, y: str) -> str:
    """The text of one example; braces in `x` and `y` are not placeholders."""
    before, middle, after = _parts(card)
    return f"{before}{x}{middle}{y}{after}"


def ending(card: LanguageCard) -> str:
    """The text after an answer."""
    return _parts(card)[2] + card.separator


def endings(card: LanguageCard) -> tuple[str, ...]:
    """The texts that end a generated answer: the end of its example, and the end of the line."""
    return tuple(dict.fromkeys([*([ending(card)] if ending(card) else []), "\n"]))


def _up_to_answer(card: LanguageCard, x: str) -> tuple[str, str]:
    """The text of an example up to its answer, and the white space before the answer."""
    before, middle, _ = _parts(card)
    opening = before + x + middle
    head = opening.rstrip(" ")
    return head, opening[len(head) :]


def _parts(card: LanguageCard) -> tuple[str, str, str]:
    """The template before, between and after its two placeholders."""
    before, _, tail = card.template.partition("{x}")
    middle, _, after = tail.partition("{y}")
    return before, middle, after
