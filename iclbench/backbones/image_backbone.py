"""A backbone with an image encoder.

The encoder maps each image to features before the backbone reads it. The backbone is built for a task whose inputs are
features, so its methods and states use features instead of pixels. In a forward pass all images (context, related
datasets, queries) are encoded in one call, so that BatchNorm uses statistics of the complete batch in training. Masked
points would count in these statistics, but training sequences of images have no masked points.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from iclbench.backbones.base import Backbone, BackboneSettings
from iclbench.core.episodes import Episodes, Points
from iclbench.core.errors import UsageError
from iclbench.core.predictions import Prediction
from iclbench.core.predictor import State
from iclbench.core.task import TaskShape
from iclbench.layers.vision.image_encoder import ImageEncoder

_ImageBackbone = TypeVar("_ImageBackbone", bound="ImageBackbone")


def build_backbone(cls: type[Backbone], settings: Any, shape: TaskShape) -> Backbone:
    """Build a backbone of this class for the task. On tasks with images, it has an image encoder if its settings derive
    from `BackboneSettings`.

    Raises:
        UsageError: an encoder is set, but the task has no images; or the class rejects the settings or the task.
    """
    if not isinstance(settings, BackboneSettings):
        return cls(settings, shape)
    if shape.x_shape is not None:
        return ImageBackbone(cls, settings, shape)
    if settings.encoder is not None:
        raise UsageError(
            f"backbone.encoder={settings.encoder} is for tasks with images, but the inputs of this one are vectors of "
            f"dimension {shape.x_dim}; remove backbone.encoder",
            code="not-applicable",
        )
    return cls(settings, shape)


class ImageBackbone(Backbone[BackboneSettings]):
    """An encoder and a backbone as one model.

    Args:
        cls: class of the backbone.
        settings: settings of the backbone, including `encoder`.
        shape: the task with images.

    Attributes:
        images: the encoder.
        backbone: the backbone, which reads features.
    """

    def __init__(self, cls: type[Backbone], settings: BackboneSettings, shape: TaskShape) -> None:
        super().__init__(settings, shape)
        assert shape.x_shape is not None
        if (reason := cls.unfit_reason("images")) is not None:
            raise UsageError(reason, code="not-applicable")
        self.images = ImageEncoder(settings.encoder or cls.default_encoder, shape.x_shape)
        features = self.images.features
        self.backbone = cls(settings, replace(shape, x_dim=features, x_shape=None, encoded=True))
        for trait in ("order", "heads", "uses_related", "removes_points", "joint", "longest", "computed_by"):
            setattr(self, trait, getattr(self.backbone, trait))

    @property
    def encoder_parameter_count(self) -> int:
        return sum(p.numel() for p in self.images.parameters())

    @property
    def state_size(self) -> int | None:
        return self.backbone.state_size

    def predict_next(
        self,
        points: Points,
        related: Points | None = None,
        *,
        x_query: Float[Tensor, "batch points dx"] | None = None,
        prefixes: Sequence[int] | None = None,
    ) -> Prediction:
        points, related, x_query = self._encode(points, related, x_query)
        return self.backbone.predict_next(points, related, x_query=x_query, prefixes=prefixes)

    def predict_targets(
        self, context: Points, x_target: Float[Tensor, "B Q Dx"], related: Points | None = None
    ) -> Prediction:
        context, related, x_target = self._encode(context, related, x_target)
        return self.backbone.predict_targets(context, x_target, related)

    def joint_scores(
        self,
        answer: Prediction,
        context: Points,
        targets: Points,
        scored: Bool[Tensor, "B Q"],
        related: Points | None = None,
    ) -> dict[str, Float[Tensor, " B"]]:
        context, targets, related = self._encode(context, targets, related)
        return self.backbone.joint_scores(answer, context, targets, scored, related)

    def predict_by_layer(
        self, context: Points, x_target: Float[Tensor, "B Q Dx"], related: Points | None = None
    ) -> list[Prediction]:
        context, related, x_target = self._encode(context, related, x_target)
        return self.backbone.predict_by_layer(context, x_target, related)

    def condition(self, context: Points, related: Points | None = None) -> State:
        return self.backbone.condition(*self._encode(context, related))

    def query(self, state: Any, x: Float[Tensor, "B Q Dx"]) -> Prediction:
        return self.backbone.query(state, self.images(x))

    def update(self, state: Any, points: Points) -> State:
        return self.backbone.update(state, *self._encode(points))

    def remove(self, state: Any, points: Points) -> State:
        return self.backbone.remove(state, *self._encode(points))

    def loss(
        self, episodes: Episodes, progress: float, generator: torch.Generator
    ) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
        context, targets, related = self._encode(episodes.context, episodes.targets, episodes.related)
        encoded = replace(episodes, context=context, targets=targets, related=related)
        return self.backbone.loss(encoded, progress, generator)

    def with_loops(self: _ImageBackbone, loops: int) -> _ImageBackbone:
        model, inner = copy(self), self.backbone.with_loops(loops)
        model._modules = {**self._modules, "backbone": inner}
        model.settings = inner.settings
        return model

    @property
    def shares_batches(self) -> bool:
        return self.backbone.shares_batches

    @property
    def has_layers(self) -> bool:
        return self.backbone.has_layers

    def parameter_groups(self) -> list[dict[str, Any]]:
        return [{"params": list(self.images.parameters())}, *self.backbone.parameter_groups()]

    def notes(self, device: str) -> list[str]:
        return self.backbone.notes(device)

    def _encode(self, *values: Any) -> list[Any]:
        """Replace the pixels of points and inputs by features, which are computed in one pass; None remains None."""
        pixels = [value.x if isinstance(value, Points) else value for value in values if value is not None]
        all_features = self.images(torch.cat([x.flatten(0, -2) for x in pixels]))
        features = iter(all_features.split([x.shape[:-1].numel() for x in pixels]))
        encoded = []
        for value in values:
            if isinstance(value, Points):
                value = replace(value, x=next(features).unflatten(0, value.x.shape[:-1]))
            elif value is not None:
                value = next(features).unflatten(0, value.shape[:-1])
            encoded.append(value)
        return encoded
