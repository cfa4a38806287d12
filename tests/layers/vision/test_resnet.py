"""The residual network: its parameter counts against the papers, and its layers against plain NumPy loops."""

import numpy as np
import pytest
import torch

from iclbench.layers.vision.resnet import Bottleneck, ResNet


@pytest.mark.parametrize(("features", "expected"), [(64, 22_176), (256, 276_672), (512, 883_904)])
def test_parameter_counts_match_the_papers(features: int, expected: int) -> None:
    assert sum(p.numel() for p in ResNet(features).parameters()) == expected


@pytest.mark.parametrize("size", [12, 28, 105])
def test_images_of_any_size_give_one_vector(size: int) -> None:
    assert ResNet(64).eval()(torch.rand(2, size, size)).shape == (2, 64)


@pytest.mark.parametrize(("before", "channels", "stride", "project"), [(3, 8, 2, True), (8, 8, 1, False)])
@pytest.mark.parametrize("training", [False, True])
def test_a_block_equals_numpy_loops(before: int, channels: int, stride: int, project: bool, training: bool) -> None:
    torch.manual_seed(0)
    block = Bottleneck(before, channels, stride, project).double().train(training)
    for norm in (m for m in block.modules() if isinstance(m, torch.nn.BatchNorm2d)):
        for t in (norm.weight, norm.bias, norm.running_mean):
            torch.nn.init.normal_(t)
        torch.nn.init.uniform_(norm.running_var, 0.5, 2.0)
    layers = [m for m in block.branch if not isinstance(m, torch.nn.ReLU)]
    parameters = [_numpy(layer) for layer in (*layers, *(block.shortcut if project else ()))]
    x = torch.randn(2, before, 6, 5, dtype=torch.float64)
    with torch.no_grad():
        actual = block(x).numpy()

    shortcut = out = x.numpy()
    for i, layer_stride in enumerate((1, stride, 1)):
        out = _batch_norm(_convolve(out, parameters[2 * i]["weight"], layer_stride), parameters[2 * i + 1], training)
        out = out if i == 2 else np.maximum(out, 0)
    if project:
        shortcut = _batch_norm(_convolve(shortcut, parameters[6]["weight"], stride), parameters[7], training)
    np.testing.assert_allclose(actual, np.maximum(out + shortcut, 0), atol=1e-10)


def test_blocks_are_initialised_as_the_identity() -> None:
    x = torch.rand(2, 8, 5, 5)
    assert torch.equal(Bottleneck(8, 8, 1, False).eval()(x), x)


def _numpy(layer: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: t.detach().numpy().copy() for name, t in layer.state_dict().items()}


def _convolve(x: np.ndarray, weight: np.ndarray, stride: int) -> np.ndarray:
    size = weight.shape[-1]
    margin = size // 2
    padded = np.pad(x, [(0, 0), (0, 0), (margin, margin), (margin, margin)])
    rows, columns = (range(0, n, stride) for n in x.shape[2:])
    return np.stack(
        [
            np.stack([np.einsum("ncij,ocij->no", padded[:, :, i : i + size, j : j + size], weight) for j in columns], 2)
            for i in rows
        ],
        2,
    )


def _batch_norm(x: np.ndarray, norm: dict[str, np.ndarray], training: bool) -> np.ndarray:
    mean = x.mean((0, 2, 3)) if training else norm["running_mean"]
    variance = x.var((0, 2, 3)) if training else norm["running_var"]
    scale, shift, mean, variance = (t[:, None, None] for t in (norm["weight"], norm["bias"], mean, variance))
    return (x - mean) / np.sqrt(variance + 1e-5) * scale + shift
