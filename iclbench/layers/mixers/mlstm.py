"""mLSTM (Beck et al. 2024, xLSTM): a matrix memory with exponential gates."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from iclbench.layers import linear_recurrence as recurrence
from iclbench.layers.linear_recurrence import Terms
from iclbench.layers.mixers.mixer import (
    Mixer,
    MixerState,
    Mlp,
    Sizes,
    apply_silu_gate,
    copy_slice,
    full_precision,
    head_channels,
    join_heads,
    split_heads,
    value_channels,
    zero_invalid,
)
from iclbench.layers.mixers.window import Window

_BLOCK_SIZE = 4  # channels per block of the block-diagonal maps to q, k and v


class MLSTM(Mixer):
    """C_t = f' C_{t-1} + i' k v^T / sqrt(K), n likewise, h = C^T q / max(|n.q|, e^-m), with m_t = max(log f + m_{t-1},
    i), f' = e^(log f + m_{t-1} - m_t), i' = e^(i - m_t) and log f = log sigmoid of the gate.

    The recurrence has an additional column of ones in the values, whose output is n.q. The block is that of the paper.
    A projection maps a token to 2E = 4 D channels, one half of which passes through a convolution of 4 taps and SiLU.
    Block-diagonal maps (4 channels per block) give q and k from the output of the convolution, and v from its input.
    Gates are linear in q, k and v. The output of each head is normalised, and a skip connection is added. The sum is
    multiplied by the SiLU of the other half and projected down. The mixer has 6 D² + (38 + 12 H) D + 2 H parameters.

    Gate weights are initialised with 0, the biases of input gates from a normal distribution with standard deviation
    0.1, and the biases of forget gates with values from 3 to 6 over the heads. The initial weights of projections have
    variance 2 / (5 D), and those of the last projection have standard deviation 2 / (layers sqrt(D)). Differences from
    the released code: SiLU is applied even without a convolution, and 1e-6 is not added to the divisor. By default q
    and k are as wide as v. The setting `state` sets their number of channels per head instead; each of these channels
    is then computed from all channels of the head.
    """

    default_conv = 4
    mlp: ClassVar[Mlp] = "none"
    block = _BLOCK_SIZE

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, value_dim = sizes.width, value_channels(sizes, head_channels(sizes, 2))
        inner = sizes.heads * value_dim
        self.heads, self.key_dim, self.value_dim = sizes.heads, sizes.state or value_dim, value_dim
        self.window = Window(inner, self.taps(sizes), bias=True)
        self.up_proj = nn.Linear(width, 2 * inner, bias=False)
        block = math.gcd(inner, _BLOCK_SIZE)
        key_map_shape = (
            (inner // block, block, block) if sizes.state is None else (sizes.heads, self.key_dim, value_dim)
        )
        weight_std = math.sqrt(2 / (5 * width))
        self.q, self.k = (nn.Parameter(torch.randn(key_map_shape) * weight_std) for _ in range(2))
        self.v = nn.Parameter(torch.randn(inner // block, block, block) * weight_std)
        self.gates = nn.Linear(2 * sizes.heads * self.key_dim + inner, 2 * sizes.heads)
        self.norm_weight = nn.Parameter(torch.ones(inner))
        self.skip = nn.Parameter(torch.ones(inner))
        self.down_proj = nn.Linear(inner, width, bias=False)
        nn.init.normal_(self.up_proj.weight, std=weight_std)
        nn.init.normal_(self.down_proj.weight, std=2 / (sizes.layers * math.sqrt(width)))
        nn.init.zeros_(self.gates.weight)
        with torch.no_grad():
            self.gates.bias[: sizes.heads].normal_(0, 0.1)
            self.gates.bias[sizes.heads :] = torch.linspace(3, 6, sizes.heads)

    def start(self, batch: int) -> MixerState:
        memory = self.skip.new_zeros(batch, self.heads, self.key_dim, self.value_dim + 1)
        return self.window.start(batch, self.skip), memory, self.skip.new_zeros(batch, self.heads, 1)

    def forward(
        self, x: Float[Tensor, "B T D"], state: MixerState, mask: Bool[Tensor, "B T"] | None = None
    ) -> tuple[Float[Tensor, "B T D"], MixerState]:
        tail, memory, max_before = state
        inputs, z = self.up_proj(x).chunk(2, -1)
        u, tail = self.window(zero_invalid(inputs, mask), tail)
        with full_precision(x):
            terms, log_f, i = self._terms_and_gates(u, inputs)
            if mask is not None:
                log_f = log_f.masked_fill(~mask.unsqueeze(1), 0.0)
                i = i.masked_fill(~mask.unsqueeze(1), -torch.inf)
            m = running_max(log_f, i, max_before)
            o, memory = recurrence.linear_recurrence(gated_terms(terms, log_f, i, m), memory)
        return self._out(o, m[..., 1:], u, z), (tail, memory, copy_slice(m[..., -1:]))

    def peek(self, x: Float[Tensor, "B Q D"], state: MixerState) -> Float[Tensor, "B Q D"]:
        tail, memory, max_before = state
        inputs, z = self.up_proj(x).chunk(2, -1)
        u = self.window.peek(inputs, tail)
        with full_precision(x):
            terms, log_f, i = self._terms_and_gates(u, inputs)
            terms, m = next_token_terms(terms, log_f, i, max_before)
            o = recurrence.peek(terms, memory)
        return self._out(o, m, u, z)

    def fork(
        self, x: Float[Tensor, "B T D"], queries: Float[Tensor, "B N D"], state: MixerState
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B N D"], MixerState]:
        tail, memory, max_before = state
        (inputs, z), (query_inputs, query_z) = (self.up_proj(t).chunk(2, -1) for t in (x, queries))
        u, query_u, tail = self.window.fork(inputs, query_inputs, tail)
        with full_precision(x):
            terms, log_f, i = self._terms_and_gates(u, inputs)
            m = running_max(log_f, i, max_before)
            query_terms, m_query = next_token_terms(*self._terms_and_gates(query_u, query_inputs), m[..., :-1:2])
            o, answers, memory = recurrence.fork(gated_terms(terms, log_f, i, m), query_terms, memory)
        outputs = self._out(o, m[..., 1:], u, z), self._out(answers, m_query, query_u, query_z)
        return *outputs, (tail, memory, copy_slice(m[..., -1:]))

    def _terms_and_gates(self, u: Tensor, inputs: Tensor) -> tuple[Terms, Tensor, Tensor]:
        """Return the terms before gating, and the gates log f and i, `(B, H, T)`."""
        dtype = self.skip.dtype
        convolved = F.silu(u.to(dtype))
        q, k, v = (
            _apply_blocks(t, w) for t, w in ((convolved, self.q), (convolved, self.k), (inputs.to(dtype), self.v))
        )
        i, f = self.gates(torch.cat([q, k, v], -1)).mT.chunk(2, 1)
        q, k, v = (split_heads(t, self.heads) for t in (q, k, v))
        return Terms(q, k * self.key_dim**-0.5, F.pad(v, (0, 1), value=1.0)), F.logsigmoid(f), i

    def _out(self, o: Tensor, m: Float[Tensor, "B H T"], u: Tensor, z: Tensor) -> Tensor:
        divisor = torch.maximum(o[..., -1:].abs(), (-m).exp().unsqueeze(-1))
        h = o[..., :-1] / divisor.clamp(min=torch.finfo(o.dtype).tiny)  # e^-m may be 0
        normed = F.group_norm(join_heads(h).flatten(0, 1), self.heads, self.norm_weight, None, 1e-5)
        return self.down_proj(apply_silu_gate(normed.view_as(u).to(u) + self.skip * F.silu(u), z))


def _apply_blocks(x: Float[Tensor, "B T E"], weight: Float[Tensor, "blocks out into"]) -> Float[Tensor, "B T HK"]:
    """Apply a block-diagonal map to the channels, with one matrix per block."""
    return torch.einsum("btni,noi->btno", x.unflatten(-1, (len(weight), -1)), weight).flatten(2)


def running_max(
    log_f: Float[Tensor, "B H T"], i: Float[Tensor, "B H T"], max_before: Float[Tensor, "B H 1"]
) -> Float[Tensor, "B H T1"]:
    """Return m before each token and after the last token. It has no gradient, because it rescales the memory without
    affecting the outputs."""
    c = log_f.detach().double().cumsum(-1)
    highest = torch.maximum(max_before.double(), (i.detach() - c).cummax(-1).values)
    return torch.cat([max_before, (c + highest).to(max_before)], -1)


def gated_terms(terms: Terms, log_f: Tensor, i: Tensor, m: Float[Tensor, "B H T1"]) -> Terms:
    """Return the terms with decays f' and with keys multiplied by i'."""
    decay = log_f + m[..., :-1] - m[..., 1:]
    return replace(terms, k=terms.k * (i - m[..., 1:]).exp().unsqueeze(-1), g=decay.unsqueeze(-1))


def next_token_terms(
    terms: Terms, log_f: Tensor, i: Tensor, max_before: Float[Tensor, "B H _"]
) -> tuple[Terms, Tensor]:
    """Return the gated terms of separate tokens, each of which follows a state with m = `max_before`, and m after each
    token."""
    m = torch.maximum(log_f + max_before, i).detach()
    return replace(terms, k=terms.k * (i - m).exp().unsqueeze(-1), g=(log_f + max_before - m).unsqueeze(-1)), m
