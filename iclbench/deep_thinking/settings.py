"""Settings of the methods of reading demonstrations. The module does not import torch, so that settings can be
checked before the slow import."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from iclbench.core.formats import canonical
from iclbench.core.settings import BaseSettings, Decay, NonNegativeFloat, PositiveInt

# Defaults of the released code.
_RELEASED_DEFAULTS = {"momentum": 0.9, "passes": "best"}


class MethodSettings(BaseSettings):
    """Settings of a method, and its properties for an evaluation; subclasses override the defaults.

    Class attributes:
        method: name of the method.
        thinks: whether later passes read the demonstrations after the memory of earlier passes. If so, demonstrations
            are read separately from the query, and the model needs a memory.
    """

    method: ClassVar[str]
    thinks: ClassVar[bool] = False

    @property
    def copies(self) -> int:
        """Number of copies of the demonstrations in the prompt."""
        return 1

    @property
    def pass_limit(self) -> int:
        """Largest number of forward passes over the demonstrations."""
        return 1

    @property
    def selection(self) -> Literal["fixed", "dev", "best"]:
        """Selection of the number of passes: fixed, on a development split, or the best on the evaluation data."""
        return "fixed"

    @property
    def is_traced(self) -> bool:
        """Whether queries are also evaluated after every pass before the last."""
        return False

    def suffix(self, name: str) -> str:
        """Return the suffix of a model's name for the method with this `name` and for settings that differ from the
        defaults."""
        return ""

    def controls(self) -> tuple[MethodSettings, ...]:
        """Return the methods, in addition to plain ICL, with which an evaluation compares this method."""
        return ()

    def pass_settings(self) -> DeepThinking:
        """Return gate, momentum and precision of the passes; a single pass does not depend on them."""
        return DeepThinking()


class PlainICL(MethodSettings):
    """The demonstrations are in the prompt once, before the query."""

    method = "icl"


class Repeat(MethodSettings):
    """The demonstrations are in the prompt several times, before the query. This is a control: Deep-Thinking should be
    better than repetition."""

    method = "repeat"
    times: Annotated[int, Field(ge=2, le=1000)] = 2

    @property
    def copies(self) -> int:
        return self.times

    def suffix(self, name: str) -> str:
        return f"+{name}-{self.times}"


class DeepThinking(MethodSettings):
    """Settings of Deep-Thinking.

    Attributes:
        eta: gate, the fraction of the distance by which the memory moves towards the keys and values of each pass; with
            0, the memory does not change.
        passes: number of forward passes over the demonstrations, T in the paper; 1 is plain ICL. `dev`: the best of 1
            to `max_passes` on a development split; `best`: the best on the evaluation data (only with
            setting=released).
        momentum: fraction of the previous step that is added to the next one.
        positions: positions of further passes: after the memory (`continue`, as in the released code), or the same as
            in the first pass (`reuse`).
        setting: `paper`, or `released` with momentum 0.9, bfloat16, and the best number of passes.
        max_passes: largest number of passes for `dev` and `best`.
        trace: whether queries are also evaluated after every pass before the last. Without a trace, they are still
            evaluated after the first pass, and after every pass if the number of passes is selected on the evaluation
            data.
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
    def _check_passes(cls, value: Any) -> Any:
        is_number = isinstance(value, int) and not isinstance(value, bool) and value > 0
        if not (is_number or value in ("dev", "best")):
            raise ValueError(f"expected a number of passes, at least 1, or dev, got {value!r}")
        return value

    @model_validator(mode="before")
    @classmethod
    def _add_released_defaults(cls, values: Any) -> Any:
        is_released = isinstance(values, dict) and values.get("setting") == "released"
        return _RELEASED_DEFAULTS | values if is_released else values

    @model_validator(mode="after")
    def _check_combination(self) -> DeepThinking:
        if self.passes == "best" and self.setting != "released":
            raise ValueError("passes: 'best' uses the evaluation data, as setting=released does; use dev instead")
        if isinstance(self.passes, int) and self.max_passes != type(self).model_fields["max_passes"].default:
            raise ValueError(f"max_passes is for passes=dev; with passes={self.passes} it has no effect; remove it")
        return self

    @property
    def pass_limit(self) -> int:
        return self.passes if isinstance(self.passes, int) else self.max_passes

    @property
    def selection(self) -> Literal["fixed", "dev", "best"]:
        return "fixed" if isinstance(self.passes, int) else self.passes

    @property
    def is_traced(self) -> bool:
        return self.trace

    def suffix(self, name: str) -> str:
        is_released = self.setting == "released"
        defaults = type(self).model_validate({"setting": self.setting})
        changed_settings = [
            f"-{canonical(key)}-{_as_text(value)}" for key, value in self if value != getattr(defaults, key)
        ]
        return f"+{name}" + "-released" * is_released + "".join(changed_settings)

    def controls(self) -> tuple[MethodSettings, ...]:
        """Return repetition in the prompt, and passes that do not change the memory."""
        return (Repeat(), self.model_copy(update={"eta": 0.0}))

    def pass_settings(self) -> DeepThinking:
        return self


METHODS: dict[str, type[MethodSettings]] = {cls.method: cls for cls in (PlainICL, DeepThinking, Repeat)}


def _as_text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


def slots_needed(demonstrations: int, query: int, passes: int) -> int:
    """Return the number of slots of the longest forward pass. From the second pass on, a pass needs slots for two
    copies of the demonstrations: the memory, and the tokens that it reads. Both copies count even if positions are
    reused, because the masks of some architectures limit the number of slots.

    Args:
        demonstrations: number of tokens of the demonstrations.
        query: number of tokens of the longest query with an answer.
        passes: number of passes.
    """
    return max(demonstrations * min(passes, 2), demonstrations + query)
