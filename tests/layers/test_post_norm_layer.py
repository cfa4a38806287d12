"""The post-norm layer against PyTorch's encoder layer with the same weights."""

import pytest
import torch
from torch import Tensor, nn

from iclbench.core.errors import UsageError
from iclbench.layers.post_norm_layer import PostNormLayer

WIDTH, FEEDFORWARD = 12, 20


def pair(heads: int, dropout: float = 0.0) -> tuple[PostNormLayer, nn.TransformerEncoderLayer]:
    """The layer, and PyTorch's with its weights; norms scale and shift too, unlike at the start of training."""
    torch.manual_seed(0)
    own = PostNormLayer(WIDTH, heads, FEEDFORWARD, dropout).double()
    other = nn.TransformerEncoderLayer(
        WIDTH, heads, FEEDFORWARD, dropout, "gelu", layer_norm_eps=1e-6, batch_first=True, norm_first=False
    ).double()
    with torch.no_grad():
        for p in own.parameters():
            p.add_(0.2 * torch.randn_like(p))
        other.self_attn.in_proj_weight.copy_(torch.cat([own.q.weight, own.k.weight, own.v.weight]))
        other.self_attn.in_proj_bias.zero_()
    for mine, theirs in (
        (own.out, other.self_attn.out_proj),
        (own.up, other.linear1),
        (own.down, other.linear2),
        (own.norm, other.norm1),
        (own.norm_feed, other.norm2),
    ):
        theirs.load_state_dict(mine.state_dict())
    return own, other


def run(layer: PostNormLayer, x: Tensor, visible: Tensor | None = None) -> Tensor:
    return layer.finish(x, *layer.project(x), visible)


@pytest.mark.parametrize("heads", [1, 3])
def test_layer_and_its_gradients_are_those_of_pytorch(heads: int) -> None:
    own, other = pair(heads)
    causal = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    mine, theirs = (torch.randn(2, 5, WIDTH, dtype=torch.float64).requires_grad_() for _ in range(2))
    with torch.no_grad():
        theirs.copy_(mine)
    found, expected = run(own, mine), other(theirs, src_mask=causal)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    for output in (found, expected):
        output.square().sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(own.down.weight.grad, other.linear2.weight.grad, rtol=1e-9, atol=1e-9)


def test_without_a_mask_a_token_sees_itself_and_those_before_it() -> None:
    own, _ = pair(2)
    x = torch.randn(2, 5, WIDTH, dtype=torch.float64)
    torch.testing.assert_close(run(own, x), run(own, x, torch.ones(5, 5, dtype=torch.bool).tril()))


def test_dropout_falls_on_attention_weights_hidden_units_and_both_outputs_in_training_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rates, shapes = [], []
    attend = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda *args, **options: rates.append(options["dropout_p"]) or attend(*args, **options),
    )
    own, _ = pair(1, dropout=0.25)
    own.dropout.register_forward_hook(lambda module, inputs, output: shapes.append(output.shape[-1]))
    x = torch.randn(1, 4, WIDTH, dtype=torch.float64)
    assert not torch.equal(run(own, x), run(own, x))
    assert torch.equal(run(own.eval(), x), run(own, x))
    assert rates == [0.25, 0.25, 0.0, 0.0] and shapes[:3] == [WIDTH, FEEDFORWARD, WIDTH]


def test_a_width_that_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(UsageError, match=r"backbone\.width=12 is not a multiple of backbone\.heads=5"):
        PostNormLayer(WIDTH, 5, FEEDFORWARD, 0.0)
