"""The post-norm layer against PyTorch's encoder layer with the same weights."""

import pytest
import torch
from torch import Tensor, nn

from iclbench.layers.post_norm_layer import PostNormLayer
from tests.refusals import refused

WIDTH, FEEDFORWARD = 12, 20


def pair(heads: int, dropout: float = 0.0) -> tuple[PostNormLayer, nn.TransformerEncoderLayer]:
    """Build our layer, and PyTorch's layer with the same weights. The norms have random scales and shifts."""
    torch.manual_seed(0)
    ours = PostNormLayer(WIDTH, heads, FEEDFORWARD, dropout).double()
    torch_layer = nn.TransformerEncoderLayer(
        WIDTH, heads, FEEDFORWARD, dropout, "gelu", layer_norm_eps=1e-6, batch_first=True, norm_first=False
    ).double()
    with torch.no_grad():
        for p in ours.parameters():
            p.add_(0.2 * torch.randn_like(p))
        torch_layer.self_attn.in_proj_weight.copy_(torch.cat([ours.q.weight, ours.k.weight, ours.v.weight]))
        torch_layer.self_attn.in_proj_bias.zero_()
    for source, target in (
        (ours.out, torch_layer.self_attn.out_proj),
        (ours.up, torch_layer.linear1),
        (ours.down, torch_layer.linear2),
        (ours.norm, torch_layer.norm1),
        (ours.norm_feed, torch_layer.norm2),
    ):
        target.load_state_dict(source.state_dict())
    return ours, torch_layer


def run(layer: PostNormLayer, x: Tensor, visible: Tensor | None = None) -> Tensor:
    return layer.finish(x, *layer.project(x), visible)


@pytest.mark.parametrize("heads", [1, 3])
def test_outputs_and_gradients_equal_pytorch(heads: int) -> None:
    ours, torch_layer = pair(heads)
    causal = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    x, x_copy = (torch.randn(2, 5, WIDTH, dtype=torch.float64).requires_grad_() for _ in range(2))
    with torch.no_grad():
        x_copy.copy_(x)
    actual, expected = run(ours, x), torch_layer(x_copy, src_mask=causal)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
    for output in (actual, expected):
        output.square().sum().backward()
    torch.testing.assert_close(x.grad, x_copy.grad, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ours.down.weight.grad, torch_layer.linear2.weight.grad, rtol=1e-9, atol=1e-9)


def test_without_a_mask_attention_is_causal() -> None:
    ours, _ = pair(2)
    x = torch.randn(2, 5, WIDTH, dtype=torch.float64)
    torch.testing.assert_close(run(ours, x), run(ours, x, torch.ones(5, 5, dtype=torch.bool).tril()))


def test_in_training_dropout_applies_to_attention_weights_hidden_units_and_outputs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rates, shapes = [], []
    attend = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda *args, **options: rates.append(options["dropout_p"]) or attend(*args, **options),
    )
    ours, _ = pair(1, dropout=0.25)
    ours.dropout.register_forward_hook(lambda module, inputs, output: shapes.append(output.shape[-1]))
    x = torch.randn(1, 4, WIDTH, dtype=torch.float64)
    assert not torch.equal(run(ours, x), run(ours, x))
    assert torch.equal(run(ours.eval(), x), run(ours, x))
    assert rates == [0.25, 0.25, 0.0, 0.0] and shapes[:3] == [WIDTH, FEEDFORWARD, WIDTH]


def test_a_width_that_is_not_a_multiple_of_the_heads_is_refused() -> None:
    with refused("bad-value", "backbone.width=12", "backbone.heads=5"):
        PostNormLayer(WIDTH, 5, FEEDFORWARD, 0.0)
