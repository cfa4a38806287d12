"""TNP-A, compared with a loop over targets that predicts each target given the outputs of earlier targets: true outputs
for the joint density, and sampled outputs for paths."""

from typing import Any

import pytest
import torch
from torch import Tensor

from iclbench.backbones import tnp_a
from iclbench.core.episodes import Episodes, Points
from iclbench.core.joint import Paths
from iclbench.core.predictions import Categorical, Gaussian, Point
from tests.backbones.released_tnp import encode_next_target, encode_targets
from tests.backbones.small_np import batch, build, unpadded_episode


def predict_one_by_one(model: Any, x: Tensor, y: Tensor, x_target: Tensor, y_target: Tensor) -> Gaussian:
    """Return the predictions `(Q, dy)` at all targets, each given the true outputs of earlier targets. Each prediction
    is a separate pass over a sequence that ends with its target."""
    rows = [
        encode_next_target(model, x, y, x_target[:i], y_target[:i], x_target[i])
        if len(x) + i
        else encode_targets(model, x, y, x_target)[0]
        for i in range(len(x_target))
    ]
    actual = model.decode(torch.stack(rows).unsqueeze(0))
    assert isinstance(actual, Gaussian)
    return actual


def joint_scores(model: Any, context: Points, targets: Points) -> dict[str, Tensor]:
    """Return the joint scores of the valid targets."""
    with torch.no_grad():
        scores = model.joint_scores(model.predict_targets(context, targets.x), context, targets, targets.mask)
    assert isinstance(scores, dict)
    return scores


@torch.no_grad()
def test_the_joint_score_equals_a_loop_over_targets() -> None:
    model, episodes = build("tnp-a"), batch([(5, 4), (3, 1), (2, 5)])
    actual = joint_scores(model, episodes.context, episodes.queries)
    assert actual.keys() == {"log_likelihood_joint", "log_likelihood_teacher_forced"}
    for b in range(3):
        x, y, x_target, y_target = unpadded_episode(episodes, b)
        expected = predict_one_by_one(model, x, y, x_target, y_target).log_likelihood(y_target.unsqueeze(0)).mean()
        for score in actual.values():
            torch.testing.assert_close(score[b], expected, rtol=1e-9, atol=1e-9)


def test_the_loss_is_the_negative_joint_score_and_adds_noise_only_for_a_spread_of_0_05() -> None:
    episodes = batch()
    for spread, noisy in (("floor", False), ("bounded-0.1", False), ("bounded-0.05", True)):
        model = build("tnp-a", {"spread": spread})
        losses = [model.loss(episodes, 0.0, torch.Generator().manual_seed(seed))[0].item() for seed in range(2)]
        expected = -joint_scores(model, episodes.context, episodes.queries)["log_likelihood_joint"].mean().item()
        assert (losses[0] != losses[1]) == noisy
        assert losses[0] == pytest.approx(expected, rel=0.2 if noisy else 1e-9)


@pytest.mark.parametrize("permute", [False, True])
@torch.no_grad()
def test_paths_equal_a_loop_over_targets_given_the_sampled_outputs(permute: bool) -> None:
    """All paths of one episode of a masked batch are compared, each with its order of targets and its random
    numbers.
    """
    model, episodes = build("tnp-a", {"samples": 4, "permute": permute}), batch()
    actual = model.predict_targets(episodes.context, episodes.queries.x)
    assert isinstance(actual, Paths) and actual.drawn_outputs.shape == (3, 6, 4, 2)
    order, _, normal = model._fixed_path_numbers(episodes.queries.x)
    assert torch.equal(order.sort(1).values, torch.arange(6).expand(4, 6))
    assert (order == torch.arange(6)).all() != permute
    x, y, *_ = unpadded_episode(episodes, 0)
    for s, targets in enumerate(order):
        draws = actual.drawn_outputs[0, targets, s]
        expected = predict_one_by_one(model, x, y, episodes.queries.x[0, targets], draws)
        torch.testing.assert_close(actual.means[0, targets, s, 0], expected.mean[0], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(actual.stds[0, targets, s, 0], expected.std[0], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(draws, expected.mean[0] + expected.std[0] * normal[s], rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_joint_scores_depend_on_true_outputs_and_predictions_do_not() -> None:
    model, episodes = build("tnp-a", {"samples": 3}), batch()
    targets = episodes.queries
    other = Points(targets.x, targets.y + 1, targets.mask)
    answers, scores = [], []
    for points in (targets, other):
        answer = model.ask(Episodes(context=episodes.context, targets=points, scored=points.mask), "targets")
        answers.append(answer)
        scores.append(model.predict_chain(model.condition(episodes.context), points).mean)
    assert torch.equal(answers[0].means, answers[1].means)
    assert torch.equal(scores[0][:, 0], scores[1][:, 0]) and not torch.equal(scores[0][0, 1:], scores[1][0, 1:])


@torch.no_grad()
def test_joint_scores_and_predictions_depend_on_the_order_of_targets() -> None:
    model, episodes = build("tnp-a", {"samples": 3}), batch([(5, 5)])
    targets = episodes.queries.span(1)
    backwards = targets.map(lambda t: t.flip(1))
    scores = [joint_scores(model, episodes.context, order)["log_likelihood_joint"] for order in (targets, backwards)]
    assert abs(scores[0] - scores[1]).item() > 1e-3
    answers = [model.predict_targets(episodes.context, order.x).marginals.mean for order in (targets, backwards)]
    assert (answers[0] - answers[1].flip(1)).abs().max() > 1e-3


@torch.no_grad()
def test_paths_have_the_marginals_of_the_joint_density() -> None:
    """The joint density of two targets with one output integrates to 1. Its integral over the first target equals the
    predicted density of the second target, which is a mixture over many paths."""
    model = build("tnp-a", {"samples": 4000, "permute": False}, y_dim=1)
    x, y = torch.tensor([[[0.3, -1.0], [1.2, 0.4]]]).double(), torch.tensor([[[0.5], [-0.7]]]).double()
    context, x_target = Points.full(x, y), torch.tensor([[[0.1, 0.2], [0.9, -0.3]]]).double()
    first = model.predict_targets(context, x_target[:, :1])
    mean, std = first.mean.item(), first.std.item()
    grid = torch.linspace(-12, 12, 241).double()
    y_first = mean + grid * std
    targets = Points.full(x_target.expand(241, -1, -1), torch.stack([y_first, 0 * y_first], 1).unsqueeze(2))
    predictions = model.predict_chain(model.condition(context.repeat_interleave(241)), targets)
    y_second = torch.linspace(-30, 30, 601).double()
    conditional = (
        Gaussian(predictions.mean[:, 1:], predictions.std[:, 1:]).log_likelihood(y_second.reshape(1, 601, 1)).exp()
    )
    density = torch.exp(-0.5 * grid.square()) / (2 * torch.pi) ** 0.5 / std
    assert predictions.mean[:, 0].allclose(first.mean[0]), (
        "the prediction of the first target must not depend on the second"
    )
    joint = density.unsqueeze(1) * conditional
    assert torch.trapezoid(torch.trapezoid(joint, y_second, dim=1), y_first).item() == pytest.approx(1, abs=1e-6)
    marginal = torch.trapezoid(joint, y_first, dim=0)
    paths = model.predict_targets(context, x_target).marginals.at(slice(1, 2))
    path_density = paths.log_likelihood(y_second.reshape(601, 1, 1)).exp().squeeze(1)
    assert (path_density - marginal).abs().max() < 0.02 * marginal.max()


@torch.no_grad()
def test_paths_do_not_depend_on_the_number_of_episodes_per_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    model, episodes = build("tnp-a", {"samples": 3}), batch()
    expected = model.predict_targets(episodes.context, episodes.queries.x)
    monkeypatch.setattr(tnp_a, "_MAX_ELEMENTS", 1)
    actual = model.predict_targets(episodes.context, episodes.queries.x)
    torch.testing.assert_close(actual.drawn_outputs, expected.drawn_outputs, rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_later_targets_depend_on_predicted_points_or_sampled_labels_of_earlier_targets() -> None:
    """With a point head, all paths with the same order of targets are equal. With a categorical head, each path samples
    labels, and the predicted probabilities are means over paths.
    """
    point, episodes = build("tnp-a", {"samples": 2, "permute": False}, "point"), batch()
    x, y, x_target, _ = unpadded_episode(episodes, 0)
    answer = point.predict_targets(Points.full(x, y).map(lambda t: t.unsqueeze(0)), x_target.unsqueeze(0))
    assert isinstance(answer, Point)
    hidden = encode_next_target(point, x, y, x_target[:1], answer.mean[0, :1], x_target[1])
    torch.testing.assert_close(answer.mean[0, 1], point.decoder(hidden), rtol=1e-9, atol=1e-9)
    assert joint_scores(point, episodes.context, episodes.queries) == {}
    labels = build("tnp-a", {"samples": 5, "permute": False}, "categorical", classes=3)
    y = torch.tensor([[2, 0, 1]])
    context = Points.full(x[:3].unsqueeze(0), y)
    answer = labels.predict_targets(context, x_target.unsqueeze(0))
    assert isinstance(answer, Categorical)
    _, uniform, _ = labels._fixed_path_numbers(x_target.unsqueeze(0))
    first = labels.decoder(encode_targets(labels, x[:3], torch.eye(3).double()[y[0]], x_target[:1]))[0].softmax(-1)
    drawn = [int((first.cumsum(0) <= u).sum()) for u in uniform[:, 0]]
    assert len(set(drawn)) > 1
    second = [
        labels.decoder(
            encode_next_target(labels, x[:3], torch.eye(3).double()[y[0]], x_target[:1], row, x_target[1])
        ).softmax(-1)
        for row in torch.eye(3).double()[drawn].unsqueeze(1)
    ]
    torch.testing.assert_close(answer.logits[0, 1].softmax(-1), torch.stack(second).mean(0), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("in_portions", [False, True])
@torch.no_grad()
def test_samples_are_distinct_paths_that_depend_only_on_the_seed(
    in_portions: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All samples differ, even if the setting `samples` is smaller. Their mean equals that of many paths."""
    model, episodes = build("tnp-a", {"samples": 2}), batch()
    query = (episodes.context, episodes.queries.x)
    answer = build("tnp-a", {"samples": 500}).predict_targets(*query)
    if in_portions:
        monkeypatch.setattr(tnp_a, "_MAX_ELEMENTS", 2**16)
    draws = model.sample_targets(*query, 500, torch.Generator().manual_seed(0))
    assert draws.shape == (500, *answer.drawn_outputs.shape[:2], 2) and len(draws.flatten(1).unique(dim=0)) == 500
    error = draws.std(0) * (2 / 500) ** 0.5
    assert ((draws.mean(0) - answer.drawn_outputs.mean(2)) / error).abs().max() < 6
    first, repeated, other = (
        model.sample_targets(*query, 3, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)
    )
    assert torch.equal(first, repeated) and not torch.equal(first, other)


@torch.no_grad()
def test_samples_of_labels_are_labels() -> None:
    model = build("tnp-a", {"samples": 2}, "categorical", classes=3)
    x = torch.tensor([[[0.1, 0.2], [0.9, -0.3]]]).double()
    context = Points.full(x[:, :1], torch.tensor([[2]]))
    draws = model.sample_targets(context, x, 50, torch.Generator().manual_seed(0))
    assert draws.shape == (50, 1, 2) and set(draws.flatten().tolist()) <= {0, 1, 2} and not draws.is_floating_point()
