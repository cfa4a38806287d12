"""The replies of a model to all questions of a prompt set, after each pass over the demonstrations.

The model reads the demonstrations separately from the queries, so that plain ICL equals the first pass of Deep-Thinking
exactly. Demonstrations that all queries share are read once. Prompts without demonstrations, and all prompts of a model
without a memory, are read as one text. The passes are made only once for all numbers of passes: the memory after three
passes is the same whether or not more passes follow.
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
from iclbench.language.answering.scoring import OnPromptEnd
from iclbench.language.models.batches import Batches
from iclbench.language.models.model import LanguageModel
from iclbench.language.prompting.tokenised import Question

# A function that computes the replies to questions, given a memory of their demonstrations. The reply to a question is
# the list of scores of its candidates, or the generated tokens.
Reply = Callable[[Sequence[Question], Memory | None, OnPromptEnd | None], Sequence[Any]]


@dataclass
class Round:
    """The replies after a number of passes.

    Attributes:
        replies: one reply for each question.
        divergence: KL(plain ICL || this round) of the next-token distribution after the prompt, in nats; NaN if only
            one pass is made.
        change: size of the last update of the memory of the demonstrations; NaN after the first pass.
    """

    replies: list[Any]
    divergence: Float[np.ndarray, " E"]
    change: Float[np.ndarray, " E"]

    @classmethod
    def empty(cls, questions: int) -> Round:
        """Return a round without replies to this number of questions, which `run_rounds` fills in."""
        return cls([None] * questions, np.full(questions, np.nan), np.full(questions, np.nan))


@dataclass
class _Divergence:
    """Computes the divergence of next-token distributions from the first distribution of the same question."""

    baselines: dict[int, Float[Tensor, " V"]] = field(default_factory=dict)
    values: dict[int, float] = field(default_factory=dict)

    def __call__(self, questions: list[int], log_probabilities: Float[Tensor, "B V"]) -> None:
        log_probabilities = log_probabilities.cpu()
        if any(q not in self.baselines for q in questions):
            self.baselines |= dict(zip(questions, log_probabilities, strict=True))
        # Use float64: rounding errors of float32 are as large as the effect of one Deep-Thinking step at the default
        # gate.
        baseline, current = (
            t.double().log_softmax(-1) for t in (torch.stack([self.baselines[q] for q in questions]), log_probabilities)
        )
        divergences = (
            torch.nn.functional.kl_div(current, baseline, reduction="none", log_target=True).sum(-1).clamp_min(0)
        )
        self.values |= dict(zip(questions, divergences.tolist(), strict=True))


def run_rounds(
    model: LanguageModel,
    method: Method,
    questions: Sequence[Question],
    reply: Reply,
    batches: Batches,
    *,
    shared: bool,
    pass_counts: Collection[int],
) -> dict[int, Round]:
    """Compute the replies after each number of passes in `pass_counts`. A single pass is plain ICL.

    Args:
        model: the model. It must support a memory if more than one pass is made.
        method: the method by which the model processes the demonstrations.
        questions: questions, tokenised for this method.
        reply: scores candidates or generates tokens.
        batches: runs the model in batches.
        shared: whether all questions have the same demonstrations.
        pass_counts: numbers of passes. If they include 1 and a larger number, divergences from plain ICL are computed.

    Returns:
        The replies, by number of passes.
    """
    settings = method.settings.pass_settings()
    rounds = {passes: Round.empty(len(questions)) for passes in sorted(pass_counts)}
    has_several_passes = max(pass_counts) > 1
    lengths = [len(question.demonstrations) for question in questions]

    def think_over(numbers: list[int], demonstrations: list[tuple[int, ...]]) -> None:
        group = [questions[i] for i in numbers]
        divergence = _Divergence() if has_several_passes and 1 in pass_counts else None
        ids = torch.tensor(demonstrations, device=model.device)
        read = make_reader(model, ids, settings.positions)
        # In this setting, the first pass is rounded. Plain ICL is not, so its distributions are computed separately.
        if divergence is not None and settings.setting == "released":
            reply(group, read(None), divergence)
        for thought in think(read, settings, max(pass_counts)):
            if thought.passes in rounds:
                replies = reply(group, thought.memory, divergence)
                _record(rounds[thought.passes], numbers, replies, divergence, thought.change)

    def think_over_rows(numbers: list[int]) -> None:
        think_over(numbers, [questions[i].demonstrations for i in numbers])

    all_numbers = list(range(len(questions)))
    if model.has_memory and shared and min(lengths, default=0) > 0:
        think_over(all_numbers, [questions[0].demonstrations])
    elif has_several_passes or method.settings.thinks or (model.has_memory and min(lengths, default=0) > 0):
        for _ in batches.run(lengths, think_over_rows, equal=True):
            pass
    else:
        _record(rounds[1], all_numbers, reply([question.merge_demonstrations() for question in questions], None, None))
    return rounds


def make_reader(
    model: LanguageModel, ids: Int[Tensor, "B L"], positions: Literal["continue", "reuse"] = "continue"
) -> Callable[[Memory | None], Memory]:
    """Return a function for `think` that makes one pass of the model over the demonstrations."""

    def read(history: Memory | None) -> Memory:
        restart = history is not None and positions == "reuse"
        return model.read(ids, after=history, first=0 if restart else None)

    return read


def _record(
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
