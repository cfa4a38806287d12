"""THP: sizes, the whole model against PyTorch's layers, what an answer may depend on, the stream, learning."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from iclbench.backbones.thp import THP
from iclbench.core.episodes import Episodes, Points
from iclbench.core.errors import UsageError
from iclbench.core.events import GAP, MARK, TIME
from iclbench.core.task import TaskShape
from tests.backbones.event_models import (
    COUNT,
    MARKS,
    SHAPE,
    assert_same,
    events,
    model,
    nothing_asked,
    share_learned_in_context,
)

SMALL = {"layers": 2, "width": 12, "heads": 2, "feedforward": 10}


@pytest.mark.parametrize("marks", [1, 97, 984])
def test_parameter_counts_are_those_of_the_published_sizes(marks: int) -> None:
    """d = 64, 2 layers with 1 head of 64 and feed-forward networks of 64, gaps from 64 -> 64 -> 24, marks from 64 -> K,
    as configs/model/thp_mix.yaml of Meta TPP says; a row of the embedding more, there of padding, here the start."""
    events = (marks + 1) * 64
    layer = 3 * 64 * 64 + (64 * 64 + 64) + 2 * (64 * 64 + 64) + 2 * (2 * 64)
    read_out = (64 * 64 + 64) + (64 * 24 + 24) + (64 * marks + marks)
    own = THP(THP.Settings(), TaskShape(x_dim=0, points=64, y_dim=3, marks=marks, head="event"))
    assert own.parameter_count == events + 2 * layer + read_out == 55_832 + 129 * marks


@pytest.mark.parametrize(("encode", "column"), [("gap", GAP), ("time", TIME)])
@torch.no_grad()
def test_every_answer_is_that_of_pytorchs_layers(encode: str, column: int) -> None:
    """Tokens of the events before, behind a start token at time 0; the encoding added before every layer."""
    own, context = model(THP, **SMALL, encode=encode), events(holes=False)
    times = torch.cat([torch.zeros(2, 1).double(), context.y[..., column]], 1)
    index = np.arange(12)
    angles = times.numpy()[..., None] / 10_000 ** ((index - index % 2) / 12)
    encoding = torch.from_numpy(np.where(index % 2, np.cos(angles), np.sin(angles)))
    vectors = own.embed.marks.weight[context.y[..., MARK].long()]
    hidden = torch.cat([own.start.expand(2, 1, -1), vectors], 1)
    causal = nn.Transformer.generate_square_subsequent_mask(COUNT + 1, dtype=torch.float64)
    for layer in own.layers:
        theirs = nn.TransformerEncoderLayer(12, 2, 10, 0.0, "gelu", 1e-6, batch_first=True).double()
        theirs.self_attn.in_proj_weight.copy_(torch.cat([layer.q.weight, layer.k.weight, layer.v.weight]))
        theirs.self_attn.in_proj_bias.zero_()
        for mine, other in (
            (layer.out, theirs.self_attn.out_proj),
            (layer.up, theirs.linear1),
            (layer.down, theirs.linear2),
            (layer.norm, theirs.norm1),
            (layer.norm_feed, theirs.norm2),
        ):
            other.load_state_dict(mine.state_dict())
        hidden = theirs(hidden + encoding, src_mask=causal)
    first, _, second = own.read_out.gap
    gap = (hidden @ first.weight.T + first.bias).tanh() @ second.weight.T + second.bias
    expected = own.read(torch.cat([gap, hidden @ own.read_out.mark.weight.T + own.read_out.mark.bias], -1))
    assert_same(own.predict_next(context), expected.at(slice(0, COUNT)), 1e-10)
    assert_same(own.predict_targets(context, nothing_asked()), expected.at(slice(COUNT, None)), 1e-10)


@pytest.mark.parametrize("encode", ["gap", "time"])
def test_the_likelihood_of_an_event_sees_it_only_as_what_is_to_be_predicted(encode: str) -> None:
    """The trap of the released code of Zuo et al., whose intensity of event i is read where event i has been seen:
    no parameter of the density of event i moves with event i or any later one, and with its gap the likelihood moves as
    that of a fixed density does."""
    own, context = model(THP, **SMALL, encode=encode), events(holes=False)
    y = context.y.clone().requires_grad_()
    answer = own.predict_next(replace(context, y=y))
    for n in range(COUNT):
        said = sum(t[:, n].square().sum() for t in answer.tensors().values())
        (grad,) = torch.autograd.grad(said, y, retain_graph=True, allow_unused=True)
        assert not grad[:, n:].any()
        assert n == 0 or grad[:, :n].abs().amax() > 1e-6
    (whole,) = torch.autograd.grad(answer.loss(y)[:, -1].sum(), y, retain_graph=True)
    fixed = answer.map(lambda t: t.detach()).loss(y)[:, -1].sum()
    torch.testing.assert_close(whole[:, -1], torch.autograd.grad(fixed, y)[0][:, -1], rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_answers_do_not_move_with_the_event_they_are_about_nor_with_later_ones() -> None:
    own, context = model(THP, **SMALL), events(holes=False)
    expected = own.predict_next(context)
    for n in range(COUNT):
        y = context.y.clone()
        y[:, n:, GAP], y[:, n:, TIME] = 2 * y[:, n:, GAP] + 1, 3 * y[:, n:, TIME]
        y[:, n:, MARK] = (y[:, n:, MARK] + 1) % MARKS
        found = own.predict_next(replace(context, y=y))
        assert_same(found.at(slice(0, n + 1)), expected.at(slice(0, n + 1)), 0.0)
        if n + 1 < COUNT:
            assert (found.locs[:, n + 1] - expected.locs[:, n + 1]).abs().min() > 1e-6


@torch.no_grad()
def test_updates_in_any_portions_equal_conditioning_on_everything() -> None:
    """Also where an episode has nothing new in a portion."""
    own, context = model(THP, **SMALL), events()
    context.mask[1, 3:6] = False
    expected = own.condition(context)
    for cuts in ([0, 1], [3, 6], list(range(COUNT))):
        state = own.condition(context.span(0, cuts[0]))
        for start, stop in zip(cuts, [*cuts[1:], COUNT], strict=True):
            state = own.update(state, context.span(start, stop))
        torch.testing.assert_close(state.last, expected.last, rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_long_sequences_are_taken_in_by_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    own, context = model(THP, **SMALL), events(40)
    expected = own.condition(context)
    monkeypatch.setattr("iclbench.backbones.thp.SEGMENT", 7)
    torch.testing.assert_close(own.condition(context).last, expected.last, rtol=1e-12, atol=1e-12)


def test_dropout_is_drawn_from_the_generator_of_the_loss_alone() -> None:
    own, context = model(THP, **SMALL, dropout=0.3).train(), events(holes=False)
    episodes = Episodes(context=context, scored=context.mask)

    def loss(seed: int) -> Tensor:
        return own.loss(episodes, 0.0, torch.Generator().manual_seed(seed))[0]

    before = torch.get_rng_state()
    assert torch.equal(loss(0), loss(0)) and not torch.equal(loss(0), loss(1))
    assert torch.equal(torch.get_rng_state(), before)
    own.eval()
    assert torch.equal(loss(0), loss(1))


def test_loss_is_the_mean_over_all_scored_events() -> None:
    own, context = model(THP, **SMALL), events(holes=False)
    scored = context.mask.clone()
    scored[:, 0], scored[1, 5:] = False, False
    loss, _ = own.loss(Episodes(context=context, scored=scored), 0.0, torch.Generator())
    each = -own.predict_next(context).log_likelihood(context.y)
    expected = torch.cat([each[0, 1:], each[1, 1:5]]).mean()
    assert loss.item() == pytest.approx(expected.item())


@torch.no_grad()
def test_a_saved_state_answers_and_goes_on_byte_for_byte(tmp_path: Path) -> None:
    own, context, more = model(THP, **SMALL), events(), events(3)
    state = own.condition(context)
    own.save_state(state, tmp_path / "state")
    again = model(THP, **SMALL)
    loaded = again.load_state(tmp_path / "state")
    for a, b in ((loaded, state), (again.update(loaded, more), own.update(state, more))):
        assert_same(again.query(a, nothing_asked()), own.query(b, nothing_asked()), 0.0)


def test_rates_of_poisson_processes_are_learned_in_context() -> None:
    assert share_learned_in_context(THP, 90, 5e-3, width=16, layers=1) > 0.5


def test_other_tasks_and_other_marks_are_refused_in_one_line() -> None:
    with pytest.raises(UsageError, match="THP reads event sequences and nothing else"):
        THP(THP.Settings(), TaskShape(x_dim=3, points=8))
    context = events()
    context.y[0, 0, MARK] = MARKS
    with pytest.raises(UsageError, match="an event has mark 3, and this model knows marks 0 to 2"):
        model(THP, **SMALL).predict_next(context)
    with pytest.raises(UsageError, match="outputs of dimension 2 for a model of events"):
        model(THP, **SMALL).predict_next(Points.full(context.x, context.y[..., :2]))
    with pytest.raises(UsageError, match=r"backbone\.width=12 is not a multiple of backbone\.heads=5"):
        THP(THP.Settings(**SMALL | {"heads": 5}), SHAPE)
