"""A sliding window: the model uses only the last N points.

When new points arrive, `remove` removes the oldest points in a time that does not depend on N (except for copying the
points, which is noticeable for more than about 100,000 points). The state is then a difference of sums and accumulates
their rounding errors. Relative to the current sums, these errors grow with the square root of the number of steps. The
window therefore stores its points, and recomputes the state from them in four cases:

- `remove` raises an error because too little of the state would remain.
- The estimated error exceeds its limit in `TOLERANCES`.
- `MAX_STEPS` steps have passed, regardless of the estimate (measured in `benchmarks/streaming.md`).
- Recomputing is cheaper than sliding: the window has at most `CHEAP_SIZE` points, or at most as many points as are
  added and removed.

A window needs memory for its points and one state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from iclbench.backbones.base import Backbone
from iclbench.core.episodes import Points
from iclbench.core.errors import DataError, UsageError
from iclbench.core.formats import plural
from iclbench.core.predictions import Prediction
from iclbench.core.predictor import State
from iclbench.core.task import InputKind
from iclbench.registry import BACKBONES

# Number of steps (an update and a removal) after which the state is recomputed.
MAX_STEPS = 4096
# Number of points for which recomputing the state costs as much as an update and a removal.
CHEAP_SIZE = 128
# Tolerated relative error of the sums in a state, by precision. In single precision, it is a few times the rounding
# error of recomputing. In double precision, it is a bound that is rarely exceeded.
TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-8}


@dataclass(frozen=True)
class WindowState(State):
    """The points of a window, and the state of the model after these points.

    Attributes:
        points: the last points, oldest first, `(1, N, .)`.
        state: the state of the model.
        related: the related datasets of `state`, or None.
        highest: the maximum of `State.log_weight` since the state was recomputed; None if the state has no weight.
        steps: number of removals since the state was recomputed.
        size: maximum number of points in the window.
    """

    points: Points
    state: State
    related: Points | None
    highest: Tensor | None
    steps: int
    size: int


class Window:
    """A model with a sliding window that has the methods `condition`, `update` and `query` of a backbone.

    Args:
        backbone: a backbone whose `removes_points` is True.
        size: number of points N.
        max_steps: see `MAX_STEPS`.
        cheap_size: see `CHEAP_SIZE`.

    Raises:
        UsageError: the backbone cannot forget points.
    """

    def __init__(self, backbone: Backbone, size: int, max_steps: int = MAX_STEPS, cheap_size: int = CHEAP_SIZE) -> None:
        if not backbone.removes_points:
            names, noun = _names_of_backbones_with_window(backbone.shape.inputs), backbone.shape.noun
            others = f"({names} can)" if names else f"and neither can the other models for {backbone.shape.inputs}"
            raise UsageError(
                f"--window: this model cannot forget {noun}s{' ' if names else ', '}{others}; without --window, it "
                f"uses all {noun}s",
                code="not-applicable",
            )
        self.backbone = backbone
        self.size = size
        self.max_steps = max_steps
        self.cheap_size = cheap_size

    def condition(self, context: Points, related: Points | None = None) -> WindowState:
        """Return the state after the last N points of a context."""
        last_points = context.span(max(0, context.count - self.size))
        state = self.backbone.condition(last_points, related)
        return WindowState(last_points, state, related, state.log_weight(), 0, self.size)

    def update(self, state: Any, points: Points) -> WindowState:
        """Return the state after further points, without the oldest points that no longer fit into the window."""
        all_points = state.points.append(points)
        surplus = max(0, all_points.count - self.size)
        if surplus and self.size <= max(self.cheap_size, points.count + surplus):
            return self.condition(all_points, state.related)
        new_state = self.backbone.update(state.state, points)
        extended_state = replace(
            state, points=all_points, state=new_state, highest=_elementwise_max(state.highest, new_state.log_weight())
        )
        if not surplus:
            return extended_state
        return self._without_oldest(extended_state, surplus) or self.condition(all_points, state.related)

    def query(self, state: Any, x: Float[Tensor, "1 Q Dx"]) -> Prediction:
        """Return the backbone's answers from the points of the window."""
        return self.backbone.query(state.state, x)

    def _without_oldest(self, window: WindowState, count: int) -> WindowState | None:
        """Return the window without its oldest points; None if the state must be recomputed."""
        try:
            remaining_state = self.backbone.remove(window.state, window.points.span(0, count))
        except UsageError:
            return None
        steps, weight = window.steps + 1, remaining_state.log_weight()
        if steps >= self.max_steps or _has_drifted(steps, window.highest, weight):
            return None
        return replace(window, points=window.points.span(count), state=remaining_state, steps=steps)


def check_state(state: State, window: int | None) -> None:
    """Check that a stream with this window (None means no window) can continue from a state.

    Raises:
        DataError: the state has another window.
    """
    size = state.size if isinstance(state, WindowState) else None
    if size == window:
        return
    if size is None:
        raise DataError("the state was saved without --window; remove --window", code="conflict")
    raise DataError(f"the state has a window of {plural(size, 'point')}; pass --window {size}", code="conflict")


def _has_drifted(steps: int, highest: Tensor | None, weight: Tensor | None) -> bool:
    """Return whether the estimated rounding error after this many steps, relative to the current sums, exceeds its
    limit in `TOLERANCES`."""
    if highest is None or weight is None:
        return False
    rounding = torch.finfo(weight.dtype).eps * math.sqrt(steps)
    return not rounding * (highest - weight).max().exp().item() <= TOLERANCES[weight.dtype]


def _elementwise_max(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None or b is None else torch.maximum(a, b)


def _names_of_backbones_with_window(inputs: InputKind) -> str:
    """Return the names of the shipped backbones that read these inputs and can forget points; empty if there are
    none."""
    classes = {name: BACKBONES.get(name) for name in BACKBONES.architectures() if name in BACKBONES.builtin_entries}
    names = [name for name, cls in classes.items() if cls.removes_points and inputs in cls.input_kinds]
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
