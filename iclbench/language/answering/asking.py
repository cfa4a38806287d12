"""Asks a model all questions of a prompt set under a method: its replies after every pass over the demonstrations.

Demonstrations are read apart from the queries, those that all questions share once: so Deep-Thinking goes through them,
and plain ICL equals its first pass to the last digit. Prompts without any are read whole, and all prompts of a model
without a memory. The passes of Deep-Thinking are made once for all numbers of them: what was kept after the third of
five is what three passes keep.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from iclbench.deep_thinking.memory import Memory
from iclbench.deep_thinking.methods import Method
from iclbench.deep_thinking.passes import think
from iclbench.language.answering.scoring import AtEnd
from iclbench.language.models.batches import Batches
from iclbench.language.models.model import LanguageModel
from iclbench.language.prompting.tokenised import Question

# The replies to some questions after what is known of their demonstrations: scores of candidates, or tokens.
Reply = Callable[[Sequence[Question], Memory | None, AtEnd | None], Sequence[Any]]


@dataclass
class Round:
    """Replies after a number of passes.

    Attributes:
        replies: one for every question.
        divergence: of the next token's distribution after the prompt, from that of plain ICL, KL(plain || this) in
            nats; NaN where there are no further passes.
        change: how far the last pass wanted to move the memory of the question's demonstrations; NaN after the first.
    """

    replies: list[Any]
    divergence: Float[np.ndarray, " E"]
    change: Float[np.ndarray, " E"]

    @classmethod
    def empty(cls, questions: int) -> Round:
        return cls([None] * questions, np.full(questions, np.nan), np.full(questions, np.nan))


@dataclass
class _Divergence:
    """Divergence of the distributions after the prompts from the first ones it was given."""

    baselines: dict[int, Float[Tensor, " V"]] = field(default_factory=dict)
    values: dict[int, float] = field(default_factory=dict)

    def __call__(self, questions: list[int], next_token: Float[Tensor, "B V"]) -> None:
        next_token = next_token.cpu()
        if any(q not in self.baselines for q in questions):
            self.baselines |= dict(zip(questions, next_token, strict=True))
        # What float32 leaves of a sum of 1 is as much as one step at the usual gate moves.
        baseline, current = (
            t.double().log_softmax(-1) for t in (torch.stack([self.baselines[q] for q in questions]), next_token)
        )
        divergence = (
            torch.nn.functional.kl_div(current, baseline, reduction="none", log_target=True).sum(-1).clamp_min(0)
        )
        self.values |= dict(zip(questions, divergence.tolist(), strict=True))


def ask(
    model: LanguageModel,
    method: Method,
    questions: Sequence[Question],
    reply: Reply,
    batches: Batches,
    *,
    shared: bool,
    wanted: Collection[int],
) -> dict[int, Round]:
    """The replies after each wanted number of passes; a single pass is plain ICL.

    Args:
        model: the model; it remembers where more than one pass is made.
        method: how it takes in the demonstrations.
        questions: tokenised for this method.
        reply: scores or writes.
        batches: how many rows at a time.
        shared: all questions have the same demonstrations.
        wanted: numbers of passes; where 1 is among them, divergences from plain ICL are computed.
    """
    settings = method.settings.thinking()
    rounds = {passes: Round.empty(len(questions)) for passes in sorted(wanted)}
    several = max(wanted) > 1
    lengths = [len(question.demonstrations) for question in questions]

    def thought_over(numbers: list[int], demonstrations: list[tuple[int, ...]]) -> None:
        group = [questions[i] for i in numbers]
        divergence = _Divergence() if several and 1 in wanted else None
        ids = torch.tensor(demonstrations, device=model.device)
        read = reader(model, ids, settings.positions)
        if divergence is not None and settings.setting == "released":  # whose first pass is rounded, plain ICL is not
            reply(group, read(None), divergence)
        for thought in think(read, settings, max(wanted)):
            if thought.passes in rounds:
                replies = reply(group, thought.memory, divergence)
                _note(rounds[thought.passes], numbers, replies, divergence, thought.change)

    def read_each(numbers: list[int]) -> None:
        thought_over(numbers, [questions[i].demonstrations for i in numbers])

    all_numbers = list(range(len(questions)))
    if model.remembers and shared and min(lengths, default=0) > 0:
        thought_over(all_numbers, [questions[0].demonstrations])
    elif several or method.settings.thinks or (model.remembers and min(lengths, default=0) > 0):
        for _ in batches.run(lengths, read_each, equal=True):
            pass
    else:
        _note(rounds[1], all_numbers, reply([question.unsplit() for question in questions], None, None))
    return rounds


def reader(
    model: LanguageModel, ids: Int[Tensor, "B L"], positions: Literal["continue", "reuse"] = "continue"
) -> Callable[[Memory | None], Memory]:
    """One pass of the model over the demonstrations, for `think`."""

    def read(history: Memory | None) -> Memory:
        restart = history is not None and positions == "reuse"
        return model.read(ids, after=history, first=0 if restart else None)

    return read


def _note(
    round_: Round,
    numbers: list[int],
    replies: Sequence[Any],
    divergence: _Divergence | None = None,
    change: Float[Tensor, " n"] | None = None,
) -> None:
    for place, number in enumerate(numbers):
        round_.replies[number] = replies[place]
        if divergence is not None:
            round_.divergence[number] = divergence.values[place]
    if change is not None:
        round_.change[numbers] = change.cpu().numpy()
