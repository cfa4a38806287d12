"""Deep-Thinking: several passes over the demonstrations, each of which attends to the memory of the previous passes
(Yang et al., ACL 2024, "Iterative Forward Tuning Boosts In-Context Learning in Language Models", section 3).

The keys and values of the first pass are the memory, so one pass is plain ICL. Every further pass reads the same tokens
after the memory (equation 3). The memory then moves towards the keys and values of this pass by the fraction eta, the
gate (equation 4). The query is answered from the final memory (equation 6). The weights do not change.

The released code (Yangjiaxi/DeepThinking, `models/meta_optimizer.py`) differs from the paper: it uses momentum 0.9,
computes memory and updates in bfloat16, in which a step of 0.01 is often rounded to zero, and selects the best number
of passes on the evaluation data. `setting="released"` does the same, with one exception: `core.py` of the released code
cuts the demonstrations of GPT-2 to their last 400 tokens, while here `overlength` determines the treatment of long
demonstrations. With `setting="paper"`, momentum is 0 by default, the memory is in float32 even if the model has a lower
precision, and the number of passes is fixed or selected on a development split.
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
    """The memory after a number of passes.

    Attributes:
        passes: number of forward passes so far, starting from 1.
        memory: the memory for queries, in the precision of the updates; queries cast it to the model's precision.
        change: relative distance of the pass from the memory, the mean of |K_t - K~| / |K~| and |V_t - V~| / |V~| over
            layers, for every sequence; NaN after the first pass.
    """

    passes: int
    memory: Memory
    change: Float[Tensor, " B"]


def think(read: Callable[[Memory | None], Memory], settings: DeepThinking, passes: int) -> Iterator[Thought]:
    """Yield the memory after 1, 2, ..., `passes` passes.

    Args:
        read: function that reads the demonstrations after a memory (without a memory if it is None) and returns their
            keys and values.
        settings: gate, momentum and precision.
        passes: number of passes T.
    """
    current = read(None)
    is_released = settings.setting == "released"
    precision = torch.bfloat16 if is_released else torch.promote_types(current.dtype, torch.float32)
    memory, step = current.to(dtype=precision), None
    yield Thought(1, memory, torch.full((memory.batch,), torch.nan, device=memory.keys[0].device))
    for t in range(2, passes + 1):
        current = read(memory.to(dtype=current.dtype))
        difference = current.to(dtype=precision).plus(memory, -1.0)
        change = difference.relative_to(memory)
        step = difference if step is None or not settings.momentum else difference.plus(step, settings.momentum)
        memory = memory.plus(step, settings.eta)
        yield Thought(t, memory, change)
