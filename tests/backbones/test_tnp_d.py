"""TNP-D, compared with one encoder over the complete sequence, and gradients of all models derived from TNP-D."""

import pytest
import torch

from iclbench.backbones.base import Backbone
from iclbench.core.episodes import Episodes
from tests.backbones.released_tnp import encode_targets
from tests.backbones.small_np import (
    batch,
    build,
    default_parameters,
    encoder_parameters,
    mlp_parameters,
    unpadded_episode,
)


# The dimensions of inputs and outputs of the Gaussian processes, EMNIST and CelebA.
@pytest.mark.parametrize(("dx", "dy", "expected"), [(1, 1, 222_082), (2, 1, 222_146), (2, 3, 222_790)])
def test_published_sizes(dx: int, dy: int, expected: int) -> None:
    """The model has an embedding of four layers, six attention layers, and a read-out network of two layers."""
    count = mlp_parameters(dx + dy, 64, 64, 64, 64) + encoder_parameters(6) + mlp_parameters(64, 128, 2 * dy)
    assert default_parameters("tnp-d", dx, dy) == default_parameters("tnp-a", dx, dy) == count == expected


@torch.no_grad()
def test_predictions_equal_those_of_one_encoder_over_context_and_targets() -> None:
    model, episodes = build("tnp-d"), batch()
    actual = model.predict_targets(episodes.context, episodes.queries.x)
    for b in (0, 2):  # without a context, PyTorch's layer returns NaN
        x, y, x_target, _ = unpadded_episode(episodes, b)
        expected = model.decode(encode_targets(model, x, y, x_target).unsqueeze(0))
        valid = actual[b : b + 1].at(episodes.queries.mask[b])
        torch.testing.assert_close(valid.mean, expected.mean, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(valid.std, expected.std, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("question", ["next", "targets"])
@pytest.mark.parametrize("name", ["tnp-d", "tnp-nd", "tnp-a", "eqtnp", "cmanp-and"])
def test_gradients_of_every_parameter_are_finite_and_nonzero(name: str, question: str) -> None:
    """Some episodes have no context or no scored targets."""
    sizes = {"hidden": 8, "latents": 3} if name == "cmanp-and" else {}
    model: Backbone = build(name, sizes, question=question)
    episodes = batch([(5, 5), (0, 4), (4, 0), (5, 3)])
    if question == "next":
        context = episodes.context
        episodes = Episodes(context=context, scored=context.mask)
    loss, _ = model.loss(episodes, 0.0, torch.Generator().manual_seed(2))
    loss.backward()
    assert loss.isfinite()
    for key, p in model.named_parameters():
        assert p.grad is not None and p.grad.isfinite().all() and p.grad.any(), key
