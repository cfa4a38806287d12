"""Retention (Sun et al. 2023): linear attention with a fixed decay per head and rotary queries and keys."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from iclbench.core.errors import UsageError
from iclbench.layers.linear_recurrence import Terms
from iclbench.layers.mixers.linear_mixer import LinearMixer
from iclbench.layers.mixers.mixer import Sizes, divided, gated, heads, joined, shrunk, values
from iclbench.layers.mixers.window import Window
from iclbench.layers.positions import SLOWEST_ROTARY, turned


class RetNet(LinearMixer):
    """S_t = gamma_h S_{t-1} + k_t v_t^T, o = S^T q, gamma_h = 1 - 2^(-5-h); q and k turned by their places, k over
    sqrt(K); values twice as wide as tokens; each head's answer through an RMS norm, all through a SiLU gate.

    8 D² parameters. The state turns on with the tokens, so that places are counted from it and never grow. Heads are
    normed by RMS without weights, as in torchscale's code; the paper has a group norm. Angles are those of rotary
    positions, where torchscale's go one step further. PyTorch's initialisation of linear layers, outputs shrunk with
    depth (torchscale has Xavier's with small gains, and scales scores in ways that the norm undoes). A convolution,
    where one is asked for, is followed by SiLU.
    """

    head_step = 2  # queries and keys are turned in pairs of channels

    def __init__(self, sizes: Sizes) -> None:
        width, keys = sizes.width, sizes.state or divided(sizes)
        if keys % 2:
            raise UsageError(
                "retnet turns pairs of channels: backbone.state, or backbone.width / backbone.heads, must be even, "
                f"not {keys}"
            )
        value = values(sizes, divided(sizes, 2))
        inner = sizes.heads * value
        self.parts = [sizes.heads * keys, sizes.heads * keys, inner]
        super().__init__(Window(sum(self.parts), self.taps(sizes)), (sizes.heads, keys, value))
        self.heads, self.keys = sizes.heads, keys
        self.in_proj = nn.Linear(width, sum(self.parts) + inner, bias=False)
        self.out_proj = shrunk(nn.Linear(inner, width, bias=False), sizes)

    def terms(self, u: Tensor, rest: Tensor) -> Terms:
        q, k, v = (heads(t, self.heads) for t in self.window.activated(u).split(self.parts, -1))
        decays = torch.log1p(-torch.exp2(-5.0 - torch.arange(self.heads, dtype=v.dtype, device=v.device)))
        return Terms(q, k * self.keys**-0.5, v, decays[:, None, None].expand(len(v), -1, v.shape[2], 1))

    def placed(self, terms: Terms, places: range) -> Terms:
        return replace(terms, q=self._turned(terms.q, places), k=self._turned(terms.k, places))

    def moved(self, state: Tensor, tokens: int) -> Tensor:
        return self._turned(state.mT, range(-tokens, 1 - tokens)).mT

    def _turned(self, t: Tensor, places: range) -> Tensor:
        """Turned by angles in proportion to the places, in the precision of t."""
        frequencies = SLOWEST_ROTARY ** -(torch.arange(0, self.keys, 2, dtype=t.dtype, device=t.device) / self.keys)
        positions = torch.arange(places.start, places.stop, places.step, dtype=t.dtype, device=t.device)
        angles = positions.unsqueeze(1) * frequencies
        return turned(t, (angles.cos(), angles.sin()))

    def out(self, o: Tensor, terms: Terms, u: Tensor, rest: Tensor) -> Tensor:
        return self.out_proj(gated(joined(F.rms_norm(o, o.shape[-1:], eps=1e-6)), rest))
