"""Deep-Thinking: demonstrations are read several times over, each time after what was kept of them before (Yang et al.,
ACL 2024, "Iterative Forward Tuning Boosts In-Context Learning in Language Models", section 3).

The first pass is an ordinary one; its keys and values are the memory, so that one pass is plain ICL. Every further pass
reads the same tokens after the memory (eq. 3) and moves it towards the present keys and values by the gate eta (eq. 4).
The query runs on what has become of it (eq. 6). No weight changes.

The released code (Yangjiaxi/DeepThinking, `models/meta_optimizer.py`) departs from the paper: momentum 0.9 on what is
moved by, memory and updates in bfloat16, where a step of one hundredth is often none, and the best number of passes is
chosen on the very data that it is then reported on. All of that is `setting="released"`. Here momentum is 0 and memory
is kept in float32, whatever the model computes in; the number of passes is fixed or chosen on a development split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Float, Int
from pydantic import field_validator, model_validator
from torch import Tensor

from iclbench.cards import Decay, NonNegativeFloat, PositiveInt, Strict
from iclbench.language.memory import Memory

if TYPE_CHECKING:
    from iclbench.language.models import LanguageModel

# What the released code does unless it is told otherwise.
_RELEASED = {"momentum": 0.9, "passes": "best"}


class DeepThinking(Strict):
    """How the memory is moved, and how often.

    Attributes:
        eta: gate: by which part the memory moves towards the present; 0 leaves it as it is.
        passes: forward passes over the demonstrations, T in the paper: 1 is plain ICL. `dev`: of 1 to `max_passes` the
            best on a development split; `best`: the best on the evaluation data, in the released setting only.
        momentum: of the step before, this part is added to the next one.
        positions: further passes stand behind the memory (`continue`, as in the released code) or have the positions
            of the first again (`reuse`).
        setting: `paper`; or `released`, with momentum 0.9, bfloat16, and the best number of passes.
        max_passes: the largest number of passes to choose from.
        trace: whether queries are also asked after every pass but the last.
    """

    eta: NonNegativeFloat = 0.01
    passes: PositiveInt | Literal["dev", "best"] = 5
    momentum: Decay = 0.0
    positions: Literal["continue", "reuse"] = "continue"
    setting: Literal["paper", "released"] = "paper"
    max_passes: PositiveInt = 15
    trace: bool = True

    @field_validator("passes", mode="before")
    @classmethod
    def _number_or_choice(cls, value: Any) -> Any:
        number = isinstance(value, int) and not isinstance(value, bool) and value > 0
        if not (number or value in ("dev", "best")):
            raise ValueError(f"expected a number of passes from 1 on, or dev, got {value!r}")
        return value

    @model_validator(mode="before")
    @classmethod
    def _as_released(cls, values: Any) -> Any:
        released = isinstance(values, dict) and values.get("setting") == "released"
        return _RELEASED | values if released else values

    @model_validator(mode="after")
    def _fits_together(self) -> DeepThinking:
        if self.passes == "best" and self.setting != "released":
            raise ValueError("passes: 'best' looks at the evaluation data, as setting=released does; choose with dev")
        if isinstance(self.passes, int) and self.max_passes != type(self).model_fields["max_passes"].default:
            raise ValueError(f"max_passes is the largest of passes=dev; with passes={self.passes} it says nothing")
        return self

    @property
    def most(self) -> int:
        """Passes that are made to have them all to choose from."""
        return self.passes if isinstance(self.passes, int) else self.max_passes


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
            of all layers, as of `reader`.
        settings: gate, momentum and precision.
        passes: T.
    """
    present = read(None)
    released = settings.setting == "released"
    precision = torch.bfloat16 if released else torch.promote_types(present.dtype, torch.float32)
    memory, step = present.to(dtype=precision), None
    yield Thought(1, memory, torch.full((memory.batch,), torch.nan, device=memory.keys[0].device))
    for t in range(2, passes + 1):
        present = read(memory.to(dtype=present.dtype))
        towards = present.to(dtype=precision).plus(memory, -1.0)
        change = towards.relative_to(memory)
        step = towards if step is None or not settings.momentum else towards.plus(step, settings.momentum)
        memory = memory.plus(step, settings.eta)
        yield Thought(t, memory, change)


def reader(
    model: LanguageModel, ids: Int[Tensor, "B L"], positions: Literal["continue", "reuse"] = "continue"
) -> Callable[[Memory | None], Memory]:
    """One pass of the model over the demonstrations, for `think`."""

    def read(history: Memory | None) -> Memory:
        again = history is not None and positions == "reuse"
        return model.read(ids, after=history, first=0 if again else None)

    return read


def slots_needed(demonstrations: int, query: int, passes: int) -> int:
    """Slots of the longest forward pass over so many tokens of demonstrations and of the longest query with an answer:
    from the second pass on the demonstrations stand there twice. Where positions are reused, too: architectures have
    masks for so many slots, not only positions."""
    return max(demonstrations * min(passes, 2), demonstrations + query)
