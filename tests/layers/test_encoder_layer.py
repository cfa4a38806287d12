"""The layer of TNP-D against PyTorch's encoder layer with the same weights."""

import pytest
import torch
from torch import nn

from iclbench.core.errors import UsageError
from iclbench.layers.encoder_layer import EncoderLayer
from tests.backbones.released_tnp import torch_layer

WIDTH, HEADS, FEEDFORWARD = 12, 3, 20


def layer() -> EncoderLayer:
    """Norms scale and shift, and there are biases, unlike at the start of training."""
    torch.manual_seed(0)
    own = EncoderLayer(WIDTH, HEADS, FEEDFORWARD).double()
    with torch.no_grad():
        for p in own.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return own


def test_layer_and_its_gradients_are_those_of_pytorch() -> None:
    own = layer()
    other = torch_layer(own)
    visible = torch.tensor([[True, True, False], [True, False, True], [True, True, True]])
    mine, theirs = (torch.randn(2, 3, WIDTH, dtype=torch.float64).requires_grad_() for _ in range(2))
    with torch.no_grad():
        theirs.copy_(mine)
    found = own.attend(mine, own.keys(mine), visible)
    expected = other(theirs, src_mask=torch.zeros(3, 3, dtype=torch.float64).masked_fill(~visible, -torch.inf))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    for output in (found, expected):
        output.square().sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(own.kv.weight.grad, other.self_attn.in_proj_weight.grad[WIDTH:], rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_rows_that_see_nothing_read_zero() -> None:
    """Whether there is no token, none that is there, or none that is visible."""
    own, rows, tokens = layer(), torch.randn(2, 4, WIDTH).double(), torch.randn(2, 5, WIDTH).double()
    inner = own.norm(rows + own.out.bias)
    expected = own.norm_feed(inner + own.feed(inner))
    nothing = torch.zeros(2, 5, dtype=torch.bool)
    for data in (own.keys(tokens[:, :0]), own.keys(tokens, nothing)):
        torch.testing.assert_close(own.attend(rows, data), expected, rtol=1e-12, atol=1e-12)
    hidden = own.attend(rows, own.keys(tokens), torch.zeros(4, 5, dtype=torch.bool))
    torch.testing.assert_close(hidden, expected, rtol=1e-12, atol=1e-12)


def test_gradients_are_finite_where_some_rows_see_nothing() -> None:
    own, tokens = layer(), torch.randn(2, 5, WIDTH, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True] * 5, [False] * 5])
    own.attend(torch.randn(2, 4, WIDTH).double(), own.keys(tokens, mask)).square().sum().backward()
    assert tokens.grad is not None and tokens.grad[0].any() and not tokens.grad[1].any()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in own.parameters())


def test_weights_start_as_those_of_pytorch() -> None:
    torch.manual_seed(0)
    own, other = EncoderLayer(64, 4, 128), nn.TransformerEncoderLayer(64, 4, 128, 0.0)
    theirs = other.self_attn.in_proj_weight
    for weight in (own.q.weight, own.kv.weight):
        assert weight.std().item() == pytest.approx(theirs.std().item(), rel=0.05)
        assert weight.abs().max().item() == pytest.approx(theirs.abs().max().item(), rel=0.01)
    assert not any(linear.bias.any() for linear in (own.q, own.kv, own.out))
    assert sum(p.numel() for p in own.parameters()) == sum(p.numel() for p in other.parameters())


def test_a_width_that_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(UsageError, match=r"backbone\.width=12 is not a multiple of backbone\.heads=5"):
        EncoderLayer(WIDTH, 5, FEEDFORWARD)
