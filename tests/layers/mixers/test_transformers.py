"""Mixers against layers of the transformers library with the same weights, and the generic model against `gpt2` and
`mamba`.
"""

import os
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from iclbench.backbones.gpt2 import GPT2, GPT2Settings
from iclbench.backbones.mamba import Mamba, MambaSettings
from iclbench.backbones.mixers import Attention
from iclbench.backbones.sequence_model import Hybrid, HybridSettings, SettingsWithInnerWidth
from iclbench.contracts import example_episodes
from iclbench.core.task import TaskShape
from iclbench.layers.linear_recurrence import Terms, linear_recurrence
from iclbench.layers.mixers.gated_deltanet import GatedDeltaNet
from iclbench.layers.mixers.gated_deltaproduct import pad_steps
from iclbench.layers.mixers.kda import KDA
from iclbench.layers.mixers.mamba2 import Mamba2
from iclbench.layers.mixers.mixer import Mixer, Sizes
from iclbench.layers.mixers.mlstm import gated_terms, running_max
from iclbench.layers.ridge_recurrence import ridge_recurrence
from iclbench.layers.transition_attention import Cache, attend
from iclbench.layers.transition_attention import Terms as AttentionTerms

WIDTH, HEADS = 16, 4
SHAPE = TaskShape(x_dim=4, points=12)


def draw_weights(module: nn.Module) -> None:
    torch.manual_seed(0)
    for weight in module.parameters():
        nn.init.normal_(weight, std=0.3)


def tokens(count: int = 50) -> Tensor:
    return torch.randn(2, count, WIDTH, generator=torch.Generator().manual_seed(1))


def assert_equal_outputs(mixer: Mixer, theirs: nn.Module) -> None:
    x = tokens()
    with torch.no_grad():
        expected = theirs(x)
        expected = expected[0] if isinstance(expected, tuple) else expected
        torch.testing.assert_close(mixer(x, mixer.start(2))[0], expected, atol=2e-6, rtol=1e-5)


def test_mamba2_equals_the_layer_of_transformers() -> None:
    from transformers.models.mamba2.configuration_mamba2 import Mamba2Config
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

    config = Mamba2Config(
        num_heads=HEADS, head_dim=2 * WIDTH // HEADS, hidden_size=WIDTH, state_size=8, n_groups=1, chunk_size=16
    )
    theirs, ours = Mamba2Mixer(config, 0), Mamba2(Sizes(WIDTH, HEADS, state=8))
    draw_weights(theirs)
    ours.load_state_dict({name.replace("conv1d", "window"): w for name, w in theirs.state_dict().items()})
    assert_equal_outputs(ours, theirs)


def test_gated_deltanet_equals_the_layer_of_qwen3_next() -> None:
    from transformers.models.qwen3_next.configuration_qwen3_next import Qwen3NextConfig
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

    config = Qwen3NextConfig(
        hidden_size=WIDTH,
        linear_key_head_dim=3,
        linear_value_head_dim=6,
        linear_num_key_heads=HEADS,
        linear_num_value_heads=HEADS,
        rms_norm_eps=1e-6,
    )
    theirs, ours = Qwen3NextGatedDeltaNet(config, 0), GatedDeltaNet(Sizes(WIDTH, HEADS))
    draw_weights(theirs)
    # Qwen3-Next concatenates q, k, v and z per head. This package concatenates the heads of each tensor.
    by_head = theirs.in_proj_qkvz.weight.data.view(HEADS, -1, WIDTH).split([3, 3, 6, 6], 1)
    q, k, v, z = (t.flatten(0, 1) for t in by_head)
    b, a = theirs.in_proj_ba.weight.data.view(HEADS, 2, WIDTH).unbind(1)
    ours.in_proj.weight.data = torch.cat([q, k, v, z, b, a])
    ours.window.weight.data = theirs.conv1d.weight.data
    ours.A_log.data, ours.dt_bias.data = theirs.A_log.data, theirs.dt_bias.data
    ours.norm.weight.data, ours.out_proj.weight.data = theirs.norm.weight.data, theirs.out_proj.weight.data
    assert_equal_outputs(ours, theirs)


def test_kda_equals_the_layer_of_kimi_linear() -> None:
    pytest.importorskip("transformers.models.kimi_linear", reason="transformers has no Kimi Linear")
    from transformers.models.kimi_linear.configuration_kimi_linear import KimiLinearConfig
    from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearDeltaAttention

    config = KimiLinearConfig(
        hidden_size=WIDTH, linear_head_dim=WIDTH // HEADS, linear_num_heads=HEADS, rms_norm_eps=1e-5
    )
    theirs, ours = KimiLinearDeltaAttention(config, 0), KDA(Sizes(WIDTH, HEADS))
    draw_weights(theirs)
    gate = theirs.forget_gate
    inputs = (theirs.q_proj, theirs.k_proj, theirs.v_proj, gate.f_a_proj, theirs.g_a_proj, theirs.b_proj)
    ours.in_proj.weight.data = torch.cat([linear.weight.data for linear in inputs])
    ours.window.weight.data = theirs.conv1d.weight.data
    ours.decay_proj.weight.data, ours.gate_proj.weight.data = gate.f_b_proj.weight.data, theirs.g_b_proj.weight.data
    ours.A_log.data, ours.dt_bias.data = gate.A_log.data.flatten(), gate.dt_bias.data
    ours.norm.weight.data, ours.out_proj.weight.data = theirs.o_norm.weight.data, theirs.o_proj.weight.data
    assert_equal_outputs(ours, theirs)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.float64, 1e-12)])
def test_the_mlstm_cell_matches_transformers(dtype: torch.dtype, tolerance: float) -> None:
    """Only the recurrence is compared, because the complete layer in transformers follows xLSTM 7B instead of the
    paper."""
    from transformers.models.xlstm import modeling_xlstm

    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 45, 4, generator=generator).to(dtype) for _ in range(3))
    i, f = (3 * torch.randn(2, 3, 45, generator=generator).to(dtype) for _ in range(2))
    expected, (C, n, m) = modeling_xlstm.mlstm_recurrent_sequence_native(
        q, k, v, i, f, return_last_states=True, eps=0, dtype_state=dtype
    )
    terms, log_f = Terms(q, k * 4**-0.5, F.pad(v, (0, 1), value=1.0)), F.logsigmoid(f)
    max_log = running_max(log_f, i, torch.zeros(2, 3, 1, dtype=dtype))
    o, memory = linear_recurrence(gated_terms(terms, log_f, i, max_log), torch.zeros(2, 3, 4, 5, dtype=dtype))
    h = o[..., :-1] / torch.maximum(o[..., -1:].abs(), (-max_log[..., 1:, None]).exp())
    # The transformers library divides q by the root of the width, and this package divides k.
    pairs = [(h, expected), (max_log[..., -1:], m), (memory[..., :-1] * 4**0.5, C), (memory[..., -1] * 4**0.5, n)]
    for ours, theirs in pairs:
        assert (ours - theirs.view_as(ours)).norm() <= tolerance * theirs.norm()


def test_the_generic_model_equals_gpt2() -> None:
    torch.manual_seed(0)
    gpt2 = GPT2(GPT2Settings(layers=3, width=WIDTH, heads=HEADS, init_std=0.3), SHAPE).eval()
    generic = Attention(SettingsWithInnerWidth(layers=3, width=WIDTH, heads=HEADS, norm="layer"), SHAPE).eval()
    source = gpt2.state_dict()
    weights = {name: source[name] for name in source if name.startswith(("read_in", "read_out", "norm"))}
    names = {"norm": "ln_1", "mixer.in_proj": "attn.c_attn", "mixer.out_proj": "attn.c_proj"}
    names |= {"norm_mlp": "ln_2", "mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"}
    for layer in range(3):
        for ours, theirs in names.items():
            weight = source[f"blocks.{layer}.{theirs}.weight"]
            weights[f"layers.{layer}.{ours}.weight"] = weight if weight.dim() == 1 else weight.T
            weights[f"layers.{layer}.{ours}.bias"] = source[f"blocks.{layer}.{theirs}.bias"]
    generic.load_state_dict(weights)
    assert_equal_models(gpt2, generic)


def test_the_generic_model_equals_mamba() -> None:
    torch.manual_seed(0)
    mamba = Mamba(MambaSettings(layers=3, width=WIDTH, state=4), SHAPE).eval()
    generic = Hybrid(HybridSettings(layers=3, width=WIDTH, state=4, mixers=["mamba"]), SHAPE).eval()
    generic.load_state_dict({name.replace("norm_f", "norm"): weight for name, weight in mamba.state_dict().items()})
    assert_equal_models(mamba, generic)


def assert_equal_models(reference: nn.Module, generic: nn.Module) -> None:
    """Check that parameter counts, and predictions for both questions, are equal."""
    assert reference.parameter_count == generic.parameter_count
    episodes = example_episodes(points=12)
    with torch.no_grad():
        for question in ("next", "targets"):
            actual, expected = generic.ask(episodes, question).point(), reference.ask(episodes, question).point()
            torch.testing.assert_close(actual, expected, atol=2e-6, rtol=1e-5)


# Path to a checkout of flash-linear-attention. Its naive reference implementations need only torch and einops:
# FLA_CHECKOUT=... pytest tests/layers/mixers/test_transformers.py
FLA = os.environ.get("FLA_CHECKOUT")


@pytest.mark.skipif(FLA is None, reason="FLA_CHECKOUT, a checkout of flash-linear-attention, is not set")
@pytest.mark.parametrize(
    ("path", "function"),
    [
        ("delta_rule", "delta_rule_recurrence"),
        ("gated_delta_rule", "naive_recurrent_gated_delta_rule"),
        ("kda", "naive_recurrent_kda"),
        ("gla", "naive_recurrent_gla"),
        ("simple_gla", "naive_recurrent_simple_gla"),
    ],
)
def test_the_recurrence_matches_the_naive_code_in_flash_linear_attention(path: str, function: str) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 40, 8, generator=generator) for _ in range(3))
    k, beta = F.normalize(k, dim=-1), 2 * torch.rand(2, 3, 40, 1, generator=generator)
    g = -torch.rand(2, 3, 40, 8 if path in ("kda", "gla") else 1, generator=generator)
    t = [tensor.transpose(1, 2).contiguous() for tensor in (q, k, v, g, beta)]
    naive = getattr(_load_module(Path(FLA or "") / "fla" / "ops" / path / "naive.py"), function)
    scale = 8**-0.5
    if path == "delta_rule":
        expected, terms = naive(q, k, v, beta.squeeze(-1))[0], Terms(q * scale, beta * k, v, None, k, -beta * k)
    elif path in ("gated_delta_rule", "kda"):
        decays = t[3] if path == "kda" else t[3].squeeze(-1)
        ordered = {"gated_delta_rule": (t[4].squeeze(-1), decays), "kda": (decays, t[4].squeeze(-1))}[path]
        expected = naive(*t[:3], *ordered)[0].transpose(1, 2)
        terms = Terms(q * scale, beta * k, v, g, g.exp() * k, -beta * k)
    else:
        expected = naive(*t[:3], t[3] if path == "gla" else t[3].squeeze(-1))
        expected = (expected[0] if isinstance(expected, tuple) else expected).transpose(1, 2)
        terms = Terms(q * scale, k, v, g)
    actual, _ = linear_recurrence(terms, torch.zeros(2, 3, 8, 8))
    torch.testing.assert_close(actual, expected.to(actual), atol=2e-5, rtol=1e-4)


@pytest.mark.skipif(FLA is None, reason="FLA_CHECKOUT, a checkout of flash-linear-attention, is not set")
def test_several_steps_per_token_match_the_naive_code_in_flash_linear_attention() -> None:
    generator, steps = torch.Generator().manual_seed(0), 3
    q, g = torch.randn(2, 40, 3, 8, generator=generator), -torch.rand(2, 40, 3, generator=generator)
    k, v = (torch.randn(2, steps * 40, 3, 8, generator=generator) for _ in range(2))
    k, beta = F.normalize(k, dim=-1), 2 * torch.rand(2, steps * 40, 3, generator=generator)
    naive = _load_module(Path(FLA or "") / "fla" / "ops" / "gated_delta_product" / "naive.py")
    expected, state = naive.naive_recurrent_gated_delta_product(
        q, k, v, g, beta, None, None, num_householder=steps
    )  # the scale and the bounds of sequences are not used
    q, decay = pad_steps(q.flatten(2), steps - 1, 0).unflatten(2, (3, 8)), pad_steps(g, 0, steps - 1)
    q, k, v, decay, beta = (t.transpose(1, 2) for t in (q, k, v, decay.unsqueeze(-1), beta.unsqueeze(-1)))
    terms = Terms(q, beta * k, v, decay, decay.exp() * k, -beta * k)
    actual, after = linear_recurrence(terms, torch.zeros(2, 3, 8, 8))
    torch.testing.assert_close(actual[:, :, steps - 1 :: steps].transpose(1, 2), expected, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(after, state, atol=2e-5, rtol=1e-4)


@pytest.mark.skipif(FLA is None, reason="FLA_CHECKOUT, a checkout of flash-linear-attention, is not set")
def test_the_solutions_of_mesa_match_the_naive_code_in_flash_linear_attention() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 40, 3, 8, generator=generator) for _ in range(3))
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    g, beta = -torch.rand(2, 40, 3, generator=generator), torch.rand(2, 40, 3, generator=generator)
    penalty = 0.25 + torch.rand(3, 8, generator=generator)
    naive = _load_module(Path(FLA or "") / "fla" / "ops" / "mesa_net" / "naive.py")
    expected, covariance, memory = naive.naive_mesa_net_exact(q, k, v, g, penalty, beta)
    q, k, v, g, beta = (t.transpose(1, 2) for t in (q, k, v, g.unsqueeze(-1), beta.unsqueeze(-1)))
    solutions, our_covariance = ridge_recurrence(Terms(q, beta * k, k, g), penalty, torch.zeros(2, 3, 8, 8))
    actual, our_memory = linear_recurrence(Terms(solutions, beta * k, v, g), torch.zeros(2, 3, 8, 8))
    pairs = [(actual.transpose(1, 2), expected), (our_covariance, covariance), (our_memory, memory)]
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)


@pytest.mark.skipif(FLA is None, reason="FLA_CHECKOUT, a checkout of flash-linear-attention, is not set")
@pytest.mark.parametrize("path", ["forgetting_attn", "path_attn"])
def test_decays_and_transitions_match_the_naive_code_in_flash_linear_attention(path: str) -> None:
    generator, scale = torch.Generator().manual_seed(0), 8**-0.5
    q, k, v, w = (torch.randn(2, 150, 3, 8, generator=generator) for _ in range(4))
    w, beta = F.normalize(w, dim=-1), 2 * torch.rand(2, 150, 3, generator=generator)
    g = -torch.rand(2, 150, 3, generator=generator)
    naive = getattr(_load_module(Path(FLA or "") / "fla" / "ops" / path / "naive.py"), f"naive_{path}")
    # In the naive PaTH attention, decays are scaled like the products of queries and keys.
    expected = naive(q, k, v, w, beta, g / scale, scale) if path == "path_attn" else naive(q, k, v, g)
    q, k, v, w, beta = (t.transpose(1, 2) for t in (q * scale, k, v, w, beta.unsqueeze(-1)))
    transitions = {"w": w, "beta": beta} if path == "path_attn" else {}
    cache = Cache(k[:, :, :0], v[:, :, :0], torch.zeros(2, 0, dtype=torch.bool), g.mT[..., :0])
    actual, _ = attend(AttentionTerms(q, k, v, g.mT, **transitions), cache)
    torch.testing.assert_close(actual.transpose(1, 2), expected, atol=2e-5, rtol=1e-4)


def _load_module(path: Path) -> ModuleType:
    spec = spec_from_file_location(path.parent.name, path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
