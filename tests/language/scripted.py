"""A scripted language model: after a prompt that it knows it writes the right answer, letter by letter, so that its
accuracy is 1 by construction. It has a memory, and reads what is put back there."""

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
    """Tokens are characters, after one that opens the text. Keys are these tokens; values count readings: 1 of what was
    read after nothing, and one more than its first slot says of what was read after a memory.

    Attributes:
        known: what it writes after a text with this end.
        only_after: the number of passes over the demonstrations, at eta = 1, after which it knows anything; 0: always.
        rows_at_most: with more rows it is out of memory.
        tokens_read: so far.
    """

    def __init__(
        self,
        known: Mapping[str, str],
        *,
        longest: int | None = None,
        forgets: str = "",
        only_after: int = 0,
        rows_at_most: int = 10**9,
    ) -> None:
        self.known, self.longest, self.forgets, self.only_after = dict(known), longest, forgets, only_after
        self.name, self.identity, self.model_type = "scripted", "0", "scripted"
        self.device, self.dtype, self.ends, self.placed = "cpu", torch.float32, frozenset({0}), True
        self.generates = False
        self.rows_at_most, self.tokens_read = rows_at_most, 0

    def tokens(self, text: str) -> Tokens:
        return Tokens((BOS, *(ord(c) for c in text)), (0, *range(1, len(text) + 1)))

    def text(self, ids: Sequence[int]) -> str:
        return "".join(chr(i) for i in ids if i > BOS)

    def logits(self, ids: Tensor, mask: Tensor, memory: Memory | None = None, keep: Tensor | None = None) -> Tensor:
        if len(ids) > self.rows_at_most:
            raise torch.OutOfMemoryError("scripted")
        self.tokens_read += ids.numel()
        before = (
            [[]] * len(ids) if memory is None else memory.expand(len(ids)).keys[0][:, 0, :, 0].round().int().tolist()
        )
        keep = torch.arange(ids.shape[1]).expand(len(ids), -1) if keep is None else keep
        knows = not self.only_after or (memory is not None and _readings(memory) == self.only_after)
        found = torch.zeros(len(ids), keep.shape[1], 256)
        for row, own in enumerate(ids.tolist()):
            for place, at in enumerate(keep[row].tolist()):
                found[row, place, self._next(self.text([*before[row], *own[: at + 1]])) if knows else 0] = 10.0
        return found

    def step(self, ids: Tensor, after: Memory | None = None, first: int | None = None) -> tuple[Tensor, Memory]:
        last = torch.full((len(ids), 1), ids.shape[1] - 1)
        logits = self.logits(ids, torch.ones_like(ids, dtype=torch.bool), after, last)
        slots = ids[:, None, :, None].float()
        readings = torch.full_like(slots, 1 if after is None else _readings(after) + 1)
        return logits[:, 0], Memory((slots,), (readings,))

    def _next(self, text: str) -> int:
        """The next letter of the known answer that the text ends in; 0 ends every text."""
        ends = ((at + len(end), answer) for end, answer in self.known.items() if (at := text.rfind(end)) >= 0)
        start, answer = max(ends, default=(0, ""))
        written = text[start:]
        return ord(answer[len(written)]) if answer.startswith(written) and len(written) < len(answer) else 0


def right(sets: Iterable[LanguagePrompts], **settings: int | str | None) -> Scripted:
    """One that knows the right answers to all these prompts."""
    known = {}
    for prompts in sets:
        for episode in prompts.drawn:
            alone = prompt(prompts.task.card, (), episode.query.x, [episode.query.y])
            known[alone.query] = alone.answers[0] + "\n"
    return Scripted(known, **settings)  # type: ignore[arg-type]


def _readings(memory: Memory) -> int:
    return round(float(memory.values[0][0, 0, 0, 0]))
