"""A model that learns points one after the other and answers queries between them.

A query sees all points before it and none after it. Points wait until a query wants them or enough have come to be
learned together, queries of a file likewise; the answers are those of one line at a time, up to rounding. Memory is
that of the model's state: constant for `cmanp`, `cnp` and recurrent models, growing where a model keeps the points. Of
a window (`window`) only the last points count.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from iclbench.backbones.base import Backbone
from iclbench.core.answers import check_answer
from iclbench.core.episodes import Points
from iclbench.core.errors import DataError, IclbenchError
from iclbench.core.guard import fixed_state, guarded
from iclbench.core.plugins import named
from iclbench.core.predictor import State
from iclbench.streaming.answers import answers
from iclbench.streaming.clock import Clock
from iclbench.streaming.lines import Line
from iclbench.streaming.window import Window, check_state

log = logging.getLogger("iclbench")

# Points that are learned at once, and queries of a file that are answered at once.
BATCH = 128


@dataclass(frozen=True)
class Answer:
    """The query's line number and input, and the groups of columns of `Prediction.columns`; of events the time at which
    the next one is expected."""

    number: int
    x: list[float]
    columns: dict[str, list[float]]
    time: float | None = None


class Stream:
    """The state of one stream.

    Args:
        backbone: a trained model.
        state: to go on from; None: from nothing, or from related datasets.
        related: datasets of the same kind, `(1, J, N, .)`, for a model that uses them; not together with a state.
        at_once: every query is answered before the next line is read.
        name: what messages call the stream.
        window: how many points count, the last ones; None: all.
        clock: of events.

    Raises:
        UsageError: a window of a model that cannot forget points.
        DataError: a state of a stream without such a window.
    """

    def __init__(
        self,
        backbone: Backbone,
        state: State | None = None,
        related: Points | None = None,
        at_once: bool = True,
        name: str = "stdin",
        window: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.backbone = backbone
        self.model = backbone if window is None else Window(backbone, window)
        if state is not None:
            check_state(state, window)
        self.where = name
        self.clock = clock
        self.points = 0
        self.queries = 0
        self._has_points = state is not None or related is not None
        self._batch_size = 1 if at_once else BATCH
        self._waiting_points: list[Line] = []
        self._waiting_queries: list[Line] = []
        with fixed_state(), torch.no_grad():
            self.state = self.model.condition(as_points(backbone, []), related) if state is None else state

    def run(self, lines: Iterable[Line]) -> Iterator[Answer]:
        """Learn and answer; when this ends, in whatever way, `state` holds all points before the line that ended it.

        Raises:
            DataError: a line that cannot be read, learned or answered; those before it are learned and answered first.
        """
        try:
            for line in lines:
                if line.y is None:
                    self._learn()
                    self._check_has_points(line)
                    self._waiting_queries.append(line)
                    if len(self._waiting_queries) >= self._batch_size:
                        yield from self._answer()
                else:
                    yield from self._answer()
                    self._waiting_points.append(line)
                    if len(self._waiting_points) >= BATCH:
                        self._learn()
        except GeneratorExit:  # nobody listens any more: what waits is learned, and not answered
            self._learn()
            raise
        except BaseException:
            self._learn()
            yield from self._answer()
            raise
        self._learn()
        yield from self._answer()

    def _check_has_points(self, line: Line) -> None:
        """Whether there is anything to answer from; of events the start of the observation is enough."""
        if self.clock is None and not self._has_points:
            raise self._error_at(line, "a query before any point; give points first, or --state")
        if self.clock is not None and self.clock.last is None:
            raise self._error_at(
                line, "a query before the first event, with which the observation starts; give that first"
            )

    def _error_at(self, line: Line, problem: str) -> DataError:
        return DataError(f"{self.where}, line {line.number}: {problem}")

    def _learn(self) -> None:
        """Take in the points that wait, all or, if one of them cannot be, those before it."""
        points = self._waiting_points
        if not points:
            return
        before = self.state.nbytes
        try:
            state, learned, problem = self._updated(self.state, points), len(points), None
        except DataError:
            state, learned, problem = self._one_by_one(points)
        self.state, self._waiting_points = state, []
        if not self.points and self.model is self.backbone and state.nbytes > before:
            log.info("the state of this model grows with the points that it learns; cmanp has one that does not")
        self.points += learned
        if learned and self.clock is not None:
            self.clock.last = points[learned - 1].time
        self._has_points = self._has_points or learned > 0
        if problem is not None:
            raise problem

    def _one_by_one(self, lines: list[Line]) -> tuple[State, int, DataError | None]:
        """The state after as many points as can be learned, their number, and what is wrong with the next."""
        state = self.state
        for learned, line in enumerate(lines):
            try:
                state = self._updated(state, [line])
            except DataError as error:
                return state, learned, self._error_at(line, str(error))
        return state, len(lines), None

    @guarded
    @torch.no_grad()
    def _updated(self, state: State, lines: list[Line]) -> State:
        try:
            with named(self.backbone):
                state = self.model.update(state, as_points(self.backbone, lines))
        except IclbenchError as error:
            raise DataError(str(error)) from error
        if not all(_usable(t) for t in state.tensors().values()):
            raise DataError("the model cannot compute with this point; is it on the scale of its task?")
        return state

    def _answer(self) -> Iterator[Answer]:
        """Answer the queries that wait."""
        queries, self._waiting_queries = self._waiting_queries, []
        if not queries:
            return
        try:
            with fixed_state(), torch.no_grad(), named(self.backbone):
                prediction = self.model.query(self.state, _inputs(self.backbone, queries))
            check_answer(self.backbone, "query", prediction, (1, len(queries)))
        except IclbenchError as error:
            raise self._error_at(queries[0], str(error)) from error
        answer_columns = answers(prediction, self.clock)
        for line in queries:
            try:
                time, columns = next(answer_columns)
            except DataError as error:
                raise self._error_at(line, str(error)) from None
            self.queries += 1
            yield Answer(line.number, line.x, columns, time)


def as_points(backbone: Backbone, lines: list[Line]) -> Points:
    """The lines of one episode, `(1, N, .)`, on the model's device and in its precision."""
    weight = next(backbone.parameters())
    y = weight.new_tensor([line.y for line in lines])
    y = y.reshape(1, len(lines), -1 if lines else backbone.shape.y_dim)
    return Points.full(_inputs(backbone, lines), y if backbone.shape.classes is None else y[..., 0].long())


def _inputs(backbone: Backbone, lines: list[Line]) -> Float[Tensor, "1 N Dx"]:
    x = next(backbone.parameters()).new_tensor([line.x for line in lines])
    return x.reshape(1, len(lines), backbone.shape.x_dim)


def _usable(t: Tensor) -> bool:
    """Neither NaN nor +inf; -inf is the logarithm of nothing."""
    return not t.is_floating_point() or not bool((t.isnan() | t.isposinf()).any())
