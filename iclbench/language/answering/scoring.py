"""Scores of candidates: the sum of the log-probabilities of their tokens after the prompt.

The Deep-Thinking paper describes the score as the sum of the token probabilities, but its code, like ours, sums their
logarithms. Candidates share rows of a batch if possible: all candidates of one token share a row, and a candidate that
is a prefix of another candidate shares the row of the longer one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from torch import Tensor

from iclbench.deep_thinking.memory import Memory
from iclbench.language.models.batches import Batches, pad_positions, pad_tokens
from iclbench.language.models.model import LanguageModel
from iclbench.language.prompting.tokenised import Question

# Called with the indices of questions and the log-probabilities of the next token after their prompts.
OnPromptEnd = Callable[[list[int], Float[Tensor, "B V"]], None]


@dataclass(frozen=True)
class _Row:
    """The input tokens of one or several candidates of a question. Logits are needed from position `first` on."""

    question: int
    inputs: tuple[int, ...]
    first: int
    candidates: tuple[int, ...]


def candidate_scores(
    model: LanguageModel,
    questions: Sequence[Question],
    batches: Batches,
    memory: Memory | None = None,
    on_prompt_end: OnPromptEnd | None = None,
) -> list[Float[np.ndarray, " candidates"]]:
    """Compute the summed log-probability of each candidate of each question.

    Args:
        model: the model.
        questions: the questions. If `memory` is None, the demonstrations must be part of the query
            (`Question.merge_demonstrations`).
        batches: runs the model in batches.
        memory: memory of the demonstrations, with one row for each question or one row for all.
        on_prompt_end: called with the indices of questions and the log-probabilities of the next token after their
            prompts.
    """
    rows = [row for number, question in enumerate(questions) for row in _rows(number, question)]
    sums = [np.zeros(len(question.continuations)) for question in questions]

    def work(numbers_of_rows: list[int]) -> list[tuple[int, int, float]]:
        batch_rows = [rows[i] for i in numbers_of_rows]
        numbers = [row.question for row in batch_rows]
        ids, mask = pad_tokens([row.inputs for row in batch_rows], model.device)
        keep = pad_positions([range(row.first, len(row.inputs)) for row in batch_rows], model.device)
        row_memory = memory if memory is None or memory.batch == 1 else memory.rows(numbers)
        logits = model.logits(ids, mask, row_memory, keep)
        normaliser = logits.logsumexp(-1)
        if on_prompt_end is not None:
            first_candidates = [(b, r.question, r.first) for b, r in enumerate(batch_rows) if 0 in r.candidates]
            positions = [questions[q].continuations[0].start - 1 - first for _, q, first in first_candidates]
            batch_index = [b for b, _, _ in first_candidates]
            if batch_index:
                on_prompt_end(
                    [q for _, q, _ in first_candidates],
                    logits[batch_index, positions] - normaliser[batch_index, positions, None],
                )
        wanted_logits = [
            (number, candidate, batch, place - row.first, token)
            for batch, (number, row) in enumerate(zip(numbers, batch_rows, strict=True))
            for candidate in row.candidates
            for place, token in _answer_tokens(questions[number], candidate)
        ]
        row_index, place_index, tokens = ([a[column] for a in wanted_logits] for column in (2, 3, 4))
        log_probabilities = (logits[row_index, place_index, tokens] - normaliser[row_index, place_index]).tolist()
        return [
            (number, candidate, value)
            for (number, candidate, *_), value in zip(wanted_logits, log_probabilities, strict=True)
        ]

    for _, log_probabilities in batches.run([len(row.inputs) for row in rows], work):
        for number, candidate, value in log_probabilities:
            sums[number][candidate] += value
    return sums


def _rows(number: int, question: Question) -> list[_Row]:
    """Return the smallest set of rows that covers all candidates of a question, longest row first. A candidate that is
    a prefix of another candidate shares the row of the longer one."""
    by_length = sorted(range(len(question.continuations)), key=lambda c: -len(question.continuations[c].inputs))
    candidates_by_inputs: dict[tuple[int, ...], list[int]] = {}
    for candidate in by_length:
        inputs = question.continuations[candidate].inputs
        row_inputs = next((longer for longer in candidates_by_inputs if longer[: len(inputs)] == inputs), inputs)
        candidates_by_inputs.setdefault(row_inputs, []).append(candidate)
    return [
        _Row(number, inputs, min(question.continuations[c].start for c in candidates) - 1, tuple(candidates))
        for inputs, candidates in candidates_by_inputs.items()
    ]


def _answer_tokens(question: Question, candidate: int) -> list[tuple[int, int]]:
    """Return the tokens of a candidate, each as a pair: the position whose logits predict the token, and the token."""
    continuation = question.continuations[candidate]
    return [(place - 1, continuation.ids[place]) for place in range(continuation.start, len(continuation.ids))]
