"""GPT-2: published sizes, agreement with the transformers library, and conditioning, updates and queries."""

import numpy as np
import pytest
import torch
import transformers
from packaging.version import Version
from torch import nn

from iclbench.backbones.base import TaskShape
from iclbench.backbones.gpt2 import GPT2, GPT2Settings
from iclbench.core.episodes import Episodes, Points
from iclbench.layers.gpt2_block import gpt2_layers
from iclbench.layers.positions import RotaryPositions, SinusoidalPositions, rotate
from tests.backbones.random_points import points
from tests.backbones.transformers_gpt2 import transformers_gpt2
from tests.refusals import refused


def model(positions: str = "none", **shape: object) -> GPT2:
    torch.manual_seed(0)
    settings = GPT2Settings(size="tiny", positions=positions, init_std=0.2)
    return GPT2(settings, TaskShape(**{"x_dim": 5, "points": 12, **shape})).eval()


def test_the_number_of_parameters_equals_that_of_the_paper() -> None:
    assert GPT2(GPT2Settings(), TaskShape(x_dim=20, points=41)).parameter_count == 9_483_265


@pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.15"), reason="initial weights differ in earlier versions"
)
@pytest.mark.parametrize(("layers", "width", "tokens", "std"), [(3, 64, 24, 0.2), (2, 6, 2, 0.02)])
def test_initial_weights_equal_those_of_transformers(layers: int, width: int, tokens: int, std: float) -> None:
    """The names and values of weights and the final state of the random number generator are identical."""
    torch.manual_seed(5)
    ours, after = gpt2_layers(layers, width, tokens, std), torch.randn(5)
    torch.manual_seed(5)
    theirs, expected = transformers_gpt2(layers, width, 2, tokens, std), torch.randn(5)
    assert torch.equal(after, expected)
    assert torch.equal(ours.positions, theirs.wpe.weight)
    blocks = nn.ModuleList(ours.blocks).state_dict()
    assert list(blocks) == list(theirs.h.state_dict())
    for name, weights in theirs.h.state_dict().items():
        assert torch.equal(blocks[name], weights), name
    assert ours.norm.eps == theirs.ln_f.eps == ours.blocks[0].ln_1.eps == theirs.h[0].ln_1.eps


@pytest.mark.parametrize("positions", ["none", "learned", "sinusoidal"])
def test_predictions_equal_those_of_transformers(positions: str) -> None:
    ours, batch = model(positions), points()
    theirs = transformers_gpt2(layers=3, width=64, heads=2, positions=24, init_std=0.2).eval()
    theirs.h.load_state_dict(ours.blocks.state_dict())
    theirs.ln_f.load_state_dict(ours.norm.state_dict())
    table = torch.zeros(24, 64) if positions == "none" else ours.positions(torch.arange(24))
    theirs.wpe.weight.data = table
    with torch.no_grad():
        hidden = theirs(inputs_embeds=ours.read_in(batch)).last_hidden_state
        expected = ours.read_out(hidden[:, ::2])
        assert torch.allclose(ours.predict_next(batch).mean, expected, atol=2e-6)


def test_gradients_equal_those_of_transformers() -> None:
    ours, batch = model(), points()
    theirs = transformers_gpt2(layers=3, width=64, heads=2, positions=24, init_std=0.2).eval()
    theirs.h.load_state_dict(ours.blocks.state_dict())
    theirs.ln_f.load_state_dict(ours.norm.state_dict())
    theirs.wpe.weight.data.zero_()
    ours.predict_next(batch).loss(batch.y).mean().backward()
    hidden = theirs(inputs_embeds=ours.read_in(batch).detach()).last_hidden_state
    (ours.read_out(hidden[:, ::2]) - batch.y).square().sum(-1).mean().backward()
    for (name, a), b in zip(ours.blocks.named_parameters(), theirs.h.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, atol=1e-5), name


def test_the_first_column_of_the_read_in_layer_reads_outputs() -> None:
    ours, batch = model(), points()
    padded = torch.cat([batch.y, torch.zeros(3, 12, 4)], -1)
    tokens = ours.read_in(batch)
    assert torch.allclose(tokens[:, 1::2], ours.read_in.linear(padded), atol=1e-6)
    assert torch.equal(tokens[:, ::2], ours.read_in.linear(batch.x))


@pytest.mark.parametrize("positions", ["none", "learned", "sinusoidal", "rotary"])
def test_updates_by_single_points_give_the_predictions_of_one_pass(positions: str) -> None:
    ours, batch = model(positions), points()
    with torch.no_grad():
        expected = ours.predict_next(batch).mean
        state = ours.condition(batch.span(0, 0))
        for n in range(batch.count):
            answer = ours.query(state, batch.x[:, n : n + 1]).mean
            assert torch.allclose(answer[:, 0], expected[:, n], atol=2e-5)
            state = ours.update(state, batch.span(n, n + 1))


@pytest.mark.parametrize("positions", ["none", "learned", "sinusoidal", "rotary"])
def test_forked_queries_give_the_predictions_of_one_pass_per_query(positions: str) -> None:
    ours, batch = model(positions), points()
    queries = torch.randn(3, 12, 5, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        forked = ours.predict_next(batch, x_query=queries).mean
        for n in range(batch.count):
            swapped = batch.x.clone()
            swapped[:, n] = queries[:, n]
            expected = ours.predict_next(Points.full(swapped, batch.y)).mean[:, n]
            assert torch.allclose(forked[:, n], expected, atol=2e-5)


def test_sequences_beyond_the_learned_positions_are_refused() -> None:
    with refused("not-applicable", "24 tokens", 26, "gpt2-rotary"):
        model("learned").predict_next(points(count=13))


def test_a_target_beyond_the_learned_positions_is_refused() -> None:
    """A table of positions for 12 points suffices for 11 context points and one target."""
    ours, batch = model("learned"), points()
    with torch.no_grad():
        last = ours.predict_targets(batch[:, :11], batch.x[:, 11:]).mean
        assert torch.allclose(last[:, 0], ours.predict_next(batch).mean[:, 11], atol=2e-5)
        with refused("not-applicable", "24 tokens", 25, "gpt2-rotary"):
            ours.predict_targets(batch, batch.x[:, :1])


def test_sinusoidal_positions_have_geometric_wavelengths() -> None:
    index, width = np.arange(30, dtype=float)[:, None], 8
    angles = index / 30 ** (np.arange(0, width, 2) / width)
    expected = np.concatenate([np.sin(angles), np.cos(angles)], 1)
    positions = SinusoidalPositions(width)
    np.testing.assert_allclose(positions(torch.arange(30)).numpy(), expected, atol=1e-5)
    np.testing.assert_array_equal(positions(range(3, 20, 2)), positions(torch.arange(3, 20, 2)))
    assert positions(range(3, 20), torch.device("meta")).is_meta, "positions are computed on the device"
    with refused("bad-value", "backbone.width", 7):
        SinusoidalPositions(7)


def test_rotary_positions_rotate_pairs_of_channels() -> None:
    """The references are equations 14 and 15 of Su et al. 2021, and Llama of the transformers library."""
    from transformers.models.llama.modeling_llama import LlamaConfig, LlamaRotaryEmbedding, apply_rotary_pos_emb

    q = torch.randn(2, 3, 30, 8, generator=torch.Generator().manual_seed(0))
    places = torch.stack([torch.arange(30), torch.arange(5, 95, 3)])
    actual = rotate(q, RotaryPositions(24, 3)(places))
    phases = np.exp(1j * places.numpy()[:, None, :, None] * 10_000 ** (-2 * np.arange(4) / 8))
    expected = (q[..., :4].double().numpy() + 1j * q[..., 4:].double().numpy()) * phases
    np.testing.assert_allclose(actual, np.concatenate([expected.real, expected.imag], -1), atol=2e-5)
    theirs = LlamaRotaryEmbedding(LlamaConfig(hidden_size=24, num_attention_heads=3))
    torch.testing.assert_close(actual, apply_rotary_pos_emb(q, q, *theirs(q, places))[0], atol=1e-5, rtol=1e-5)
    with refused("bad-value", "backbone.width=15", "backbone.heads=3", 5):
        RotaryPositions(15, 3)


def test_with_rotary_positions_attention_depends_only_on_the_distances_between_tokens() -> None:
    """A shift of all positions by 1000 does not change the outputs. Reversing the order of the points changes them."""
    ours, batch = model("rotary"), points(count=6)
    with torch.no_grad():
        tokens = ours.read_in(batch)
        (first, later) = (list(ours._layers(tokens, [range(s, s + 12)], attend_causally))[-1] for s in (0, 1000))
        torch.testing.assert_close(later, first, atol=1e-3, rtol=1e-3)
        torch.testing.assert_close(ours.norm(first)[:, ::2], ours.trunk(tokens))
        x = batch.x[:, :1]
        reversed_points = Points.full(batch.x.flip(1), batch.y.flip(1))
        assert not torch.allclose(
            ours.predict_targets(batch, x).mean, ours.predict_targets(reversed_points, x).mean, atol=1e-3
        )


def attend_causally(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def test_a_model_with_rotary_positions_predicts_beyond_its_training_length() -> None:
    with torch.no_grad():
        assert model("rotary").predict_next(points(count=60)).mean.isfinite().all()


def test_the_mlp_read_in_applies_linear_relu_norm_linear_to_inputs_and_padded_outputs() -> None:
    torch.manual_seed(0)
    ours = GPT2(GPT2Settings(size="tiny", read_in="mlp"), TaskShape(x_dim=5, points=12))
    batch, weights = points(), {name: t.detach().numpy() for name, t in ours.read_in.state_dict().items()}

    def naive_read_in(values: torch.Tensor) -> np.ndarray:
        hidden = np.maximum(values.numpy() @ weights["linear.weight"].T + weights["linear.bias"], 0)
        centred = hidden - hidden.mean(-1, keepdims=True)
        normed = centred / np.sqrt(centred.var(-1, keepdims=True) + 1e-5)
        normed = normed * weights["rest.1.weight"] + weights["rest.1.bias"]
        return normed @ weights["rest.2.weight"].T + weights["rest.2.bias"]

    tokens = ours.read_in(batch).detach().numpy()
    np.testing.assert_allclose(tokens[:, ::2], naive_read_in(batch.x), atol=1e-5)
    np.testing.assert_allclose(
        tokens[:, 1::2], naive_read_in(torch.cat([batch.y, torch.zeros(3, 12, 4)], -1)), atol=1e-5
    )


def test_a_width_that_is_not_a_multiple_of_the_heads_is_refused() -> None:
    with refused("bad-value", "backbone.width=30", "backbone.heads=4"):
        GPT2(GPT2Settings(width=30, heads=4), TaskShape(x_dim=2, points=4))


def test_classification_uses_a_label_embedding_and_a_categorical_head() -> None:
    ours = model(classes=4, head="categorical", question="targets")
    batch = points()
    labelled = Points.full(batch.x, torch.randint(4, (3, 12)))
    answer = ours.predict_targets(labelled, batch.x[:, :2])
    assert answer.logits.shape == (3, 2, 4)


def test_the_loss_is_the_mean_over_scored_positions() -> None:
    ours, batch = model(), points()
    scored = torch.zeros(3, 12, dtype=torch.bool)
    scored[:, 4] = True
    loss, _ = ours.loss(Episodes(context=batch, scored=scored), 0.0, torch.Generator())
    expected = ours.predict_next(batch).loss(batch.y)[:, 4].mean()
    assert torch.allclose(loss, expected)
