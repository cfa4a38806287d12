"""TNP-A: the chain against a loop that conditions target by target, paths against that loop fed with what they drew."""

from typing import Any

import pytest
import torch
from torch import Tensor

from iclbench.backbones import tnp_a
from iclbench.core.episodes import Episodes, Points
from iclbench.core.joint import Paths
from iclbench.core.predictions import Categorical, Gaussian, Point
from tests.backbones.released_tnp import diagonal, following
from tests.backbones.small_np import alone, batch, build


def conditioned(model: Any, x: Tensor, y: Tensor, x_target: Tensor, y_target: Tensor) -> Gaussian:
    """The answer at every target, in order, given true outputs of those before it: one pass each over a sequence that
    ends with the target, `(Q, dy)`."""
    rows = [
        following(model, x, y, x_target[:i], y_target[:i], x_target[i])
        if len(x) + i
        else diagonal(model, x, y, x_target)[0]
        for i in range(len(x_target))
    ]
    found = model.decode(torch.stack(rows).unsqueeze(0))
    assert isinstance(found, Gaussian)
    return found


def scored(model: Any, context: Points, targets: Points) -> dict[str, Tensor]:
    """Joint scores of the targets that are there."""
    with torch.no_grad():
        scores = model.joint_scores(model.predict_targets(context, targets.x), context, targets, targets.mask)
    assert isinstance(scores, dict)
    return scores


@torch.no_grad()
def test_the_joint_score_is_that_of_a_loop_that_conditions_target_by_target() -> None:
    model, episodes = build("tnp-a"), batch([(5, 4), (3, 1), (2, 5)])
    found = scored(model, episodes.context, episodes.asked)
    assert found.keys() == {"log_likelihood_joint", "log_likelihood_teacher_forced"}
    for b in range(3):
        x, y, x_target, y_target = alone(episodes, b)
        each = conditioned(model, x, y, x_target, y_target).log_likelihood(y_target.unsqueeze(0))
        for score in found.values():
            torch.testing.assert_close(score[b], each.mean(), rtol=1e-9, atol=1e-9)


def test_it_is_trained_by_that_score_with_noise_where_the_spread_is_bounded() -> None:
    episodes = batch()
    for spread, noisy in (("floor", False), ("bounded-0.1", False), ("bounded-0.05", True)):
        model = build("tnp-a", {"spread": spread})
        losses = [model.loss(episodes, 0.0, torch.Generator().manual_seed(seed))[0].item() for seed in range(2)]
        expected = -scored(model, episodes.context, episodes.asked)["log_likelihood_joint"].mean().item()
        assert (losses[0] != losses[1]) == noisy
        assert losses[0] == pytest.approx(expected, rel=0.2 if noisy else 1e-9)


@pytest.mark.parametrize("permute", [False, True])
@torch.no_grad()
def test_paths_are_the_loop_fed_with_what_they_drew(permute: bool) -> None:
    """Of an episode in a batch with masks, in each path's own order, by the numbers of the table."""
    model, episodes = build("tnp-a", {"samples": 4, "permute": permute}), batch()
    found = model.predict_targets(episodes.context, episodes.asked.x)
    assert isinstance(found, Paths) and found.drawn.shape == (3, 6, 4, 2)
    order, _, normal = model._table(episodes.asked.x)
    assert torch.equal(order.sort(1).values, torch.arange(6).expand(4, 6))
    assert (order == torch.arange(6)).all() != permute
    x, y, *_ = alone(episodes, 0)
    for s, way in enumerate(order):
        drawn = found.drawn[0, way, s]
        each = conditioned(model, x, y, episodes.asked.x[0, way], drawn)
        torch.testing.assert_close(found.means[0, way, s, 0], each.mean[0], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(found.stds[0, way, s, 0], each.std[0], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(drawn, each.mean[0] + each.std[0] * normal[s], rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_an_answer_sees_no_true_target_and_a_score_does() -> None:
    model, episodes = build("tnp-a", {"samples": 3}), batch()
    targets = episodes.asked
    other = Points(targets.x, targets.y + 1, targets.mask)
    answers, scores = [], []
    for asked in (targets, other):
        answer = model.ask(Episodes(context=episodes.context, targets=asked, scored=asked.mask), "targets")
        answers.append(answer)
        scores.append(model.chained(model.condition(episodes.context), asked).mean)
    assert torch.equal(answers[0].means, answers[1].means)
    assert torch.equal(scores[0][:, 0], scores[1][:, 0]) and not torch.equal(scores[0][0, 1:], scores[1][0, 1:])


@torch.no_grad()
def test_the_order_of_the_targets_matters() -> None:
    model, episodes = build("tnp-a", {"samples": 3}), batch([(5, 5)])
    targets = episodes.asked.span(1)
    backwards = targets.map(lambda t: t.flip(1))
    scores = [scored(model, episodes.context, asked)["log_likelihood_joint"] for asked in (targets, backwards)]
    assert abs(scores[0] - scores[1]).item() > 1e-3
    answers = [model.predict_targets(episodes.context, asked.x).marginals.mean for asked in (targets, backwards)]
    assert (answers[0] - answers[1].flip(1)).abs().max() > 1e-3


@torch.no_grad()
def test_the_chain_is_a_density_whose_second_marginal_paths_draw_from() -> None:
    """Two targets of one output: the integral over both is 1, that over the first the mixture over many paths."""
    model = build("tnp-a", {"samples": 4000, "permute": False}, y_dim=1)
    x, y = torch.tensor([[[0.3, -1.0], [1.2, 0.4]]]).double(), torch.tensor([[[0.5], [-0.7]]]).double()
    context, x_target = Points.full(x, y), torch.tensor([[[0.1, 0.2], [0.9, -0.3]]]).double()
    first = model.predict_targets(context, x_target[:, :1])
    mean, std = first.mean.item(), first.std.item()
    grid = torch.linspace(-12, 12, 241).double()
    y_first = mean + grid * std
    targets = Points.full(x_target.expand(241, -1, -1), torch.stack([y_first, 0 * y_first], 1).unsqueeze(2))
    after = model.chained(model.condition(context.repeat_interleave(241)), targets)
    y_second = torch.linspace(-30, 30, 601).double()
    given = Gaussian(after.mean[:, 1:], after.std[:, 1:]).log_likelihood(y_second.reshape(1, 601, 1)).exp()
    density = torch.exp(-0.5 * grid.square()) / (2 * torch.pi) ** 0.5 / std
    assert after.mean[:, 0].allclose(first.mean[0]), "the first target is asked alone"
    joint = density.unsqueeze(1) * given
    assert torch.trapezoid(torch.trapezoid(joint, y_second, dim=1), y_first).item() == pytest.approx(1, abs=1e-6)
    marginal = torch.trapezoid(joint, y_first, dim=0)
    paths = model.predict_targets(context, x_target).marginals.at(slice(1, 2))
    found = paths.log_likelihood(y_second.reshape(601, 1, 1)).exp().squeeze(1)
    assert (found - marginal).abs().max() < 0.02 * marginal.max()


@torch.no_grad()
def test_portions_of_episodes_get_the_same_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    model, episodes = build("tnp-a", {"samples": 3}), batch()
    expected = model.predict_targets(episodes.context, episodes.asked.x)
    monkeypatch.setattr(tnp_a, "_HELD", 1)
    found = model.predict_targets(episodes.context, episodes.asked.x)
    torch.testing.assert_close(found.drawn, expected.drawn, rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_points_and_labels_are_fed_back() -> None:
    """Two paths in one order agree where points are fed back; labels are drawn, and their probabilities averaged."""
    point, episodes = build("tnp-a", {"samples": 2, "permute": False}, "point"), batch()
    x, y, x_target, _ = alone(episodes, 0)
    answer = point.predict_targets(Points.full(x, y).map(lambda t: t.unsqueeze(0)), x_target.unsqueeze(0))
    assert isinstance(answer, Point)
    fed = following(point, x, y, x_target[:1], answer.mean[0, :1], x_target[1])
    torch.testing.assert_close(answer.mean[0, 1], point.decoder(fed), rtol=1e-9, atol=1e-9)
    assert scored(point, episodes.context, episodes.asked) == {}
    labels = build("tnp-a", {"samples": 5, "permute": False}, "categorical", classes=3)
    y = torch.tensor([[2, 0, 1]])
    context = Points.full(x[:3].unsqueeze(0), y)
    answer = labels.predict_targets(context, x_target.unsqueeze(0))
    assert isinstance(answer, Categorical)
    _, uniform, _ = labels._table(x_target.unsqueeze(0))
    first = labels.decoder(diagonal(labels, x[:3], torch.eye(3).double()[y[0]], x_target[:1]))[0].softmax(-1)
    drawn = [int((first.cumsum(0) <= u).sum()) for u in uniform[:, 0]]
    assert len(set(drawn)) > 1
    second = [
        labels.decoder(following(labels, x[:3], torch.eye(3).double()[y[0]], x_target[:1], row, x_target[1])).softmax(
            -1
        )
        for row in torch.eye(3).double()[drawn].unsqueeze(1)
    ]
    torch.testing.assert_close(answer.logits[0, 1].softmax(-1), torch.stack(second).mean(0), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("portions", [False, True])
@torch.no_grad()
def test_every_draw_is_a_path_of_its_own(portions: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more draws than an answer has paths none are alike, and they have the mean of many paths."""
    model, episodes = build("tnp-a", {"samples": 2}), batch()
    asked = (episodes.context, episodes.asked.x)
    answer = build("tnp-a", {"samples": 500}).predict_targets(*asked)
    if portions:
        monkeypatch.setattr(tnp_a, "_HELD", 2**16)
    draws = model.sample_targets(*asked, 500, torch.Generator().manual_seed(0))
    assert draws.shape == (500, *answer.drawn.shape[:2], 2) and len(draws.flatten(1).unique(dim=0)) == 500
    error = draws.std(0) * (2 / 500) ** 0.5
    assert ((draws.mean(0) - answer.drawn.mean(2)) / error).abs().max() < 6
    again, same, other = (model.sample_targets(*asked, 3, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert torch.equal(again, same) and not torch.equal(again, other)


@torch.no_grad()
def test_draws_of_labels_are_labels() -> None:
    model = build("tnp-a", {"samples": 2}, "categorical", classes=3)
    x = torch.tensor([[[0.1, 0.2], [0.9, -0.3]]]).double()
    context = Points.full(x[:, :1], torch.tensor([[2]]))
    draws = model.sample_targets(context, x, 50, torch.Generator().manual_seed(0))
    assert draws.shape == (50, 1, 2) and set(draws.flatten().tolist()) <= {0, 1, 2} and not draws.is_floating_point()
