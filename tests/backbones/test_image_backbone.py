"""Backbones with an image encoder: BatchNorm in training, states, and tasks without images."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
import torch
from torch import Tensor

from iclbench.backbones.base import Backbone, BackboneSettings, EncoderName, TaskShape
from iclbench.backbones.image_backbone import ImageBackbone, build_backbone
from iclbench.config.resolution import BackboneConfig
from iclbench.contracts import example_episodes
from iclbench.core.episodes import Episodes, Points
from iclbench.core.predictions import Categorical, Prediction
from iclbench.core.settings import BaseSettings
from iclbench.layers.vision.image_encoder import ImageEncoder
from iclbench.registry import BACKBONES
from tests.refusals import refused

SIDE = 12
SHAPE = TaskShape(x_dim=SIDE * SIDE, points=6, classes=5, head="categorical", question="targets", x_shape=(SIDE, SIDE))
VECTOR_SHAPE = TaskShape(x_dim=3, points=6)
SMALL = {"layers": 2, "width": 16, "heads": 2}


def image_episodes(related: int = 0) -> Episodes:
    return example_episodes(dim=SIDE * SIDE, points=6, targets=2, classes=5, related=related)


def small_backbone(name: str, shape: TaskShape = SHAPE, encoder: EncoderName | None = "resnet-64") -> Backbone:
    torch.manual_seed(0)
    fields = BACKBONES.get(name).Settings.model_fields
    settings = {key: value for key, value in SMALL.items() if key in fields}
    return BackboneConfig(name=name, code=1, settings=settings | ({"encoder": encoder} if encoder else {})).build(shape)


@pytest.mark.parametrize("name", get_args(EncoderName))
def test_every_encoder_has_the_width_in_its_name_and_encodes_images_independently(name: EncoderName) -> None:
    encoder = ImageEncoder(name, (16, 13)).eval()
    x = torch.rand(2, 3, 16 * 13)
    features = encoder(x)
    assert features.shape == (2, 3, encoder.features) and str(encoder.features) == name.partition("-")[2]
    torch.testing.assert_close(encoder(x[1, 2]), features[1, 2], atol=1e-5, rtol=1e-5)


def test_images_are_unflattened_row_by_row() -> None:
    encoder, image = ImageEncoder("contours-64", (12, 15)), torch.rand(12, 15)
    torch.testing.assert_close(encoder(image.flatten()), encoder.net(image[None])[0])


# One backbone for each way to use the encoder. These are always tested, and `make test-slow` tests the others.
ALWAYS_TESTED = {"gpt2", "hybrid", "mamba", "cnp", "anp", "tnp", "tnp-a", "icicl-tnp", "cmanp"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ALWAYS_TESTED else pytest.mark.slow)
        for name in BACKBONES.architectures()
        if "images" in BACKBONES.get(name).input_kinds
    ],
)
def test_batchnorm_reads_every_image_of_a_batch_once(name: str) -> None:
    """After one evaluation of the training loss, the running mean is 0.1 times the mean of all images, including
    queries.
    """
    model, episodes = (
        small_backbone(name, replace(SHAPE, related=2, related_points=6)).train(),
        image_episodes(related=2),
    )
    assert isinstance(model, ImageBackbone) and episodes.targets is not None and episodes.related is not None
    model.loss(episodes, 0.0, torch.Generator().manual_seed(0))
    net = model.images.net
    images = [points.x.reshape(-1, SIDE, SIDE) for points in (episodes.context, episodes.targets, episodes.related)]
    expected = net.stem(torch.cat(images)[:, None]).mean((0, 2, 3))
    torch.testing.assert_close(net.pool[0].running_mean, 0.1 * expected)


def test_both_encoder_and_backbone_have_gradients() -> None:
    model = small_backbone("cmanp").train()
    model.loss(image_episodes(), 0.0, torch.Generator().manual_seed(0))[0].backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    assert grads["images.net.stem.weight"] is not None and grads["images.net.stem.weight"].abs().max() > 0
    assert sum(len(group["params"]) for group in model.parameter_groups()) == len(grads)


def test_a_state_stores_features_instead_of_pixels() -> None:
    model = small_backbone("lbanp", encoder="contours-64").eval()
    assert model.condition(image_episodes().context).context.x.shape[-1] == 64


def test_an_encoder_for_inputs_that_are_not_images_is_refused() -> None:
    with refused("not-applicable", "backbone.encoder=contours-64", 3):
        small_backbone("mamba", VECTOR_SHAPE, "contours-64")
    assert not isinstance(small_backbone("mamba", VECTOR_SHAPE, None), ImageBackbone)


def test_encoders_refuse_colour_images_and_unsupported_sizes() -> None:
    with refused("not-applicable", (3, 12, 12)):
        ImageEncoder("resnet-64", (3, 12, 12))
    with refused("bad-value", 100, "12 x 12"):
        ImageEncoder("resnet-64", (12, 12))(torch.rand(2, 100))


class PixelBackbone(Backbone):
    """A backbone, as in a plug-in, whose settings have no encoder."""

    Settings = BaseSettings

    def predict_targets(self, context: Points, x_target: Tensor, related: Points | None = None) -> Prediction:
        assert x_target.shape[-1] == self.shape.x_dim
        return Categorical(x_target[..., :5])


def test_a_backbone_without_an_encoder_setting_reads_pixels() -> None:
    model = build_backbone(PixelBackbone, BaseSettings(), SHAPE)
    episodes = image_episodes()
    assert isinstance(model, PixelBackbone) and episodes.targets is not None
    model.predict_targets(episodes.context, episodes.targets.x)


@pytest.mark.parametrize("name", BACKBONES.architectures())
def test_all_shipped_backbones_have_an_encoder_setting(name: str) -> None:
    assert issubclass(BACKBONES.get(name).Settings, BackboneSettings)
