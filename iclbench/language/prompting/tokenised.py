"""Tokenised prompts, split into demonstrations, query and answer.

A prompt and its answer are tokenised as one text, because a token can extend over the boundary between them. The
positions at which tokens end in the text determine which tokens belong to the demonstrations, the query and the answer.
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
    """The tokens of the query and one candidate, which follow the demonstrations.

    Attributes:
        ids: the tokens.
        start: index of the first token of the answer, which is the first token that extends beyond the prompt. It is
            `len(ids)` if the answer is generated.
    """

    ids: tuple[int, ...]
    start: int

    @property
    def inputs(self) -> tuple[int, ...]:
        """The tokens that the model reads: all tokens except the last token of the answer."""
        return self.ids[: max(self.start, len(self.ids) - 1)]


@dataclass(frozen=True)
class Question:
    """The tokens of one episode.

    Attributes:
        demonstrations: the tokens that are read before the query. They end within the demonstrations and are the same
            for all candidates.
        continuations: one for each candidate, or a single one if the answer is generated.
    """

    demonstrations: tuple[int, ...]
    continuations: tuple[Continuation, ...]

    @property
    def query_length(self) -> int:
        """The maximum number of tokens that the model reads after the demonstrations."""
        return max(len(c.inputs) for c in self.continuations)

    def merge_demonstrations(self) -> Question:
        """Return the same question with the demonstrations as part of the query."""
        return self._split(0)

    def _split(self, length: int) -> Question:
        """Return the same question with only the first `length` tokens as demonstrations. The other tokens of the
        demonstrations become part of the query."""
        query_tokens = self.demonstrations[length:]
        continuations = (Continuation((*query_tokens, *c.ids), c.start + len(query_tokens)) for c in self.continuations)
        return Question(self.demonstrations[:length], tuple(continuations))


def questions(tokenise: Tokenise, prompts: Sequence[Prompt], shared: bool) -> list[Question]:
    """Tokenise prompts.

    Args:
        tokenise: tokenises a text.
        prompts: prompts, with the candidates as answers, or without answers if the answer is generated.
        shared: whether all prompts have the same demonstrations. If so, tokens of the demonstrations that are not the
            same in all prompts become part of the queries.

    Raises:
        DataError: a prompt has no token before its answer.
    """
    tokenised = [_question(tokenise, prompt) for prompt in prompts]
    if shared and tokenised:
        common_length = _common_prefix_length(q.demonstrations for q in tokenised)
        tokenised = [q._split(common_length) for q in tokenised]
    return tokenised


def answer_tokens(tokenise: Tokenise, prompt: Prompt, answer: str) -> tuple[int, bool]:
    """Return the number of tokens of an answer, and whether a model can generate the answer. This is possible if the
    tokens of the prompt are the same with and without the answer."""
    prompt_tokens, full_tokens = tokenise(prompt.text), tokenise(prompt.text + answer)
    start = _count_tokens_within(full_tokens, len(prompt.text))
    return len(full_tokens.ids) - start, full_tokens.ids[:start] == prompt_tokens.ids


def _question(tokenise: Tokenise, prompt: Prompt) -> Question:
    all_tokens = [tokenise(prompt.text + answer) for answer in prompt.answers or ("",)]
    starts = [_count_tokens_within(full_tokens, len(prompt.text)) for full_tokens in all_tokens]
    if min(starts) == 0:
        raise DataError(
            f"the prompt {prompt.text[-40:]!r} has no token before its answer; give a template with text before {{y}}",
            code="bad-value",
        )
    ends = (_count_tokens_within(full_tokens, len(prompt.demonstrations)) for full_tokens in all_tokens)
    length = _common_prefix_length(full_tokens.ids[:end] for full_tokens, end in zip(all_tokens, ends, strict=True))
    # At least one token is left for the query, because it predicts the first token of the answer.
    length = min(length, min(starts) - 1)
    continuations = (Continuation(t.ids[length:], start - length) for t, start in zip(all_tokens, starts, strict=True))
    return Question(all_tokens[0].ids[:length], tuple(continuations))


def _count_tokens_within(tokens: Tokens, characters: int) -> int:
    """Return the number of tokens that end within the first `characters` characters of the text."""
    return sum(1 for _ in takewhile(lambda end: end <= characters, tokens.ends))


def _common_prefix_length(sequences: Iterable[tuple[int, ...]]) -> int:
    """Return the length of the longest common prefix of all sequences. This is the common prefix of the first and the
    last sequence in sorted order."""
    ordered = sorted(sequences)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ordered[0], ordered[-1], strict=False)))
