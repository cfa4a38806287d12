"""CMANP-AND: comparison with repeated conditioning and with one joint Gaussian, and published sizes."""

from typing import Any

import pytest
import torch

from iclbench.core.episodes import Points
from iclbench.core.joint import JointGaussian
from tests.backbones.small_np import (
    batch,
    build,
    default_parameters,
    encoder_parameters,
    mlp_parameters,
    unpadded_episode,
)

SMALL: dict[str, Any] = {"hidden": 8, "latents": 3, "chunk": 2}


# The dimensions of inputs and outputs of the Gaussian processes, EMNIST and CelebA.
@pytest.mark.parametrize(
    ("dx", "dy", "released", "expected"),
    [(1, 1, 1_460_951, 1_452_373), (2, 1, 1_461_079, 1_452_501), (2, 3, 1_467_141, 1_458_047)],
)
def test_published_sizes(dx: int, dy: int, released: int, expected: int) -> None:
    """The model is a CMANP with the output networks of TNP-ND. The released code also contains CMANP's predictor, but
    does not use it."""
    predictor, joint = (
        mlp_parameters(64, 128, 2 * dy),
        mlp_parameters(64, 128, dy) + encoder_parameters(2) + mlp_parameters(64, 128, 128, 128, 20 * dy),
    )
    assert default_parameters("cmanp", dx, dy) + joint == released
    assert default_parameters("cmanp-and", dx, dy) == released - predictor == expected


@pytest.mark.parametrize("covariance", ["tril", "low-rank"])
@pytest.mark.parametrize("block", [1, 2, 100])
@torch.no_grad()
def test_blocks_are_scored_given_the_true_outputs_of_earlier_blocks(block: int, covariance: str) -> None:
    """The reference conditions on the true outputs of earlier blocks. With a block size of 1, the score is
    autoregressive; with 100, all targets are in one block."""
    model = build("cmanp-and", SMALL | {"block": block, "covariance": covariance})
    episodes = batch([(5, 4), (0, 3), (3, 1)])
    answer = model.predict_targets(episodes.context, episodes.queries.x)
    actual = model.joint_scores(answer, episodes.context, episodes.queries, episodes.scored)
    assert actual.keys() == {"log_likelihood_joint", "log_likelihood_teacher_forced"}
    for b in range(3):
        x, y, x_target, y_target = (t.unsqueeze(0) for t in unpadded_episode(episodes, b))
        total = torch.zeros(1, dtype=torch.float64)
        for start in range(0, x_target.shape[1], block):
            in_block = slice(start, start + block)
            context = Points.full(x, y).append(Points.full(x_target[:, :start], y_target[:, :start]))
            gaussian = model.predict_targets(context, x_target[:, in_block])
            assert isinstance(gaussian, JointGaussian)
            mask = torch.ones(1, len(x_target[0, in_block]), dtype=torch.bool)
            total += gaussian.joint_log_likelihood(y_target[:, in_block], mask)
        for score in actual.values():
            assert score[b].item() == pytest.approx(total.item() / x_target.shape[1], rel=1e-7)


@torch.no_grad()
def test_the_loss_is_the_negative_joint_log_density_for_any_block_size() -> None:
    episodes = batch()
    losses = [build("cmanp-and", SMALL | {"block": b}).loss(episodes, 0.0, torch.Generator())[0] for b in (1, 100)]
    model = build("cmanp-and", SMALL)
    answer = model.predict_targets(episodes.context, episodes.queries.x)
    scores = model.joint_scores(answer, episodes.context, episodes.queries, episodes.scored)
    assert losses[0] == losses[1] == pytest.approx(-scores["log_likelihood_joint"].mean().item(), rel=1e-9)


def test_chunks_of_queries_do_not_change_predictions() -> None:
    """If gradients are enabled, queries are not split into chunks."""
    model, episodes = build("cmanp-and", SMALL), batch()
    expected = model.predict_targets(episodes.context, episodes.queries.x)
    with torch.no_grad():
        chunked = model.predict_targets(episodes.context, episodes.queries.x)
    torch.testing.assert_close(chunked.covariance(), expected.covariance(), rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_the_layer_norm_is_applied_before_means_and_before_covariances() -> None:
    model, episodes = build("cmanp-and", SMALL), batch()
    state = model.condition(episodes.context)
    normed = model.norm(model.hidden(state, episodes.queries.x))
    expected = model.covariance(normed, model.decoder(normed))
    actual = model.query(state, episodes.queries.x)
    torch.testing.assert_close(actual.mean, expected.mean)
    torch.testing.assert_close(actual.covariance(), expected.covariance())
