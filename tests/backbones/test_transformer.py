"""The Transformer of Chan et al.: parameter counts, tokens, positions, and initial weights."""

import pytest
import torch

from iclbench.backbones.base import EncoderName, TaskShape
from iclbench.backbones.image_backbone import ImageBackbone, build_backbone
from iclbench.backbones.transformer import Transformer, TransformerSettings
from iclbench.core.episodes import Points
from iclbench.layers.feature_read_in import FeatureReadIn

CLASSES, WIDTH = 1_623, 64
BLOCK = 12 * WIDTH**2 + 13 * WIDTH
AFTER_ENCODER = (WIDTH**2 + WIDTH) + 2 * WIDTH + CLASSES * (WIDTH + 1)


def character_model(encoder: EncoderName | None = None, layers: int = 12) -> ImageBackbone:
    shape = TaskShape(
        x_dim=28 * 28, points=8, classes=CLASSES, x_shape=(28, 28), head="categorical", question="targets"
    )
    backbone = build_backbone(Transformer, TransformerSettings(layers=layers, encoder=encoder), shape)
    assert isinstance(backbone, ImageBackbone)
    return backbone


def test_the_default_model_has_the_835_639_parameters_of_the_paper() -> None:
    assert character_model().parameter_count == 835_639


@pytest.mark.parametrize(
    ("encoder", "layers", "network"),
    [("resnet-64", 4, 22_176), ("resnet-512", 4, 883_904), ("contours-512", 12, 392 * 512 + 512 * 514)],
)
def test_label_embeddings_have_the_width_of_image_features_and_both_are_projected(
    encoder: EncoderName, layers: int, network: int
) -> None:
    features = int(encoder.partition("-")[2])
    reduction = 0 if features == WIDTH else features * WIDTH + WIDTH
    expected = network + CLASSES * features + reduction + layers * BLOCK + AFTER_ENCODER
    assert character_model(encoder, layers).parameter_count == expected


def test_the_same_layers_map_features_and_labels_to_alternating_tokens() -> None:
    read_in, x, y = FeatureReadIn(6, 5, 4), torch.randn(2, 3, 6), torch.randint(5, (2, 3))
    tokens = read_in(Points.full(x, y))
    outer, inner = read_in.linear, read_in.reduce
    assert isinstance(inner, torch.nn.Linear)
    for b in range(2):
        for n in range(3):
            for place, vector in ((2 * n, x[b, n]), (2 * n + 1, read_in.labels.weight[y[b, n]])):
                expected = outer.weight @ (inner.weight @ vector + inner.bias) + outer.bias
                torch.testing.assert_close(tokens[b, place], expected)
    torch.testing.assert_close(read_in.inputs(x), tokens[:, ::2])


def test_predictions_depend_on_the_order_of_the_context() -> None:
    """The predictions of a `gpt2` with one layer do not depend on the order, because it has no positional encoding."""
    torch.manual_seed(0)
    model = Transformer(TransformerSettings(layers=1, width=16, heads=2), TaskShape(x_dim=3, points=4)).eval()
    context, x = Points.full(torch.randn(1, 2, 3), torch.randn(1, 2, 1)), torch.randn(1, 1, 3)
    with torch.no_grad():
        answer, flipped = (model.predict_targets(c, x).mean for c in (context, context.map(lambda t: t.flip(1))))
    assert float((answer - flipped).abs()) > 1e-3


def test_initial_weights_have_the_scale_of_chan_et_al() -> None:
    model = Transformer(TransformerSettings(layers=1), TaskShape(x_dim=3, points=4))
    assert float(model.blocks[0].mlp.c_fc.weight.detach().std()) == pytest.approx(64**-0.5, rel=0.02)
