"""EQTNP: predictions compared with NumPy, and published sizes."""

import numpy as np
import pytest
import torch
from scipy.special import erf, softmax

from tests.backbones.naive_np import arrays, layer_norm, perceptron
from tests.backbones.small_np import batch, build, default_parameters, mlp_parameters, unpadded_episode


# The dimensions of inputs and outputs of the Gaussian processes, EMNIST and CelebA.
@pytest.mark.parametrize(("dx", "dy", "expected"), [(1, 1, 492_354), (2, 1, 492_482), (2, 3, 493_126)])
def test_published_sizes(dx: int, dy: int, expected: int) -> None:
    """The model has two embeddings of four linear layers, five attention layers for the context, and six for the
    targets, each with an additional layer norm for the context."""
    layer = 4 * 64 * 64 + 64 + mlp_parameters(64, 256) + mlp_parameters(128, 64) + 2 * 2 * 64
    read_out = 2 * 64 + mlp_parameters(64, 128, 2 * dy)
    count = (
        mlp_parameters(dx + dy, 64, 64, 64, 64)
        + mlp_parameters(dx, 64, 64, 64, 64)
        + 11 * layer
        + 6 * 2 * 64
        + read_out
    )
    assert default_parameters("eqtnp", dx, dy) == count == expected


@pytest.mark.parametrize("residual", ["standard", "normed"])
@torch.no_grad()
def test_targets_attend_to_the_context_after_each_layer(residual: str) -> None:
    """The NumPy reference computes one episode at a time. Without a context, the layers do not change the targets."""
    model, episodes = build("eqtnp", {"hidden": 6, "residual": residual}), batch()
    w = arrays(model)

    def layer(name: str, rows: np.ndarray, data: np.ndarray | None = None) -> np.ndarray:
        normed = layer_norm(w, f"{name}.norm", rows)
        tokens = normed if data is None else layer_norm(w, f"{name}.norm_data", data)
        if not len(tokens):
            return rows
        q, k, v = (t @ w[f"{name}.{key}.weight"].T for key, t in (("q", normed), ("k", tokens), ("v", tokens)))
        heads = [softmax(q[:, h] @ k[:, h].T / 2, -1) @ v[:, h] for h in (slice(0, 4), slice(4, 8))]
        mixed = np.concatenate(heads, 1) @ w[f"{name}.out.weight"].T + w[f"{name}.out.bias"]
        rows = (normed if residual == "normed" else rows) + mixed
        feed_input = layer_norm(w, f"{name}.norm_feed", rows)
        value, gate = np.split(feed_input @ w[f"{name}.feed.up.weight"].T + w[f"{name}.feed.up.bias"], 2, 1)
        inner = value * gate * 0.5 * (1 + erf(gate / np.sqrt(2)))
        out = inner @ w[f"{name}.feed.down.weight"].T + w[f"{name}.feed.down.bias"]
        return (feed_input if residual == "normed" else rows) + out

    actual = model.predict_targets(episodes.context, episodes.queries.x)
    for b in range(3):
        x, y, x_target, _ = (t.numpy() for t in unpadded_episode(episodes, b))
        z, hidden = perceptron(w, "embed_points", np.concatenate([x, y], 1)), perceptron(w, "embed_query", x_target)
        hidden = layer("readers.0", hidden, z)
        hidden = layer("readers.1", hidden, layer("among.0", z))
        raw = model.decoder(torch.from_numpy(hidden))
        valid = actual[b : b + 1].at(episodes.queries.mask[b])
        torch.testing.assert_close(valid.mean[0], model.read(raw).mean, rtol=1e-9, atol=1e-9)
