"""Search for the settings that give a recurrent backbone a state of a given size and the parameter budget of a preset.

`Backbone.state_size` is the size of a state. In the search for the parameter budget (`iclbench.config.sizes`), every
width gets the number of rows per head (the setting `state`) with which the state is nearest to `state_budget`. A model
without this setting gets the width with the nearest state, and the parameter budget is met by its hidden width only.

A large state needs many parameters for keys and queries, which leaves few for the width; fewer heads need fewer
parameters. The search is not exhaustive: it tries one width for each number of heads. It starts with the default
number of heads and tries others until the model has at least `_GOOD_WIDTH` of its width without a state budget. If no
model is so wide, the search returns the widest one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from iclbench.config.cards import BUDGET_TOLERANCE, deviation
from iclbench.config.sizes import budget_settings, model_to_measure, nearest_settings, nearest_value, search_settings
from iclbench.core.errors import UsageError
from iclbench.core.formats import integer
from iclbench.core.limits import TooLargeError

if TYPE_CHECKING:
    from iclbench.backbones.base import Backbone
    from iclbench.core.task import TaskShape

# Largest relative deviation of the size of a state from `state_budget`.
STATE_TOLERANCE = 0.1
_HEADS = (1, 2, 4, 8, 16)
# Widths relative to the width without a state budget: the width at which the search ends, and the smallest valid width.
_GOOD_WIDTH, _LEAST_WIDTH = 0.7, 0.3
# Assumed number of parameters and size of the state of a model that exceeds the size limit.
_UNBUILDABLE = 10**12
# Models with a larger setting are built without memory, because drawing their initial values would take long.
_MEMORY_WIDTH = 1024
# Number of bisection steps in the search for the largest possible state, which an error message contains.
_BISECTIONS = 5
# Settings in the error message.
_SIZES = ("heads", "state", "width", "feedforward", "inner")


def state_budget_settings(
    name: str, cls: type[Backbone], budget: int | None, shape: TaskShape, fixed: Mapping[str, Any]
) -> dict[str, Any]:
    """Return settings that give a backbone a state of the size `state_budget` and this number of parameters.

    Args:
        name: name of the backbone, for messages.
        cls: class of the backbone.
        budget: number of parameters, excluding the image encoder; None if the preset has no budget.
        shape: shape of the task.
        fixed: settings that do not change, including `state_budget`. If they include the width, the number of
            parameters is not searched.

    Returns:
        The fixed settings and the settings that the search determined.

    Raises:
        UsageError: the state grows with the sequence; or the search finds no state within `STATE_TOLERANCE`, and the
            message contains the nearest one; or no size is near the budget of parameters.
    """
    state_budget = fixed["state_budget"]
    other_settings = {key: value for key, value in fixed.items() if key != "state_budget"}
    model = _search(
        name,
        cls,  # type: ignore[arg-type]  # mypy takes the class for one of its instances
        budget,
        shape,
        json.dumps(other_settings, sort_keys=True),
        state_budget,
    )
    if model.has_state(state_budget):
        return {**model.settings, "state_budget": state_budget}
    if not model.is_valid and budget is not None:
        budget_settings(name, cls, budget, shape, other_settings)  # raises the error about the number of parameters
    sizes = ", ".join(f"{key} {model.settings[key]}" for key in _SIZES if model.settings.get(key))
    parameters = "" if budget is None else f" with {integer(budget)} parameters"
    raise UsageError(
        f"no sizes of '{name}' found for a state of {integer(state_budget)} numbers{parameters}: the nearest state has "
        f"{integer(model.state_size)} ({deviation(model.state_size, state_budget):+.0%}; {sizes}); pass "
        f"-o backbone.state_budget={model.state_size}",
        code="not-applicable",
    )


@dataclass(frozen=True)
class _Model:
    """A model of the search.

    Attributes:
        settings: settings without `state_budget`.
        state_size: size of the state.
        width: width relative to the width without a state budget; 1 if the width is not searched.
        is_valid: whether the model has the parameters of the preset and at least the smallest width.
    """

    settings: dict[str, Any]
    state_size: int
    width: float = 1.0
    is_valid: bool = True

    def has_state(self, state_budget: int) -> bool:
        return self.is_valid and abs(deviation(self.state_size, state_budget)) <= STATE_TOLERANCE


@cache
def _search(
    name: str, cls: type[Backbone], budget: int | None, shape: TaskShape, fixed: str, state_budget: int
) -> _Model:
    """Return the model whose state is nearest to the budget. `fixed` is JSON text, because the cache requires hashable
    arguments."""
    search = _Search(name, cls, budget, shape, json.loads(fixed))
    if search.default.has_state(state_budget):
        return search.default
    models = [search.default]
    for head_counts in search.head_counts():
        for heads in head_counts:
            models.append(search.model(heads, state_budget))
            if models[-1].has_state(state_budget) and models[-1].width >= _GOOD_WIDTH:
                return models[-1]
        if matching := [model for model in models if model.has_state(state_budget)]:
            return max(matching, key=lambda model: model.width)
    models.append(search.largest_state(state_budget))
    valid_models = [model for model in models if model.is_valid]
    return min(valid_models or models, key=lambda model: abs(model.state_size - state_budget))


class _Search:
    """The models of a search.

    Args:
        name, cls, budget, shape: as in `state_budget_settings`.
        fixed: settings that do not change, without `state_budget`.

    Attributes:
        default: the model without a state budget.

    Raises:
        UsageError: the state grows with the sequence.
    """

    def __init__(
        self,
        name: str,
        cls: type[Backbone],
        budget: int | None,
        shape: TaskShape,
        fixed: Mapping[str, Any],
    ) -> None:
        self.name, self.cls, self.shape, self.fixed = name, cls, shape, fixed
        self.start = {**({} if budget is None else cls.at_budget(budget, shape)), **fixed}
        # If the width is given, the number of parameters is not searched.
        self.budget = None if "width" in fixed else budget
        self.keys = [key for key in cls.state_settings(self.start) if key not in fixed]
        self._preset_budget = budget
        self._state_sizes: dict[str, int] = {}
        self.default = self._default()

    def _default(self) -> _Model:
        if self._preset_budget is None:
            return _Model(self.start, self._state_size(self.start))
        settings, parameters = nearest_settings(self.name, self.cls, self._preset_budget, self.shape, self.fixed)
        is_valid = parameters is None or abs(deviation(parameters, self._preset_budget)) <= BUDGET_TOLERANCE
        return _Model(settings, self._state_size(settings), is_valid=is_valid)

    def head_counts(self) -> tuple[list[dict[str, int]], list[dict[str, int]]]:
        """Return settings with possible numbers of heads: first the default and fewer, largest first; then more."""
        if "heads" not in self.keys:
            return [{}], []
        sizes = {**self.cls.Settings().model_dump(), **self.start}
        default = sizes["heads"]
        widths = {key: sizes[key] for key in ("width", "inner") if key in self.fixed or self.budget is None}
        counts = [
            heads
            for heads in sorted({default, *_HEADS})
            if all(
                width is None or width % self.cls.step(key, {**sizes, "heads": heads}) == 0
                for key, width in widths.items()
            )
        ]
        return (
            [{"heads": heads} for heads in reversed(counts) if heads <= default],
            [{"heads": heads} for heads in counts if heads > default],
        )

    def model(self, heads: Mapping[str, int], state_budget: int) -> _Model:
        """Return the model with this number of heads whose state is nearest to the budget."""
        start, fixed = {**self.start, **heads}, {*self.fixed, *heads}
        if "state" in self.keys:

            def with_rows(settings: Mapping[str, Any]) -> dict[str, Any]:
                return self._with_nearest(settings, "state", state_budget)

            if self.budget is not None:
                step = self.cls.step("width", start)
                narrowest = step * math.ceil(_LEAST_WIDTH * self.default.settings["width"] / step)
                parameters = self._parameter_count(with_rows({**start, "width": narrowest}))
                if deviation(parameters, self.budget) > BUDGET_TOLERANCE:
                    return _Model(start, 0, is_valid=False)
            return self._model(start, fixed, with_rows)
        growing = [key for key in self.cls.searched_settings(start) if key not in fixed]
        if self.budget is not None and len(growing) > 1:
            start, fixed = self._with_nearest(start, growing[0], state_budget), {*fixed, growing[0]}
        return self._model(start, fixed, dict)

    def largest_state(self, state_budget: int) -> _Model:
        """Return a model whose state is close to the largest state below the budget. It has as few heads as
        possible."""
        heads, best, high = self.head_counts()[0][-1], self.default, state_budget
        for _ in range(_BISECTIONS if best.state_size < high else 0):
            middle = round(math.sqrt(best.state_size * high))
            model = self.model(heads, middle)
            if model.has_state(middle):
                best = model
            else:
                high = middle
        return best

    def _with_nearest(self, settings: Mapping[str, Any], key: str, state_budget: int) -> dict[str, Any]:
        """Return the settings with the value of one setting for which the state is nearest to the budget."""

        def state_size(value: int) -> int:
            return self._state_size({**settings, key: value})

        return {**settings, key: nearest_value(state_size, state_budget, self.cls.step(key, settings))}

    def _model(
        self,
        start: Mapping[str, Any],
        fixed: set[str],
        complete: Callable[[Mapping[str, Any]], dict[str, Any]],
    ) -> _Model:
        """Return the model whose number of parameters is nearest to the budget. `complete` adds settings that depend on
        the state budget."""
        if self.budget is None:
            settings = complete(start)
            return _Model(settings, self._state_size(settings))
        settings, parameters = search_settings(
            self.cls, self.budget, start, fixed, lambda settings: self._parameter_count(complete(settings))
        )
        settings = complete(settings)
        width = settings["width"] / self.default.settings["width"]
        is_valid = width >= _LEAST_WIDTH and abs(deviation(parameters, self.budget)) <= BUDGET_TOLERANCE
        return _Model(settings, self._state_size(settings), width, is_valid)

    def _parameter_count(self, settings: Mapping[str, Any]) -> int:
        model = self._build(settings)
        return _UNBUILDABLE if model is None else int(model.parameter_count - model.encoder_parameter_count)

    def _state_size(self, settings: Mapping[str, Any]) -> int:
        """Return the size of the state, which does not depend on the hidden width."""
        settings = {**settings, "feedforward": 1} if settings.get("feedforward") else settings
        key = json.dumps(settings, sort_keys=True)
        if key not in self._state_sizes:
            model = self._build(settings)
            size = _UNBUILDABLE if model is None else model.state_size
            if size is None:
                raise UsageError(
                    f"backbone.state_budget is not applicable to '{self.name}': the cache grows with the sequence; "
                    "remove it",
                    code="not-applicable",
                )
            self._state_sizes[key] = size
        return self._state_sizes[key]

    def _build(self, settings: Mapping[str, Any]) -> Backbone | None:
        """Return a model of which only sizes are used; None if it exceeds the size limit."""
        is_large = any(value > _MEMORY_WIDTH for value in settings.values() if isinstance(value, int))
        budget = None if is_large else self._preset_budget
        try:
            return model_to_measure(self.name, self.cls, self.shape, settings, budget)
        except TooLargeError:
            return None
