"""Greedy generation: append the most probable next token until the answer is complete.

A model that supports a `Memory` reads the prompt once and then one token at a time. All rows of a batch have the same
length, since a memory has no padding. Other models use the cache of transformers' `generate`. A model whose cache
cannot be used reads the complete text again for each new token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from iclbench.deep_thinking.memory import Memory
from iclbench.language.answering.scoring import OnPromptEnd
from iclbench.language.models.batches import Batches, pad_tokens
from iclbench.language.models.checks import check_logits
from iclbench.language.models.model import LanguageModel
from iclbench.language.prompting.tokenised import Question


def generate(
    model: LanguageModel,
    questions: Sequence[Question],
    batches: Batches,
    tokens: int,
    endings: Sequence[str],
    memory: Memory | None = None,
    on_prompt_end: OnPromptEnd | None = None,
) -> list[tuple[int, ...]]:
    """Generate the most probable tokens after each prompt.

    Args:
        model: the model.
        questions: questions without candidates. If `memory` is None, the demonstrations must be part of the query
            (`Question.merge_demonstrations`).
        batches: runs the model in batches.
        tokens: maximum number of tokens. A row is complete earlier if its text contains one of the endings.
        endings: texts that end an answer, in addition to the end tokens of the model.
        memory: memory of the demonstrations, with one row for each question or one row for all.
        on_prompt_end: called with the indices of questions and the log-probabilities of the next token after their
            prompts, unless `model.greedy` generates the tokens.

    Returns:
        The generated tokens of each question.

    Raises:
        NonFiniteError: the largest logit is not finite.
    """
    answers_by_question: list[tuple[int, ...]] = [()] * len(questions)
    rows = [question.continuations[0].ids for question in questions]
    uses_cache = model.can_generate and tokens > 1

    def is_complete(answer: list[int]) -> bool:
        return _is_complete(model, answer, endings)

    def work(row_numbers: list[int]) -> list[list[int]]:
        if uses_cache:
            return model.greedy(torch.tensor([rows[i] for i in row_numbers]), tokens, is_complete)
        row_memory = memory if memory is None or memory.batch == 1 else memory.rows(row_numbers)
        continuation = _MemoryContinuation(model, row_memory) if model.has_memory else _RereadingContinuation(model)
        answers: list[list[int]] = [[] for _ in row_numbers]
        logits = continuation.start([rows[i] for i in row_numbers])
        if on_prompt_end is not None:
            on_prompt_end(row_numbers, logits.log_softmax(-1))
        for number in range(tokens):
            check_logits(logits)
            next_tokens = logits.argmax(-1).tolist()
            for answer, token in zip(answers, next_tokens, strict=True):
                if not is_complete(answer):
                    answer.append(token)
            if number == tokens - 1 or all(map(is_complete, answers)):
                break
            logits = continuation.next_logits(next_tokens)
        return answers

    for row_numbers, answers in batches.run([len(row) for row in rows], work, equal=uses_cache or model.has_memory):
        for i, answer in zip(row_numbers, answers, strict=True):
            answers_by_question[i] = tuple(answer)
    return answers_by_question


def read_up_to(text: str, endings: Sequence[str]) -> str:
    """Return the text before the first ending, without white space around it."""
    positions = [position for ending in endings if (position := text.find(ending)) >= 0]
    return text[: min(positions, default=len(text))].strip()


def _is_complete(model: LanguageModel, answer: list[int], endings: Sequence[str]) -> bool:
    if not answer:
        return False
    if answer[-1] in model.end_tokens:
        return True
    text = model.text(answer)
    return any(ending in text for ending in endings)


class _MemoryContinuation:
    """Continues rows of equal length. The model reads each token once, and a growing memory stores its keys and
    values."""

    def __init__(self, model: LanguageModel, memory: Memory | None) -> None:
        self._model, self._memory = model, memory

    def start(self, rows: list[tuple[int, ...]]) -> Float[Tensor, "B V"]:
        return self._read(torch.tensor(rows, device=self._model.device))

    def next_logits(self, tokens: list[int]) -> Float[Tensor, "B V"]:
        return self._read(torch.tensor(tokens, device=self._model.device)[:, None])

    def _read(self, ids: Int[Tensor, "B T"]) -> Float[Tensor, "B V"]:
        logits, new_memory = self._model.step(ids, self._memory)
        past_memory = None if self._memory is None else self._memory.expand(len(ids))
        self._memory = new_memory if past_memory is None else past_memory.followed_by(new_memory)
        return logits


class _RereadingContinuation:
    """Continues rows of any length. The model reads the complete rows again for each new token."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._rows: list[list[int]] = []

    def start(self, rows: list[tuple[int, ...]]) -> Float[Tensor, "B V"]:
        self._rows = [list(row) for row in rows]
        return self._read()

    def next_logits(self, tokens: list[int]) -> Float[Tensor, "B V"]:
        for row, token in zip(self._rows, tokens, strict=True):
            row.append(token)
        return self._read()

    def _read(self) -> Float[Tensor, "B V"]:
        ids, mask = pad_tokens(self._rows, self._model.device)
        last = mask.sum(1, keepdim=True) - 1
        return self._model.logits(ids, mask, keep=last)[:, 0]
