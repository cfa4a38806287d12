"""CMANP and LBANP: sizes, layers compared with NumPy, running states compared with full attention, and memory."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import erf, softmax
from torch import Tensor

from iclbench.backbones.cmanp import CMANP
from iclbench.backbones.latent_backbone import LatentBackbone, LatentSettings
from iclbench.backbones.lbanp import LBANP
from iclbench.core.episodes import Episodes, Points
from iclbench.core.task import TaskShape
from iclbench.evaluation.costs.live_bytes import LiveBytes
from iclbench.layers.latent_layers import CrossLayer
from tests.backbones.event_models import assert_same
from tests.refusals import refused

SHAPE = TaskShape(x_dim=2, points=64, y_dim=3, head="gaussian", question="targets")
SMALL = {"layers": 3, "width": 16, "heads": 2, "hidden": 12, "latents": 5}


def model(cls: type[LatentBackbone] = CMANP, dtype: torch.dtype = torch.float64, **changes: object) -> LatentBackbone:
    """Build a model with perturbed parameters, so that norms scale and shift their inputs."""
    torch.manual_seed(0)
    backbone = cls(cls.Settings(**SMALL | changes), SHAPE).eval()
    with torch.no_grad():
        for p in backbone.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return backbone.to(dtype)


def points(count: int = 40, batch: int = 2, dtype: torch.dtype = torch.float64) -> Points:
    """Return random points, some of which are masked."""
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(batch, count, dim, generator=generator, dtype=torch.float64) for dim in (2, 3))
    return Points(x.to(dtype), y.to(dtype), torch.rand(batch, count, generator=generator) > 0.2)


def queries(count: int = 6, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(2, count, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(dtype)


def test_the_number_of_parameters_equals_that_of_the_paper() -> None:
    assert CMANP(CMANP.Settings(), SHAPE).parameter_count == 1_342_406
    # Per layer, LBANP lacks the block latents, one cross-attention layer and one self-attention layer.
    block = 128 * 64 + 2 * (4 * 64 * 64 + 64 + 64 * 256 + 256 + 128 * 64 + 64) + 5 * 2 * 64
    assert LBANP(LBANP.Settings(), SHAPE).parameter_count == 1_342_406 - 6 * block


@pytest.mark.parametrize("residual", ["standard", "normed"])
@torch.no_grad()
def test_a_layer_equals_numpy(residual: str) -> None:
    torch.manual_seed(3)
    layer = CrossLayer(LatentSettings(**SMALL, residual=residual)).double()
    for p in layer.parameters():
        p.add_(0.1 * torch.randn_like(p))
    x, data = torch.randn(1, 4, 16).double(), torch.randn(1, 7, 16).double()
    mask = torch.tensor([[True, True, False, True, True, False, True]])
    w = {name: p.numpy() for name, p in layer.named_parameters()}

    def norm(name: str, t: np.ndarray) -> np.ndarray:
        t = (t - t.mean(-1, keepdims=True)) / np.sqrt(t.var(-1, keepdims=True) + 1e-5)
        return t * w[f"{name}.weight"] + w[f"{name}.bias"]

    rows, valid = x[0].numpy(), data[0].numpy()[mask[0].numpy()]
    a, d = norm("norm", rows), norm("norm_data", valid)
    q, k, v = a @ w["q.weight"].T, d @ w["k.weight"].T, d @ w["v.weight"].T
    heads = [softmax(q[:, h] @ k[:, h].T / np.sqrt(8), -1) @ v[:, h] for h in (slice(0, 8), slice(8, 16))]
    y = (a if residual == "normed" else rows) + np.concatenate(heads, -1) @ w["out.weight"].T + w["out.bias"]
    f = norm("norm_feed", y)
    up = f @ w["feed.up.weight"].T + w["feed.up.bias"]
    gelu = up[:, 12:] * 0.5 * (1 + erf(up[:, 12:] / np.sqrt(2)))
    expected = (f if residual == "normed" else y) + (up[:, :12] * gelu) @ w["feed.down.weight"].T + w["feed.down.bias"]
    np.testing.assert_allclose(layer(x, data, mask)[0].numpy(), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("residual", ["standard", "normed"])
@torch.no_grad()
def test_the_running_state_equals_attention_to_all_points(residual: str) -> None:
    """One episode has no points. Its first attention must not change the latents."""
    backbone = model(residual=residual, chunk=7)
    context, x = points(), queries()
    context.mask[1] = False
    tokens = backbone.embed_points(torch.cat([context.x, context.y], -1))
    latents, hidden = backbone.latents.expand(2, -1, -1), backbone.embed_query(x)
    for block, reader in zip(backbone.blocks, backbone.readers, strict=True):
        data = block.mix_read(block.read(block.latents.expand(2, -1, -1), tokens, context.mask))
        latents = block.mix_passed(block.pass_on(latents, data))
        hidden = reader(hidden, latents)
    assert_same(backbone.predict_targets(context, x), backbone.read(backbone.decoder(hidden)), 1e-10)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@torch.no_grad()
def test_chunks_and_the_order_of_points_do_not_change_predictions(dtype: torch.dtype, tolerance: float) -> None:
    context, x = points(dtype=dtype), queries(dtype=dtype)
    expected = model(dtype=dtype, chunk=1000).predict_targets(context, x)
    for chunk in (1, 3, 40):
        assert_same(model(dtype=dtype, chunk=chunk).predict_targets(context, x), expected, tolerance)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(5))
    backbone = model(dtype=dtype)
    state = backbone.condition(context.span(0, 0))
    for indices in order.split([1, 1, 5, 13, 20]):
        state = backbone.update(state, context.map(lambda t, indices=indices: t[:, indices]))
    assert_same(backbone.query(state, x), expected, tolerance)
    flipped = backbone.query(state, x.flip(1)).map(lambda t: t.flip(1))
    assert_same(flipped, expected, tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@torch.no_grad()
def test_points_can_be_removed(dtype: torch.dtype) -> None:
    backbone, context, x = model(dtype=dtype), points(dtype=dtype), queries(dtype=dtype)
    state = backbone.remove(backbone.condition(context), context.span(25))
    tolerance = 1e-9 if dtype == torch.float64 else 1e-4
    assert_same(backbone.query(state, x), backbone.predict_targets(context.span(0, 25), x), tolerance)
    with refused("not-applicable", str(dtype).removeprefix("torch.")):
        backbone.remove(backbone.condition(context), context)


def test_gradients_do_not_depend_on_chunks() -> None:
    context, targets = points(), points(6)
    episodes = Episodes(context=context, targets=targets, scored=targets.mask)

    def gradients(chunk: int) -> dict[str, Tensor]:
        backbone = model(chunk=chunk).train()
        backbone.loss(episodes, 0.5, torch.Generator())[0].backward()
        return {name: p.grad for name, p in backbone.named_parameters()}

    expected = gradients(1000)
    for chunk in (7, 16):
        for name, grad in gradients(chunk).items():
            torch.testing.assert_close(grad, expected[name], rtol=1e-9, atol=1e-11, msg=lambda m, name=name: name + m)


def test_gradients_are_finite_after_updates_of_an_empty_episode() -> None:
    backbone, context = model(chunk=2), points(9)
    context.mask[1] = False
    state = backbone.condition(context.span(0, 3))
    for start in (3, 6):
        state = backbone.update(state, context.span(start, start + 3))
    backbone.query(state, queries()).mean.sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in backbone.parameters() if p.grad is not None)


def peak(work: str, count: int, chunk: int) -> int:
    """Return the peak memory in bytes, excluding the points."""
    backbone = model(dtype=torch.float32, chunk=chunk, latents=32, layers=1)
    context, x = points(count, dtype=torch.float32), queries(dtype=torch.float32)
    targets = points(6, dtype=torch.float32)
    state = backbone.condition(context.span(0, 1))
    with LiveBytes() as live:
        if work == "train":
            episodes = Episodes(context=context, targets=targets, scored=targets.mask)
            backbone.loss(episodes, 0.5, torch.Generator())[0].backward()
        else:
            with torch.no_grad():
                after = backbone.condition(context) if work == "condition" else backbone.update(state, context)
                backbone.query(after, x)
    return live.peak


@pytest.mark.slow
@pytest.mark.parametrize("work", ["condition", "update", "train"])
def test_memory_does_not_grow_with_the_number_of_points(work: str) -> None:
    assert peak(work, 4096, chunk=64) / peak(work, 256, chunk=64) < 1.05
    assert peak(work, 4096, chunk=10**6) / peak(work, 256, chunk=10**6) > 4


@pytest.mark.slow
@torch.no_grad()
def test_memory_excluding_predictions_does_not_grow_with_the_number_of_queries() -> None:
    """Table 1 of the paper states that memory is constant in the number of queries. A prediction consists of a mean and
    a standard deviation. Raw outputs stay in memory until all of them are concatenated."""

    def peak(count: int, chunk: int) -> int:
        backbone = model(dtype=torch.float32, chunk=chunk)
        state, x = backbone.condition(points(dtype=torch.float32)), torch.randn(2, count, 2)
        with LiveBytes() as live:
            backbone.query(state, x)
        return live.peak

    prediction_bytes = 2 * 4096 * 3 * (2 + 1 + 2) * 4
    assert peak(4096, chunk=64) < 1.05 * peak(64, chunk=64) + prediction_bytes
    assert peak(4096, chunk=10**6) > 10 * peak(64, chunk=64)


@torch.no_grad()
def test_chunks_of_queries_do_not_change_predictions() -> None:
    context, x = points(), torch.randn(2, 200, 2, dtype=torch.float64)
    unchunked = model(chunk=1000)
    for chunk in (1, 64, 199):
        backbone = model(chunk=chunk)
        backbone.load_state_dict(unchunked.state_dict())
        assert_same(
            backbone.query(backbone.condition(context), x), unchunked.query(unchunked.condition(context), x), 1e-12
        )


@torch.no_grad()
def test_rounding_errors_of_float64_states_are_smaller_than_those_of_float32_states() -> None:
    context = points(2000, dtype=torch.float32)

    def spread(**settings: object) -> float:
        states = [model(dtype=torch.float32, chunk=chunk, **settings).condition(context) for chunk in (10, 2000)]
        return max(
            (states[0].e - states[1].e).abs().max().item(), (states[0].log_c - states[1].log_c).abs().max().item()
        )

    assert spread(state_dtype="float64") < 1e-12
    assert 1e-8 < spread() < 1e-5
    backbone = model(dtype=torch.float32, state_dtype="float64")
    assert backbone.condition(context).e.dtype == torch.float64
    x = queries(dtype=torch.float32)
    assert_same(backbone.predict_targets(context, x), model(dtype=torch.float32).predict_targets(context, x), 1e-5)


@pytest.mark.parametrize("cls", [CMANP, LBANP])
@torch.no_grad()
def test_loaded_states_give_identical_predictions_before_and_after_an_update(
    cls: type[LatentBackbone], tmp_path: Path
) -> None:
    backbone, context, new_points, x = model(cls), points(), points(3), queries()
    state = backbone.condition(context)
    backbone.save_state(state, tmp_path / "state")
    reloaded = model(cls)
    loaded = reloaded.load_state(tmp_path / "state")
    for a, b in ((loaded, state), (reloaded.update(loaded, new_points), backbone.update(state, new_points))):
        assert torch.equal(reloaded.query(a, x).mean, backbone.query(b, x).mean)
        assert torch.equal(reloaded.query(a, x).std, backbone.query(b, x).std)


@torch.no_grad()
def test_the_size_of_the_state_does_not_depend_on_the_number_of_points() -> None:
    backbone = model()
    sizes = {count: backbone.condition(points(count)).nbytes for count in (0, 1, 500)}
    assert set(sizes.values()) == {2 * 3 * 2 * 5 * (8 + 1) * 8}  # episodes, layers, heads, latents, (e, log C), bytes


def test_a_width_that_is_not_a_multiple_of_the_heads_is_refused() -> None:
    with refused("bad-value", "backbone.width=16", "backbone.heads=3"):
        model(heads=3)
