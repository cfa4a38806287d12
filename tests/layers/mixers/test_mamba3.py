"""Mamba-3 against the semantics of mamba-ssm's kernels, and its state."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from iclbench.layers.mixers.mamba3 import Mamba3
from iclbench.layers.mixers.mixer import MixerState, Sizes

WIDTH, HEADS, TOKENS, BATCH = 16, 2, 70, 2


def mixer(state: int = 16, conv: int | None = None) -> Mamba3:
    """Build a mixer in float64 with strong gates: lambda and alpha between almost 0 and almost 1, large angles."""
    torch.manual_seed(0)
    built = Mamba3(Sizes(WIDTH, HEADS, state=state, conv=conv)).double().eval()
    for weight in built.parameters():
        weight.data += 0.2 * torch.randn(weight.shape, dtype=torch.float64)
    built.in_proj.weight.data[-sum(built.gate_sizes) :] *= 8
    return built


def tokens(count: int = TOKENS, seed: int = 1) -> Tensor:
    return torch.randn(BATCH, count, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def released_outputs(m: Mamba3, x: Tensor) -> Tensor:
    """Compute the parallel form of mamba-ssm's kernel (mamba3_siso_fwd_ref): all inputs of a token have a single
    weight in an attention with decays; the part of this weight that belongs to the next token is then subtracted from
    the token's own output. Angles are cumulative sums modulo 2 pi, and pairs are channels 2i and 2i + 1."""
    R, N, inner = m.rotated, m.state, m.inner
    z, values, B, C, dt, A, trapezoid, angles = m.in_proj(x).split([inner, inner, N, N, HEADS, HEADS, HEADS, R], -1)
    order = torch.cat([torch.arange(2 * R).view(2, R).T.flatten(), torch.arange(2 * R, N)])
    values, dt, lam = values.unflatten(-1, (HEADS, -1)), F.softplus(dt + m.dt_bias), trapezoid.sigmoid()
    log_decays = (-dt * F.softplus(A).clamp(min=1e-4)).cumsum(1)
    turns = ((math.pi * angles.tanh()).unsqueeze(2) * dt.unsqueeze(-1)).cumsum(1).remainder(2 * math.pi)
    cos, sin = (F.pad(f(turns), (0, N // 2 - R), value=v) for f, v in ((torch.cos, 1.0), (torch.sin, 0.0)))

    def rotated(t: Tensor) -> Tensor:
        first, second = t[..., 0::2], t[..., 1::2]
        return torch.stack([first * cos - second * sin, first * sin + second * cos], -1).flatten(-2)

    key, query = (
        (norm(t).unsqueeze(2) + bias[:, 0])[..., order]
        for t, norm, bias in ((B, m.B_norm, m.B_bias), (C, m.C_norm, m.C_bias))
    )
    next_weights = F.pad((dt * (1 - lam))[:, 1:], (0, 0, 0, 1))  # of a token, from the gates of the next token
    scores = torch.einsum("bthk,bshk->bhts", rotated(query), rotated(key * (dt * lam + next_weights).unsqueeze(-1)))
    differences = (log_decays.unsqueeze(2) - log_decays.unsqueeze(1)).permute(0, 3, 1, 2)
    weights = scores * differences.masked_fill(~torch.ones(x.shape[1], x.shape[1]).bool().tril(), -math.inf).exp()
    outputs = torch.einsum("bhts,bshv->bthv", weights, values) + m.D[:, None] * values
    outputs = outputs - ((query * key).sum(-1) * next_weights).unsqueeze(-1) * values
    return m.out_proj(outputs.flatten(2) * F.silu(z))


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("state", [4, 16, 64])
def test_outputs_and_gradients_equal_the_parallel_form_of_the_released_kernel(state: int, scale: float) -> None:
    m, x = mixer(state), tokens().requires_grad_()
    outputs = released_outputs(m, x), m(x, m.start(BATCH))[0], m.full_pass(x)
    upstream = scale * tokens(seed=2)
    expected, *others = (torch.autograd.grad((o * upstream).sum(), [x, *m.parameters()]) for o in outputs)
    for o, gradients in zip(outputs[1:], others, strict=True):
        torch.testing.assert_close(o, outputs[0], atol=1e-10, rtol=1e-10)
        for one, other in zip(gradients, expected, strict=True):
            torch.testing.assert_close(one / scale, other / scale, atol=1e-9, rtol=1e-9)


def test_gradients_through_states_and_queries_equal_those_of_longer_sequences() -> None:
    """A query is the last token of a sequence of its own."""
    m, x, queries = mixer(), tokens(12), tokens(6, seed=3)
    upstream, query_upstream = tokens(12, seed=2), tokens(6, seed=4)

    def gradients(outputs: list[Tensor], answers: list[Tensor]) -> tuple[Tensor, ...]:
        loss = (torch.cat(outputs, 1) * upstream).sum() + (torch.cat(answers, 1) * query_upstream).sum()
        return torch.autograd.grad(loss, list(m.parameters()))

    sequences = [torch.cat([x[:, : 2 * n], queries[:, n : n + 1]], 1) for n in range(6)]
    expected = gradients([m.full_pass(x)], [m.full_pass(sequence)[:, -1:] for sequence in sequences])
    state, outputs, answers = m.start(BATCH), [], []
    for n in range(6):
        answers.append(m.peek(queries[:, n : n + 1], state))
        pair, state = m(x[:, 2 * n : 2 * n + 2], state)
        outputs.append(pair)
    first, first_answers, state = m.fork(x[:, :4], queries[:, :2], m.start(BATCH))
    second, second_answers, _ = m.fork(x[:, 4:], queries[:, 2:], state)
    for actual in (gradients(outputs, answers), gradients([first, second], [first_answers, second_answers])):
        for one, other in zip(actual, expected, strict=True):
            torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("conv", [0, 4])
def test_invalid_tokens_do_not_change_a_state_in_any_bit(conv: int) -> None:
    """The first episode has no valid token, and the second one has three."""
    m, x = mixer(conv=conv).float(), tokens(9).float()
    mask = torch.zeros(BATCH, 9, dtype=torch.bool)
    mask[1, 6:] = True
    with torch.no_grad():
        start = m.start(BATCH) if conv else m(tokens(5, seed=2).float(), m.start(BATCH))[1]
        after = m(x, start, mask)[1]
        expected: MixerState = m(x[1:, 6:], tuple(t[1:] for t in start))[1]
    for before, t, other in zip(start, after, expected, strict=True):
        assert torch.equal(t[:1], before[:1])
        torch.testing.assert_close(t[1:], other, atol=5e-5, rtol=1e-5)


def test_a_state_does_not_grow_with_the_angles() -> None:
    """After 4,000 tokens that turn the state by up to half a turn, single precision is still exact to 1e-4."""
    m, x = mixer(), torch.randn(1, 4000, WIDTH, dtype=torch.float64)
    with torch.no_grad():
        expected = m.full_pass(x)[:, -100:]
        m.float()
        state, outputs = m.start(1), []
        for piece in x.float().split(100, 1):
            out, state = m(piece, state)
            outputs.append(out)
    assert (outputs[-1] - expected).norm() < 1e-4 * expected.norm()
