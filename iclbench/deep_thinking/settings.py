"""Settings of Deep-Thinking, apart from what computes, so that they are checked before torch is imported."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import field_validator, model_validator

from iclbench.config.cards import Decay, NonNegativeFloat, PositiveInt, Strict

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


def slots_needed(demonstrations: int, query: int, passes: int) -> int:
    """Slots of the longest forward pass over so many tokens of demonstrations and of the longest query with an answer:
    from the second pass on the demonstrations stand there twice. Where positions are reused, too: architectures have
    masks for so many slots, not only positions."""
    return max(demonstrations * min(passes, 2), demonstrations + query)
