"""The Mesa layer (von Oswald et al. 2025, "MesaNet: sequence modeling by locally optimal test-time training", arXiv
2506.05233): ridge regression from keys to values, solved after every token."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from iclbench.layers import linear_recurrence as recurrence
from iclbench.layers import ridge_recurrence as ridge
from iclbench.layers.linear_recurrence import Terms
from iclbench.layers.mixers.linear_mixer import mask_terms
from iclbench.layers.mixers.mixer import (
    Mixer,
    MixerState,
    Sizes,
    full_precision,
    head_channels,
    join_heads,
    scale_by_depth,
    split_heads,
    unit_vectors,
    value_channels,
    zero_invalid,
)
from iclbench.layers.mixers.window import Window

_SMALLEST_PENALTY, _INITIAL_PENALTY = 0.25, 1.0
_FORGET_BIAS = 4.0


class Mesa(Mixer):
    """H_t = f_t H_{t-1} + beta_t k_t k_t^T, G_t = f_t G_{t-1} + beta_t k_t v_t^T, o = G^T (H + Lambda)^-1 q, with f =
    sigmoid(.) and beta = sigmoid(.) per head, and Lambda = 0.25 + softplus(.) per channel of the keys.

    o is the value at q of the ridge regression of all values so far on their keys. The delta rule instead takes one
    step of gradient descent per token. A convolution of 4 taps with SiLU is applied to q and k, which are then scaled
    to length 1. RMSNorm is applied to the output of each head. The mixer has 4 D² + 9 D + 2 D H + 2 H parameters, plus
    a norm weight per channel of a head.

    The state is H and G, with K (K + V) numbers per head. Systems are solved exactly, by Cholesky's method; in single
    precision, the relative error of a solution is below 3e-3 even for 1,000 equal keys. As in flash-linear-attention,
    only q and k are convolved, and Lambda starts at 1. flash-linear-attention takes 30 steps of conjugate
    gradients instead of solving the systems exactly, the bias of its forget gates starts at 0, and epsilon of its norm
    is 1e-5 (here: 1e-6). Here, this
    bias starts at 4, so that f starts near 0.98. Other layers use PyTorch's default initialisation; output weights are
    scaled down with depth.
    """

    uses = frozenset({"heads", "inner", "state", "conv"})
    default_conv = 4

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, per_head = sizes.width, head_channels(sizes)
        self.heads, self.key_dim, self.value_dim = sizes.heads, sizes.state or per_head, value_channels(sizes, per_head)
        self.window = Window(2 * sizes.heads * self.key_dim, self.taps(sizes))
        self.in_proj = nn.Linear(width, self.window.channels + sizes.heads * self.value_dim, bias=False)
        self.gates = nn.Linear(width, 2 * sizes.heads)
        nn.init.constant_(self.gates.bias[: sizes.heads], _FORGET_BIAS)
        initial = math.log(math.expm1(_INITIAL_PENALTY - _SMALLEST_PENALTY))
        self.penalty = nn.Parameter(torch.full((sizes.heads, self.key_dim), initial))
        self.norm = nn.RMSNorm(self.value_dim, eps=1e-6)
        self.out_proj = scale_by_depth(nn.Linear(sizes.heads * self.value_dim, width, bias=False), sizes)

    def start(self, batch: int) -> MixerState:
        tail = self.window.start(batch, self.penalty)
        shape = batch, self.heads, self.key_dim
        return tail, self.penalty.new_zeros(*shape, self.key_dim), self.penalty.new_zeros(*shape, self.value_dim)

    def forward(
        self, x: Float[Tensor, "B T D"], state: MixerState, mask: Bool[Tensor, "B T"] | None = None
    ) -> tuple[Float[Tensor, "B T D"], MixerState]:
        tail, covariance, memory = state
        inputs, values = self._channels(x)
        u, tail = self.window(zero_invalid(inputs, mask), tail)
        with full_precision(x):
            keys, v = self._terms(u, values, x)
            keys = mask_terms(keys, mask)
            solutions, covariance = ridge.ridge_recurrence(keys, self._penalty(), covariance)
            o, memory = recurrence.linear_recurrence(replace(keys, q=solutions, v=v), memory)
        return self._out(o), (tail, covariance, memory)

    def peek(self, x: Float[Tensor, "B Q D"], state: MixerState) -> Float[Tensor, "B Q D"]:
        tail, covariance, memory = state
        inputs, values = self._channels(x)
        u = self.window.peek(inputs, tail)
        with full_precision(x):
            keys, v = self._terms(u, values, x)
            solutions = ridge.peek(keys, self._penalty(), covariance)
            o = recurrence.peek(replace(keys, q=solutions, v=v), memory)
        return self._out(o)

    def fork(
        self, x: Float[Tensor, "B T D"], queries: Float[Tensor, "B N D"], state: MixerState
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B N D"], MixerState]:
        tail, covariance, memory = state
        (inputs, values), (query_inputs, query_values) = self._channels(x), self._channels(queries)
        u, query_u, tail = self.window.fork(inputs, query_inputs, tail)
        with full_precision(x):
            keys, v = self._terms(u, values, x)
            query_keys, query_v = self._terms(query_u, query_values, queries)
            solutions, query_solutions, covariance = ridge.fork(keys, query_keys, self._penalty(), covariance)
            o, answers, memory = recurrence.fork(
                replace(keys, q=solutions, v=v), replace(query_keys, q=query_solutions, v=query_v), memory
            )
        return self._out(o), self._out(answers), (tail, covariance, memory)

    def _channels(self, x: Tensor) -> tuple[Float[Tensor, "B T E"], Float[Tensor, "B T _"]]:
        """Return the channels of q and k before the convolution, and the channels of v."""
        projected, count = self.in_proj(x), self.window.channels
        return projected[..., :count], projected[..., count:]

    def _terms(self, u: Tensor, values: Tensor, x: Tensor) -> tuple[Terms, Float[Tensor, "B H T V"]]:
        """Return the terms of H, and the values of all heads."""
        q, k = (unit_vectors(split_heads(t, self.heads)) for t in F.silu(u.to(self.penalty)).chunk(2, -1))
        forget, beta = (t.unsqueeze(-1) for t in self.gates(x.to(self.penalty)).mT.chunk(2, 1))
        return Terms(q, beta.sigmoid() * k, k, F.logsigmoid(forget)), split_heads(values.to(self.penalty), self.heads)

    def _penalty(self) -> Float[Tensor, "H K"]:
        """Return the diagonal of Lambda."""
        return _SMALLEST_PENALTY + F.softplus(self.penalty)

    def _out(self, o: Float[Tensor, "B H T V"]) -> Float[Tensor, "B T D"]:
        return self.out_proj(join_heads(self.norm(o)))
