"""Causal sequence models: a trunk between a read-in and a read-out.

A subclass implements the trunk (`causal_trunk`). The task determines the elements of the sequence (`elements`): pairs
of an input and an output, or the events, tokens or vectors of a stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from typing import Annotated, Any, TypeVar

import torch
from jaxtyping import Float
from pydantic import AfterValidator, model_validator
from torch import Tensor, nn

from iclbench.backbones.base import BackboneSettings
from iclbench.backbones.causal_trunk import CausalTrunk
from iclbench.backbones.elements import Elements
from iclbench.backbones.pair_sequence import Pairs
from iclbench.backbones.stream_elements import Events, Tokens, Vectors
from iclbench.core.episodes import Episodes, Points, take
from iclbench.core.predictions import Prediction
from iclbench.core.predictor import State
from iclbench.core.settings import BaseSettings, LoopCount, validate
from iclbench.core.task import InputKind, TaskShape
from iclbench.layers.prompt import DatasetMarkers

# Type of element for each `TaskShape.inputs`. Images are read as pairs, because an encoder maps them to features.
_ELEMENTS: dict[InputKind, type[Elements[Any]]] = {
    "features": Pairs,
    "images": Pairs,
    "events": Events,
    "tokens": Tokens,
    "vectors": Vectors,
}

_Sequence = TypeVar("_Sequence", bound="SequenceBackbone[Any]")


class LoopedSettings(BackboneSettings):
    """Settings of models whose blocks can be applied several times (`iclbench.layers.loops`)."""

    # One iteration is stored as None, so that configurations of models without loops do not contain this setting.
    loops: Annotated[LoopCount | None, AfterValidator(lambda loops: None if loops == 1 else loops)] = None
    """Iterations of the blocks, with the embedded input added before each iteration (Yang et al. 2023); by default
    one."""
    loop_window: LoopCount | None = None
    """Number of last iterations over which the training loss is averaged; earlier ones have no gradients. By default,
    all iterations."""

    @model_validator(mode="after")
    def _check_window(self) -> LoopedSettings:
        loops = self.loops or 1
        if self.loop_window is not None and self.loop_window > loops:
            raise ValueError(
                f"backbone.loop_window={self.loop_window} is larger than backbone.loops={loops}; use a smaller window "
                "or more loops"
            )
        return self


_Settings = TypeVar("_Settings", bound=BaseSettings)


class SequenceBackbone(CausalTrunk[_Settings], abstract=True):
    """A causal trunk between a read-in and a read-out.

    A model for a task without related datasets has no parameters for related datasets and ignores them.

    Attributes:
        elements: the elements of the task's sequences.
        loop_window: number of last iterations over which the training loss is averaged.
    """

    order = "causal"
    input_kinds = frozenset(_ELEMENTS)
    uses_related = True
    loop_window = 1

    def __init__(self, settings: _Settings, shape: TaskShape, width: int) -> None:
        super().__init__(settings, shape)
        self.elements = _ELEMENTS[shape.inputs]()
        self.add_module(self.elements.read_in_name, self.elements.make_read_in(shape, width))
        self.read_out = nn.Linear(width, shape.raw_dim)
        self.uses_related = shape.related > 0
        self.marks = DatasetMarkers(width) if self.uses_related else None
        self._set_loops(settings)

    def _set_loops(self, settings: _Settings) -> None:
        if isinstance(settings, LoopedSettings):
            self.loops = settings.loops or 1
            self.loop_window = settings.loop_window or self.loops

    def with_loops(self: _Sequence, loops: int) -> _Sequence:
        if self.loops == 1 or not isinstance(self.settings, LoopedSettings):
            return super().with_loops(loops)
        changes = {"loops": loops, "loop_window": self.settings.loop_window and min(self.settings.loop_window, loops)}
        settings = validate(LoopedSettings, changes, f"backbone '{type(self).__name__}'")
        model = copy(self)  # shares the weights
        model.settings = self.settings.model_copy(update=settings.model_dump(include=set(changes)))
        model._set_loops(model.settings)
        return model

    def predict_next(
        self,
        points: Points,
        related: Points | None = None,
        *,
        x_query: Float[Tensor, "batch points dx"] | None = None,
        prefixes: Sequence[int] | None = None,
    ) -> Prediction:
        raw = self._raw_outputs(points, related, x_query)
        return self.read(raw if prefixes is None else raw[:, list(prefixes)])

    def _raw_outputs(
        self, points: Points, related: Points | None, x_query: Float[Tensor, "B N Dx"] | None
    ) -> Float[Tensor, "B N *window raw"]:
        """Return the raw outputs at every position; the arguments are those of `predict_next`."""
        if x_query is not None:
            points = points.span(0, x_query.shape[1])  # later points do not affect any query
        # The points are always compacted, because checking whether this is needed would synchronise with the device in
        # every training step.
        points, order = points.compact()
        x_query = None if x_query is None else take(x_query, order)
        return take(self.elements.outputs(self, points, x_query, related), torch.argsort(order, dim=1))

    def trained_answers(self, episodes: Episodes) -> list[Prediction]:
        """With loops, return the answers after each iteration of the window."""
        if self.loops == 1:
            return super().trained_answers(episodes)
        model = copy(self)  # shares the weights
        model.window = self.loop_window
        context, queries, related = episodes.context, episodes.queries, episodes.related
        if self.shape.question == "targets":
            return model.predict_by_layer(context, queries.x, related)[-self.loop_window :]
        raw = model._raw_outputs(context, related, None if episodes.targets is None else queries.x)
        return [self.read(outputs) for outputs in raw.unbind(2)]

    def condition(self, context: Points, related: Points | None = None) -> State:
        return self.elements.condition(self, context, related)

    def update(self, state: Any, points: Points) -> State:
        return self.elements.update(self, state, points)

    def query(self, state: Any, x: Float[Tensor, "B Q Dx"]) -> Prediction:
        *_, hidden = self.elements.peek_layers(self, state, x)
        return self._answer(hidden, x)

    def predict_by_layer(
        self, context: Points, x_target: Float[Tensor, "B Q Dx"], related: Points | None = None
    ) -> list[Prediction]:
        return [self._answer(hidden, x_target) for hidden in self.hidden_by_layer(context, x_target, related)]

    def hidden_by_layer(
        self, context: Points, x_target: Float[Tensor, "B Q Dx"], related: Points | None = None
    ) -> Iterator[Float[Tensor, " B #Q D"]]:
        """Yield the hidden vectors of the targets after each layer, first to last; `predict_by_layer` decodes them. If
        elements have no x, all targets share the hidden vector of the last element."""
        return self.elements.peek_layers(self, self.condition(context, related), x_target)

    def _answer(self, hidden: Float[Tensor, " B #Q D"], x: Float[Tensor, "B Q Dx"]) -> Prediction:
        return self.read(self.read_out(self.finish(hidden)).expand(-1, x.shape[1], -1))
