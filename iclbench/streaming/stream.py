"""A model that learns points one after another and answers queries between them.

The answer to a query depends on all points before the query and on no point after it. Points are buffered and learned
in batches, at the latest before the next query. Queries from a file are buffered too. Up to rounding, the answers are
the same as if each line were processed separately. Memory use depends on the size of the model's state, which is
constant for `cmanp`, `cnp` and recurrent models, and grows with the number of points for models that store them. With a
window (module `window`), the model uses only the last points.
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
from iclbench.core.formats import plural
from iclbench.core.guard import fixed_state, guarded
from iclbench.core.plugins import plugin_errors
from iclbench.core.predictor import State
from iclbench.streaming.answers import answer_columns
from iclbench.streaming.clock import Clock
from iclbench.streaming.lines import Line
from iclbench.streaming.window import Window, check_state

log = logging.getLogger("iclbench")

# Number of points that are learned in one batch, and of queries from a file that are answered in one batch.
BATCH_SIZE = 128


@dataclass(frozen=True)
class Answer:
    """The line number and input of a query, the column groups of the answer (`Prediction.columns`), and for events the
    expected time of the next event."""

    number: int
    x: list[float]
    columns: dict[str, list[float]]
    time: float | None = None


class Stream:
    """The state of one stream.

    Args:
        backbone: a trained model.
        state: initial state (default: the state without points).
        related: related datasets of shape `(1, J, N, .)`, for a model that uses them; not allowed with `state`.
        answer_immediately: whether each query is answered before the next line is read.
        name: name of the stream in messages.
        window: number of last points that the model uses (default: all points).
        clock: the clock of an event stream.
        points_before: number of points in `state`.

    Raises:
        UsageError: the model cannot forget points, but `window` is given.
        DataError: `state` has another window.
    """

    def __init__(
        self,
        backbone: Backbone,
        state: State | None = None,
        related: Points | None = None,
        answer_immediately: bool = True,
        name: str = "stdin",
        window: int | None = None,
        clock: Clock | None = None,
        points_before: int = 0,
    ) -> None:
        self.backbone = backbone
        self.model = backbone if window is None else Window(backbone, window)
        if state is not None:
            check_state(state, window)
        self.name = name
        self.clock = clock
        self.points = 0
        self.queries = 0
        self._points_before, self._window = points_before, window
        self._has_points = state is not None or related is not None
        self._batch_size = 1 if answer_immediately else BATCH_SIZE
        self._waiting_points: list[Line] = []
        self._waiting_queries: list[Line] = []
        with fixed_state(), torch.no_grad():
            self.state = self.model.condition(as_points(backbone, []), related) if state is None else state

    def run(self, lines: Iterable[Line]) -> Iterator[Answer]:
        """Learn the points and yield the answers. Afterwards, even after an error, `state` includes all points before
        the line at which the method stopped.

        Raises:
            DataError: a line cannot be read, learned or answered; the lines before it are processed first.
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
                    if len(self._waiting_points) >= BATCH_SIZE:
                        self._learn()
        except GeneratorExit:  # the caller stopped: learn the buffered points, but do not answer queries
            self._learn()
            raise
        except BaseException:
            self._learn()
            yield from self._answer()
            raise
        self._learn()
        yield from self._answer()

    def metadata(self) -> dict[str, str]:
        """Return the metadata of the saved state: the number of its points and, for events, the clock."""
        return {"points": str(self._points_before + self.points), **(self.clock.metadata() if self.clock else {})}

    def _check_has_points(self, line: Line) -> None:
        """Raise `DataError` for a query before the first point of a task with inputs, or before the start of an
        observation of events."""
        if self.backbone.shape.x_dim and not self._has_points:
            raise self._error_at(line, "a query before the first point; pass points first, or --state")
        if self.clock is not None and self.clock.last_time is None:
            raise self._error_at(
                line, "a query before the first event, which starts the observation; pass the event first"
            )

    def _error_at(self, line: Line, problem: str, code: str = "") -> DataError:
        return DataError(f"{self.name}, line {line.number}: {problem}", code=code)

    def _learn(self) -> None:
        """Learn the buffered points. If one of them cannot be learned, learn the points before it and raise the
        error."""
        points = self._waiting_points
        if not points:
            return
        old_nbytes = self.state.nbytes
        try:
            state, learned, problem = self._update_state(self.state, points), len(points), None
        except DataError:
            state, learned, problem = self._learn_one_by_one(points)
        self.state, self._waiting_points = state, []
        if not self.points and self.model is self.backbone and state.nbytes > old_nbytes:
            noun, other = self.backbone.shape.noun, "cmanp" if self.backbone.shape.noun != "element" else "gru"
            log.info(f"the state of this model grows with the number of {noun}s; the state of {other} does not")
        self.points += learned
        if learned and self.clock is not None:
            self.clock.last_time = points[learned - 1].time
        self._has_points = self._has_points or learned > 0
        if problem is not None:
            raise problem

    def _learn_one_by_one(self, lines: list[Line]) -> tuple[State, int, DataError | None]:
        """Return the state after all points before the first one that cannot be learned, their number, and the
        error."""
        state = self.state
        for learned, line in enumerate(lines):
            try:
                state = self._update_state(state, [line])
            except DataError as error:
                return state, learned, self._error_at(line, str(error), error.code)
        return state, len(lines), None

    @guarded
    @torch.no_grad()
    def _update_state(self, state: State, lines: list[Line]) -> State:
        try:
            with plugin_errors(self.backbone):
                state = self.model.update(state, as_points(self.backbone, lines))
        except IclbenchError as error:
            raise DataError(str(error), code=error.code) from error
        if not all(_is_usable(t) for t in state.tensors().values()):
            noun = self.backbone.shape.noun
            raise DataError(
                f"the model's state is not finite after this {noun}; check that {noun}s are scaled as in training",
                code="not-finite",
            )
        return state

    def _answer(self) -> Iterator[Answer]:
        """Answer the buffered queries."""
        queries, self._waiting_queries = self._waiting_queries, []
        if not queries:
            return
        context = self._points_before + self.points
        if reason := self.backbone.too_long(context if self._window is None else min(context, self._window)):
            raise self._error_at(
                queries[0],
                f"after {plural(context, self.backbone.shape.noun)}, the model cannot answer: {reason}; use a model "
                "without this limit, such as gpt2",
                "not-applicable",
            )
        try:
            with fixed_state(), torch.no_grad(), plugin_errors(self.backbone):
                prediction = self.model.query(self.state, _inputs(self.backbone, queries))
            check_answer(self.backbone, "query", prediction, (1, len(queries)))
        except IclbenchError as error:
            raise self._error_at(queries[0], str(error), error.code) from error
        answers = answer_columns(prediction, self.backbone.shape, self.clock)
        for line in queries:
            try:
                time, columns = next(answers)
            except DataError as error:
                raise self._error_at(line, str(error), error.code) from None
            self.queries += 1
            yield Answer(line.number, line.x, columns, time)


def as_points(backbone: Backbone, lines: list[Line]) -> Points:
    """Return the lines as the points of one episode, `(1, N, .)`, on the model's device and in its precision."""
    weight = next(backbone.parameters())
    y = weight.new_tensor([line.y for line in lines])
    y = y.reshape(1, len(lines), -1 if lines else backbone.shape.y_dim)
    return Points.full(_inputs(backbone, lines), y if backbone.shape.classes is None else y[..., 0].long())


def _inputs(backbone: Backbone, lines: list[Line]) -> Float[Tensor, "1 N Dx"]:
    x = next(backbone.parameters()).new_tensor([line.x for line in lines])
    return x.reshape(1, len(lines), backbone.shape.x_dim)


def _is_usable(t: Tensor) -> bool:
    """Return whether a tensor has no NaN and no +inf; -inf is a valid logarithm of 0."""
    return not t.is_floating_point() or not bool((t.isnan() | t.isposinf()).any())
