"""Prompts in tokens: what is read once, and what is asked after it.

Prompt and answer are tokenised as one text, since a tokenizer may join what stands on both sides of a seam; where the
demonstrations end and where the answer begins is read off the characters at which tokens end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from iclbench.core.errors import DataError
from iclbench.language.models.tokenizing import Tokens
from iclbench.language.prompting.text import Prompt

# A text in tokens: `LanguageModel.tokens`.
Tokenise = Callable[[str], Tokens]


@dataclass(frozen=True)
class Continuation:
    """What follows the demonstrations, for one candidate: the query and the answer.

    Attributes:
        ids: its tokens.
        start: where the answer begins: with the first token that reaches beyond the prompt; behind the last where the
            answer is free.
    """

    ids: tuple[int, ...]
    start: int

    @property
    def inputs(self) -> tuple[int, ...]:
        """What the model has to read: nothing is asked behind the last token of an answer."""
        return self.ids[: max(self.start, len(self.ids) - 1)]


@dataclass(frozen=True)
class Question:
    """One episode in tokens.

    Attributes:
        demonstrations: what is read before the query; the tokens that end within the demonstrations, and that begin all
            continuations alike.
        continuations: one for every candidate; a single one where the answer is free.
    """

    demonstrations: tuple[int, ...]
    continuations: tuple[Continuation, ...]

    @property
    def query_length(self) -> int:
        """Tokens to be read after the demonstrations, at most."""
        return max(len(c.inputs) for c in self.continuations)

    def unsplit(self) -> Question:
        """The same with nothing read beforehand."""
        return self._split(0)

    def _split(self, length: int) -> Question:
        """The same with so many tokens, at most as many as now, in the demonstrations."""
        moved = self.demonstrations[length:]
        later = (Continuation((*moved, *c.ids), c.start + len(moved)) for c in self.continuations)
        return Question(self.demonstrations[:length], tuple(later))


def questions(tokens: Tokenise, prompts: Sequence[Prompt], shared: bool) -> list[Question]:
    """The prompts in tokens.

    Args:
        tokens: of the model.
        prompts: with answers: their candidates are scored; without: the answer is free.
        shared: all have the same demonstrations; they are cut back to the tokens that are the same for all.

    Raises:
        DataError: a prompt has no token before the answer, which then cannot be asked for.
    """
    tokenised = [_question(tokens, prompt) for prompt in prompts]
    if shared and tokenised:
        common = _common(q.demonstrations for q in tokenised)
        tokenised = [q._split(common) for q in tokenised]
    return tokenised


def answer_tokens(tokens: Tokenise, prompt: Prompt, answer: str) -> tuple[int, bool]:
    """How many tokens this answer to the prompt has, and whether they follow the prompt's own tokens: a model that is
    given the prompt can then write them one by one."""
    prompt_tokens, full_tokens = tokens(prompt.text), tokens(prompt.text + answer)
    start = _reach(full_tokens, len(prompt.text))
    return len(full_tokens.ids) - start, full_tokens.ids[:start] == prompt_tokens.ids


def _question(tokens: Tokenise, prompt: Prompt) -> Question:
    texts = [tokens(prompt.text + answer) for answer in prompt.answers or ("",)]
    starts = [_reach(text, len(prompt.text)) for text in texts]
    if min(starts) == 0:
        raise DataError(f"the prompt {prompt.text[-40:]!r} has no token before its answer; give a template that begins")
    # The last token before the answer is asked for the answer's first: it is never only read.
    ends = (_reach(text, len(prompt.demonstrations)) for text in texts)
    length = _common(text.ids[:end] for text, end in zip(texts, ends, strict=True))
    length = min(length, min(starts) - 1)  # the last one is asked for the answer, never only read
    continuations = (Continuation(t.ids[length:], start - length) for t, start in zip(texts, starts, strict=True))
    return Question(texts[0].ids[:length], tuple(continuations))


def _reach(tokens: Tokens, characters: int) -> int:
    """How many tokens end within so many characters."""
    return sum(1 for _ in takewhile(lambda end: end <= characters, tokens.ends))


def _common(sequences: Iterable[tuple[int, ...]]) -> int:
    """Length of the longest common beginning: that of the first and the last in order."""
    ordered = sorted(sequences)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ordered[0], ordered[-1], strict=False)))
