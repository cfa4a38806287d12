"""Mamba's selective state space (Gu and Dao 2023), over the scan of `iclbench.layers.scan`.

Names, layout and initialisation of the parameters are those of mamba-ssm's `MixerModel`, so that weights can be
exchanged with it and with `transformers.MambaModel`.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from iclbench.layers.depthwise_convolution import depthwise_convolution
from iclbench.layers.mixers.mixer import Mixer, MixerState, Mlp, Sizes, own, silenced
from iclbench.layers.scan.scan import Backend, selective_peek, selective_scan

_DT_MIN, _DT_MAX, _DT_FLOOR = 1e-3, 1e-1, 1e-4


class Mamba(Mixer):
    """h_t = e^(dt_t A) h_{t-1} + dt_t B_t x_t, y = C_t h_t + D x_t per channel, with dt, B and C linear maps of x_t
    after a convolution of 4 with SiLU; times the SiLU of a gate.

    Its state are the last `conv - 1` inputs of the convolution, `(B, conv - 1, E)`, and the recurrence's
    `(B, S, E)` with E = expand times width.
    """

    uses = frozenset({"state", "conv", "rank"})
    own_conv = 4
    mlp: ClassVar[Mlp] = "none"

    def __init__(self, sizes: Sizes, expand: int = 2, scan: Backend = "auto") -> None:
        super().__init__()
        width, inner = sizes.width, expand * sizes.width
        self.rank = sizes.rank or math.ceil(width / 16)
        self.state, self.backend = sizes.state or 16, scan
        self.in_proj = nn.Linear(width, 2 * inner, bias=False)
        taps = self.own_conv if sizes.conv is None else sizes.conv
        self.conv1d = nn.Conv1d(inner, inner, taps, groups=inner, padding=taps - 1) if taps else None
        self.x_proj = nn.Linear(inner, self.rank + 2 * self.state, bias=False)
        self.dt_proj = nn.Linear(self.rank, inner)
        self.A_log = nn.Parameter(torch.arange(1, self.state + 1).float().log().repeat(inner, 1))
        self.D = nn.Parameter(torch.ones(inner))
        self.out_proj = nn.Linear(inner, width, bias=False)
        self._initialise(sizes.residuals or sizes.layers)

    def _initialise(self, layers: int) -> None:
        """Step sizes log-uniform in [0.001, 0.1] through the inverse of softplus; outputs shrink with depth."""
        nn.init.uniform_(self.dt_proj.weight, -(self.rank**-0.5), self.rank**-0.5)
        dt = torch.exp(torch.rand(len(self.D)) * math.log(_DT_MAX / _DT_MIN) + math.log(_DT_MIN)).clamp_min(_DT_FLOOR)
        with torch.no_grad():
            self.dt_proj.bias.copy_(dt + torch.log(-torch.expm1(-dt)))
            self.out_proj.weight /= math.sqrt(layers)

    def start(self, batch: int) -> MixerState:
        inner, kept = len(self.D), 0 if self.conv1d is None else self.conv1d.kernel_size[0] - 1
        return self.D.new_zeros(batch, kept, inner), self.D.new_zeros(batch, self.state, inner)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        state: MixerState,
        mask: Bool[Tensor, "B T"] | None = None,
    ) -> tuple[Float[Tensor, "B T D"], MixerState]:
        """What is masked must enter neither the convolution's window nor, through its bias, the recurrence."""
        tail, h = state
        before, gate = self.in_proj(x).chunk(2, -1)
        padded = torch.cat([tail, silenced(before, mask)], 1)
        u = silenced(self._convolve(padded), mask)
        y, h = self._scan(u, *self._select(u), h)
        return self._out(y, u, gate), (own(padded[:, padded.shape[1] - tail.shape[1] :]), h)

    def peek(self, x: Float[Tensor, "B Q D"], state: MixerState) -> Float[Tensor, "B Q D"]:
        tail, h = state
        before, gate = self.in_proj(x).chunk(2, -1)
        windows = torch.cat([tail.unsqueeze(1).expand(-1, x.shape[1], -1, -1), before.unsqueeze(2)], 2)
        u = self._convolve(windows.flatten(0, 1)).view_as(before)
        dt, A, B, C = self._select(u)
        return self._out(selective_peek(h, u, dt, A, B, C), u, gate)

    def fork(
        self,
        x: Float[Tensor, "B T D"],
        queries: Float[Tensor, "B N D"],
        state: MixerState,
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B N D"], MixerState]:
        """All projections are done at once; the recurrence halts before every pair to let one token look at its
        state."""
        tail, h = state
        (before, gate), (asked, asked_gate) = (self.in_proj(t).chunk(2, -1) for t in (x, queries))
        padded = torch.cat([tail, before], 1)
        u = self._convolve(padded)
        behind = padded.unfold(1, tail.shape[1], 2)[:, : queries.shape[1]].mT
        windows = torch.cat([behind, asked.unsqueeze(2)], 2)
        v = self._convolve(windows.flatten(0, 1)).view_as(asked)
        dt, A, B, C = self._select(u)
        dt_asked, _, B_asked, C_asked = self._select(v)
        ys, answers = [], []
        for n in range(queries.shape[1]):
            one, pair = slice(n, n + 1), slice(2 * n, 2 * n + 2)
            answers.append(selective_peek(h, v[:, one], dt_asked[:, one], A, B_asked[:, one], C_asked[:, one]))
            y, h = self._scan(u[:, pair], dt[:, pair], A, B[:, pair], C[:, pair], h)
            ys.append(y)
        outputs = self._out(torch.cat(ys, 1), u, gate), self._out(torch.cat(answers, 1), v, asked_gate)
        return *outputs, (own(padded[:, padded.shape[1] - tail.shape[1] :]), h)

    def _convolve(self, padded: Float[Tensor, "B KT E"]) -> Float[Tensor, "B T E"]:
        """The causal depthwise convolution and its activation."""
        if self.conv1d is None:
            return F.silu(padded)
        assert self.conv1d.bias is not None
        return F.silu(depthwise_convolution(padded, self.conv1d.weight.squeeze(1), self.conv1d.bias))

    def _select(self, u: Float[Tensor, "B T E"]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """dt, A, B and C of the tokens."""
        low, B, C = self.x_proj(u).split([self.rank, self.state, self.state], -1)
        dt = F.softplus(self.dt_proj(low))
        return dt, -torch.exp(self.A_log), B, C

    def _scan(self, u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return selective_scan(u, dt, A, B, C, h, self.backend)

    def _out(self, y: Tensor, u: Tensor, gate: Tensor) -> Tensor:
        return self.out_proj((y + self.D * u) * F.silu(gate))
