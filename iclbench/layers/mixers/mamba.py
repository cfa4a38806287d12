"""Mamba's selective state space (Gu and Dao 2023), computed with the scan of `iclbench.layers.scan`.

The parameters have the names, layout and initialisation of mamba-ssm's `MixerModel`, so that weights can be exchanged
with this class and with `transformers.MambaModel`.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from iclbench.layers.mixers.mixer import Mixer, MixerState, Mlp, Sizes, scale_by_depth, zero_invalid
from iclbench.layers.mixers.step_sizes import initial_dt_bias
from iclbench.layers.mixers.window import Window
from iclbench.layers.scan.scan import Backend, selective_peek, selective_scan


class Mamba(Mixer):
    """h_t = e^(dt_t A) h_{t-1} + dt_t B_t x_t, y = C_t h_t + D x_t per channel. x_t is the output of a convolution of 4
    taps with SiLU. B and C are linear maps of x_t, and dt is the softplus of a low-rank linear map of x_t. y is
    multiplied by the SiLU of a gate.

    The state holds the last `conv - 1` inputs of the convolution, `(B, conv - 1, E)`, and the state of the recurrence,
    `(B, S, E)`, with E = expand times width.
    """

    uses = frozenset({"state", "conv", "rank"})
    default_conv = 4
    mlp: ClassVar[Mlp] = "none"

    def __init__(self, sizes: Sizes, expand: int = 2, scan: Backend = "auto") -> None:
        super().__init__()
        width, inner = sizes.width, expand * sizes.width
        self.rank = sizes.rank or math.ceil(width / 16)
        self.state, self.backend = sizes.state or 16, scan
        self.in_proj = nn.Linear(width, 2 * inner, bias=False)
        self.conv1d = Window(inner, self.taps(sizes), bias=True)
        self.x_proj = nn.Linear(inner, self.rank + 2 * self.state, bias=False)
        self.dt_proj = nn.Linear(self.rank, inner)
        self.A_log = nn.Parameter(torch.arange(1, self.state + 1).float().log().repeat(inner, 1))
        self.D = nn.Parameter(torch.ones(inner))
        self.out_proj = nn.Linear(inner, width, bias=False)
        scale_by_depth(self.out_proj, sizes)
        nn.init.uniform_(self.dt_proj.weight, -(self.rank**-0.5), self.rank**-0.5)
        with torch.no_grad():
            self.dt_proj.bias.copy_(initial_dt_bias(inner))

    def start(self, batch: int) -> MixerState:
        return self.conv1d.start(batch, self.D), self.D.new_zeros(batch, self.state, len(self.D))

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        state: MixerState,
        mask: Bool[Tensor, "B T"] | None = None,
    ) -> tuple[Float[Tensor, "B T D"], MixerState]:
        """Return outputs and state as in the base class. Invalid tokens are set to 0 before the convolution and,
        because the convolution has a bias, also after it."""
        tail, h = state
        inputs, gate = self.in_proj(x).chunk(2, -1)
        u, tail = self.conv1d(zero_invalid(inputs, mask), tail)
        u = zero_invalid(F.silu(u), mask)
        y, h = self._scan(u, *self._select(u), h)
        return self._out(y, u, gate), (tail, h)

    def peek(self, x: Float[Tensor, "B Q D"], state: MixerState) -> Float[Tensor, "B Q D"]:
        tail, h = state
        inputs, gate = self.in_proj(x).chunk(2, -1)
        u = F.silu(self.conv1d.peek(inputs, tail))
        dt, A, B, C = self._select(u)
        return self._out(selective_peek(h, u, dt, A, B, C), u, gate)

    def fork(
        self,
        x: Float[Tensor, "B T D"],
        queries: Float[Tensor, "B N D"],
        state: MixerState,
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B N D"], MixerState]:
        """Return outputs and state as in the base class. Projections are computed for all tokens at once; the
        recurrence runs pair by pair, and each query reads the state before its pair."""
        tail, h = state
        (inputs, gate), (query_inputs, query_gate) = (self.in_proj(t).chunk(2, -1) for t in (x, queries))
        u, query_u, tail = self.conv1d.fork(inputs, query_inputs, tail)
        u, query_u = F.silu(u), F.silu(query_u)
        dt, A, B, C = self._select(u)
        dt_query, _, B_query, C_query = self._select(query_u)
        ys, answers = [], []
        for n in range(queries.shape[1]):
            query, pair = slice(n, n + 1), slice(2 * n, 2 * n + 2)
            answers.append(
                selective_peek(h, query_u[:, query], dt_query[:, query], A, B_query[:, query], C_query[:, query])
            )
            y, h = self._scan(u[:, pair], dt[:, pair], A, B[:, pair], C[:, pair], h)
            ys.append(y)
        outputs = self._out(torch.cat(ys, 1), u, gate), self._out(torch.cat(answers, 1), query_u, query_gate)
        return *outputs, (tail, h)

    def _select(self, u: Float[Tensor, "B T E"]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return dt, A, B and C of the tokens."""
        low, B, C = self.x_proj(u).split([self.rank, self.state, self.state], -1)
        dt = F.softplus(self.dt_proj(low))
        return dt, -torch.exp(self.A_log), B, C

    def _scan(self, u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return selective_scan(u, dt, A, B, C, h, self.backend)

    def _out(self, y: Tensor, u: Tensor, gate: Tensor) -> Tensor:
        return self.out_proj((y + self.D * u) * F.silu(gate))
