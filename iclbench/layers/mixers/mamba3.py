"""Mamba-3 (Lahoti et al. 2026, "Mamba-3: improved sequence modeling using state space principles", arXiv 2603.15569):
state-space duality with inputs of two tokens and a data-dependent rotation of the state."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from iclbench.core.records import TensorRecord
from iclbench.layers import linear_recurrence as recurrence
from iclbench.layers.linear_recurrence import Terms
from iclbench.layers.mixers.mixer import (
    Mixer,
    MixerState,
    Sizes,
    apply_silu_gate,
    copy_slice,
    full_precision,
    head_channels,
    join_heads,
    scale_by_depth,
    split_heads,
    value_channels,
    zero_invalid,
)
from iclbench.layers.mixers.step_sizes import initial_dt_bias
from iclbench.layers.mixers.window import Window
from iclbench.layers.positions import rotate

_EXPAND, _STATE = 2, 64
_SMALLEST_A = 1e-4
_EPS = 1e-5


@dataclass(frozen=True)
class _Readers(TensorRecord):
    """The parts of tokens that determine how they read the tokens before them.

    Attributes:
        C: queries, not rotated.
        g: log decays, log alpha.
        past: weights of the token before, (1 - lambda) dt.
        angles: angles of the rotation from the token before.
    """

    C: Float[Tensor, "B H T K"]
    g: Float[Tensor, "B H T 1"]
    past: Float[Tensor, "B H T 1"]
    angles: Float[Tensor, "B H T R"]


@dataclass(frozen=True)
class _Writers(TensorRecord):
    """The parts of tokens that determine what they write to the state.

    Attributes:
        x: values.
        B: keys, not rotated.
        present: weights of the token, lambda dt.
        g: log decays, log alpha.
        turns: angles relative to the state before the first token.
    """

    x: Float[Tensor, "B H T V"]
    B: Float[Tensor, "B H T K"]
    present: Float[Tensor, "B H T 1"]
    g: Float[Tensor, "B H T 1"]
    turns: Float[Tensor, "B H T R"]

    def after(self, x: Float[Tensor, "B H 1 V"], B: Float[Tensor, "B H 1 K"]) -> _Writers:
        """Return the tokens after a first token whose input with the weight `present` is already in the state."""
        present, g, turns = (F.pad(t, (0, 0, 1, 0)) for t in (self.present, self.g, self.turns))
        return _Writers(torch.cat([x, self.x], 2), torch.cat([B, self.B], 2), present, g, turns)


class Mamba3(Mixer):
    """h_t = alpha_t h_{t-1} + (1 - lambda_t) dt_t alpha_t B_{t-1} x_{t-1}^T + lambda_t dt_t B_t x_t^T and
    y = h^T C + D x, then y SiLU(z), with alpha = e^(-A dt), A = softplus(.), dt = softplus(.) and lambda = sigmoid(.)
    per head.

    This is the paper's form with one input and one output per head (SISO). The form with several (MIMO) is not
    implemented. All heads share B and C, except for a learned bias per head, which is added after an RMSNorm. B and C
    are then rotated by the sum of the angles pi tanh(.) dt of all tokens so far. As in the released layer, R = N // 4
    pairs of channels are rotated (one if N is 2 or 3, and none if N is 1), and all heads share the angles before these
    are multiplied by dt; the outputs of the recurrence are not normalised. Unlike there, x, B and C can pass through a
    short convolution, followed by SiLU.

    The mixer has W (3E + 2N + 3H + R) + 2H (N + 1) + 2N parameters for tokens of width W, with an inner width of
    E = 2W and a state of size N = 64 per channel. The state is h, with E N numbers, and x and B of the last token, with
    E + N numbers. It is rotated with every token, so that angles are relative to the last token and do not grow.

    Parameter names, the order of channels and the initialisation follow mamba-ssm: dt log-uniform in [0.001, 0.1], D
    and the biases of B and C equal to 1, and A at least 1e-4. There are three differences. A = softplus(.), as in
    flash-linear-attention and in mamba-ssm at the time of the paper; since June 2026, mamba-ssm has another function
    there, which decreases more slowly. The rotated pairs are the channels i and i + R instead of 2i and 2i + 1. Output
    weights are scaled down with depth. The language models of the paper have N = 128 and heads of 64 channels; here,
    `heads` sets the number of heads.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, self.heads, self.state = sizes.width, sizes.heads, sizes.state or _STATE
        self.value_dim = value_channels(sizes, head_channels(sizes, _EXPAND))
        self.inner, self.rotated = sizes.heads * self.value_dim, min(max(1, self.state // 4), self.state // 2)
        self.window = Window(self.inner + 2 * self.state, self.taps(sizes))
        # Channels after those of the window: dt, A, lambda and the angles.
        self.gate_sizes = [sizes.heads, sizes.heads, sizes.heads, self.rotated]
        self.in_proj = nn.Linear(width, self.inner + self.window.channels + sum(self.gate_sizes), bias=False)
        self.dt_bias = nn.Parameter(initial_dt_bias(sizes.heads))
        self.B_bias = nn.Parameter(torch.ones(sizes.heads, 1, self.state))
        self.C_bias = nn.Parameter(torch.ones(sizes.heads, 1, self.state))
        self.B_norm = nn.RMSNorm(self.state, eps=_EPS)
        self.C_norm = nn.RMSNorm(self.state, eps=_EPS)
        self.D = nn.Parameter(torch.ones(sizes.heads))
        self.out_proj = scale_by_depth(nn.Linear(self.inner, width, bias=False), sizes)

    def start(self, batch: int) -> MixerState:
        memory = self.D.new_zeros(batch, self.heads, self.state, self.value_dim)
        return self.window.start(batch, self.D), memory, self.D.new_zeros(batch, self.inner + self.state)

    def forward(
        self, x: Float[Tensor, "B T D"], state: MixerState, mask: Bool[Tensor, "B T"] | None = None
    ) -> tuple[Float[Tensor, "B T D"], MixerState]:
        tail, memory, held = state
        z, inputs, gates = self._channels(x)
        u, tail = self.window(zero_invalid(inputs, mask), tail)
        with full_precision(x):
            u = self.window.activate(u).to(memory)
            if mask is not None:  # invalid tokens repeat the held token, and dt is 0
                u = torch.where(mask.unsqueeze(2), u, F.pad(held, (0, self.state)).unsqueeze(1))
            writers, readers = self._tokens(u, gates.to(memory), mask)
            sources = writers.after(*self._inputs(held.unsqueeze(1)))
            o, memory = recurrence.linear_recurrence(_terms(sources[:, :, :-1], readers), memory)
            memory = _write_last(memory, sources[:, :, -1:])
        return self._out(o, writers, readers, z), (tail, memory, self._last_inputs(u))

    def full_pass(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        tail, _, held = self.start(len(x))
        z, inputs, gates = self._channels(x)
        u, _ = self.window(inputs, tail)
        with full_precision(x):
            writers, readers = self._tokens(self.window.activate(u).to(held), gates.to(held))
            sources = writers.after(*self._inputs(held.unsqueeze(1)))
            o = recurrence.full_pass(_terms(sources[:, :, :-1], readers))
        return self._out(o, writers, readers, z)

    def peek(self, x: Float[Tensor, "B Q D"], state: MixerState) -> Float[Tensor, "B Q D"]:
        tail, memory, held = state
        z, inputs, gates = self._channels(x)
        u = self.window.peek(inputs, tail)
        with full_precision(x):
            writers, readers = self._tokens(self.window.activate(u).to(memory), gates.to(memory))
            source = writers[:, :, :0].after(*self._inputs(held.unsqueeze(1)))
            o = recurrence.peek(_terms(source.map(lambda t: t.expand(-1, -1, x.shape[1], -1)), readers), memory)
        return self._out(o, writers, readers, z)

    def fork(
        self, x: Float[Tensor, "B T D"], queries: Float[Tensor, "B N D"], state: MixerState
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B N D"], MixerState]:
        tail, memory, held = state
        (z, inputs, gates), (query_z, query_inputs, query_gates) = self._channels(x), self._channels(queries)
        u, query_u, tail = self.window.fork(inputs, query_inputs, tail)
        with full_precision(x):
            u, query_u = (self.window.activate(t).to(memory) for t in (u, query_u))
            writers, readers = self._tokens(u, gates.to(memory))
            query_writers, query_readers = self._tokens(query_u, query_gates.to(memory))
            sources = writers.after(*self._inputs(held.unsqueeze(1)))
            terms = _terms(sources[:, :, :-1], readers)
            query_terms = _terms(sources[:, :, :-1:2], query_readers)
            o, answers, memory = recurrence.fork(terms, query_terms, memory)
            memory = _write_last(memory, sources[:, :, -1:])
        outputs = self._out(o, writers, readers, z), self._out(answers, query_writers, query_readers, query_z)
        return *outputs, (tail, memory, self._last_inputs(u))

    def _channels(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return z, the channels of the window (x, B and C), and the gates (dt, A, lambda and angles)."""
        return self.in_proj(x).split([self.inner, self.window.channels, sum(self.gate_sizes)], -1)

    def _tokens(self, u: Tensor, gates: Tensor, mask: Bool[Tensor, "B T"] | None = None) -> tuple[_Writers, _Readers]:
        """Compute the terms of tokens from u, the output of the window, and the gates."""
        inputs, C = u.split([self.inner + self.state, self.state], -1)
        dt, A, trapezoid, angles = gates.split(self.gate_sizes, -1)
        dt = F.softplus(dt + self.dt_bias)
        dt = dt if mask is None else dt * mask.unsqueeze(2)
        dt, A, trapezoid = (t.mT.unsqueeze(-1) for t in (dt, F.softplus(A).clamp(min=_SMALLEST_A), trapezoid))
        g, angles = -A * dt, math.pi * angles.tanh().unsqueeze(1) * dt
        writers = _Writers(*self._inputs(inputs), trapezoid.sigmoid() * dt, g, angles.cumsum(2))
        C = self.C_norm(C).unsqueeze(1) + self.C_bias
        return writers, _Readers(C, g, (-trapezoid).sigmoid() * dt, angles)

    def _inputs(self, inputs: Float[Tensor, "B T _"]) -> tuple[Float[Tensor, "B H T V"], Float[Tensor, "B H T K"]]:
        """Compute x and B per head from their channels."""
        x, B = inputs.split([self.inner, self.state], -1)
        return split_heads(x, self.heads), self.B_norm(B).unsqueeze(1) + self.B_bias

    def _last_inputs(self, u: Float[Tensor, "B T E"]) -> Float[Tensor, "B _"]:
        """Return the channels of x and B of the last token, which the state holds."""
        return copy_slice(u[:, -1, : self.inner + self.state])

    def _out(self, o: Float[Tensor, "B H T V"], writers: _Writers, readers: _Readers, z: Tensor) -> Tensor:
        """Return the outputs of the mixer. The outputs o of the recurrence do not include the token itself, which adds
        lambda dt (C.B) x + D x. Both C and B have the same rotation, so this rotation has no effect."""
        weights = writers.present * (readers.C * writers.B).sum(-1, keepdim=True) + self.D[:, None, None]
        return self.out_proj(apply_silu_gate(join_heads(o + weights * writers.x), z))


def _terms(sources: _Writers, readers: _Readers) -> Terms:
    """Return the terms of a recurrence over S_t = h_{t-1} + (1 - lambda_t) dt_t B_{t-1} x_{t-1}^T.

    h_t = alpha_t S_t + lambda_t dt_t B_t x_t^T, so that each token is written to S once, when the next token reads it:
    S_{t+1} = alpha_t S_t + (lambda_t dt_t + (1 - lambda_{t+1}) dt_{t+1}) B_t x_t^T, and the output of token t + 1,
    without its own input, is alpha_{t+1} S_{t+1}^T C_{t+1}.

    Args:
        sources: the token before each reader. For the first token after a state, the state is h, which decays with
            this token; a token that is already in h has g = 0 and present = 0.
        readers: the tokens or queries.
    """
    q = readers.g.exp() * _rotate(readers.C, sources.turns + readers.angles)
    return Terms(q, (sources.present + readers.past) * _rotate(sources.B, sources.turns), sources.x, sources.g)


def _write_last(memory: Float[Tensor, "B H K V"], last: _Writers) -> Float[Tensor, "B H K V"]:
    """Return the state h after the last token from S before it, with angles relative to this token."""
    return _rotate((last.g.exp() * memory).mT, -last.turns).mT + (last.present * last.B).mT @ last.x


def _rotate(t: Float[Tensor, "B H T K"], angles: Float[Tensor, "B H _ R"]) -> Float[Tensor, "B H T K"]:
    """Rotate the first 2R channels by the angles: channel i with channel i + R."""
    count = 2 * angles.shape[-1]
    return torch.cat([rotate(t[..., :count], (angles.cos(), angles.sin())), t[..., count:]], -1)
