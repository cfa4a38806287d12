"""Two-path neural processes: published sizes, comparison with NumPy loops, bounded memory, and settings."""

import numpy as np
import pytest
import torch

from iclbench.backbones import two_path_np
from iclbench.backbones.base import TaskShape
from iclbench.registry import BACKBONES
from tests.backbones.event_models import assert_same
from tests.backbones.naive_two_path import NaiveModel
from tests.backbones.small_np import mlp_parameters
from tests.backbones.two_path_models import batch, build, rows
from tests.refusals import refused

NAMES = ["two-path-cnp", "np", "bnp", "canp", "anp", "banp"]
# dx, dy, and the depths of the networks in the published settings for Gaussian processes, EMNIST and CelebA.
PUBLISHED = [(1, 1, 4, 2, 3), (2, 1, 5, 3, 4), (2, 3, 6, 3, 5)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("dx", "dy", "pre", "post", "decoder"), PUBLISHED)
def test_published_sizes(name: str, dx: int, dy: int, pre: int, post: int, decoder: int) -> None:
    """The expected size is the sum over the layers of the released modules."""
    d = 128
    attention = 3 * d * d + mlp_parameters(d, d) + 2 * 2 * d
    attentive, latent = name in ("canp", "anp", "banp"), name in ("np", "anp")
    points = mlp_parameters(dx + dy, *[d] * pre)
    values = mlp_parameters(dx + dy, *[d] * (pre - 2)) + attention
    first = (
        values + mlp_parameters(dx, *[d] * post) + attention
        if attentive
        else points + mlp_parameters(*[d] * (post + 1))
    )
    second = (values if attentive else points) + mlp_parameters(*[d] * post, 2 * d if latent else d)
    bootstrap_layer = 2 * d * d if name in ("bnp", "banp") else 0
    expected = first + second + mlp_parameters(2 * d + dx, *[d] * (decoder - 1), 2 * dy) + bootstrap_layer
    cls = BACKBONES.get(name)
    settings = cls.Settings(pre_depth=pre, post_depth=post, decoder_depth=decoder)
    shape = TaskShape(x_dim=dx, y_dim=dy, points=64, head="gaussian", question="targets")
    assert cls(settings, shape).parameter_count == expected
    assert f"{expected:,}" in cls.__doc__
    assert (pre, post, decoder) != PUBLISHED[0][2:] or cls.Settings() == settings


@pytest.mark.parametrize("name", ["two-path-cnp", "canp"])
@torch.no_grad()
def test_a_batch_equals_numpy_loops_over_episodes_and_heads(name: str) -> None:
    model, episodes = build(name, pre_depth=3, post_depth=3, decoder_depth=4), batch()
    actual, naive = model.predict_targets(episodes.context, episodes.targets.x), NaiveModel(model)
    for b in range(len(episodes.context)):
        raw = naive.raw_outputs(rows(episodes.context, b), episodes.targets.x[b].numpy())
        np.testing.assert_allclose(actual.mean[b].numpy(), raw[:, :2], rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(actual.std[b].numpy(), np.sqrt(np.logaddexp(0, raw[:, 2:])), rtol=1e-10)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_predictions_do_not_depend_on_the_number_of_rows_per_pass(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, episodes = build(name, **({} if name in ("two-path-cnp", "canp") else {"samples": 5})), batch()
    questions = [lambda: model.predict_targets(episodes.context, episodes.targets.x)]
    questions.append(lambda: model.predict_next(episodes.context, x_query=episodes.context.x.flip(1)))
    expected = [ask() for ask in questions]
    monkeypatch.setattr(two_path_np, "_MAX_ROWS", 2 * episodes.targets.mask.numel())
    for ask, answer in zip(questions, expected, strict=True):
        assert_same(ask(), answer, 1e-10)


@pytest.mark.parametrize("name", ["two-path-cnp", "np"])
@torch.no_grad()
def test_the_size_of_the_state_of_pooling_encoders_does_not_depend_on_the_number_of_points(name: str) -> None:
    model, short, long = build(name), batch((3,)).context, batch((90,)).context
    state = model.condition(short)
    assert model.update(state, long).nbytes == state.nbytes == 2 * 8 * 8 + 8


@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_every_parameter_are_finite_and_nonzero(name: str) -> None:
    """Gradients must exceed rounding errors. With a single context point, gradients of keys are only rounding
    errors.
    """
    model, episodes = build(name), batch()
    model.loss(episodes, 0.0, torch.Generator().manual_seed(0))[0].backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.norm() > 1e-6, key


def test_invalid_sizes_of_attention_are_refused() -> None:
    with refused("bad-value", "backbone.width=8", "backbone.heads=3"):
        build("canp", heads=3)
    for name in ("canp", "anp", "banp"):
        with pytest.raises(ValueError, match="pre_depth"):
            BACKBONES.get(name).Settings(pre_depth=2)
