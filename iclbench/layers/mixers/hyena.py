"""Hyena (Poli et al. 2023): gates around a convolution as long as the sequence, whose filter is the output of a small
network."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from iclbench.core.errors import UsageError
from iclbench.layers.long_convolution import long_convolution
from iclbench.layers.mixers.mixer import Mixer, MixerState, Mlp, Sizes, full_precision, scale_by_depth, zero_invalid
from iclbench.layers.mixers.window import Window

# The window of the fastest (slowest) channel decays to `_FINAL_VALUE` at this multiple of the longest sequence.
_FASTEST, _SLOWEST, _FINAL_VALUE = 0.3, 1.5, 1e-2
_BANDS = (1e-4, 1.0)  # cycles of the features over the longest sequence
_FREQUENCY = 10.0  # initial frequency of the sines


class Hyena(Mixer):
    """y = x0 (h * (x1 v) + d x1 v): the operator of order 2. The filter is h_t = e^(-t |delta|) MLP(t), and a
    convolution of 3 taps is applied to x0, x1 and v.

    The filter network reads t, scaled to go from 0 to 1 over the longest sequence, and cosines and sines with 1e-4 and
    1 cycles over the longest sequence. It has three hidden layers of `filter_order` units (default 64) with the
    activation sin(w .), where w is learned for each unit and initialised with 10. Features and w are those of the
    released associative-recall experiments. Over the channels, delta goes from log(0.01) / 1.5 to log(0.01) / 0.3. The
    filter is as long as the longest sequence of pairs. An element of a stream has one token instead of two, so streams
    use only the first half of the filter.

    With F units, the mixer has 4 D² + (F + 17) D + 2 F² + 9 F parameters. The last two terms belong to the filter
    network and do not depend on D; in a small model with F = 64, they are the largest terms. Linear layers use
    PyTorch's default initialisation; output weights are scaled down with depth. In the released code, the features are
    learned too, and the filter has a separate learning rate. The state holds all past values of x1 v.
    """

    uses = frozenset({"conv", "longest", "filter_order"})
    default_conv = 3
    mlp: ClassVar[Mlp] = "gelu"
    state_grows = True

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, self.longest = sizes.width, sizes.longest
        self.in_proj = nn.Linear(width, 3 * width)
        self.window = Window(3 * width, self.taps(sizes), bias=True)
        units, features = sizes.filter_order or 64, 1 + 2 * len(_BANDS)
        self.frequency = nn.Parameter(torch.full((units,), _FREQUENCY))
        self.filter = nn.ModuleList([nn.Linear(features, units), nn.Linear(units, units), nn.Linear(units, units)])
        self.filter_out = nn.Linear(units, width, bias=False)
        self.skip = nn.Parameter(torch.randn(width))
        self.out_proj = scale_by_depth(nn.Linear(width, width), sizes)

    def start(self, batch: int) -> MixerState:
        return self.window.start(batch, self.skip), self.skip.new_zeros(batch, 0, len(self.skip))

    def forward(
        self, x: Float[Tensor, "B T D"], state: MixerState, mask: Bool[Tensor, "B T"] | None = None
    ) -> tuple[Float[Tensor, "B T D"], MixerState]:
        tail, past = state
        u, tail = self.window(zero_invalid(self.in_proj(x), mask), tail)
        gate, gated_values = _gate_and_values(zero_invalid(u, mask))
        mixed, past = self._convolve_past(gated_values, past)
        return self._out(gate, mixed + self._kernel(1) * gated_values), (tail, past)

    def peek(self, x: Float[Tensor, "B Q D"], state: MixerState) -> Float[Tensor, "B Q D"]:
        tail, past = state
        gate, gated_values = _gate_and_values(self.window.peek(self.in_proj(x), tail))
        kernel = self._kernel(past.shape[1] + 1)
        with full_precision(x):
            mixed = torch.einsum("btd,td->bd", past, kernel[1:].flip(0)).unsqueeze(1)
        return self._out(gate, mixed + kernel[0] * gated_values)

    def fork(
        self, x: Float[Tensor, "B T D"], queries: Float[Tensor, "B N D"], state: MixerState
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B N D"], MixerState]:
        inputs, query_inputs = self.in_proj(x), self.in_proj(queries)
        tail, past = state
        u, query_u, tail = self.window.fork(inputs, query_inputs, tail)
        (gate, gated_values), (query_gate, query_values) = _gate_and_values(u), _gate_and_values(query_u)
        mixed, past = self._convolve_past(gated_values, past)
        kernel = self._kernel(1)
        answers = self._out(query_gate, mixed[:, ::2] + kernel * query_values)
        return self._out(gate, mixed + kernel * gated_values), answers, (tail, past)

    def _convolve_past(
        self, values: Float[Tensor, "B T D"], past: Float[Tensor, "B P D"]
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B P+T D"]]:
        """Return the convolution over the tokens before each token, excluding the token itself, and the past values
        with the new values appended."""
        all_values = torch.cat([past, values.to(past)], 1)
        kernel = self._kernel(all_values.shape[1])
        past_kernel = torch.cat([torch.zeros_like(kernel[:1]), kernel[1:]])
        with full_precision(values):
            mixed = long_convolution(all_values.permute(2, 0, 1).contiguous(), past_kernel.T).permute(1, 2, 0)
        return mixed[:, past.shape[1] :], all_values

    def _kernel(self, tokens: int) -> Float[Tensor, "T D"]:
        """Return the first `tokens` values of the filter, in the precision of the weights. The first value includes the
        skip weight d."""
        if tokens > self.longest:
            points = -(-tokens // 2)
            raise UsageError(
                f"the filter of hyena covers {self.longest // 2} points, but the sequence has {points}; train with "
                f"-o backbone.max_points={points} or more",
                code="not-applicable",
            )
        with full_precision(self.skip):
            t = torch.arange(tokens, device=self.skip.device, dtype=self.skip.dtype)[:, None]
            angle = 2 * math.pi * t / self.longest * t.new_tensor(_BANDS)
            t = t / max(1, self.longest - 1)
            hidden = torch.cat([t, angle.cos(), -angle.sin()], 1)
            for layer in self.filter:
                hidden = (self.frequency * layer(hidden)).sin()
            slow, fast = math.log(_FINAL_VALUE) / _SLOWEST, math.log(_FINAL_VALUE) / _FASTEST
            decay = torch.linspace(slow, fast, len(self.skip), dtype=t.dtype, device=t.device)
            kernel = self.filter_out(hidden) * torch.exp(-t * decay.abs())
            return torch.cat([kernel[:1] + self.skip, kernel[1:]])

    def _out(self, gate: Tensor, mixed: Tensor) -> Tensor:
        return self.out_proj(gate * mixed)


def _gate_and_values(u: Float[Tensor, "B T D3"]) -> tuple[Tensor, Tensor]:
    """Return the gate x0 and the gated values x1 v."""
    outer, inner, value = u.chunk(3, -1)
    return outer, inner * value
