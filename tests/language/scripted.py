"""A scripted language model with a memory. It looks up the correct answers, so its accuracy is 1 by construction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from iclbench.deep_thinking.memory import Memory
from iclbench.language.models.model import LanguageModel
from iclbench.language.models.tokenizing import Tokens
from iclbench.language.prompting.prompts import LanguagePrompts
from iclbench.language.prompting.text import prompt

BOS = 1


class Scripted(LanguageModel):
    """A model with one token per character, after a beginning-of-text token.

    In its memory, keys are tokens, and values count the passes over the demonstrations. The value is 1 for tokens that
    are read without a memory. With a memory, it is one more than the value in the first slot of the memory.

    Attributes:
        answers: the generated answer for each text that a prompt can end with.
        only_after: the number of passes (with eta = 1) after which the model answers (0: always).
        max_rows: the number of rows above which the model runs out of memory.
        tokens_read: the number of tokens that the model has read.

    `longest` and `memory_obstacle` are attributes of `LanguageModel`.
    """

    def __init__(
        self,
        answers: Mapping[str, str],
        *,
        longest: int | None = None,
        memory_obstacle: str = "",
        only_after: int = 0,
        max_rows: int = 10**9,
    ) -> None:
        self.answers, self.longest, self.memory_obstacle, self.only_after = (
            dict(answers),
            longest,
            memory_obstacle,
            only_after,
        )
        self.name, self.identity, self.model_type = "scripted", "0", "scripted"
        self.device, self.dtype, self.end_tokens, self.uses_positions = "cpu", torch.float32, frozenset({0}), True
        self.can_generate = False
        self.max_rows, self.tokens_read = max_rows, 0

    def tokens(self, text: str) -> Tokens:
        return Tokens((BOS, *(ord(c) for c in text)), (0, *range(1, len(text) + 1)))

    def text(self, ids: Sequence[int]) -> str:
        return "".join(chr(i) for i in ids if i > BOS)

    def logits(self, ids: Tensor, mask: Tensor, memory: Memory | None = None, keep: Tensor | None = None) -> Tensor:
        if len(ids) > self.max_rows:
            raise torch.OutOfMemoryError("scripted")
        self.tokens_read += ids.numel()
        memory_ids = (
            [[]] * len(ids) if memory is None else memory.expand(len(ids)).keys[0][:, 0, :, 0].round().int().tolist()
        )
        keep = torch.arange(ids.shape[1]).expand(len(ids), -1) if keep is None else keep
        is_answering = not self.only_after or (memory is not None and passes_of(memory) == self.only_after)
        logits = torch.zeros(len(ids), keep.shape[1], 256)
        for row, row_ids in enumerate(ids.tolist()):
            for index, position in enumerate(keep[row].tolist()):
                text = self.text([*memory_ids[row], *row_ids[: position + 1]])
                logits[row, index, self._next(text) if is_answering else 0] = 10.0
        return logits

    def step(self, ids: Tensor, after: Memory | None = None, first: int | None = None) -> tuple[Tensor, Memory]:
        last = torch.full((len(ids), 1), ids.shape[1] - 1)
        logits = self.logits(ids, torch.ones_like(ids, dtype=torch.bool), after, last)
        slots = ids[:, None, :, None].float()
        readings = torch.full_like(slots, 1 if after is None else passes_of(after) + 1)
        return logits[:, 0], Memory((slots,), (readings,))

    def _next(self, text: str) -> int:
        """Return the next character of the answer to the last known prompt in the text, or 0, the end-of-text token."""
        ends = ((at + len(end), answer) for end, answer in self.answers.items() if (at := text.rfind(end)) >= 0)
        start, answer = max(ends, default=(0, ""))
        written = text[start:]
        return ord(answer[len(written)]) if answer.startswith(written) and len(written) < len(answer) else 0


def correct_model(sets: Iterable[LanguagePrompts], **settings: int | str | None) -> Scripted:
    """Return a scripted model with the correct answers to all these prompts."""
    answers = {}
    for prompts in sets:
        for episode in prompts.drawn_episodes:
            query_prompt = prompt(prompts.task.card, (), episode.query.x, [episode.query.y])
            answers[query_prompt.query] = query_prompt.answers[0] + "\n"
    return Scripted(answers, **settings)  # type: ignore[arg-type]


def passes_of(memory: Memory) -> int:
    return round(float(memory.values[0][0, 0, 0, 0]))
