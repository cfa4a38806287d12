"""Every mixer against the equation in its paper, computed token by token in float64."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from iclbench.layers.mixers.mixer import Mixer, Sizes
from iclbench.registry import MIXERS

WIDTH, HEADS, TOKENS, BATCH = 16, 2, 45, 2


def make_mixer(name: str, conv: int | None = None, first: bool = True, **settings: Any) -> Mixer:
    """Build a mixer in float64 whose weights are nonzero."""
    torch.manual_seed(0)
    sizes = Sizes(WIDTH, HEADS, conv=conv, layers=2, layer=0 if first else 1, first=first, longest=64, **settings)
    mixer = MIXERS.subclass(name)(sizes).double().eval()
    for weight in mixer.parameters():
        weight.data += 0.1 * torch.randn(weight.shape, dtype=torch.float64)
    return mixer


def tokens(width: int = WIDTH, seed: int = 1) -> Tensor:
    return torch.randn(BATCH, TOKENS, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def convolved(m: Mixer, x: Tensor) -> Tensor:
    """Compute the convolution as a sum over taps, with zeros before the first token."""
    conv = m.window
    taps = conv.tail_length + 1
    if conv.weight is None:
        return x
    padded = torch.cat([x.new_zeros(len(x), taps - 1, x.shape[2]), x], 1)
    out = torch.zeros_like(x) if conv.bias is None else conv.bias.expand_as(x).clone()
    for k in range(taps):
        out = out + conv.weight[:, 0, k] * padded[:, k : k + x.shape[1]]
    return out


def by_head(t: Tensor) -> Tensor:
    return t.unflatten(-1, (HEADS, -1))


def recurrence(step: Callable[[int, Tensor], tuple[Tensor, Tensor]], rows: int, columns: int) -> Tensor:
    """Return the outputs `(B, T, H, V)` of a recurrence. `step` maps t and the state S, `(B, H, rows, columns)`, to
    the next state and the output."""
    S, outputs = torch.zeros(BATCH, HEADS, rows, columns, dtype=torch.float64), []
    for t in range(TOKENS):
        S, o = step(t, S)
        outputs.append(o)
    return torch.stack(outputs, 1)


def outer(k: Tensor, v: Tensor) -> Tensor:
    return k.unsqueeze(-1) * v.unsqueeze(-2)


def readout(S: Tensor, q: Tensor) -> Tensor:
    return (S * q.unsqueeze(-1)).sum(-2)


def rms(t: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    normed = t / (t.square().mean(-1, keepdim=True) + eps).sqrt()
    return normed if weight is None else normed * weight


def silu_if_convolved(m: Mixer, u: Tensor) -> Tensor:
    return F.silu(convolved(m, u)) if m.window.weight is not None else u


def linear_attention(m: Mixer, x: Tensor) -> Tensor:
    q, k, v = (by_head(t) for t in silu_if_convolved(m, x @ m.in_proj.weight.T).split(m.qkv_sizes, -1))
    phi = F.elu
    answers = torch.empty_like(v)
    for t in range(TOKENS):  # the sum in equation 8, without a state
        weights = torch.einsum("bhk,bshk->bhs", phi(q[:, t]) + 1, phi(k[:, : t + 1]) + 1)
        answers[:, t] = torch.einsum("bhs,bshv->bhv", weights / weights.sum(-1, keepdim=True), v[:, : t + 1])
    return answers.flatten(2) @ m.out_proj.weight.T


def based(m: Mixer, x: Tensor) -> Tensor:
    q, k, v = (by_head(t) for t in silu_if_convolved(m, x @ m.in_proj.weight.T).split(m.qkv_sizes, -1))
    answers = torch.empty_like(v)
    for t in range(TOKENS):  # the Taylor series of the paper, without a feature map
        s = torch.einsum("bhk,bshk->bhs", q[:, t], k[:, : t + 1]) / math.sqrt(q.shape[-1])
        weights = 1 + s + s.square() / 2
        answers[:, t] = torch.einsum("bhs,bshv->bhv", weights / weights.sum(-1, keepdim=True), v[:, : t + 1])
    return answers.flatten(2) @ m.out_proj.weight.T


def retnet(m: Mixer, x: Tensor) -> Tensor:
    sizes = [*m.qkv_sizes, m.qkv_sizes[2]]
    q, k, v, gate = (x @ m.in_proj.weight.T).split(sizes, -1)
    q, k, v = (by_head(t) for t in silu_if_convolved(m, torch.cat([q, k, v], -1)).split(m.qkv_sizes, -1))
    gamma = 1 - 2.0 ** (-5 - torch.arange(HEADS, dtype=torch.float64))
    size = q.shape[-1]
    frequency = 10_000.0 ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    pairs = [torch.complex(t[..., : size // 2], t[..., size // 2 :]) for t in (q, k)]
    answers = torch.zeros_like(v)
    # Equation 5: the sum over m <= n of gamma^(n - m) Re(q e^(i n theta) conj(k e^(i m theta))) v.
    for n in range(TOKENS):
        distance = torch.arange(n, -1, -1, dtype=torch.float64).unsqueeze(-1)  # n - m
        rotation = torch.polar(torch.ones(n + 1, size // 2, dtype=torch.float64), distance * frequency).unsqueeze(1)
        product = pairs[0][:, n : n + 1] * rotation * pairs[1][:, : n + 1].conj()
        weight = gamma**distance * product.real.sum(-1) / math.sqrt(size)
        answers[:, n] = (weight.unsqueeze(-1) * v[:, : n + 1]).sum(1)
    return (rms(answers, None, 1e-6).flatten(2) * F.silu(gate)) @ m.out_proj.weight.T


def mamba2(m: Mixer, x: Tensor) -> Tensor:
    inner, N = m.out_proj.in_features, m.state
    z, u, dt = (x @ m.in_proj.weight.T).split([inner, inner + 2 * N, HEADS], -1)
    values, key, query = F.silu(convolved(m, u)).split([inner, N, N], -1)
    values, dt = by_head(values), F.softplus(dt + m.dt_bias)

    def step(t: int, S: Tensor) -> tuple[Tensor, Tensor]:
        decay = torch.exp(-m.A_log.exp() * dt[:, t])[..., None, None]
        S = decay * S + outer(key[:, t, None].expand(-1, HEADS, -1), dt[:, t, :, None] * values[:, t])
        return S, readout(S, query[:, t, None]) + m.D[:, None] * values[:, t]

    y = recurrence(step, N, inner // HEADS).flatten(2) * F.silu(z)
    return rms(y, m.norm.weight, 1e-5) @ m.out_proj.weight.T


def mamba3(m: Mixer, x: Tensor) -> Tensor:
    """The states are complex: a pair of channels is one number, and a channel without rotation has the angle 0."""
    inner, N, R = m.out_proj.in_features, m.state, m.rotated
    z, u, dt, A, trapezoid, angles = (x @ m.in_proj.weight.T).split([inner, inner + 2 * N, *[HEADS] * 3, R], -1)
    values, key, query = silu_if_convolved(m, u).split([inner, N, N], -1)
    values, dt, A, lam = by_head(values), F.softplus(dt + m.dt_bias), F.softplus(A).clamp(min=1e-4), trapezoid.sigmoid()

    def pairs(t: Tensor) -> Tensor:
        return torch.cat([torch.complex(t[..., :R], t[..., R : 2 * R]), t[..., 2 * R :] + 0j], -1)

    key = pairs(rms(key, m.B_norm.weight, 1e-5)[:, :, None] + m.B_bias[:, 0])
    query = pairs(rms(query, m.C_norm.weight, 1e-5)[:, :, None] + m.C_bias[:, 0])
    turn = F.pad(dt[..., None] * (math.pi * angles.tanh())[:, :, None], (0, N - 2 * R))
    outputs, before = [], torch.zeros(BATCH, HEADS, N - R, inner // HEADS, dtype=torch.complex128)
    h = torch.zeros_like(before)
    for t in range(TOKENS):  # the state turns, and a later token sees earlier ones through all turns between them
        alpha = torch.exp(-A[:, t] * dt[:, t])[..., None, None]
        h = (
            torch.polar(torch.ones_like(turn[:, t]), -turn[:, t])[..., None]
            * alpha
            * (h + ((1 - lam[:, t]) * dt[:, t])[..., None, None] * before)
        )
        before = outer(key[:, t], values[:, t] + 0j)
        h = h + (lam[:, t] * dt[:, t])[..., None, None] * before
        outputs.append(readout(h, query[:, t].conj()).real + m.D[:, None] * values[:, t])
    return (torch.stack(outputs, 1).flatten(2) * F.silu(z)) @ m.out_proj.weight.T


def gla(m: Mixer, x: Tensor) -> Tensor:
    u, gate, low = (x @ m.in_proj.weight.T).split([sum(m.qkv_sizes), m.qkv_sizes[2], 16], -1)
    q, k, v = (by_head(t) for t in silu_if_convolved(m, u).split(m.qkv_sizes, -1))
    alpha = by_head(torch.sigmoid(low @ m.decay_proj.weight.T + m.decay_proj.bias) ** (1 / 16))

    def step(t: int, S: Tensor) -> tuple[Tensor, Tensor]:
        S = alpha[:, t].unsqueeze(-1) * S + outer(k[:, t], v[:, t])
        return S, readout(S, q[:, t]) / math.sqrt(q.shape[-1])

    o = recurrence(step, q.shape[-1], v.shape[-1])
    return (rms(o, m.norm.weight, 1e-5).flatten(2) * F.silu(gate)) @ m.out_proj.weight.T


def delta(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, alpha: Tensor | None = None) -> Tensor:
    """Apply the delta rule (Schlag et al., equation 24): the state decays, and then its value for the key moves by
    the fraction beta towards the new value."""
    q, k = (t / (t.square().sum(-1, keepdim=True) + 1e-6).sqrt() for t in (q, k))

    def step(t: int, S: Tensor) -> tuple[Tensor, Tensor]:
        S = S if alpha is None else alpha[:, t] * S
        S = S + outer(k[:, t], beta[:, t, :, None] * (v[:, t] - readout(S, k[:, t])))
        return S, readout(S, q[:, t]) / math.sqrt(q.shape[-1])

    return recurrence(step, q.shape[-1], v.shape[-1])


def fraction(m: Mixer, logits: Tensor) -> Tensor:
    """Return beta, which is up to 2 with negative eigenvalues (Grazzi et al. 2024)."""
    return (2 if m.eigenvalues == "negative" else 1) / (1 + (-logits).exp())


def deltanet(m: Mixer, x: Tensor) -> Tensor:
    u, beta = (x @ m.in_proj.weight.T).split([sum(m.qkv_sizes), HEADS], -1)
    q, k, v = (by_head(t) for t in F.silu(convolved(m, u)).split(m.qkv_sizes, -1))
    return rms(delta(q, k, v, fraction(m, beta)), m.norm.weight, 1e-5).flatten(2) @ m.out_proj.weight.T


def gated_deltanet(m: Mixer, x: Tensor) -> Tensor:
    u, gate, beta, a = (x @ m.in_proj.weight.T).split([sum(m.qkv_sizes), m.qkv_sizes[2], HEADS, HEADS], -1)
    q, k, v = (by_head(t) for t in F.silu(convolved(m, u)).split(m.qkv_sizes, -1))
    alpha = torch.exp(-m.A_log.exp() * F.softplus(a + m.dt_bias))[..., None, None]
    o = rms(delta(q, k, v, fraction(m, beta), alpha), m.norm.weight, 1e-6).flatten(2)
    return (o * F.silu(gate)) @ m.out_proj.weight.T


def gated_deltaproduct(m: Mixer, x: Tensor) -> Tensor:
    n, values = m.steps, m.out_proj.in_features
    u, gate, beta, a = (x @ m.in_proj.weight.T).split([sum(m.qkv_sizes), values, n * HEADS, HEADS], -1)
    q, k, v = F.silu(convolved(m, u)).split(m.qkv_sizes, -1)
    # The keys, values and fractions of the steps of a token are consecutive blocks of channels.
    q, keys, steps = by_head(q), [by_head(t) for t in k.chunk(n, -1)], [by_head(t) for t in v.chunk(n, -1)]
    q, *keys = (t / (t.square().sum(-1, keepdim=True) + 1e-6).sqrt() for t in (q, *keys))
    fractions = fraction(m, beta).chunk(n, -1)
    alpha = torch.exp(-m.A_log.exp() * F.softplus(a + m.dt_bias))[..., None, None]
    identity = torch.eye(q.shape[-1], dtype=q.dtype)

    def step(t: int, S: Tensor) -> tuple[Tensor, Tensor]:
        S = alpha[:, t] * S
        for key, value, beta in zip(keys, steps, fractions, strict=True):
            householder = identity - outer(beta[:, t, :, None] * key[:, t], key[:, t])
            S = householder @ S + outer(key[:, t], beta[:, t, :, None] * value[:, t])
        return S, readout(S, q[:, t]) / math.sqrt(q.shape[-1])

    o = rms(recurrence(step, q.shape[-1], values // HEADS), m.norm.weight, 1e-6).flatten(2)
    return (o * F.silu(gate)) @ m.out_proj.weight.T


def mesa(m: Mixer, x: Tensor) -> Tensor:
    u, v = (x @ m.in_proj.weight.T).split([m.window.channels, m.out_proj.in_features], -1)
    q, k = (by_head(t) for t in F.silu(convolved(m, u)).chunk(2, -1))
    q, k = (t / (t.square().sum(-1, keepdim=True) + 1e-6).sqrt() for t in (q, k))
    forget, beta = (x @ m.gates.weight.T + m.gates.bias).sigmoid().chunk(2, -1)
    penalty, size = torch.diag_embed(0.25 + torch.log1p(m.penalty.exp())), q.shape[-1]
    keys_and_values = torch.cat([k, by_head(v)], -1)  # H sums k k^T, and G sums k v^T

    def step(t: int, S: Tensor) -> tuple[Tensor, Tensor]:
        S = forget[:, t, :, None, None] * S + outer(beta[:, t, :, None] * k[:, t], keys_and_values[:, t])
        solution = torch.linalg.solve(S[..., :size] + penalty, q[:, t])
        return S, readout(S[..., size:], solution)

    o = recurrence(step, size, keys_and_values.shape[-1])
    return rms(o, m.norm.weight, 1e-6).flatten(2) @ m.out_proj.weight.T


def kda(m: Mixer, x: Tensor) -> Tensor:
    rank = m.bypass_sizes[0]
    u, low, low_gate, beta = (x @ m.in_proj.weight.T).split([sum(m.qkv_sizes), rank, rank, HEADS], -1)
    q, k, v = (by_head(t) for t in F.silu(convolved(m, u)).split(m.qkv_sizes, -1))
    dt = by_head(F.softplus(low @ m.decay_proj.weight.T + m.dt_bias))
    alpha = torch.exp(-m.A_log.exp()[:, None] * dt).unsqueeze(-1)
    o = rms(delta(q, k, v, fraction(m, beta), alpha), m.norm.weight, 1e-5).flatten(2)
    return (o * (low_gate @ m.gate_proj.weight.T).sigmoid()) @ m.out_proj.weight.T


def rwkv7(m: Mixer, x: Tensor) -> Tensor:
    x, first = (x, None) if m.first else x.split(WIDTH, -1)
    before = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)
    if m.window.tail_length != 1:
        before = convolved(m, x)
    xr, xw, xk, xv, xa, xg = (x + (before - x) * mu for mu in m.mix)
    r, k, v = m.r(xr), m.k(xk), m.v(xv)
    w = torch.exp(-math.exp(-0.5) * m.w[1](torch.tanh(m.w[0](xw))).sigmoid())
    a, g = m.a(xa).sigmoid(), m.g[1](m.g[0](xg).sigmoid())
    if first is not None:
        v = v + (first - v) * m.mixed(xv).sigmoid()
    removal_key = by_head(k * m.k_k)
    removal_key = removal_key / removal_key.norm(dim=-1, keepdim=True)
    k = k * (1 + (a - 1) * m.k_a)
    r, k, v, w, a = (by_head(t) for t in (r, k, v, w, a))

    def step(t: int, S: Tensor) -> tuple[Tensor, Tensor]:
        S = (
            w[:, t].unsqueeze(-1) * S
            - outer(removal_key[:, t] * a[:, t], readout(S, removal_key[:, t]))
            + outer(k[:, t], v[:, t])
        )
        return S, readout(S, r[:, t])

    o = recurrence(step, r.shape[-1], v.shape[-1])
    mean, variance = o.mean(-1, keepdim=True), o.var(-1, keepdim=True, unbiased=False)
    normed = ((o - mean) / (variance + m.norm.eps).sqrt()).flatten(2) * m.norm.weight + m.norm.bias
    bonus = (r * k * m.r_k.squeeze(1)).sum(-1, keepdim=True) * v
    out = m.out_proj((normed + bonus.flatten(2)) * g)
    return torch.cat([out, v.flatten(2) if first is None else first], -1)


def mlstm(m: Mixer, x: Tensor) -> Tensor:
    inner = m.down_proj.in_features
    u, z = (x @ m.up_proj.weight.T).chunk(2, -1)
    c = F.silu(convolved(m, u))

    def blocks(t: Tensor, weight: Tensor) -> Tensor:
        return t @ torch.block_diag(*weight).T

    q, k, v = blocks(c, m.q), blocks(c, m.k), blocks(u, m.v)
    i, f = (torch.cat([q, k, v], -1) @ m.gates.weight.T + m.gates.bias).chunk(2, -1)
    q, k, v = (by_head(t) for t in (q, k, v))
    C = torch.zeros(BATCH, HEADS, q.shape[-1], v.shape[-1], dtype=torch.float64)
    n, outputs = torch.zeros(BATCH, HEADS, q.shape[-1], dtype=torch.float64), []
    for t in range(TOKENS):  # equations 19 to 27, without a stabiliser
        forget, write = f[:, t].sigmoid(), i[:, t].exp()
        key = k[:, t] / math.sqrt(q.shape[-1])
        C = forget[..., None, None] * C + write[..., None, None] * outer(key, v[:, t])
        n = forget[..., None] * n + write[..., None] * key
        outputs.append(readout(C, q[:, t]) / (n * q[:, t]).sum(-1, keepdim=True).abs().clamp(min=1))
    h = torch.stack(outputs, 1)
    mean, variance = h.mean(-1, keepdim=True), h.var(-1, keepdim=True, unbiased=False)
    normed = ((h - mean) / (variance + 1e-5).sqrt()).flatten(2) * m.norm_weight
    assert normed.shape[-1] == inner
    return ((normed + m.skip * c) * F.silu(z)) @ m.down_proj.weight.T


def lstm(m: Mixer, x: Tensor) -> Tensor:
    x = silu_if_convolved(m, x)
    h = c = torch.zeros(BATCH, WIDTH, dtype=torch.float64)
    w, u, b, d = (getattr(m.cells, f"{name}_l0") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    outputs = []
    for t in range(TOKENS):
        i, f, g, o = (x[:, t] @ w.T + b + h @ u.T + d).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        outputs.append(h)
    return torch.stack(outputs, 1)


def gru(m: Mixer, x: Tensor) -> Tensor:
    x = silu_if_convolved(m, x)
    h = torch.zeros(BATCH, WIDTH, dtype=torch.float64)
    w, u, b, d = (getattr(m.cells, f"{name}_l0") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    outputs = []
    for t in range(TOKENS):
        (r, z, n), (hr, hz, hn) = (x[:, t] @ w.T + b).chunk(3, -1), (h @ u.T + d).chunk(3, -1)
        z = (z + hz).sigmoid()
        h = (1 - z) * (n + (r + hr).sigmoid() * hn).tanh() + z * h
        outputs.append(h)
    return torch.stack(outputs, 1)


def hyena(m: Mixer, x: Tensor) -> Tensor:
    outer_gate, inner_gate, value = convolved(m, m.in_proj(x)).chunk(3, -1)
    L = m.longest
    u, h = inner_gate * value, torch.zeros(TOKENS, WIDTH, dtype=torch.float64)
    fastest, slowest = math.log(1e-2) / 0.3, math.log(1e-2) / 1.5
    for t in range(TOKENS):
        w = [2 * math.pi * t / L * f for f in (1e-4, 1.0)]
        features = [t / (L - 1), *map(math.cos, w), *(-math.sin(angle) for angle in w)]
        hidden = torch.tensor(features, dtype=torch.float64)
        for layer in m.filter:
            hidden = (m.frequency * layer(hidden)).sin()
        decays = torch.linspace(slowest, fastest, WIDTH, dtype=torch.float64).abs()
        h[t] = m.filter_out(hidden) * torch.exp(-t / (L - 1) * decays)
    y = torch.stack([sum(h[t - s] * u[:, s] for s in range(t + 1)) + m.skip * u[:, t] for t in range(TOKENS)], 1)
    return m.out_proj(outer_gate * y)


def attention(m: Mixer, x: Tensor) -> Tensor:
    q, k, v = (by_head(t) for t in convolved(m, m.in_proj(x)).chunk(3, -1))
    answers = torch.empty_like(v)
    for t in range(TOKENS):
        scores = torch.einsum("bhk,bshk->bhs", q[:, t], k[:, : t + 1]) / math.sqrt(q.shape[-1])
        answers[:, t] = torch.einsum("bhs,bshv->bhv", scores.softmax(-1), v[:, : t + 1])
    return m.out_proj(answers.flatten(2))


def fox(m: Mixer, x: Tensor) -> Tensor:
    q, k, v = (by_head(t) for t in convolved(m, x @ m.in_proj.weight.T).chunk(3, -1))
    forget = (x @ m.gates.weight.T + m.gates.bias).sigmoid()
    answers = torch.empty_like(v)
    factors = x.new_ones(BATCH, HEADS, 0)  # the factor of exp(q k) for each key
    for t in range(TOKENS):
        factors = torch.cat([factors * forget[:, t, :, None], x.new_ones(BATCH, HEADS, 1)], -1)
        scores = torch.einsum("bhk,bshk->bhs", q[:, t], k[:, : t + 1]) / math.sqrt(q.shape[-1])
        weights = factors * scores.exp()
        answers[:, t] = torch.einsum("bhs,bshv->bhv", weights / weights.sum(-1, keepdim=True), v[:, : t + 1])
    return answers.flatten(2) @ m.out_proj.weight.T


def path(m: Mixer, x: Tensor) -> Tensor:
    q, k, v = (by_head(t) for t in (x @ m.in_proj.weight.T).chunk(3, -1))
    low, high = (layer.weight for layer in m.w_proj)
    w = by_head(silu_if_convolved(m, x @ low.T @ high.T))
    w = w / (w.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    beta = 2 / (1 + (-(x @ m.beta_proj.weight.T + m.beta_proj.bias)).exp())
    identity, answers = torch.eye(q.shape[-1], dtype=x.dtype), torch.empty_like(v)
    products = x.new_zeros(BATCH, HEADS, 0, *identity.shape)  # for each key, the product of the later matrices
    for t in range(TOKENS):
        householder = identity - outer(beta[:, t, :, None] * w[:, t], w[:, t])
        products = torch.cat([householder.unsqueeze(2) @ products, identity.expand(BATCH, HEADS, 1, -1, -1)], 2)
        scores = torch.einsum("bhi,bhsij,bshj->bhs", q[:, t], products, k[:, : t + 1]) / math.sqrt(q.shape[-1])
        answers[:, t] = torch.einsum("bhs,bshv->bhv", scores.softmax(-1), v[:, : t + 1])
    return answers.flatten(2) @ m.out_proj.weight.T


def mamba(m: Mixer, x: Tensor) -> Tensor:
    u, gate = m.in_proj(x).chunk(2, -1)
    if m.conv1d.weight is not None:
        padding = m.conv1d.weight.shape[2] - 1
        u = F.conv1d(u.mT, m.conv1d.weight, m.conv1d.bias, padding=padding, groups=u.shape[2])[..., :TOKENS].mT
    u = F.silu(u)
    low, B, C = m.x_proj(u).split([m.rank, m.state, m.state], -1)
    dt, h, outputs = F.softplus(m.dt_proj(low)), 0.0, []
    for t in range(TOKENS):
        decay = torch.exp(dt[:, t, :, None] * -m.A_log.exp())
        h = decay * h + (dt[:, t] * u[:, t]).unsqueeze(-1) * B[:, t].unsqueeze(1)
        outputs.append((h * C[:, t].unsqueeze(1)).sum(-1) + m.D * u[:, t])
    return m.out_proj(torch.stack(outputs, 1) * F.silu(gate))


# The functions in this file that are named after mixers.
EQUATIONS: dict[str, Callable[[Mixer, Tensor], Tensor]] = {
    name: globals()[function] for name in MIXERS.builtin_entries if (function := name.replace("-", "_")) in globals()
}


# The default number of taps (as in the paper), no convolution, and four taps, without duplicates.
CONVOLUTIONS = [
    (name, conv)
    for name in EQUATIONS
    for conv in (None, 0, 4)
    if conv is None or conv != MIXERS.subclass(name).default_conv
]


def test_every_mixer_has_an_equation_in_this_file() -> None:
    missing = sorted(set(MIXERS.builtin_entries) - EQUATIONS.keys())
    assert not missing, f"{missing}: write the equation of each as a function with the name of the mixer in this file"


# Settings that change the equation of a mixer.
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    *((name, {"eigenvalues": "negative"}) for name in ("deltanet", "gated-deltanet", "kda")),
    ("gated-deltaproduct", {"eigenvalues": "positive"}),
    ("gated-deltaproduct", {"householders": 1}),
    ("gated-deltaproduct", {"householders": 5, "state": 3, "inner": 12}),
    ("path", {"rank": 3, "inner": 12}),
    *(("mamba3", {"state": rows, "inner": 12}) for rows in (1, 3, 64)),
]


@pytest.mark.parametrize(("name", "conv"), CONVOLUTIONS)
def test_outputs_and_gradients_equal_the_equation(name: str, conv: int | None) -> None:
    check_outputs_and_gradients(make_mixer(name, conv), name)


@pytest.mark.parametrize(("name", "settings"), SETTINGS)
def test_settings_change_the_equation(name: str, settings: dict[str, Any]) -> None:
    check_outputs_and_gradients(make_mixer(name, **settings), name)


@pytest.mark.parametrize("scale", [1e-12, 1e12])
@pytest.mark.parametrize("name", ["gated-deltaproduct", "mesa", "fox", "path", "mamba3"])
def test_small_and_large_gradients_equal_those_of_the_equation(name: str, scale: float) -> None:
    check_outputs_and_gradients(make_mixer(name), name, scale)


def check_outputs_and_gradients(mixer: Mixer, name: str, scale: float = 1.0) -> None:
    """Check both the chunked and the full pass, with gradients of all weights and inputs.

    Args:
        mixer: the mixer in float64.
        name: its name.
        scale: size of the gradients of the outputs.
    """
    x = tokens().requires_grad_()
    weight = scale * tokens(2 * WIDTH if mixer.shares_values else WIDTH, seed=2)
    expected, leaves = EQUATIONS[name](mixer, x), [x, *mixer.parameters()]
    outs = (expected, mixer(x, mixer.start(BATCH))[0], mixer.full_pass(x))
    expected_grads, *grads = (torch.autograd.grad((out * weight).sum(), leaves, allow_unused=True) for out in outs)
    for actual, gradients in zip(outs[1:], grads, strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-10, rtol=1e-10)
        for one, other in zip(gradients, expected_grads, strict=True):
            torch.testing.assert_close(one / scale, other / scale, atol=1e-9, rtol=1e-9)
    x, mixer = x.detach().float(), mixer.float()
    tolerance = (
        1e-4 if name == "hyena" else 1e-5
    )  # sines with frequency 10 in three layers of the filter amplify rounding errors
    for single in (mixer(x, mixer.start(BATCH))[0], mixer.full_pass(x)):
        assert (single - expected).norm() < tolerance * expected.norm()


@pytest.mark.parametrize("name", [name for name in EQUATIONS if "state" in MIXERS.subclass(name).uses])
def test_the_number_of_state_rows_is_configurable(name: str) -> None:
    for rows in (2, 12):
        mixer, x = make_mixer(name, state=rows), tokens()
        if name != "mlstm":
            expected = EQUATIONS[name](mixer, x)
            torch.testing.assert_close(mixer(x, mixer.start(BATCH))[0], expected)
            torch.testing.assert_close(mixer.full_pass(x), expected)
        state_rows = (rows + 1) * (rows + 2) // 2 if name == "based" else rows
        assert mixer.start(BATCH)[1].shape[-2] == state_rows


@pytest.mark.parametrize("name", [name for name in EQUATIONS if "inner" in MIXERS.subclass(name).uses])
def test_values_may_be_wider_or_narrower_than_tokens(name: str) -> None:
    for inner in (12, 20):
        mixer, x = make_mixer(name, inner=inner), tokens()
        torch.testing.assert_close(mixer(x, mixer.start(BATCH))[0], EQUATIONS[name](mixer, x))
        if name != "mlstm":  # in mlstm, keys and values have the same width
            assert mixer.start(BATCH)[1].shape[-2] == make_mixer(name).start(BATCH)[1].shape[-2]


def test_later_layers_of_rwkv7_use_the_values_of_the_first_layer() -> None:
    mixer, x = make_mixer("rwkv7", first=False), tokens(2 * WIDTH)
    torch.testing.assert_close(mixer(x, mixer.start(BATCH))[0], rwkv7(mixer, x))


@pytest.mark.parametrize(("name", "conv"), CONVOLUTIONS)
def test_segments_queries_and_padded_sequences_match_one_full_pass(name: str, conv: int | None) -> None:
    """The sequence is read in segments, with a query after each pair of tokens, and with padding on the left."""
    mixer, x, q = make_mixer(name, conv), tokens()[:, :22], tokens(seed=3)[:, :11]
    with torch.no_grad():
        expected, after = mixer(x, mixer.start(BATCH))
        state, segments, peeks = mixer.start(BATCH), [], []
        for start, end in ((0, 1), (1, 2), (2, 9), (9, 22)):
            segment, state = mixer(x[:, start:end], state)
            segments.append(segment)
        torch.testing.assert_close(torch.cat(segments, 1), expected)
        for one, other in zip(state, after, strict=True):
            torch.testing.assert_close(one, other)
        state = mixer.start(BATCH)
        for n in range(11):
            peeks.append(mixer.peek(q[:, n : n + 1], state))
            torch.testing.assert_close(peeks[-1], mixer(q[:, n : n + 1], state)[0])
            _, state = mixer(x[:, 2 * n : 2 * n + 2], state)
        outputs, answers, forked = mixer.fork(x, q, mixer.start(BATCH))
        torch.testing.assert_close(outputs, expected)
        torch.testing.assert_close(answers, torch.cat(peeks, 1))
        for one, other in zip(forked, after, strict=True):
            torch.testing.assert_close(one, other)
        mask = torch.ones(BATCH, 22, dtype=torch.bool)
        mask[0, :5] = mask[1] = False
        masked, masked_state = mixer(x, mixer.start(BATCH), mask)
        short, short_state = mixer(x[:1, 5:], mixer.start(1))
        torch.testing.assert_close(masked[:1, 5:], short)
        torch.testing.assert_close(mixer.peek(q, masked_state)[:1], mixer.peek(q[:1], short_state))
        torch.testing.assert_close(mixer.peek(q, masked_state)[1:], mixer.peek(q[1:], mixer.start(1)))


@pytest.mark.parametrize("name", EQUATIONS)
def test_a_query_does_not_depend_on_later_tokens_in_half_precision(name: str) -> None:
    """With autocast, sums over tokens are in full precision, and no term is added first and subtracted later."""
    mixer, q = make_mixer(name).float(), tokens(seed=3).float()[:, :11]
    x = tokens().float()[:, :22]
    other = x.clone()
    other[:, -2:] *= 100
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        one, another = (mixer.fork(inputs, q, mixer.start(BATCH))[1] for inputs in (x, other))
        full_pass, chunk = mixer.full_pass(x), mixer(x, mixer.start(BATCH))[0]
    torch.testing.assert_close(one, another, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(full_pass, chunk)


def test_mlstm_is_finite_if_its_input_gate_is_wide_open() -> None:
    """With m = 200, e^-m is 0 in float32, and n.q is 0 for a zero query."""
    mixer = MIXERS.subclass("mlstm")(Sizes(WIDTH, HEADS))
    mixer.gates.bias.data[:HEADS] = 200.0
    mixer.window.bias.data.zero_()
    x = torch.zeros(1, 5, WIDTH, requires_grad=True)
    out = mixer(x, mixer.start(1))[0]
    out.sum().backward()
    assert bool(out.isfinite().all()) and x.grad is not None and bool(x.grad.isfinite().all())


@pytest.mark.parametrize("name", [name for name in EQUATIONS if name not in ("attention", "hyena")])
def test_a_state_does_not_share_storage_with_a_larger_tensor(name: str) -> None:
    mixer = make_mixer(name)
    with torch.no_grad():
        _, state = mixer(tokens(), mixer.start(BATCH))
    for tensor in state:
        assert tensor.untyped_storage().nbytes() <= 2 * max(tensor.nbytes, 8 * BATCH * HEADS)
