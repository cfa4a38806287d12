"""PyTorch's LSTM and GRU as mixers."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from iclbench.layers.mixers.mixer import Mixer, MixerState, Mlp, Sizes, full_precision, zero_invalid
from iclbench.layers.mixers.window import Window


class RecurrentCells(Mixer):
    """A recurrent network with one layer, whose hidden vectors have the width of a token. The state of the mixer holds
    the tail of the window and the state of the network.

    Attributes:
        module_class: PyTorch's class of the network.
        state_tensors: number of tensors in the state of the network.
    """

    uses = frozenset({"conv"})
    mlp: ClassVar[Mlp] = "none"
    module_class: type[nn.LSTM | nn.GRU]
    state_tensors: int

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.width, self.window = sizes.width, Window(sizes.width, self.taps(sizes))
        self.cells = self.module_class(sizes.width, sizes.width, batch_first=True)

    def start(self, batch: int) -> MixerState:
        weight = next(self.cells.parameters())
        hidden = tuple(weight.new_zeros(batch, self.width) for _ in range(self.state_tensors))
        return self.window.start(batch, weight), *hidden

    def forward(
        self, x: Float[Tensor, "B T D"], state: MixerState, mask: Bool[Tensor, "B T"] | None = None
    ) -> tuple[Float[Tensor, "B T D"], MixerState]:
        tail, *hidden = state
        u, tail = self.window(zero_invalid(x, mask), tail)
        u = self.window.activate(u)
        out, hidden = self._run(u, hidden) if mask is None else self._run_padded(u, hidden, mask)
        return out, (tail, *hidden)

    def peek(self, x: Float[Tensor, "B Q D"], state: MixerState) -> Float[Tensor, "B Q D"]:
        tail, *hidden = state
        u = self.window.activate(self.window.peek(x, tail))
        copies = [t.repeat_interleave(x.shape[1], 0) for t in hidden]
        return self._run(u.flatten(0, 1).unsqueeze(1), copies)[0].view_as(x)

    def fork(
        self, x: Float[Tensor, "B T D"], queries: Float[Tensor, "B N D"], state: MixerState
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B N D"], MixerState]:
        tail, *hidden = state
        u, query_inputs, tail = self.window.fork(x, queries, tail)
        u, query_inputs = self.window.activate(u), self.window.activate(query_inputs)
        outputs, states_before = [], []
        for pair in u.split(2, 1):
            states_before.append(hidden)
            out, hidden = self._run(pair, hidden)
            outputs.append(out)
        states = [torch.stack(tensors, 1).flatten(0, 1) for tensors in zip(*states_before, strict=True)]
        answers = self._run(query_inputs.flatten(0, 1).unsqueeze(1), states)[0].view_as(queries)
        return torch.cat(outputs, 1), answers, (tail, *hidden)

    def _run(self, x: Any, hidden: list[Tensor]) -> tuple[Any, list[Tensor]]:
        """Return the outputs and the new state of the network. It runs in full precision, because sums over all tokens
        need full precision and some processors do not support these networks in half precision."""
        batched = tuple(t.unsqueeze(0) for t in hidden)
        with full_precision(batched[0]):
            out, after = self.cells(x.to(batched[0].dtype), batched if self.state_tensors > 1 else batched[0])
        return out, [t.squeeze(0) for t in (after if self.state_tensors > 1 else (after,))]

    def _run_padded(self, x: Tensor, hidden: list[Tensor], mask: Bool[Tensor, "B T"]) -> tuple[Tensor, list[Tensor]]:
        """Return the outputs and the new state for a chunk whose valid tokens come last. The state of an episode
        without valid tokens does not change."""
        counts, length = mask.sum(1), x.shape[1]
        position = torch.arange(length, device=x.device)
        order = (position + (length - counts).unsqueeze(1)) % length
        valid_first = x.gather(1, order.unsqueeze(2).expand_as(x))
        packed = pack_padded_sequence(valid_first, counts.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
        out, after = self._run(packed, hidden)
        out = pad_packed_sequence(out, batch_first=True, total_length=length)[0]
        inverse_order = (position + counts.unsqueeze(1)) % length
        has_tokens = (counts > 0).unsqueeze(1)
        new_hidden = [torch.where(has_tokens, new, old) for new, old in zip(after, hidden, strict=True)]
        return out.gather(1, inverse_order.unsqueeze(2).expand_as(out)), new_hidden


class LSTM(RecurrentCells):
    """c_t = f c_{t-1} + i g, h_t = o tanh(c_t). The gates i, f and o are sigmoids of linear maps of x_t and h_{t-1},
    and g is the tanh of such a map (Hochreiter and Schmidhuber 1997; Gers et al. 2000). The mixer is `torch.nn.LSTM`
    with its initialisation, and has 8 D² + 8 D parameters.

    It cannot be computed in parallel over tokens. An optional convolution with SiLU is applied to its input.
    """

    module_class, state_tensors = nn.LSTM, 2


class GRU(RecurrentCells):
    """h_t = (1 - z) n + z h_{t-1}, n = tanh(W x_t + r (U h_{t-1})). The gates r and z are sigmoids of linear maps of
    x_t and h_{t-1} (Cho et al. 2014). The mixer is `torch.nn.GRU` with its initialisation, and has 6 D² + 6 D
    parameters.

    It cannot be computed in parallel over tokens. An optional convolution with SiLU is applied to its input.
    """

    module_class, state_tensors = nn.GRU, 1
