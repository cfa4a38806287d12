"""Tokenised prompts, split into demonstrations, query and answer.

Prompt and answer are tokenised as one text, because a token can cross the boundary between them. The characters at
which tokens end determine where the demonstrations end and the answer begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from iclbench.core.errors import DataError
from iclbench.language.models.tokenizing import Tokens
from iclbench.language.prompting.text import Prompt

# Signature of `LanguageModel.tokens`.
Tokenise = Callable[[str], Tokens]


@dataclass(frozen=True)
class Continuation:
    """The tokens after the demonstrations for one candidate: query and answer.

    Attributes:
        ids: the tokens.
        start: index of the first token of the answer, the first that extends beyond the prompt; `len(ids)` if the
            answer is generated.
    """

    ids: tuple[int, ...]
    start: int

    @property
    def inputs(self) -> tuple[int, ...]:
        """The tokens that the model reads: all but the last token of the answer."""
        return self.ids[: max(self.start, len(self.ids) - 1)]


@dataclass(frozen=True)
class Question:
    """One episode in tokens.

    Attributes:
        demonstrations: the tokens that are read before the query: those that end within the demonstrations and are the
            same for all candidates.
        continuations: one for each candidate; a single one if the answer is generated.
    """

    demonstrations: tuple[int, ...]
    continuations: tuple[Continuation, ...]

    @property
    def query_length(self) -> int:
        """The maximum number of tokens after the demonstrations."""
        return max(len(c.inputs) for c in self.continuations)

    def merge_demonstrations(self) -> Question:
        """The same question with the demonstrations as part of the query."""
        return self._split(0)

    def _split(self, length: int) -> Question:
        """The same question with only the first `length` tokens as demonstrations."""
        query_tokens = self.demonstrations[length:]
        continuations = (Continuation((*query_tokens, *c.ids), c.start + len(query_tokens)) for c in self.continuations)
        return Question(self.demonstrations[:length], tuple(continuations))


def questions(tokenise: Tokenise, prompts: Sequence[Prompt], shared: bool) -> list[Question]:
    """Tokenise prompts.

    Args:
        tokenise: tokenises a text.
        prompts: prompts with answers (candidates) or without answers (the answer is generated).
        shared: whether all prompts have the same demonstrations. If so, these are cut to the tokens common to all.

    Raises:
        DataError: a prompt has no token before its answer.
    """
    tokenised = [_question(tokenise, prompt) for prompt in prompts]
    if shared and tokenised:
        common_length = _common_prefix_length(q.demonstrations for q in tokenised)
        tokenised = [q._split(common_length) for q in tokenised]
    return tokenised


def answer_tokens(tokenise: Tokenise, prompt: Prompt, answer: str) -> tuple[int, bool]:
    """The number of tokens of this answer, and whether the tokens of the prompt do not change when the answer follows,
    so that a model can generate it."""
    prompt_tokens, full_tokens = tokenise(prompt.text), tokenise(prompt.text + answer)
    start = _count_tokens_within(full_tokens, len(prompt.text))
    return len(full_tokens.ids) - start, full_tokens.ids[:start] == prompt_tokens.ids


def _question(tokenise: Tokenise, prompt: Prompt) -> Question:
    full_texts = [tokenise(prompt.text + answer) for answer in prompt.answers or ("",)]
    starts = [_count_tokens_within(full_text, len(prompt.text)) for full_text in full_texts]
    if min(starts) == 0:
        raise DataError(
            f"the prompt {prompt.text[-40:]!r} has no token before its answer; give a template with text before {{y}}",
            code="bad-value",
        )
    ends = (_count_tokens_within(full_text, len(prompt.demonstrations)) for full_text in full_texts)
    length = _common_prefix_length(full_text.ids[:end] for full_text, end in zip(full_texts, ends, strict=True))
    length = min(length, min(starts) - 1)  # the last token before the answer predicts its first token
    continuations = (Continuation(t.ids[length:], start - length) for t, start in zip(full_texts, starts, strict=True))
    return Question(full_texts[0].ids[:length], tuple(continuations))


def _count_tokens_within(tokens: Tokens, characters: int) -> int:
    """The number of tokens that end within the first `characters` characters."""
    return sum(1 for _ in takewhile(lambda end: end <= characters, tokens.ends))


def _common_prefix_length(sequences: Iterable[tuple[int, ...]]) -> int:
    """Length of the longest common prefix, which is that of the first and the last sequence in sorted order."""
    ordered = sorted(sequences)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ordered[0], ordered[-1], strict=False)))
