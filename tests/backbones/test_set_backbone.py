"""What all set models share (features, the loss of the question `next`), and conditional neural processes."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from iclbench.backbones.base import Backbone, TaskShape
from iclbench.backbones.set_backbone import SetBackbone, SetSettings
from iclbench.core.episodes import Episodes, Points
from iclbench.core.errors import UsageError
from iclbench.core.predictions import Point
from iclbench.registry import BACKBONES
from tests.backbones.event_models import MARKS, events
from tests.backbones.naive_np import arrays, perceptron


def build(name: str, settings: dict[str, object] | None = None, **shape: object) -> Backbone:
    cls = BACKBONES.get(name)
    torch.manual_seed(0)
    task: dict[str, object] = {"x_dim": 2, "points": 9, "head": "gaussian", "question": "targets", "related": 3}
    return cls(cls.Settings(**{"width": 8} | (settings or {})), TaskShape(**task | shape)).double()


def points(*shape: int, seed: int = 0) -> Points:
    draw = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(*shape, d, generator=draw, dtype=torch.float64) for d in (2, 1))
    return Points(x, y, torch.rand(*shape, generator=draw) > 0.3)


class Remembers(SetBackbone):
    """Answers 0 and keeps what it was asked."""

    def predict_targets(self, context, x_target, related=None):
        self.context, self.related = context, related
        return Point(torch.zeros(*x_target.shape[:2], 1) + 0 * self.decoder[0].bias.sum())


def test_the_question_next_cuts_every_episode_after_a_uniform_number_of_its_points():
    model = Remembers(SetSettings(), TaskShape(x_dim=2, points=6))
    mask = torch.tensor([[True, False, True, True, False, True]]).repeat(4000, 1)
    y = torch.tensor([1.0, 50.0, 2.0, 4.0, 50.0, 8.0]).reshape(1, 6, 1).repeat(4000, 1, 1)
    context = Points(torch.zeros(4000, 6, 2), y, mask)
    loss, _ = model.loss(Episodes(context=context, scored=mask), 0.0, torch.Generator().manual_seed(0))
    seen = model.context.mask
    assert not (seen & ~mask).any()
    lengths = seen.sum(1)
    for row, n in zip(seen[:50], lengths[:50], strict=True):
        assert torch.equal(row.nonzero().squeeze(1), mask[0].nonzero().squeeze(1)[:n])
    counts = torch.bincount(lengths, minlength=4)
    assert len(counts) == 4 and (counts - 1000).abs().max() < 4 * np.sqrt(4000 * 0.25 * 0.75)
    # The mean over later points per episode, then over episodes: every prefix length weighs the same.
    squares = np.array([1.0, 4.0, 16.0, 64.0])
    expected = sum(int(c) * squares[n:].mean() for n, c in enumerate(counts)) / 4000
    assert loss.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("name", "every"), [("cnp", True), ("tnp", False)])
def test_of_events_every_one_is_trained_where_one_pass_answers_all_prefixes(name: str, every: bool) -> None:
    model = build(name, x_dim=0, y_dim=3, marks=MARKS, related=0, head="event", question="next")
    context = events(6, batch=3)
    episodes = Episodes(context=context, scored=context.mask)
    loss, _ = model.loss(episodes, 0.0, torch.Generator().manual_seed(0))
    likelihoods = model.predict_next(context).log_likelihood(context.y)
    assert (loss.item() == pytest.approx(-likelihoods[context.mask].mean().item())) is every


def test_unscored_and_masked_points_do_not_count_in_the_question_next():
    model = Remembers(SetSettings(), TaskShape(x_dim=2, points=3))
    context = Points(torch.zeros(1, 3, 2), torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[True, True, False]]))
    scored = torch.tensor([[False, True, False]])
    for seed in range(5):
        loss, _ = model.loss(Episodes(context=context, scored=scored), 0.0, torch.Generator().manual_seed(seed))
        assert loss == 9


def test_where_nothing_is_scored_there_is_nothing_to_learn():
    """As where a curriculum gives fewer points than the first that counts: neither NaN nor a gradient."""
    mask = torch.ones(2, 3, dtype=torch.bool)
    context = Points(torch.zeros(2, 3, 2), torch.ones(2, 3, 1), mask)
    nowhere = Episodes(context=context, scored=torch.zeros_like(mask))
    for question, classes in (("next", None), ("targets", None), ("targets", 2)):
        head = "point" if classes is None else "categorical"
        shape = TaskShape(x_dim=2, points=3, question=question, classes=classes, head=head)
        cls = BACKBONES.get("gpt2" if question == "next" else "coqe" if classes else "cnp")
        model = cls(cls.Settings(width=8), shape)
        asked = (
            nowhere
            if classes is None
            else replace(nowhere, classes=2, context=replace(context, y=torch.ones(2, 3, dtype=torch.long)))
        )
        loss, _ = model.loss(asked, 0.0, torch.Generator().manual_seed(0))
        loss.backward()
        assert loss == 0
        assert all(not p.grad.any() for p in model.parameters() if p.grad is not None)
    model = Remembers(SetSettings(), TaskShape(x_dim=2, points=3))
    assert model.loss(nowhere, 0.0, torch.Generator().manual_seed(0))[0] == 0
    # An episode without anything to learn from does not count in the mean over the others.
    half = Episodes(context=context, scored=torch.tensor([[False] * 3, [True] * 3]))
    losses = {model.loss(half, 0.0, torch.Generator().manual_seed(seed))[0].item() for seed in range(8)}
    assert losses == {1.0}


def test_fourier_features_have_periods_8_4_2_per_input():
    model = build("cnp", {"fourier": 3})
    x = torch.randn(5, 2, dtype=torch.float64)
    found = model.x_features(x)
    expected = [x.numpy()]
    for wave in (np.sin, np.cos):
        expected += [wave(2 * np.pi * x.numpy()[:, d : d + 1] / period) for d in range(2) for period in (8, 4, 2)]
    np.testing.assert_allclose(found.numpy(), np.concatenate(expected, 1), atol=1e-12)
    assert model.x_features_dim == found.shape[1] == 14
    assert torch.equal(build("cnp").x_features(x), x)


def test_labels_enter_one_hot():
    model = build("tnp", {"heads": 2}, classes=4, head="categorical")
    features = model.y_features(torch.tensor([[2, 0]]))
    assert features.tolist() == [[[0, 0, 1, 0], [1, 0, 0, 0]]] and features.dtype == torch.float64
    context = Points.full(torch.zeros(1, 2, 2).double(), torch.tensor([[2, 0]]))
    assert model.predict_targets(context, context.x).logits.shape == (1, 2, 4)


@pytest.mark.parametrize("name", ["icicl-cnp", "icicl-tnp"])
@pytest.mark.parametrize("what", ["inputs", "outputs"])
def test_a_related_dataset_of_another_dimension_is_refused_in_one_line(name: str, what: str):
    context, related = points(3, 5), points(3, 3, 4)
    wide = torch.cat([related.x, related.y], -1)
    related = replace(related, x=wide) if what == "inputs" else replace(related, y=wide)
    with pytest.raises(UsageError, match=f"^{what} of dimension 3 for a model of {what} of dimension [12]; .*related"):
        build(name).condition(context, related)


@pytest.mark.parametrize("name", ["cnp", "icicl-cnp"])
def test_a_cnp_is_a_mean_of_means(name: str):
    model, context, related, x = build(name), points(3, 5), points(3, 3, 4, seed=1), points(3, 6, seed=2).x
    related.mask[0] = False
    related.mask[1, 1:] = False
    context.mask[2] = False
    w = arrays(model)

    def mean(points: Points) -> np.ndarray:
        rows = torch.cat([points.x, points.y], -1)[points.mask].numpy()
        return perceptron(w, "encoder", rows).mean(0) if len(rows) else np.zeros(8)

    found = model.predict_targets(context, x, related)
    for b in range(3):
        summary = mean(context[b])
        if name == "icicl-cnp":
            sets = [mean(related[b][j]) for j in range(3) if related.mask[b, j].any()]
            summary = np.concatenate([summary, np.mean(sets, 0) if sets else np.zeros(8)])
        rows = np.concatenate([np.tile(summary, (6, 1)), x[b].numpy()], 1)
        expected = model.read(torch.from_numpy(perceptron(w, "decoder", rows)).unsqueeze(0))
        torch.testing.assert_close(found.mean[b], expected.mean[0], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(found.std[b], expected.std[0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["cnp", "icicl-cnp"])
def test_all_prefixes_in_one_pass_equal_one_by_one(name: str):
    model, context, related = build(name, question="next"), points(3, 7), points(3, 3, 4, seed=1)
    every = model.predict_next(context, related).mean
    for n in range(7):
        one = model.predict_targets(context.span(0, n), context.x[:, n : n + 1], related).mean
        torch.testing.assert_close(every[:, n : n + 1], one, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["cnp", "icicl-cnp"])
def test_the_state_of_a_cnp_never_grows_and_forgets_what_is_removed(name: str):
    model, context, related = build(name), points(3, 7), points(3, 3, 4, seed=1)
    state = model.condition(context, related)
    more = model.update(state, points(3, 90, seed=3))
    assert more.nbytes == state.nbytes < 2000
    kept = model.remove(state, replace(context.span(2), mask=context.mask[:, 2:]))
    expected = model.condition(context.span(0, 2), related)
    torch.testing.assert_close(kept.total, expected.total, rtol=0, atol=1e-12)
    assert torch.equal(kept.count, expected.count)


def test_cnp_sizes():
    """Six linear layers embed a point (five hidden ones), three decode."""
    shape = TaskShape(x_dim=1, points=64, head="gaussian", question="targets", related=5)
    embed, decode = 3 * 128 + 5 * 129 * 128, 129 * 128 + 129 * 2
    for name, summaries in (("cnp", 1), ("icicl-cnp", 2)):
        cls = BACKBONES.get(name)
        expected = embed + (summaries * 128 + 2) * 128 + decode
        assert cls(cls.Settings(), shape).parameter_count == expected
