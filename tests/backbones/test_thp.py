"""THP: sizes, predictions compared with PyTorch's layers, dependencies of predictions, updates, and learning."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from iclbench.backbones.thp import THP
from iclbench.core.episodes import Episodes, Points
from iclbench.core.events import GAP, MARK, TIME
from iclbench.core.task import TaskShape
from tests.backbones.event_models import (
    COUNT,
    MARKS,
    SHAPE,
    assert_same,
    empty_queries,
    events,
    model,
    train_and_measure_skill,
)
from tests.refusals import refused

SMALL = {"layers": 2, "width": 12, "heads": 2, "feedforward": 10}


@pytest.mark.parametrize("marks", [1, 97, 984])
def test_the_number_of_parameters_follows_from_the_published_sizes(marks: int) -> None:
    """The sizes are those of configs/model/thp_mix.yaml in Meta TPP: d = 64, 2 layers with 1 head of 64 and
    feed-forward networks of 64, a gap network with widths 64 -> 64 -> 24, and a mark network 64 -> K. The embedding has
    one additional row, which is for padding in Meta TPP, and for the start token in this package."""
    events = (marks + 1) * 64
    layer = 3 * 64 * 64 + (64 * 64 + 64) + 2 * (64 * 64 + 64) + 2 * (2 * 64)
    read_out = (64 * 64 + 64) + (64 * 24 + 24) + (64 * marks + marks)
    backbone = THP(THP.Settings(), TaskShape(x_dim=0, points=64, y_dim=3, marks=marks, head="event"))
    assert backbone.parameter_count == events + 2 * layer + read_out == 55_832 + 129 * marks


@pytest.mark.parametrize(("encode", "column"), [("gap", GAP), ("time", TIME)])
@torch.no_grad()
def test_predictions_equal_those_of_torch_layers(encode: str, column: int) -> None:
    """The tokens are a start token at time 0 and the events. The time encoding is added before every layer."""
    backbone, context = model(THP, **SMALL, encode=encode), events(masked=False)
    times = torch.cat([torch.zeros(2, 1).double(), context.y[..., column]], 1)
    index = np.arange(12)
    angles = times.numpy()[..., None] / 10_000 ** ((index - index % 2) / 12)
    encoding = torch.from_numpy(np.where(index % 2, np.cos(angles), np.sin(angles)))
    vectors = backbone.embed.marks.weight[context.y[..., MARK].long()]
    hidden = torch.cat([backbone.start.expand(2, 1, -1), vectors], 1)
    causal = nn.Transformer.generate_square_subsequent_mask(COUNT + 1, dtype=torch.float64)
    for layer in backbone.layers:
        theirs = nn.TransformerEncoderLayer(12, 2, 10, 0.0, "gelu", 1e-6, batch_first=True).double()
        theirs.self_attn.in_proj_weight.copy_(torch.cat([layer.q.weight, layer.k.weight, layer.v.weight]))
        theirs.self_attn.in_proj_bias.zero_()
        for source, target in (
            (layer.out, theirs.self_attn.out_proj),
            (layer.up, theirs.linear1),
            (layer.down, theirs.linear2),
            (layer.norm, theirs.norm1),
            (layer.norm_feed, theirs.norm2),
        ):
            target.load_state_dict(source.state_dict())
        hidden = theirs(hidden + encoding, src_mask=causal)
    first, _, second = backbone.read_out.gap
    gap = (hidden @ first.weight.T + first.bias).tanh() @ second.weight.T + second.bias
    expected = backbone.read(
        torch.cat([gap, hidden @ backbone.read_out.mark.weight.T + backbone.read_out.mark.bias], -1)
    )
    assert_same(backbone.predict_next(context), expected.at(slice(0, COUNT)), 1e-10)
    assert_same(backbone.predict_targets(context, empty_queries()), expected.at(slice(COUNT, None)), 1e-10)


@pytest.mark.parametrize("encode", ["gap", "time"])
def test_the_density_of_an_event_does_not_depend_on_the_event(encode: str) -> None:
    """In the released code of Zuo et al., the intensity of event i depends on event i. In this package, no parameter of
    the density of event i depends on event i or later events, and the gradient of the likelihood is that of a fixed
    density.
    """
    backbone, context = model(THP, **SMALL, encode=encode), events(masked=False)
    y = context.y.clone().requires_grad_()
    answer = backbone.predict_next(replace(context, y=y))
    for n in range(COUNT):
        parameters = sum(t[:, n].square().sum() for t in answer.tensors().values())
        (grad,) = torch.autograd.grad(parameters, y, retain_graph=True, allow_unused=True)
        assert not grad[:, n:].any()
        assert n == 0 or grad[:, :n].abs().amax() > 1e-6
    (total,) = torch.autograd.grad(answer.loss(y)[:, -1].sum(), y, retain_graph=True)
    fixed = answer.map(lambda t: t.detach()).loss(y)[:, -1].sum()
    torch.testing.assert_close(total[:, -1], torch.autograd.grad(fixed, y)[0][:, -1], rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_predictions_do_not_depend_on_the_predicted_event_or_later_ones() -> None:
    backbone, context = model(THP, **SMALL), events(masked=False)
    expected = backbone.predict_next(context)
    for n in range(COUNT):
        y = context.y.clone()
        y[:, n:, GAP], y[:, n:, TIME] = 2 * y[:, n:, GAP] + 1, 3 * y[:, n:, TIME]
        y[:, n:, MARK] = (y[:, n:, MARK] + 1) % MARKS
        actual = backbone.predict_next(replace(context, y=y))
        assert_same(actual.at(slice(0, n + 1)), expected.at(slice(0, n + 1)), 0.0)
        if n + 1 < COUNT:
            assert (actual.locs[:, n + 1] - expected.locs[:, n + 1]).abs().min() > 1e-6


@torch.no_grad()
def test_updates_in_several_steps_equal_conditioning_on_all_events() -> None:
    """In some steps, an episode has no valid event."""
    backbone, context = model(THP, **SMALL), events()
    context.mask[1, 3:6] = False
    expected = backbone.condition(context)
    for cuts in ([0, 1], [3, 6], list(range(COUNT))):
        state = backbone.condition(context.span(0, cuts[0]))
        for start, stop in zip(cuts, [*cuts[1:], COUNT], strict=True):
            state = backbone.update(state, context.span(start, stop))
        torch.testing.assert_close(state.last, expected.last, rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_segments_do_not_change_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone, context = model(THP, **SMALL), events(40)
    expected = backbone.condition(context)
    monkeypatch.setattr("iclbench.backbones.thp.SEGMENT_SIZE", 7)
    torch.testing.assert_close(backbone.condition(context).last, expected.last, rtol=1e-12, atol=1e-12)


def test_dropout_uses_the_generator_of_the_loss() -> None:
    backbone, context = model(THP, **SMALL, dropout=0.3).train(), events(masked=False)
    episodes = Episodes(context=context, scored=context.mask)

    def loss(seed: int) -> Tensor:
        return backbone.loss(episodes, 0.0, torch.Generator().manual_seed(seed))[0]

    before = torch.get_rng_state()
    assert torch.equal(loss(0), loss(0)) and not torch.equal(loss(0), loss(1))
    assert torch.equal(torch.get_rng_state(), before)
    backbone.eval()
    assert torch.equal(loss(0), loss(1))


def test_the_loss_is_the_mean_over_all_scored_events() -> None:
    backbone, context = model(THP, **SMALL), events(masked=False)
    scored = context.mask.clone()
    scored[:, 0], scored[1, 5:] = False, False
    loss, _ = backbone.loss(Episodes(context=context, scored=scored), 0.0, torch.Generator())
    losses = -backbone.predict_next(context).log_likelihood(context.y)
    expected = torch.cat([losses[0, 1:], losses[1, 1:5]]).mean()
    assert loss.item() == pytest.approx(expected.item())


@pytest.mark.slow
def test_rates_of_poisson_processes_are_learned_in_context() -> None:
    assert train_and_measure_skill(THP, 90, 5e-3, width=16, layers=1) > 0.5


def test_unsuitable_tasks_marks_and_settings_are_refused() -> None:
    with refused("not-applicable", "THP", "point-process"):
        THP(THP.Settings(), TaskShape(x_dim=3, points=8))
    context = events()
    context.y[0, 0, MARK] = MARKS
    with refused("bad-value", 3, "0 to 2"):
        model(THP, **SMALL).predict_next(context)
    with refused("bad-value", 2):
        model(THP, **SMALL).predict_next(Points.full(context.x, context.y[..., :2]))
    with refused("bad-value", "backbone.width=12", "backbone.heads=5"):
        THP(THP.Settings(**SMALL | {"heads": 5}), SHAPE)
