"""Features and losses of all set models, and predictions of conditional neural processes."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from iclbench.backbones.base import Backbone, TaskShape
from iclbench.backbones.set_backbone import SetBackbone, SetSettings
from iclbench.core.episodes import Episodes, Points
from iclbench.core.predictions import Point
from iclbench.registry import BACKBONES
from tests.backbones.event_models import MARKS, events
from tests.backbones.naive_np import arrays, perceptron
from tests.refusals import refused


def build(name: str, settings: dict[str, object] | None = None, **shape: object) -> Backbone:
    cls = BACKBONES.get(name)
    torch.manual_seed(0)
    task: dict[str, object] = {"x_dim": 2, "points": 9, "head": "gaussian", "question": "targets", "related": 3}
    return cls(cls.Settings(**{"width": 8} | (settings or {})), TaskShape(**task | shape)).double()


def points(*shape: int, seed: int = 0) -> Points:
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(*shape, d, generator=generator, dtype=torch.float64) for d in (2, 1))
    return Points(x, y, torch.rand(*shape, generator=generator) > 0.3)


class RecordingBackbone(SetBackbone):
    """Predicts 0, and records its arguments."""

    def predict_targets(self, context, x_target, related=None):
        self.context, self.related = context, related
        return Point(torch.zeros(*x_target.shape[:2], 1) + 0 * self.decoder[0].bias.sum())


def test_the_loss_for_next_uses_prefixes_of_uniformly_random_length_as_contexts():
    model = RecordingBackbone(SetSettings(), TaskShape(x_dim=2, points=6))
    mask = torch.tensor([[True, False, True, True, False, True]]).repeat(4000, 1)
    y = torch.tensor([1.0, 50.0, 2.0, 4.0, 50.0, 8.0]).reshape(1, 6, 1).repeat(4000, 1, 1)
    context = Points(torch.zeros(4000, 6, 2), y, mask)
    loss, _ = model.loss(Episodes(context=context, scored=mask), 0.0, torch.Generator().manual_seed(0))
    in_context = model.context.mask
    assert not (in_context & ~mask).any()
    lengths = in_context.sum(1)
    for row, n in zip(in_context[:50], lengths[:50], strict=True):
        assert torch.equal(row.nonzero().squeeze(1), mask[0].nonzero().squeeze(1)[:n])
    counts = torch.bincount(lengths, minlength=4)
    assert len(counts) == 4 and (counts - 1000).abs().max() < 4 * np.sqrt(4000 * 0.25 * 0.75)
    # The loss is averaged over later points and then over episodes, so that all episodes have the same weight.
    squares = np.array([1.0, 4.0, 16.0, 64.0])
    expected = sum(int(c) * squares[n:].mean() for n, c in enumerate(counts)) / 4000
    assert loss.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("name", "all_events"), [("cnp", True), ("tnp", False)])
def test_the_loss_includes_all_events_if_one_pass_predicts_for_all_prefixes(name: str, all_events: bool) -> None:
    model = build(name, x_dim=0, y_dim=3, marks=MARKS, related=0, head="event", question="next")
    context = events(6, batch=3)
    episodes = Episodes(context=context, scored=context.mask)
    loss, _ = model.loss(episodes, 0.0, torch.Generator().manual_seed(0))
    likelihoods = model.predict_next(context).log_likelihood(context.y)
    assert (loss.item() == pytest.approx(-likelihoods[context.mask].mean().item())) is all_events


def test_the_loss_for_next_excludes_unscored_and_masked_points():
    model = RecordingBackbone(SetSettings(), TaskShape(x_dim=2, points=3))
    context = Points(torch.zeros(1, 3, 2), torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[True, True, False]]))
    scored = torch.tensor([[False, True, False]])
    for seed in range(5):
        loss, _ = model.loss(Episodes(context=context, scored=scored), 0.0, torch.Generator().manual_seed(seed))
        assert loss == 9


def test_loss_and_gradients_are_0_without_scored_points():
    """A batch has no scored points while a curriculum has not reached the first scored point."""
    mask = torch.ones(2, 3, dtype=torch.bool)
    context = Points(torch.zeros(2, 3, 2), torch.ones(2, 3, 1), mask)
    unscored = Episodes(context=context, scored=torch.zeros_like(mask))
    for question, classes in (("next", None), ("targets", None), ("targets", 2)):
        head = "point" if classes is None else "categorical"
        shape = TaskShape(x_dim=2, points=3, question=question, classes=classes, head=head)
        cls = BACKBONES.get("gpt2" if question == "next" else "coqe" if classes else "cnp")
        model = cls(cls.Settings(width=8), shape)
        episodes = (
            unscored
            if classes is None
            else replace(unscored, classes=2, context=replace(context, y=torch.ones(2, 3, dtype=torch.long)))
        )
        loss, _ = model.loss(episodes, 0.0, torch.Generator().manual_seed(0))
        loss.backward()
        assert loss == 0
        assert all(not p.grad.any() for p in model.parameters() if p.grad is not None)
    model = RecordingBackbone(SetSettings(), TaskShape(x_dim=2, points=3))
    assert model.loss(unscored, 0.0, torch.Generator().manual_seed(0))[0] == 0
    # Episodes without scored points are excluded from the mean over episodes.
    half_scored = Episodes(context=context, scored=torch.tensor([[False] * 3, [True] * 3]))
    losses = {model.loss(half_scored, 0.0, torch.Generator().manual_seed(seed))[0].item() for seed in range(8)}
    assert losses == {1.0}


def test_fourier_features_have_periods_8_4_2_per_input():
    model = build("cnp", {"fourier": 3})
    x = torch.randn(5, 2, dtype=torch.float64)
    actual = model.x_features(x)
    expected = [x.numpy()]
    for wave in (np.sin, np.cos):
        expected += [wave(2 * np.pi * x.numpy()[:, d : d + 1] / period) for d in range(2) for period in (8, 4, 2)]
    np.testing.assert_allclose(actual.numpy(), np.concatenate(expected, 1), atol=1e-12)
    assert model.x_features_dim == actual.shape[1] == 14
    assert torch.equal(build("cnp").x_features(x), x)


def test_labels_are_encoded_one_hot():
    model = build("tnp", {"heads": 2}, classes=4, head="categorical")
    features = model.y_features(torch.tensor([[2, 0]]))
    assert features.tolist() == [[[0, 0, 1, 0], [1, 0, 0, 0]]] and features.dtype == torch.float64
    context = Points.full(torch.zeros(1, 2, 2).double(), torch.tensor([[2, 0]]))
    assert model.predict_targets(context, context.x).logits.shape == (1, 2, 4)


@pytest.mark.parametrize("name", ["icicl-cnp", "icicl-tnp"])
@pytest.mark.parametrize("values", ["inputs", "outputs"])
def test_related_datasets_with_a_different_dimension_are_refused(name: str, values: str):
    context, related = points(3, 5), points(3, 3, 4)
    joined = torch.cat([related.x, related.y], -1)
    related = replace(related, x=joined) if values == "inputs" else replace(related, y=joined)
    with refused("bad-value", values, 3, 2 if values == "inputs" else 1):
        build(name).condition(context, related)


@pytest.mark.parametrize("name", ["cnp", "icicl-cnp"])
def test_a_cnp_decodes_the_mean_of_the_encoded_points_of_each_dataset(name: str):
    model, context, related, x = build(name), points(3, 5), points(3, 3, 4, seed=1), points(3, 6, seed=2).x
    related.mask[0] = False
    related.mask[1, 1:] = False
    context.mask[2] = False
    w = arrays(model)

    def mean(points: Points) -> np.ndarray:
        rows = torch.cat([points.x, points.y], -1)[points.mask].numpy()
        return perceptron(w, "encoder", rows).mean(0) if len(rows) else np.zeros(8)

    actual = model.predict_targets(context, x, related)
    for b in range(3):
        summary = mean(context[b])
        if name == "icicl-cnp":
            sets = [mean(related[b][j]) for j in range(3) if related.mask[b, j].any()]
            summary = np.concatenate([summary, np.mean(sets, 0) if sets else np.zeros(8)])
        rows = np.concatenate([np.tile(summary, (6, 1)), x[b].numpy()], 1)
        expected = model.read(torch.from_numpy(perceptron(w, "decoder", rows)).unsqueeze(0))
        torch.testing.assert_close(actual.mean[b], expected.mean[0], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(actual.std[b], expected.std[0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["cnp", "icicl-cnp"])
def test_predictions_for_all_prefixes_in_one_pass_equal_those_of_separate_passes(name: str):
    model, context, related = build(name, question="next"), points(3, 7), points(3, 3, 4, seed=1)
    all_prefixes = model.predict_next(context, related).mean
    for n in range(7):
        expected = model.predict_targets(context.span(0, n), context.x[:, n : n + 1], related).mean
        torch.testing.assert_close(all_prefixes[:, n : n + 1], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["cnp", "icicl-cnp"])
def test_the_state_of_a_cnp_does_not_grow_and_points_can_be_removed(name: str):
    model, context, related = build(name), points(3, 7), points(3, 3, 4, seed=1)
    state = model.condition(context, related)
    longer = model.update(state, points(3, 90, seed=3))
    assert longer.nbytes == state.nbytes < 2000
    remaining = model.remove(state, replace(context.span(2), mask=context.mask[:, 2:]))
    expected = model.condition(context.span(0, 2), related)
    torch.testing.assert_close(remaining.total, expected.total, rtol=0, atol=1e-12)
    assert torch.equal(remaining.count, expected.count)


def test_the_number_of_parameters_of_a_cnp_follows_from_its_layers():
    """The encoder has six linear layers (five of them hidden), and the decoder has three."""
    shape = TaskShape(x_dim=1, points=64, head="gaussian", question="targets", related=5)
    encoder, decoder = 3 * 128 + 5 * 129 * 128, 129 * 128 + 129 * 2
    for name, summaries in (("cnp", 1), ("icicl-cnp", 2)):
        cls = BACKBONES.get(name)
        expected = encoder + (summaries * 128 + 2) * 128 + decoder
        assert cls(cls.Settings(), shape).parameter_count == expected
