"""A sliding window: of all points only the last N count.

When points come, the oldest are forgotten by `remove`, in a time that does not depend on N (beside the copy of the
window's points, which counts from about a hundred thousand of them on). What is left is a
difference of sums and carries the rounding errors of all sums before it: they grow with the square root of the steps,
and weigh more where the sums have fallen. So the points of the window are kept, and the state is conditioned on them
afresh

- where `remove` refuses since too little would be left;
- where the errors that have come together may be more than `TOLERATED`;
- after `EVERY` steps, whatever the estimate says (measured in `benchmarks/streaming.md`);
- where it costs less than to slide: a window of at most `AFRESH` points, or of no more than come and go at once.

Memory: the points of the window and one state, whatever has come before.
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
from iclbench.registry import BACKBONES

# Steps of one update and one removal after which the state is conditioned on afresh.
EVERY = 4096
# Points that are conditioned on at the cost of one update and one removal.
AFRESH = 128
# Relative error of what a state sums up, by its precision: a few times the rounding errors of conditioning afresh in
# single precision; of double precision what costs nothing.
TOLERATED = {torch.float32: 1e-5, torch.float64: 1e-8}


@dataclass(frozen=True)
class WindowState(State):
    """The points of a window and the state of a model that knows nothing else.

    Attributes:
        points: the last points, oldest first, `(1, N, .)`.
        state: of the model.
        related: the datasets that `state` was conditioned on besides; None: none.
        highest: of `State.log_weight` since the last fresh conditioning; None where the state does not say.
        steps: removals since then.
        size: points that the window holds at most.
    """

    points: Points
    state: State
    related: Points | None
    highest: Tensor | None
    steps: int
    size: int


class Window:
    """A model that forgets: `condition`, `update` and `query` as a backbone has them.

    Args:
        backbone: that `removes_points`.
        size: N, the points that count.
        every: see `EVERY`.
        afresh: see `AFRESH`.

    Raises:
        UsageError: the backbone cannot forget points.
    """

    def __init__(self, backbone: Backbone, size: int, every: int = EVERY, afresh: int = AFRESH) -> None:
        if not backbone.removes_points:
            raise UsageError(
                f"--window: this model cannot forget points, {_able()} can; without --window all points count"
            )
        self.backbone = backbone
        self.size = size
        self.every = every
        self.afresh = afresh

    def condition(self, context: Points, related: Points | None = None) -> WindowState:
        """The state of the last points of a context."""
        last_points = context.span(max(0, context.count - self.size))
        state = self.backbone.condition(last_points, related)
        return WindowState(last_points, state, related, state.log_weight(), 0, self.size)

    def update(self, state: Any, points: Points) -> WindowState:
        """The state after further points: they are learned together, then as many of the oldest are forgotten as are
        too many."""
        all_points = state.points.append(points)
        surplus = max(0, all_points.count - self.size)
        if surplus and self.size <= max(self.afresh, points.count + surplus):
            return self.condition(all_points, state.related)
        learned = self.backbone.update(state.state, points)
        longer = replace(state, points=all_points, state=learned, highest=_higher(state.highest, learned.log_weight()))
        if not surplus:
            return longer
        return self._without_oldest(longer, surplus) or self.condition(all_points, state.related)

    def query(self, state: Any, x: Float[Tensor, "1 Q Dx"]) -> Prediction:
        """The backbone's answers from the points of the window."""
        return self.backbone.query(state.state, x)

    def _without_oldest(self, window: WindowState, count: int) -> WindowState | None:
        """The window without its oldest points, None where its state could not be trusted."""
        try:
            remaining_state = self.backbone.remove(window.state, window.points.span(0, count))
        except UsageError:
            return None
        steps, weight = window.steps + 1, remaining_state.log_weight()
        if steps >= self.every or _drifted(steps, window.highest, weight):
            return None
        return replace(window, points=window.points.span(count), state=remaining_state, steps=steps)


def check_state(state: State, window: int | None) -> None:
    """Whether a stream with such a window, or without one, can go on from a state.

    Raises:
        DataError: it cannot.
    """
    size = state.size if isinstance(state, WindowState) else None
    if size == window:
        return
    if size is None:
        raise DataError("the state was saved without --window and holds no points to forget; leave --window out")
    raise DataError(f"the state is that of a window of {plural(size, 'point')}; give --window {size}")


def _drifted(steps: int, highest: Tensor | None, weight: Tensor | None) -> bool:
    """Whether rounding errors of so many steps, on sums as large as the highest, may be too much for today's sums."""
    if highest is None or weight is None:
        return False
    rounding = torch.finfo(weight.dtype).eps * math.sqrt(steps)
    return not rounding * (highest - weight).max().exp().item() <= TOLERATED[weight.dtype]


def _higher(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None or b is None else torch.maximum(a, b)


def _able() -> str:
    """The names of our backbones whose states forget points."""
    architectures = [name for name in BACKBONES.architectures() if name in BACKBONES.shipped]
    names = [name for name in architectures if BACKBONES.get(name).removes_points]
    return " and ".join([", ".join(names[:-1]), names[-1]])
