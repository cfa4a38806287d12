"""The encoder layer of TNP-D against PyTorch's layer with the same weights."""

import pytest
import torch
from torch import nn

from iclbench.layers.encoder_layer import EncoderLayer
from tests.backbones.released_tnp import torch_layer
from tests.refusals import refused

WIDTH, HEADS, FEEDFORWARD = 12, 3, 20


def layer() -> EncoderLayer:
    """Build a layer with random biases and with norms that scale and shift."""
    torch.manual_seed(0)
    ours = EncoderLayer(WIDTH, HEADS, FEEDFORWARD).double()
    with torch.no_grad():
        for p in ours.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return ours


def test_outputs_and_gradients_equal_pytorch() -> None:
    ours = layer()
    torch_encoder = torch_layer(ours)
    visible = torch.tensor([[True, True, False], [True, False, True], [True, True, True]])
    x, x_copy = (torch.randn(2, 3, WIDTH, dtype=torch.float64).requires_grad_() for _ in range(2))
    with torch.no_grad():
        x_copy.copy_(x)
    actual = ours.attend(x, ours.keys(x), visible)
    expected = torch_encoder(x_copy, src_mask=torch.zeros(3, 3, dtype=torch.float64).masked_fill(~visible, -torch.inf))
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
    for output in (actual, expected):
        output.square().sum().backward()
    torch.testing.assert_close(x.grad, x_copy.grad, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(
        ours.kv.weight.grad, torch_encoder.self_attn.in_proj_weight.grad[WIDTH:], rtol=1e-9, atol=1e-9
    )


@torch.no_grad()
def test_attention_of_rows_without_visible_tokens_is_zero() -> None:
    """A sequence has no tokens, no valid tokens, or no visible tokens."""
    ours, rows, tokens = layer(), torch.randn(2, 4, WIDTH).double(), torch.randn(2, 5, WIDTH).double()
    inner = ours.norm(rows + ours.out.bias)
    expected = ours.norm_feed(inner + ours.feed(inner))
    no_tokens = torch.zeros(2, 5, dtype=torch.bool)
    for data in (ours.keys(tokens[:, :0]), ours.keys(tokens, no_tokens)):
        torch.testing.assert_close(ours.attend(rows, data), expected, rtol=1e-12, atol=1e-12)
    hidden = ours.attend(rows, ours.keys(tokens), torch.zeros(4, 5, dtype=torch.bool))
    torch.testing.assert_close(hidden, expected, rtol=1e-12, atol=1e-12)


def test_gradients_are_finite_if_some_rows_have_no_visible_token() -> None:
    ours, tokens = layer(), torch.randn(2, 5, WIDTH, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True] * 5, [False] * 5])
    ours.attend(torch.randn(2, 4, WIDTH).double(), ours.keys(tokens, mask)).square().sum().backward()
    assert tokens.grad is not None and tokens.grad[0].any() and not tokens.grad[1].any()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in ours.parameters())


def test_weights_are_initialised_as_in_pytorch() -> None:
    torch.manual_seed(0)
    ours, theirs = EncoderLayer(64, 4, 128), nn.TransformerEncoderLayer(64, 4, 128, 0.0)
    expected = theirs.self_attn.in_proj_weight
    for weight in (ours.q.weight, ours.kv.weight):
        assert weight.std().item() == pytest.approx(expected.std().item(), rel=0.05)
        assert weight.abs().max().item() == pytest.approx(expected.abs().max().item(), rel=0.01)
    assert not any(linear.bias.any() for linear in (ours.q, ours.kv, ours.out))
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())


def test_a_width_that_is_not_a_multiple_of_the_heads_is_refused() -> None:
    with refused("bad-value", "backbone.width=12", "backbone.heads=5"):
        EncoderLayer(WIDTH, 5, FEEDFORWARD)
