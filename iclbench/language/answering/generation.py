"""Greedy generation: append the most probable next token until the answer is complete.

A model that supports our memory reads the prompt once and then one token at a time. A memory has no padding, so all
rows of a batch have the same length. Other models use the cache of transformers' `generate`. A model without a usable
cache reads the complete text for each token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from iclbench.deep_thinking.memory import Memory
from iclbench.language.answering.scoring import AtEnd
from iclbench.language.models.batches import Batches, padded
from iclbench.language.models.checks import choosable
from iclbench.language.models.model import LanguageModel
from iclbench.language.prompting.tokenised import Question


def generate(
    model: LanguageModel,
    questions: Sequence[Question],
    batches: Batches,
    tokens: int,
    endings: Sequence[str],
    memory: Memory | None = None,
    at_end: AtEnd | None = None,
) -> list[tuple[int, ...]]:
    """Generate the most probable tokens after each prompt.

    Args:
        model: the model.
        questions: questions without candidates. Without a memory, demonstrations must be part of the query
            (`Question.merge_demonstrations`).
        batches: sizes of the batches.
        tokens: maximum number of tokens; a row ends earlier with the first token that completes an ending.
        endings: texts that end an answer; the end tokens of the model end it, too.
        memory: memory of the demonstrations, one per question or one for all.
        at_end: called with the log-probabilities of the next token after the prompts.

    Raises:
        NonFiniteError: the largest logit is not finite.
    """
    answers_by_question: list[tuple[int, ...]] = [()] * len(questions)
    rows = [question.continuations[0].ids for question in questions]
    cached = model.generates and tokens > 1

    def ended(answer: list[int]) -> bool:
        return _ended(model, answer, endings)

    def work(picked: list[int]) -> list[list[int]]:
        if cached:
            return model.greedy(torch.tensor([rows[i] for i in picked]), tokens, ended)
        row_memory = memory if memory is None or memory.batch == 1 else memory.rows(picked)
        continuation = _Remembered(model, row_memory) if model.remembers else _Reread(model)
        answers: list[list[int]] = [[] for _ in picked]
        logits = continuation.start([rows[i] for i in picked])
        if at_end is not None:
            at_end(picked, logits.log_softmax(-1))
        for number in range(tokens):
            choosable(logits)
            next_tokens = logits.argmax(-1).tolist()
            for answer, token in zip(answers, next_tokens, strict=True):
                if not ended(answer):
                    answer.append(token)
            if number == tokens - 1 or all(map(ended, answers)):
                break
            logits = continuation.go_on(next_tokens)
        return answers

    for picked, answers in batches.run([len(row) for row in rows], work, equal=cached or model.remembers):
        for i, answer in zip(picked, answers, strict=True):
            answers_by_question[i] = tuple(answer)
    return answers_by_question


def read_up_to(text: str, endings: Sequence[str]) -> str:
    """The text up to the first ending, without white space around it."""
    places = [place for ending in endings if (place := text.find(ending)) >= 0]
    return text[: min(places, default=len(text))].strip()


def _ended(model: LanguageModel, answer: list[int], endings: Sequence[str]) -> bool:
    if not answer:
        return False
    if answer[-1] in model.end_tokens:
        return True
    text = model.text(answer)
    return any(ending in text for ending in endings)


class _Remembered:
    """Rows of one length that are cached in a growing memory."""

    def __init__(self, model: LanguageModel, memory: Memory | None) -> None:
        self._model, self._memory = model, memory

    def start(self, rows: list[tuple[int, ...]]) -> Float[Tensor, "B V"]:
        return self._read(torch.tensor(rows, device=self._model.device))

    def go_on(self, tokens: list[int]) -> Float[Tensor, "B V"]:
        return self._read(torch.tensor(tokens, device=self._model.device)[:, None])

    def _read(self, ids: Int[Tensor, "B T"]) -> Float[Tensor, "B V"]:
        logits, present = self._model.step(ids, self._memory)
        before = None if self._memory is None else self._memory.expand(len(ids))
        self._memory = present if before is None else before.followed_by(present)
        return logits


class _Reread:
    """Rows of tokens that the model reads completely for each new token."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._rows: list[list[int]] = []

    def start(self, rows: list[tuple[int, ...]]) -> Float[Tensor, "B V"]:
        self._rows = [list(row) for row in rows]
        return self._read()

    def go_on(self, tokens: list[int]) -> Float[Tensor, "B V"]:
        for row, token in zip(self._rows, tokens, strict=True):
            row.append(token)
        return self._read()

    def _read(self) -> Float[Tensor, "B V"]:
        ids, mask = padded(self._rows, self._model.device)
        last = mask.sum(1, keepdim=True) - 1
        return self._model.logits(ids, mask, keep=last)[:, 0]
