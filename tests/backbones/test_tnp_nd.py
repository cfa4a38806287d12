"""TNP-ND: its joint density against PyTorch's, the order of the targets, and its published sizes."""

import pytest
import torch
from torch.distributions import MultivariateNormal
from torch.nn.functional import softplus

from tests.backbones.released_tnp import diagonal
from tests.backbones.small_np import alone, batch, build, encoder, mlp, published


# (dx, dy) of the Gaussian processes, EMNIST and CelebA.
@pytest.mark.parametrize(("dx", "dy", "said"), [(1, 1, 332_821), (2, 1, 332_885), (2, 3, 338_431)])
def test_published_sizes(dx: int, dy: int, said: int) -> None:
    """TNP-D with a read-out of means alone, two layers among the targets and a projection to 20 columns per output."""
    own = published("tnp-d", dx, dy) - mlp(64, 128, 2 * dy) + mlp(64, 128, dy)
    count = own + encoder(2) + mlp(64, 128, 128, 128, 20 * dy)
    assert published("tnp-nd", dx, dy) == count == said
    low_rank = count + mlp(64, 128, 128, 128, dy)
    assert published("tnp-nd", dx, dy, covariance="low-rank") == low_rank


@pytest.mark.parametrize("covariance", ["tril", "low-rank"])
def test_tnp_nd_is_trained_and_scored_by_its_joint_density_per_target(covariance: str) -> None:
    """Episodes of a masked batch against each alone, by PyTorch's encoder and multivariate normal distribution."""
    model, episodes = build("tnp-nd", {"covariance": covariance}), batch([(5, 4), (3, 1), (2, 5)])
    expected = []
    for b in range(3):
        x, y, x_target, y_target = alone(episodes, b)
        hidden = diagonal(model, x, y, x_target).unsqueeze(0)
        answer = model.decode(hidden)
        whole = MultivariateNormal(answer.mean.flatten(), answer.covariance()[0])
        expected.append(whole.log_prob(y_target.flatten()) / len(y_target))
    answer = model.predict_targets(episodes.context, episodes.asked.x)
    found = model.joint_scores(answer, episodes.context, episodes.asked, episodes.scored)
    assert found.keys() == {"log_likelihood_joint"}
    torch.testing.assert_close(found["log_likelihood_joint"], torch.stack(expected), rtol=1e-6, atol=1e-6)
    loss, parts = model.loss(episodes, 0.0, torch.Generator())
    assert loss.item() == pytest.approx(-torch.stack(expected).mean().item(), rel=1e-6) and loss == parts["loss"]


@pytest.mark.parametrize(("covariance", "moves"), [("tril", True), ("low-rank", False)])
@torch.no_grad()
def test_the_order_of_targets_matters_to_a_triangle_and_to_nothing_else(covariance: str, moves: bool) -> None:
    model, episodes = build("tnp-nd", {"covariance": covariance}), batch([(5, 5)])
    assert model.joint == ("ordered" if moves else "exchangeable")
    scores = []
    for targets in (episodes.asked, episodes.asked.map(lambda t: t.flip(1))):
        answer = model.predict_targets(episodes.context, targets.x)
        scores.append(model.joint_scores(answer, episodes.context, targets, targets.mask)["log_likelihood_joint"])
    assert (abs(scores[0] - scores[1]).item() > 1e-3) == moves


@torch.no_grad()
def test_tnp_nd_without_products_scores_the_sum_of_its_marginals() -> None:
    model, episodes = build("tnp-nd", {"covariance": "low-rank"}), batch()
    model.covariance.projector[-1].weight.zero_()
    model.covariance.projector[-1].bias.zero_()
    answer = model.predict_targets(episodes.context, episodes.asked.x)
    together = model.joint_scores(answer, episodes.context, episodes.asked, episodes.scored)["log_likelihood_joint"]
    each = answer.scores(episodes.asked.y)["log_likelihood"] * episodes.scored
    torch.testing.assert_close(together, each.sum(1) / episodes.scored.sum(1), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["tnp-nd", "cmanp-and"])
@torch.no_grad()
def test_with_another_head_they_are_the_backbone_they_derive_from(name: str) -> None:
    small = {} if name == "tnp-nd" else {"hidden": 8, "latents": 3}
    parent, episodes = {"tnp-nd": "tnp-d", "cmanp-and": "cmanp"}[name], batch()
    own, other = build(name, small, "mixture"), build(parent, small, "mixture")
    assert own.joint == "apart" and own.state_dict().keys() == other.state_dict().keys()
    found, expected = (each.predict_targets(episodes.context, episodes.asked.x) for each in (own, other))
    assert type(found) is type(expected) and torch.equal(found.means, expected.means)
    losses = [each.loss(episodes, 0.0, torch.Generator())[0] for each in (own, other)]
    assert losses[0] == losses[1]
    assert own.joint_scores(found, episodes.context, episodes.asked, episodes.scored).keys() == {"log_likelihood_joint"}


@pytest.mark.parametrize("name", ["tnp-nd", "cmanp-and"])
@torch.no_grad()
def test_the_diagonal_of_low_rank_is_the_released_one_with_the_spread_exp_alone(name: str) -> None:
    """In the release it is exp(r) with and without `bound_std`; here its root is every model's standard deviation."""
    small, episodes = {} if name == "tnp-nd" else {"hidden": 8, "latents": 3}, batch([(3, 2)])
    for spread, read in {
        "exp": lambda r: r.exp(),
        "floor": lambda r: softplus(r) + 0.1**2,
        "bounded-0.05": lambda r: (0.05 + 0.95 * softplus(r)).square(),
    }.items():
        model = build(name, {"covariance": "low-rank", "spread": spread, **small})
        hidden = model.hidden(model.condition(episodes.context), episodes.asked.x)
        raw = model.covariance.diagonal(hidden if name == "tnp-nd" else model.norm(hidden))
        answer = model.query(model.condition(episodes.context), episodes.asked.x)
        torch.testing.assert_close(answer.std.square(), read(raw), rtol=1e-6, atol=1e-9)
