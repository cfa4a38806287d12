"""PyTorch's LSTM and GRU as mixers."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from iclbench.layers.mixers.mixer import Mixer, MixerState, Mlp, Sizes, full_precision, zero_invalid
from iclbench.layers.mixers.window import Window


class Cells(Mixer):
    """A recurrent network of one layer with the width of a token. The state holds the tail of the window and the state
    of the cells.

    Attributes:
        module: PyTorch's module.
        state_tensors: number of tensors in the state of the cells.
    """

    uses = frozenset({"conv"})
    mlp: ClassVar[Mlp] = "none"
    module: type[nn.LSTM | nn.GRU]
    state_tensors: int

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.width, self.window = sizes.width, Window(sizes.width, self.taps(sizes))
        self.cells = self.module(sizes.width, sizes.width, batch_first=True)

    def start(self, batch: int) -> MixerState:
        weight = next(self.cells.parameters())
        cells = tuple(weight.new_zeros(batch, self.width) for _ in range(self.state_tensors))
        return self.window.start(batch, weight), *cells

    def forward(
        self, x: Float[Tensor, "B T D"], state: MixerState, mask: Bool[Tensor, "B T"] | None = None
    ) -> tuple[Float[Tensor, "B T D"], MixerState]:
        tail, *cells = state
        u, tail = self.window(zero_invalid(x, mask), tail)
        u = self.window.activated(u)
        out, cells = self._run(u, cells) if mask is None else self._padded(u, cells, mask)
        return out, (tail, *cells)

    def peek(self, x: Float[Tensor, "B Q D"], state: MixerState) -> Float[Tensor, "B Q D"]:
        tail, *cells = state
        u = self.window.activated(self.window.peek(x, tail))
        copies = [t.repeat_interleave(x.shape[1], 0) for t in cells]
        return self._run(u.flatten(0, 1).unsqueeze(1), copies)[0].view_as(x)

    def fork(
        self, x: Float[Tensor, "B T D"], queries: Float[Tensor, "B N D"], state: MixerState
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B N D"], MixerState]:
        tail, *cells = state
        u, query_inputs, tail = self.window.fork(x, queries, tail)
        u, query_inputs = self.window.activated(u), self.window.activated(query_inputs)
        outputs, states_before = [], []
        for pair in u.split(2, 1):
            states_before.append(cells)
            out, cells = self._run(pair, cells)
            outputs.append(out)
        states = [torch.stack(tensors, 1).flatten(0, 1) for tensors in zip(*states_before, strict=True)]
        answers = self._run(query_inputs.flatten(0, 1).unsqueeze(1), states)[0].view_as(queries)
        return torch.cat(outputs, 1), answers, (tail, *cells)

    def _run(self, x: Any, cells: list[Tensor]) -> tuple[Any, list[Tensor]]:
        """Run the cells in full precision: sums over all tokens need it, and some processors do not support half
        precision here."""
        batched = tuple(t.unsqueeze(0) for t in cells)
        with full_precision(batched[0]):
            out, after = self.cells(x.to(batched[0].dtype), batched if self.state_tensors > 1 else batched[0])
        return out, [t.squeeze(0) for t in (after if self.state_tensors > 1 else (after,))]

    def _padded(self, x: Tensor, cells: list[Tensor], mask: Bool[Tensor, "B T"]) -> tuple[Tensor, list[Tensor]]:
        """`_run` for a chunk whose valid tokens are last; the state of an episode without valid tokens does not
        change."""
        counts, length = mask.sum(1), x.shape[1]
        place = torch.arange(length, device=x.device)
        order = (place + (length - counts).unsqueeze(1)) % length
        rolled = x.gather(1, order.unsqueeze(2).expand_as(x))
        packed = pack_padded_sequence(rolled, counts.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
        out, after = self._run(packed, cells)
        out = pad_packed_sequence(out, batch_first=True, total_length=length)[0]
        back = (place + counts.unsqueeze(1)) % length
        has_tokens = (counts > 0).unsqueeze(1)
        new_cells = [torch.where(has_tokens, new, old) for new, old in zip(after, cells, strict=True)]
        return out.gather(1, back.unsqueeze(2).expand_as(out)), new_cells


class LSTM(Cells):
    """c_t = f c_{t-1} + i g, h_t = o tanh(c_t), gates sigmoids and g the tanh of linear maps of x_t and h_{t-1}
    (Hochreiter and Schmidhuber 1997; Gers et al. 2000): `torch.nn.LSTM` with its initialisation and 8 D² + 8 D
    parameters.

    It cannot be computed in parallel over tokens. An optional convolution with SiLU comes before it.
    """

    module, state_tensors = nn.LSTM, 2


class GRU(Cells):
    """h_t = (1 - z) n + z h_{t-1}, n = tanh(W x_t + r (U h_{t-1})), gates r and z sigmoids of x_t and h_{t-1} (Cho et
    al. 2014): `torch.nn.GRU` with its initialisation and 6 D² + 6 D parameters.

    It cannot be computed in parallel over tokens. An optional convolution with SiLU comes before it.
    """

    module, state_tensors = nn.GRU, 1
