"""TNP-D and TNP-A once more, as their authors have them: one episode at a time, all rows of one sequence through
PyTorch's own encoder layers under a mask, no keys kept and nothing padded. Reads the weights of our models by name."""

import torch
from torch import Tensor, nn

from iclbench.layers.encoder_layer import EncoderLayer


def torch_layer(own: EncoderLayer) -> nn.TransformerEncoderLayer:
    """PyTorch's layer with the same weights."""
    width, feedforward = own.q.in_features, own.feed[0].out_features
    other = nn.TransformerEncoderLayer(width, own.heads, feedforward, 0.0, batch_first=True).to(own.q.weight.dtype)
    with torch.no_grad():
        other.self_attn.in_proj_weight.copy_(torch.cat([own.q.weight, own.kv.weight]))
        other.self_attn.in_proj_bias.copy_(torch.cat([own.q.bias, own.kv.bias]))
    for mine, theirs in (
        (own.out, other.self_attn.out_proj),
        (own.feed[0], other.linear1),
        (own.feed[2], other.linear2),
        (own.norm, other.norm1),
        (own.norm_feed, other.norm2),
    ):
        theirs.load_state_dict(mine.state_dict())
    return other


def encoded(model: nn.Module, rows: Tensor, visible: Tensor) -> Tensor:
    """Tokens `(T, x and y)` after all layers, of which each sees what `visible`, `(T, T)`, says."""
    mask = torch.zeros(visible.shape, dtype=rows.dtype).masked_fill(~visible, -torch.inf)
    hidden = model.embedding(rows).unsqueeze(0)
    for layer in model.targets:
        hidden = torch_layer(layer)(hidden, src_mask=mask)
    return hidden[0]


def blank(x: Tensor, outputs: int) -> Tensor:
    """Rows (x, 0)."""
    return torch.cat([x, x.new_zeros(len(x), outputs)], 1)


def diagonal(model: nn.Module, x: Tensor, y: Tensor, x_target: Tensor) -> Tensor:
    """Vectors of the targets of a TNP-D, `(Q, D)`: every row sees the context."""
    rows = torch.cat([torch.cat([x, y], 1), blank(x_target, y.shape[1])])
    visible = torch.zeros(len(rows), len(rows), dtype=torch.bool)
    visible[:, : len(x)] = True
    return encoded(model, rows, visible)[len(x) :]


def following(model: nn.Module, x: Tensor, y: Tensor, x_before: Tensor, y_before: Tensor, x_target: Tensor) -> Tensor:
    """The vector of one target of a TNP-A, `(D,)`, given the outputs of targets before it, which see those before them
    and themselves."""
    points = torch.cat([torch.cat([x, y], 1), torch.cat([x_before, y_before], 1)])
    rows = torch.cat([points, blank(x_target.unsqueeze(0), y.shape[1])])
    visible = torch.ones(len(rows), len(rows), dtype=torch.bool).tril()
    visible[:, : len(x)] = True
    visible[-1, -1] = False
    return encoded(model, rows, visible)[-1]
