"""Deep-Thinking: demonstrations are read several times over, each time after what was kept of them before (Yang et al.,
ACL 2024, "Iterative Forward Tuning Boosts In-Context Learning in Language Models", section 3).

The first pass is an ordinary one; its keys and values are the memory, so that one pass is plain ICL. Every further pass
reads the same tokens after the memory (eq. 3) and moves it towards the present keys and values by the gate eta (eq. 4).
The query runs on what has become of it (eq. 6). No weight changes.

The released code (Yangjiaxi/DeepThinking, `models/meta_optimizer.py`) departs from the paper: momentum 0.9 on what is
moved by, memory and updates in bfloat16, where a step of one hundredth is often none, and the best number of passes is
chosen on the very data that it is then reported on. All of that is `setting="released"`; that its `core.py` cuts the
demonstrations of GPT-2 down to their last 400 tokens is not: here `overlength` says what becomes of long ones. Else
momentum is 0 and memory is kept in float32, whatever the model computes in; the number of passes is fixed or chosen on
a development split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from iclbench.deep_thinking.memory import Memory
from iclbench.deep_thinking.settings import DeepThinking


@dataclass(frozen=True)
class Thought:
    """The memory after so many passes.

    Attributes:
        passes: forward passes so far, from 1.
        memory: what a query runs on, in the precision in which it is added up: cast to the model's when it is put back.
        change: how far the pass wanted to move the memory, |K_t - K~| / |K~| and |V_t - V~| / |V~|, their mean over
            layers, for every sequence; NaN after the first pass, which has nothing to move.
    """

    passes: int
    memory: Memory
    change: Float[Tensor, " B"]


def think(read: Callable[[Memory | None], Memory], settings: DeepThinking, passes: int) -> Iterator[Thought]:
    """The memory after 1, 2, ..., `passes` passes.

    Args:
        read: one pass over the demonstrations after a memory of them (None: after nothing), the present keys and values
            of all layers.
        settings: gate, momentum and precision.
        passes: T.
    """
    current = read(None)
    released = settings.setting == "released"
    precision = torch.bfloat16 if released else torch.promote_types(current.dtype, torch.float32)
    memory, step = current.to(dtype=precision), None
    yield Thought(1, memory, torch.full((memory.batch,), torch.nan, device=memory.keys[0].device))
    for t in range(2, passes + 1):
        current = read(memory.to(dtype=current.dtype))
        towards = current.to(dtype=precision).plus(memory, -1.0)
        change = towards.relative_to(memory)
        step = towards if step is None or not settings.momentum else towards.plus(step, settings.momentum)
        memory = memory.plus(step, settings.eta)
        yield Thought(t, memory, change)
