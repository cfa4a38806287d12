"""The methods of taking in demonstrations and their settings, apart from what computes, so that they are checked before
torch is imported."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from iclbench.core.formats import canonical
from iclbench.core.settings import BaseSettings, Decay, NonNegativeFloat, PositiveInt

# Defaults of the released code.
_RELEASED = {"momentum": 0.9, "passes": "best"}


class MethodSettings(BaseSettings):
    """Settings of a method, and what an evaluation needs to know of it; each method overrides what differs.

    Class attributes:
        method: its name.
        thinks: whether later passes read the demonstrations after the memory of earlier ones; then they are read apart
            from the query, and the model needs a memory.
    """

    method: ClassVar[str]
    thinks: ClassVar[bool] = False

    @property
    def copies(self) -> int:
        """How often the demonstrations are written."""
        return 1

    @property
    def most(self) -> int:
        """Forward passes over the demonstrations, at most."""
        return 1

    @property
    def selection(self) -> Literal["fixed", "dev", "best"]:
        """How the number of passes is chosen: not at all, on a development split, or on the evaluation data."""
        return "fixed"

    @property
    def traced(self) -> bool:
        """Whether queries are also asked after every pass but the last."""
        return False

    def suffix(self, name: str) -> str:
        """What the method, under this `name`, adds to a model's name: itself, and the settings that are not usual."""
        return ""

    def controls(self) -> tuple[MethodSettings, ...]:
        """The methods that an evaluation compares this one with, besides plain ICL."""
        return ()

    def thinking(self) -> DeepThinking:
        """Gate, momentum and precision of the passes; they do not change a single pass."""
        return DeepThinking()


class PlainICL(MethodSettings):
    """The demonstrations come before the query, once."""

    method = "icl"


class Repeat(MethodSettings):
    """The demonstrations come before the query several times in a row: a control for Deep-Thinking, which has to be
    better than repetition."""

    method = "repeat"
    times: Annotated[int, Field(ge=2, le=1000)] = 2

    @property
    def copies(self) -> int:
        return self.times

    def suffix(self, name: str) -> str:
        return f"+{name}-{self.times}"


class DeepThinking(MethodSettings):
    """How the memory is moved, and how often.

    Attributes:
        eta: gate: by which part the memory moves towards the present; 0 leaves it as it is.
        passes: forward passes over the demonstrations, T in the paper: 1 is plain ICL. `dev`: of 1 to `max_passes` the
            best on a development split; `best`: the best on the evaluation data, in the released setting only.
        momentum: of the step before, this part is added to the next one.
        positions: further passes come after the memory (`continue`, as in the released code) or have the positions
            of the first again (`reuse`).
        setting: `paper`; or `released`, with momentum 0.9, bfloat16, and the best number of passes.
        max_passes: the largest number of passes to choose from.
        trace: whether queries are also asked after every pass but the last; without it still after the first, and after
            every one where the number of passes is chosen on what is asked.
    """

    method = "deep-thinking"
    thinks = True

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
        return self.passes if isinstance(self.passes, int) else self.max_passes

    @property
    def selection(self) -> Literal["fixed", "dev", "best"]:
        return "fixed" if isinstance(self.passes, int) else self.passes

    @property
    def traced(self) -> bool:
        return self.trace

    def suffix(self, name: str) -> str:
        released = self.setting == "released"
        usual = type(self).model_validate({"setting": self.setting})
        changed = [f"-{canonical(key)}-{_written(value)}" for key, value in self if value != getattr(usual, key)]
        return f"+{name}" + "-released" * released + "".join(changed)

    def controls(self) -> tuple[MethodSettings, ...]:
        """Repetition, and passes that leave the memory as it is."""
        return (Repeat(), self.model_copy(update={"eta": 0.0}))

    def thinking(self) -> DeepThinking:
        return self


METHODS: dict[str, type[MethodSettings]] = {each.method: each for each in (PlainICL, DeepThinking, Repeat)}


def _written(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


def slots_needed(demonstrations: int, query: int, passes: int) -> int:
    """Slots of the longest forward pass over so many tokens of demonstrations and of the longest query with an answer:
    from the second pass on the demonstrations stand there twice. Where positions are reused, too: architectures have
    masks for so many slots, not only positions."""
    return max(demonstrations * min(passes, 2), demonstrations + query)
