"""Mamba (Gu and Dao 2023): a gated recurrence whose step size, input and output vectors depend on the token.

The sizes are those of Grazzi et al. 2024, appendix A.1.1: 24 blocks of width 256. Names, layout and initialisation of
the parameters are those of mamba-ssm's `MixerModel`, so that weights can be exchanged with it and with
`transformers.MambaModel`; the forward path is our own, `(batch, tokens, channels)` throughout. Read-in and read-out are
linear, without positions and without an embedding table.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from iclbench.backbones.base import BackboneSettings
from iclbench.backbones.recurrent import BlockState, RecurrentBackbone, RecurrentBlock
from iclbench.config.cards import PositiveInt
from iclbench.core.task import TaskShape
from iclbench.layers.depthwise_convolution import depthwise_convolution
from iclbench.layers.scan.scan import Backend, chosen, selective_peek, selective_scan

_DT_MIN, _DT_MAX, _DT_FLOOR = 1e-3, 1e-1, 1e-4
_EPS = 1e-5


class MambaSettings(BackboneSettings):
    """Mamba's own names for the sizes: d_state, d_conv, expand, dt_rank."""

    layers: PositiveInt = 24
    """Mamba blocks."""
    width: PositiveInt = 256
    """Width D of a token."""
    state: PositiveInt = 16
    """Numbers of recurrent state per channel (d_state)."""
    conv: PositiveInt = 4
    """Taps of the causal convolution (d_conv)."""
    expand: PositiveInt = 2
    """Inner width over width."""
    dt_rank: PositiveInt | None = None
    """Rank of the map to the step sizes dt; by default width / 16, rounded up."""
    scan: Backend = "auto"
    """What computes the recurrence; auto: the fastest that the device has."""


class Mixer(nn.Module):
    """The selective state-space layer itself.

    Its state are the last `conv - 1` inputs of the convolution, `(B, conv - 1, E)`, and the recurrence's
    `(B, S, E)` with E = expand times width.
    """

    def __init__(self, settings: MambaSettings) -> None:
        super().__init__()
        width, inner = settings.width, settings.expand * settings.width
        self.rank = settings.dt_rank or math.ceil(width / 16)
        self.state, self.backend = settings.state, settings.scan
        self.in_proj = nn.Linear(width, 2 * inner, bias=False)
        self.conv1d = nn.Conv1d(inner, inner, settings.conv, groups=inner, padding=settings.conv - 1)
        self.x_proj = nn.Linear(inner, self.rank + 2 * self.state, bias=False)
        self.dt_proj = nn.Linear(self.rank, inner)
        self.A_log = nn.Parameter(torch.arange(1, self.state + 1).float().log().repeat(inner, 1))
        self.D = nn.Parameter(torch.ones(inner))
        self.out_proj = nn.Linear(inner, width, bias=False)
        self._initialise(settings.layers)

    def _initialise(self, layers: int) -> None:
        """Step sizes log-uniform in [0.001, 0.1] through the inverse of softplus; outputs shrink with depth."""
        nn.init.uniform_(self.dt_proj.weight, -(self.rank**-0.5), self.rank**-0.5)
        dt = torch.exp(torch.rand(len(self.D)) * math.log(_DT_MAX / _DT_MIN) + math.log(_DT_MIN)).clamp_min(_DT_FLOOR)
        with torch.no_grad():
            self.dt_proj.bias.copy_(dt + torch.log(-torch.expm1(-dt)))
            self.out_proj.weight /= math.sqrt(layers)

    def start(self, batch: int) -> tuple[Tensor, Tensor]:
        inner = len(self.D)
        return self.D.new_zeros(batch, self.conv1d.kernel_size[0] - 1, inner), self.D.new_zeros(
            batch, self.state, inner
        )

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        tail: Float[Tensor, "B K E"],
        h: Float[Tensor, "B S E"],
        mask: Bool[Tensor, "B T"] | None = None,
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B K E"], Float[Tensor, "B S E"]]:
        """A chunk of tokens after a state: outputs and the state after it.

        What is masked must enter neither the convolution's window nor, through its bias, the recurrence.
        """
        before, gate = self.in_proj(x).chunk(2, -1)
        padded = torch.cat([tail, _silenced(before, mask)], 1)
        u = _silenced(self._convolve(padded), mask)
        y, h = self._scan(u, *self._select(u), h)
        return self._out(y, u, gate), padded[:, padded.shape[1] - tail.shape[1] :], h

    def peek(
        self, x: Float[Tensor, "B Q D"], tail: Float[Tensor, "B K E"], h: Float[Tensor, "B S E"]
    ) -> Float[Tensor, "B Q D"]:
        """Outputs of tokens that each come next after the state, on their own."""
        before, gate = self.in_proj(x).chunk(2, -1)
        windows = torch.cat([tail.unsqueeze(1).expand(-1, x.shape[1], -1, -1), before.unsqueeze(2)], 2)
        u = self._convolve(windows.flatten(0, 1)).view_as(before)
        dt, A, B, C = self._select(u)
        return self._out(selective_peek(h, u, dt, A, B, C), u, gate)

    def fork(
        self,
        x: Float[Tensor, "B T D"],
        queries: Float[Tensor, "B N D"],
        tail: Float[Tensor, "B K E"],
        h: Float[Tensor, "B S E"],
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B N D"], Float[Tensor, "B K E"], Float[Tensor, "B S E"]]:
        """A chunk of pairs after a state, tokens that each come after the pairs before theirs, and the state after it.

        All projections are done at once; the recurrence halts before every pair to let one token look at its state.
        """
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
        return *outputs, padded[:, padded.shape[1] - tail.shape[1] :], h

    def _convolve(self, padded: Float[Tensor, "B KT E"]) -> Float[Tensor, "B T E"]:
        """The causal depthwise convolution and its activation."""
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


def _silenced(x: Float[Tensor, "B T E"], mask: Bool[Tensor, "B T"] | None) -> Float[Tensor, "B T E"]:
    return x if mask is None else x.masked_fill(~mask.unsqueeze(2), 0.0)


class MambaBlock(RecurrentBlock):
    """Norm, mixer, residual."""

    def __init__(self, settings: MambaSettings) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(settings.width, eps=_EPS)
        self.mixer = Mixer(settings)

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        return self.resume(x, self.start(len(x)))[0]

    def start(self, batch: int) -> BlockState:
        return self.mixer.start(batch)

    def resume(
        self, x: Float[Tensor, "B T D"], state: BlockState, mask: Bool[Tensor, "B T"] | None = None
    ) -> tuple[Float[Tensor, "B T D"], BlockState]:
        x = self._residual(x)
        mixed, *after = self.mixer(self.norm(x), *state, mask)
        return x + mixed, tuple(after)

    def peek(self, queries: Float[Tensor, "B Q D"], state: BlockState) -> Float[Tensor, "B Q D"]:
        queries = self._residual(queries)
        return queries + self.mixer.peek(self.norm(queries), *state)

    def fork(
        self, x: Float[Tensor, "B T D"], queries: Float[Tensor, "B N D"], state: BlockState | None = None
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B N D"], BlockState | None]:
        x, queries = self._residual(x), self._residual(queries)
        held = self.start(len(x)) if state is None else state
        mixed, answers, *after = self.mixer.fork(self.norm(x), self.norm(queries), *held)
        return x + mixed, queries + answers, None if state is None else tuple(after)

    def _residual(self, x: Tensor) -> Tensor:
        """In float32, also under autocast."""
        return x.to(self.norm.weight.dtype)


class Mamba(RecurrentBackbone[MambaSettings]):
    """A stack of Mamba blocks."""

    Settings = MambaSettings
    computed_by = frozenset({"scan"})

    def __init__(self, settings: MambaSettings, shape: TaskShape) -> None:
        if settings.scan != "auto":
            chosen(settings.scan, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
        super().__init__(settings, shape, settings.width, (MambaBlock(settings) for _ in range(settings.layers)))
        self.norm_f = nn.RMSNorm(settings.width, eps=_EPS)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """A and D are not decayed, as in mamba-ssm."""
        fixed = [p for name, p in self.named_parameters() if name.endswith((".A_log", ".D"))]
        others = [p for name, p in self.named_parameters() if not name.endswith((".A_log", ".D"))]
        return [{"params": others}, {"params": fixed, "weight_decay": 0.0}]

    def notes(self, device: str) -> list[str]:
        return [f"selective scan by {chosen(self.settings.scan, torch.device(device))}"]

    def finish(self, hidden: Float[Tensor, "B Q D"]) -> Float[Tensor, "B Q D"]:
        return self.norm_f(hidden)
