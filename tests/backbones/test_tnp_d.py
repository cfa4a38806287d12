"""TNP-D against one encoder over the whole sequence, and what it shares with the models that derive from it."""

import pytest
import torch

from iclbench.backbones.base import Backbone
from iclbench.core.episodes import Episodes
from tests.backbones.released_tnp import diagonal
from tests.backbones.small_np import alone, batch, build, encoder, mlp, published


# (dx, dy) of the Gaussian processes, EMNIST and CelebA.
@pytest.mark.parametrize(("dx", "dy", "said"), [(1, 1, 222_082), (2, 1, 222_146), (2, 3, 222_790)])
def test_published_sizes(dx: int, dy: int, said: int) -> None:
    """An embedding of four layers, six layers of attention, a read-out of two."""
    count = mlp(dx + dy, 64, 64, 64, 64) + encoder(6) + mlp(64, 128, 2 * dy)
    assert published("tnp-d", dx, dy) == published("tnp-a", dx, dy) == count == said


@torch.no_grad()
def test_tnp_d_is_one_encoder_over_context_and_targets() -> None:
    model, episodes = build("tnp-d"), batch()
    found = model.predict_targets(episodes.context, episodes.asked.x)
    for b in (0, 2):  # PyTorch answers NaN where there is no context
        x, y, x_target, _ = alone(episodes, b)
        expected = model.decode(diagonal(model, x, y, x_target).unsqueeze(0))
        there = found[b : b + 1].at(episodes.asked.mask[b])
        torch.testing.assert_close(there.mean, expected.mean, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(there.std, expected.std, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("question", ["next", "targets"])
@pytest.mark.parametrize("name", ["tnp-d", "tnp-nd", "tnp-a", "eqtnp", "cmanp-and"])
def test_gradients_reach_every_parameter_and_are_finite(name: str, question: str) -> None:
    """Also where an episode has no context, or nothing to learn from."""
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
