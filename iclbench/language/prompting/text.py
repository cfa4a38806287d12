"""The text of prompts, which consists of examples in the template of a card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iclbench.language.tasks.cards import LanguageCard
from iclbench.language.tasks.pools import Example


@dataclass(frozen=True)
class Prompt:
    """A prompt in three consecutive parts.

    Attributes:
        demonstrations: the demonstrations up to the end of the last answer; empty for a prompt without demonstrations.
        query: the separator, followed by the query up to its answer.
        answers: the text of each candidate, including the white space before it. The query therefore does not end with
            a space.
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
    """Write the prompt for the query `x`. The demonstrations are repeated `times` times.

    >>> from iclbench.language.tasks.cards import load_language_card
    >>> _, card = load_language_card("to-upper")
    >>> prompt(card, [Example("a", "A")], "b", ["B"])
    Prompt(demonstrations='example:a->A', query='\\nexample:b->', answers=('B',))
    """
    joined = card.separator.join(example(card, e.x, e.y) for e in list(demonstrations) * times)
    stripped = joined.rstrip()
    separator = joined[len(stripped) :] + card.separator if joined else ""
    query, white_space = _up_to_answer(card, x)
    return Prompt(stripped, separator + query, tuple(white_space + answer for answer in candidates))


def example(card: LanguageCard, x: str, y: str) -> str:
    """Return the text of one example. Braces in `x` and `y` are not placeholders."""
    before, middle, after = _parts(card)
    return f"{before}{x}{middle}{y}{after}"


def ending(card: LanguageCard) -> str:
    """Return the text that follows an answer."""
    return _parts(card)[2] + card.separator


def endings(card: LanguageCard) -> tuple[str, ...]:
    """Return the texts at which generation stops: the text that follows an answer, unless it is empty, and a line
    break."""
    return tuple(dict.fromkeys([*([ending(card)] if ending(card) else []), "\n"]))


def _up_to_answer(card: LanguageCard, x: str) -> tuple[str, str]:
    """Return the text of an example up to its answer, and the white space before the answer."""
    before, middle, _ = _parts(card)
    text = before + x + middle
    stripped = text.rstrip(" ")
    return stripped, text[len(stripped) :]


def _parts(card: LanguageCard) -> tuple[str, str, str]:
    """Return the parts of the template before `{x}`, between `{x}` and `{y}`, and after `{y}`."""
    before, _, rest = card.template.partition("{x}")
    middle, _, after = rest.partition("{y}")
    return before, middle, after
