"""Transformer neural processes, compared with an unbatched NumPy implementation, and properties of their layers."""

from dataclasses import replace

import pytest
import torch

from iclbench.backbones.base import Backbone, TaskShape
from iclbench.core.episodes import Episodes, Points
from iclbench.layers.attention import AttentionLayer
from iclbench.registry import BACKBONES
from tests.backbones.naive_np import raw_outputs
from tests.refusals import refused

SMALL = {"layers": 3, "width": 16, "heads": 4}
TOKENS = {"pseudo_tokens": 5}
MODELS = [
    ("tnp", {}),
    ("pt-tnp", TOKENS),
    ("pt-tnp", TOKENS | {"style": "ist"}),
    ("icicl-tnp", TOKENS | {"related_pseudo_tokens": 3}),
    ("icicl-tnp", TOKENS | {"related_pseudo_tokens": 3, "coupling": "direct"}),
]
# The numbers of points of the context and of each related dataset, for every episode of a batch.
SIZES = [(6, [4, 7, 1]), (1, []), (9, [3]), (0, [5, 2]), (0, [])]


def build(name: str, settings: dict[str, object], related: int = 3, **shape: object) -> Backbone:
    cls = BACKBONES.get(name)
    torch.manual_seed(0)
    task = {"x_dim": 2, "points": 9, "y_dim": 1, "head": "gaussian", "question": "targets"}
    model = cls(cls.Settings(**SMALL | settings), TaskShape(related=related, **task | shape))
    with torch.no_grad():
        for parameter in model.parameters():  # Perturb all parameters so that no bias is 0 and no gain is 1.
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.double()


def batch(sizes: list[tuple[int, list[int]]] = SIZES) -> Episodes:
    """Return masked episodes of these sizes. Masked values are large."""
    generator = torch.Generator().manual_seed(0)
    count, sets = len(sizes), 3

    def points(*shape: int) -> Points:
        x, y = (torch.randn(*shape, d, generator=generator, dtype=torch.float64) for d in (2, 1))
        return Points.full(x, y)

    def masked(points: Points) -> Points:
        offset = 50 * ~points.mask.unsqueeze(-1)
        return replace(points, x=points.x + offset, y=points.y - offset)

    context, related, targets = points(count, 9), points(count, sets, 7), points(count, 4)
    in_context = torch.tensor([[i < n for i in range(9)] for n, _ in sizes])
    in_related = torch.tensor(
        [
            [[i < n for i in range(7)] for n in related_sizes + [0] * (sets - len(related_sizes))]
            for _, related_sizes in sizes
        ]
    )
    return Episodes(
        context=masked(replace(context, mask=in_context)),
        targets=targets,
        scored=targets.mask,
        related=masked(replace(related, mask=in_related)),
    )


def shuffle(t: torch.Tensor, dim: int) -> torch.Tensor:
    return t.index_select(dim, torch.randperm(t.shape[dim], generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("packed", [True, False], ids=["absent sets skipped", "absent sets masked"])
@pytest.mark.parametrize(("name", "settings"), MODELS, ids=str)
def test_a_batch_equals_numpy_loops_over_episodes_and_datasets(name, settings, packed, monkeypatch):
    if not packed:
        monkeypatch.setattr("iclbench.backbones.icicl_tnp.PACKED_DEVICES", ())
    model, episodes = build(name, settings), batch()
    actual = model.predict_targets(episodes.context, episodes.targets.x, episodes.related)
    for b, (n, related_sizes) in enumerate(SIZES):
        x, y = episodes.context.x[b, :n].numpy(), episodes.context.y[b, :n].numpy()
        related = [
            (episodes.related.x[b, j, :k].numpy(), episodes.related.y[b, j, :k].numpy())
            for j, k in enumerate(related_sizes)
        ]
        raw = torch.from_numpy(raw_outputs(model, (x, y), episodes.targets.x[b].numpy(), related))
        expected = model.read(raw.unsqueeze(0))
        torch.testing.assert_close(actual.mean[b], expected.mean[0], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(actual.std[b], expected.std[0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "settings", "count"),
    [
        ("tnp", {}, 1_058_818),
        ("pt-tnp", {}, 1_558_914),
        ("pt-tnp", {"style": "ist"}, 1_459_714),
        ("icicl-tnp", {}, 2_555_010),
    ],
)
def test_the_number_of_parameters_equals_that_of_the_papers(name, settings, count):
    cls = BACKBONES.get(name)
    shape = TaskShape(x_dim=1, points=64, head="gaussian", question="targets", related=5)
    assert cls(cls.Settings(**settings), shape).parameter_count == count


def test_an_attention_layer_of_width_128_has_99_200_parameters():
    assert sum(p.numel() for p in AttentionLayer(128, 8).parameters()) == 99_200


def test_attention_without_keys_leaves_rows_unchanged_and_has_no_gradient_to_tokens():
    layer = AttentionLayer(8, 2)
    queries = torch.randn(3, 4, 8, requires_grad=True)
    tokens = torch.randn(3, 5, 8, requires_grad=True)
    mask = torch.tensor([[True, False, True, True, False], [False] * 5, [True] * 5])
    out = layer(queries, tokens, mask)
    assert torch.equal(out[1], queries[1])
    assert torch.equal(layer(queries, tokens[:, :0], mask[:, :0]), queries)
    out.square().sum().backward()
    assert torch.equal(queries.grad[1], 2 * queries[1])
    assert not tokens.grad[1].any() and not tokens.grad[0, 1].any()
    assert tokens.grad[0, 0].any() and all(p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("coupling", ["paper", "direct"])
def test_icicl_tnp_without_related_datasets_equals_pt_tnp_with_the_same_weights(coupling):
    icicl, plain = build("icicl-tnp", TOKENS | {"coupling": coupling}), build("pt-tnp", TOKENS)
    shared = plain.state_dict()
    icicl.load_state_dict(icicl.state_dict() | shared)
    assert set(shared) < set(icicl.state_dict())
    episodes = batch()
    expected = plain.predict_targets(episodes.context, episodes.targets.x, episodes.related).mean
    absent = replace(episodes.related, mask=torch.zeros_like(episodes.related.mask))
    for related in (None, absent, episodes.related.map(lambda t: t[:, :0])):
        actual = icicl.predict_targets(episodes.context, episodes.targets.x, related).mean
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def test_a_model_for_a_task_without_related_datasets_ignores_them():
    model, episodes = build("icicl-tnp", TOKENS, related=0), batch()
    assert not model.uses_related
    without_related = model.predict_targets(episodes.context, episodes.targets.x).mean
    assert torch.equal(
        model.predict_targets(episodes.context, episodes.targets.x, episodes.related).mean, without_related
    )


@pytest.mark.parametrize(("name", "settings"), MODELS, ids=str)
def test_gradients_of_every_parameter_are_finite_and_nonzero(name, settings):
    model = build(name, settings)
    loss, parts = model.loss(batch(), 0.0, torch.Generator())
    loss.backward()
    assert loss == parts["loss"]
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), key


@pytest.mark.parametrize(("name", "settings"), MODELS, ids=str)
def test_queries_use_only_the_memory_of_a_state_and_not_its_points(name, settings):
    """The size of a memory of pseudo-tokens does not depend on the size of the context."""
    model, episodes = build(name, settings), batch()
    state = model.condition(episodes.context, episodes.related)
    expected = model.query(state, episodes.targets.x).mean
    noise = replace(state, context=state.context.map(torch.zeros_like), related=None)
    assert torch.equal(model.query(noise, episodes.targets.x).mean, expected)
    sizes = [sum(memory.nbytes for memory in model.condition(episodes.context.span(0, n), None).layers) for n in (3, 9)]
    assert (sizes[0] < sizes[1]) == (name == "tnp")


@pytest.mark.parametrize(("name", "settings"), MODELS, ids=str)
def test_predictions_do_not_depend_on_the_order_of_points_or_datasets(name, settings):
    model, episodes = build(name, settings), batch()
    expected = model.predict_targets(episodes.context, episodes.targets.x, episodes.related).mean
    context = episodes.context.map(lambda t: shuffle(t, 1))
    related = episodes.related.map(lambda t: shuffle(shuffle(t, 1), 2))
    actual = model.predict_targets(context, shuffle(episodes.targets.x, 1), related).mean
    torch.testing.assert_close(actual, shuffle(expected, 1), rtol=0, atol=1e-12)


def test_layers_have_different_initial_weights():
    model = build("pt-tnp", TOKENS)
    first, second = model.from_data[0], model.from_data[1]
    assert not torch.equal(first.q.weight, second.q.weight)


def test_a_width_that_is_not_a_multiple_of_the_heads_is_refused():
    with refused("bad-value", "backbone.width=10", "backbone.heads=4"):
        AttentionLayer(10, 4)
