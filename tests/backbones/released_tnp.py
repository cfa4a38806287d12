"""Reference implementations of TNP-D and TNP-A that follow the released code: PyTorch's encoder layers run on one
masked sequence per episode, without cached keys or padding. They read the weights of a model by name."""

import torch
from torch import Tensor, nn

from iclbench.layers.encoder_layer import EncoderLayer


def torch_layer(ours: EncoderLayer) -> nn.TransformerEncoderLayer:
    """Build PyTorch's encoder layer with the same weights."""
    width, feedforward = ours.q.in_features, ours.feed[0].out_features
    torch_encoder = nn.TransformerEncoderLayer(width, ours.heads, feedforward, 0.0, batch_first=True)
    torch_encoder = torch_encoder.to(ours.q.weight.dtype)
    with torch.no_grad():
        torch_encoder.self_attn.in_proj_weight.copy_(torch.cat([ours.q.weight, ours.kv.weight]))
        torch_encoder.self_attn.in_proj_bias.copy_(torch.cat([ours.q.bias, ours.kv.bias]))
    for source, target in (
        (ours.out, torch_encoder.self_attn.out_proj),
        (ours.feed[0], torch_encoder.linear1),
        (ours.feed[2], torch_encoder.linear2),
        (ours.norm, torch_encoder.norm1),
        (ours.norm_feed, torch_encoder.norm2),
    ):
        target.load_state_dict(source.state_dict())
    return torch_encoder


def encode(model: nn.Module, rows: Tensor, visible: Tensor) -> Tensor:
    """Encode tokens of shape `(T, x and y)` with all layers, under the attention mask `visible` of shape `(T, T)`."""
    mask = torch.zeros(visible.shape, dtype=rows.dtype).masked_fill(~visible, -torch.inf)
    hidden = model.embedding(rows).unsqueeze(0)
    for layer in model.targets:
        hidden = torch_layer(layer)(hidden, src_mask=mask)
    return hidden[0]


def rows_without_outputs(x: Tensor, outputs: int) -> Tensor:
    """Return the rows (x, 0)."""
    return torch.cat([x, x.new_zeros(len(x), outputs)], 1)


def encode_targets(model: nn.Module, x: Tensor, y: Tensor, x_target: Tensor) -> Tensor:
    """Return the vectors `(Q, D)` of the targets of a TNP-D. Every row of the sequence attends to the context."""
    rows = torch.cat([torch.cat([x, y], 1), rows_without_outputs(x_target, y.shape[1])])
    visible = torch.zeros(len(rows), len(rows), dtype=torch.bool)
    visible[:, : len(x)] = True
    return encode(model, rows, visible)[len(x) :]


def encode_next_target(
    model: nn.Module, x: Tensor, y: Tensor, x_before: Tensor, y_before: Tensor, x_target: Tensor
) -> Tensor:
    """Return the vector `(D,)` of one target of a TNP-A, given the outputs of earlier targets. Each earlier target
    attends to itself and to the targets before it."""
    points = torch.cat([torch.cat([x, y], 1), torch.cat([x_before, y_before], 1)])
    rows = torch.cat([points, rows_without_outputs(x_target.unsqueeze(0), y.shape[1])])
    visible = torch.ones(len(rows), len(rows), dtype=torch.bool).tril()
    visible[:, : len(x)] = True
    visible[-1, -1] = False
    return encode(model, rows, visible)[-1]
