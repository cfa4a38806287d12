"""EQTNP against NumPy, and at its published sizes."""

import numpy as np
import pytest
import torch
from scipy.special import erf, softmax

from tests.backbones.naive_np import arrays, normalised, perceptron
from tests.backbones.small_np import alone, batch, build, mlp, published


# (dx, dy) of the Gaussian processes, EMNIST and CelebA.
@pytest.mark.parametrize(("dx", "dy", "said"), [(1, 1, 492_354), (2, 1, 492_482), (2, 3, 493_126)])
def test_published_sizes(dx: int, dy: int, said: int) -> None:
    """Two embeddings of four layers, five layers of the context and six of the targets, which norm their data, too."""
    layer = 4 * 64 * 64 + 64 + mlp(64, 256) + mlp(128, 64) + 2 * 2 * 64
    read_out = 2 * 64 + mlp(64, 128, 2 * dy)
    count = mlp(dx + dy, 64, 64, 64, 64) + mlp(dx, 64, 64, 64, 64) + 11 * layer + 6 * 2 * 64 + read_out
    assert published("eqtnp", dx, dy) == count == said


@pytest.mark.parametrize("residual", ["standard", "normed"])
@torch.no_grad()
def test_eqtnp_reads_what_each_layer_makes_of_the_context(residual: str) -> None:
    """Against NumPy, episode by episode; without any context the targets pass their layers as they are."""
    model, episodes = build("eqtnp", {"hidden": 6, "residual": residual}), batch()
    w = arrays(model)

    def layer(name: str, rows: np.ndarray, data: np.ndarray | None = None) -> np.ndarray:
        own = normalised(w, f"{name}.norm", rows)
        read = own if data is None else normalised(w, f"{name}.norm_data", data)
        if not len(read):
            return rows
        q, k, v = (t @ w[f"{name}.{part}.weight"].T for part, t in (("q", own), ("k", read), ("v", read)))
        heads = [softmax(q[:, h] @ k[:, h].T / 2, -1) @ v[:, h] for h in (slice(0, 4), slice(4, 8))]
        mixed = np.concatenate(heads, 1) @ w[f"{name}.out.weight"].T + w[f"{name}.out.bias"]
        rows = (own if residual == "normed" else rows) + mixed
        fed = normalised(w, f"{name}.norm_feed", rows)
        value, gate = np.split(fed @ w[f"{name}.feed.up.weight"].T + w[f"{name}.feed.up.bias"], 2, 1)
        inner = value * gate * 0.5 * (1 + erf(gate / np.sqrt(2)))
        out = inner @ w[f"{name}.feed.down.weight"].T + w[f"{name}.feed.down.bias"]
        return (fed if residual == "normed" else rows) + out

    found = model.predict_targets(episodes.context, episodes.asked.x)
    for b in range(3):
        x, y, x_target, _ = (t.numpy() for t in alone(episodes, b))
        z, hidden = perceptron(w, "embed_points", np.concatenate([x, y], 1)), perceptron(w, "embed_query", x_target)
        hidden = layer("readers.0", hidden, z)
        hidden = layer("readers.1", hidden, layer("among.0", z))
        raw = model.decoder(torch.from_numpy(hidden))
        there = found[b : b + 1].at(episodes.asked.mask[b])
        torch.testing.assert_close(there.mean[0], model.read(raw).mean, rtol=1e-9, atol=1e-9)
