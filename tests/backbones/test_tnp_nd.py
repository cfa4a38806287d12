"""TNP-ND: joint density compared with PyTorch's, dependence on the order of targets, and published sizes."""

import pytest
import torch
from torch.distributions import MultivariateNormal
from torch.nn.functional import softplus

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
@pytest.mark.parametrize(("dx", "dy", "expected"), [(1, 1, 332_821), (2, 1, 332_885), (2, 3, 338_431)])
def test_published_sizes(dx: int, dy: int, expected: int) -> None:
    """The model is a TNP-D with a read-out network for means only, plus two layers of self-attention and a projection
    to 20 columns per output."""
    without_covariance = (
        default_parameters("tnp-d", dx, dy) - mlp_parameters(64, 128, 2 * dy) + mlp_parameters(64, 128, dy)
    )
    count = without_covariance + encoder_parameters(2) + mlp_parameters(64, 128, 128, 128, 20 * dy)
    assert default_parameters("tnp-nd", dx, dy) == count == expected
    low_rank = count + mlp_parameters(64, 128, 128, 128, dy)
    assert default_parameters("tnp-nd", dx, dy, covariance="low-rank") == low_rank


@pytest.mark.parametrize("covariance", ["tril", "low-rank"])
def test_loss_and_score_are_the_log_joint_density_per_target(covariance: str) -> None:
    """The references are PyTorch's encoder and multivariate normal distribution, applied to each episode of a masked
    batch.
    """
    model, episodes = build("tnp-nd", {"covariance": covariance}), batch([(5, 4), (3, 1), (2, 5)])
    expected = []
    for b in range(3):
        x, y, x_target, y_target = unpadded_episode(episodes, b)
        hidden = encode_targets(model, x, y, x_target).unsqueeze(0)
        answer = model.decode(hidden)
        distribution = MultivariateNormal(answer.mean.flatten(), answer.covariance()[0])
        expected.append(distribution.log_prob(y_target.flatten()) / len(y_target))
    answer = model.predict_targets(episodes.context, episodes.queries.x)
    actual = model.joint_scores(answer, episodes.context, episodes.queries, episodes.scored)
    assert actual.keys() == {"log_likelihood_joint"}
    torch.testing.assert_close(actual["log_likelihood_joint"], torch.stack(expected), rtol=1e-6, atol=1e-6)
    loss, parts = model.loss(episodes, 0.0, torch.Generator())
    assert loss.item() == pytest.approx(-torch.stack(expected).mean().item(), rel=1e-6) and loss == parts["loss"]


@pytest.mark.parametrize(("covariance", "is_ordered"), [("tril", True), ("low-rank", False)])
@torch.no_grad()
def test_scores_depend_on_the_order_of_targets_only_with_tril(covariance: str, is_ordered: bool) -> None:
    model, episodes = build("tnp-nd", {"covariance": covariance}), batch([(5, 5)])
    assert model.joint == ("ordered" if is_ordered else "exchangeable")
    scores = []
    for targets in (episodes.queries, episodes.queries.map(lambda t: t.flip(1))):
        answer = model.predict_targets(episodes.context, targets.x)
        scores.append(model.joint_scores(answer, episodes.context, targets, targets.mask)["log_likelihood_joint"])
    assert (abs(scores[0] - scores[1]).item() > 1e-3) == is_ordered


@torch.no_grad()
def test_the_joint_score_without_covariance_is_the_mean_of_marginal_scores() -> None:
    model, episodes = build("tnp-nd", {"covariance": "low-rank"}), batch()
    model.covariance.projector[-1].weight.zero_()
    model.covariance.projector[-1].bias.zero_()
    answer = model.predict_targets(episodes.context, episodes.queries.x)
    joint = model.joint_scores(answer, episodes.context, episodes.queries, episodes.scored)["log_likelihood_joint"]
    marginal = answer.scores(episodes.queries.y)["log_likelihood"] * episodes.scored
    torch.testing.assert_close(joint, marginal.sum(1) / episodes.scored.sum(1), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["tnp-nd", "cmanp-and"])
@torch.no_grad()
def test_without_a_gaussian_head_a_model_equals_its_parent_model(name: str) -> None:
    small = {} if name == "tnp-nd" else {"hidden": 8, "latents": 3}
    parent, episodes = {"tnp-nd": "tnp-d", "cmanp-and": "cmanp"}[name], batch()
    model, parent_model = build(name, small, "mixture"), build(parent, small, "mixture")
    assert model.joint == "apart" and model.state_dict().keys() == parent_model.state_dict().keys()
    actual, expected = (m.predict_targets(episodes.context, episodes.queries.x) for m in (model, parent_model))
    assert type(actual) is type(expected) and torch.equal(actual.means, expected.means)
    losses = [m.loss(episodes, 0.0, torch.Generator())[0] for m in (model, parent_model)]
    assert losses[0] == losses[1]
    scores = model.joint_scores(actual, episodes.context, episodes.queries, episodes.scored)
    assert scores.keys() == {"log_likelihood_joint"}


@pytest.mark.parametrize("name", ["tnp-nd", "cmanp-and"])
@torch.no_grad()
def test_the_setting_spread_determines_the_diagonal_of_low_rank_covariances(name: str) -> None:
    """The released code uses exp(r) with and without `bound_std`. In this package, `spread` determines the standard
    deviation, as in all other models."""
    small, episodes = {} if name == "tnp-nd" else {"hidden": 8, "latents": 3}, batch([(3, 2)])
    for spread, variance in {
        "exp": lambda r: r.exp(),
        "floor": lambda r: softplus(r) + 0.1**2,
        "bounded-0.05": lambda r: (0.05 + 0.95 * softplus(r)).square(),
    }.items():
        model = build(name, {"covariance": "low-rank", "spread": spread, **small})
        hidden = model.hidden(model.condition(episodes.context), episodes.queries.x)
        raw = model.covariance.diagonal(hidden if name == "tnp-nd" else model.norm(hidden))
        answer = model.query(model.condition(episodes.context), episodes.queries.x)
        torch.testing.assert_close(answer.std.square(), variance(raw), rtol=1e-6, atol=1e-9)
