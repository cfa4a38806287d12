"""CMANP-AND: blocks against conditioning anew, one block against one Gaussian, and its published sizes."""

from typing import Any

import pytest
import torch

from iclbench.core.episodes import Points
from iclbench.core.joint import JointGaussian
from tests.backbones.small_np import alone, batch, build, encoder, mlp, published

SMALL: dict[str, Any] = {"hidden": 8, "latents": 3, "chunk": 2}


# (dx, dy) of the Gaussian processes, EMNIST and CelebA.
@pytest.mark.parametrize(
    ("dx", "dy", "released", "said"),
    [(1, 1, 1_460_951, 1_452_373), (2, 1, 1_461_079, 1_452_501), (2, 3, 1_467_141, 1_458_047)],
)
def test_published_sizes(dx: int, dy: int, released: int, said: int) -> None:
    """As TNP-ND after a CMANP, whose predictor the released code keeps although nothing reads it."""
    predictor, together = mlp(64, 128, 2 * dy), mlp(64, 128, dy) + encoder(2) + mlp(64, 128, 128, 128, 20 * dy)
    assert published("cmanp", dx, dy) + together == released
    assert published("cmanp-and", dx, dy) == released - predictor == said


@pytest.mark.parametrize("covariance", ["tril", "low-rank"])
@pytest.mark.parametrize("block", [1, 2, 100])
@torch.no_grad()
def test_blocks_are_scored_given_the_true_outputs_of_those_before(block: int, covariance: str) -> None:
    """Per episode of a masked batch, conditioned anew for each block; block 1 is autoregressive, 100 takes all."""
    model = build("cmanp-and", SMALL | {"block": block, "covariance": covariance})
    episodes = batch([(5, 4), (0, 3), (3, 1)])
    answer = model.predict_targets(episodes.context, episodes.asked.x)
    found = model.joint_scores(answer, episodes.context, episodes.asked, episodes.scored)
    assert found.keys() == {"log_likelihood_joint", "log_likelihood_teacher_forced"}
    for b in range(3):
        x, y, x_target, y_target = (t.unsqueeze(0) for t in alone(episodes, b))
        total = torch.zeros(1, dtype=torch.float64)
        for start in range(0, x_target.shape[1], block):
            part = slice(start, start + block)
            known = Points.full(x, y).append(Points.full(x_target[:, :start], y_target[:, :start]))
            gaussian = model.predict_targets(known, x_target[:, part])
            assert isinstance(gaussian, JointGaussian)
            there = torch.ones(1, len(x_target[0, part]), dtype=torch.bool)
            total += gaussian.joint_log_likelihood(y_target[:, part], there)
        for score in found.values():
            assert score[b].item() == pytest.approx(total.item() / x_target.shape[1], rel=1e-7)


@torch.no_grad()
def test_it_is_trained_as_one_joint_density_whatever_the_block() -> None:
    episodes = batch()
    losses = [build("cmanp-and", SMALL | {"block": b}).loss(episodes, 0.0, torch.Generator())[0] for b in (1, 100)]
    whole = build("cmanp-and", SMALL)
    answer = whole.predict_targets(episodes.context, episodes.asked.x)
    scores = whole.joint_scores(answer, episodes.context, episodes.asked, episodes.scored)
    assert losses[0] == losses[1] == pytest.approx(-scores["log_likelihood_joint"].mean().item(), rel=1e-9)


def test_chunks_of_queries_change_no_answer() -> None:
    model, episodes = build("cmanp-and", SMALL), batch()
    whole = model.predict_targets(episodes.context, episodes.asked.x)
    with torch.no_grad():
        chunked = model.predict_targets(episodes.context, episodes.asked.x)
    torch.testing.assert_close(chunked.covariance(), whole.covariance(), rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_the_norm_of_the_predictor_stands_before_means_and_covariance() -> None:
    model, episodes = build("cmanp-and", SMALL), batch()
    state = model.condition(episodes.context)
    normed = model.norm(model.hidden(state, episodes.asked.x))
    expected = model.covariance(normed, model.decoder(normed))
    found = model.query(state, episodes.asked.x)
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.covariance(), expected.covariance())
