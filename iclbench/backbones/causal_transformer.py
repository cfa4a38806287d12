"""The causal Transformer over interleaved pairs x_1, y_1, ..., x_N, y_N: GPT-2's blocks and what goes on from a state.

Layers and their initialisation are those of `transformers.GPT2Model`; the forward path is our own and leaner: no token
embedding (12.9 M unused parameters with the default vocabulary), fused attention, fused GELU, and after the last
layer's keys and values only the tokens that are read are carried on. Both paths agree with copied weights (a test).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from iclbench.backbones.activations import gelu_tanh
from iclbench.backbones.base import check_heads
from iclbench.backbones.key_value_cache import (
    Growing,
    KeyValueCache,
    attend_past_and_self,
    causal,
    causal_past,
    causal_present,
)
from iclbench.backbones.positions import LearnedPositions, SinusoidalPositions

Positions = Literal["none", "learned", "sinusoidal"]

# Which tokens of pairs are read after the last layer.
EVERY, INPUTS, OUTPUTS = slice(None), slice(0, None, 2), slice(1, None, 2)

# What a layer's queries, keys and values are mixed to; None when no later layer is needed.
_Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor | None]


class CausalTransformer(nn.Module):
    """Blocks, final norm and positions of a module that calls `build` in its constructor: alone, or in front of
    `SequenceBackbone`, whose trunk it then is. The weights are the module's own, as `blocks`, `norm`, `positions`."""

    padding: ClassVar[Literal["left", "right"]] = "right"

    def build(
        self, *, layers: int, width: int, heads: int, points: int, positions: Positions = "none", init_std: float = 0.02
    ) -> None:
        """Make the layers.

        Args:
            layers: number of blocks.
            width: D of the tokens.
            heads: of attention; each block has an MLP four times as wide.
            points: so many pairs have learned positions.
            positions: whether tokens are told where they stand.
            init_std: standard deviation of the initial weights.

        Raises:
            UsageError: the width does not divide by the heads, or is odd with sinusoidal positions.
        """
        check_heads(width, heads)
        self.heads_count, self.layers = heads, layers
        model = transformers_gpt2(layers, width, heads, 2 * points, init_std)
        self.blocks: nn.ModuleList = model.h
        self.norm: nn.LayerNorm = model.ln_f
        self.positions: LearnedPositions | SinusoidalPositions | None = None
        if positions == "learned":
            self.positions = LearnedPositions.from_pretrained(model.wpe.weight.data, freeze=False)
        elif positions == "sinusoidal":
            self.positions = SinusoidalPositions(width)

    def trunk(self, tokens: Float[Tensor, "B T D"], read: slice = INPUTS) -> Float[Tensor, "B N D"]:
        """Hidden vectors at the tokens that are read of a whole sequence, in one pass."""
        length = tokens.shape[1]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if q.shape[2] == length:
                return F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return F.scaled_dot_product_attention(q, k, v, attn_mask=causal(length, 0, q.device)[read])

        *_, last = self._layers(self._placed(tokens), attend, read)
        return self.norm(last)

    def fork(
        self, tokens: Float[Tensor, "B T D"], queries: Float[Tensor, "B N D"], state: KeyValueCache | None = None
    ) -> tuple[Float[Tensor, "B N D"], KeyValueCache | None]:
        new, asked = tokens.shape[1], queries.shape[1]
        grown = None if state is None else Growing(state)
        held = 0 if state is None else state.mask.shape[1]
        visible = causal(new, held, tokens.device) if state is None else causal_past(state, new)
        before = visible.tril(held - 1)[..., ::2, :]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            (q, q_asked), (k, k_asked), (v, v_asked) = (t.split([new, asked], 2) for t in (q, k, v))
            if grown is None:
                sequence = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:
                k, v = grown.add(layer, k, v)
                sequence = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
            alone = attend_past_and_self(q_asked, k, v, before, k_asked, v_asked)
            return torch.cat([sequence, alone], 2)

        placed = torch.cat([self._placed(tokens, state), self._placed(queries, state, by=2)], 1)
        *_, last = self._layers(placed, attend)
        after = None if grown is None else grown.cache(tokens.new_ones(len(tokens), new, dtype=torch.bool))
        return self.norm(last[:, new:]), after

    def start(self, batch: int) -> KeyValueCache:
        weight = self.norm.weight
        empty = weight.new_zeros(batch, self.heads_count, 0, weight.shape[0] // self.heads_count)
        slots = torch.zeros(batch, 0, dtype=torch.bool, device=weight.device)
        return KeyValueCache((empty,) * self.layers, (empty,) * self.layers, slots)

    def advance(
        self, state: KeyValueCache, tokens: Float[Tensor, "B T D"]
    ) -> tuple[Float[Tensor, "B N D"], KeyValueCache]:
        mask = tokens.new_ones(tokens.shape[:2], dtype=torch.bool)
        visible = causal_past(state, tokens.shape[1])
        last, after = self._extend(state, self._placed(tokens, state), mask, visible, INPUTS)
        assert last is not None
        return last, after

    def absorb(
        self, state: KeyValueCache, tokens: Float[Tensor, "B T D"], mask: Bool[Tensor, "B T"] | None = None
    ) -> KeyValueCache:
        """Nothing is missing before a token that is there, so that all attention is plainly causal."""
        held, new = state.mask.shape[1], tokens.shape[1]
        mask = tokens.new_ones(len(tokens), new, dtype=torch.bool) if mask is None else mask
        visible = causal(new, held, tokens.device) if held else None
        return self._extend(state, self._placed(tokens, first=held), mask, visible)[1]

    def resume(self, state: KeyValueCache, tokens: Float[Tensor, "B T D"], mask: Bool[Tensor, "B T"]) -> KeyValueCache:
        return self.follow(state, tokens, mask)[1]

    def follow(
        self,
        state: KeyValueCache,
        tokens: Float[Tensor, "B T D"],
        mask: Bool[Tensor, "B T"] | None = None,
        read: slice | None = None,
        first: Int[Tensor, "B 1"] | None = None,
    ) -> tuple[Float[Tensor, "B N D"] | None, KeyValueCache]:
        """`resume` that also gives the hidden vectors at the further tokens that are read (None: at none). Without a
        mask all of them are there, and a device is not waited for to find out. `first` is where the first of them
        stands; None: behind all that the state holds."""
        held, new = state.mask.shape[1], tokens.shape[1]
        masks = [m for m in (state.mask if held else None, mask) if m is not None]
        mask = tokens.new_ones(len(tokens), new, dtype=torch.bool) if mask is None else mask
        if first is None and all(bool(m.all()) for m in masks):
            visible = causal(new, held, tokens.device) if held else None
            return self._extend(state, self._placed(tokens, first=held), mask, visible, read)
        if self.positions is not None:
            first = state.mask.sum(1, keepdim=True) if first is None else first
            tokens = tokens + self.positions(first + mask.cumsum(1) - mask.long())
        return self._extend(state, tokens, mask, causal_present(state, mask), read)

    def _extend(
        self,
        state: KeyValueCache,
        tokens: Float[Tensor, "B T D"],
        mask: Bool[Tensor, "B T"],
        visible: Bool[Tensor, "*any T held_and_T"] | None,
        read: slice | None = None,
    ) -> tuple[Float[Tensor, "B N D"] | None, KeyValueCache]:
        """Hidden vectors at the tokens that are read and the longer cache, further tokens seeing what is `visible`
        (None: those before them). Where nothing is read, the last layer has only keys and values."""
        grown, new = Growing(state), tokens.shape[1]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor | None:
            k, v = grown.add(layer, k, v)
            if layer < self.layers - 1:
                return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, is_causal=visible is None)
            if read is None:
                return None
            rows = causal(new, 0, q.device) if visible is None else visible
            return F.scaled_dot_product_attention(q, k, v, attn_mask=rows[..., read, :])

        hidden = list(self._layers(tokens, attend, EVERY if read is None else read))
        return None if read is None else self.norm(hidden[-1]), grown.cache(mask)

    def peek_layers(self, state: KeyValueCache, queries: Float[Tensor, "B Q D"]) -> Iterator[Float[Tensor, "B Q D"]]:
        if self.positions is not None:
            queries = queries + self.positions(state.mask.sum(1, keepdim=True))
        visible = state.mask[:, None, None].expand(-1, 1, queries.shape[1], -1)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attend_past_and_self(q, state.keys[layer], state.values[layer], visible, k, v)

        return self._layers(queries, attend)

    def finish(self, hidden: Float[Tensor, "B Q D"]) -> Float[Tensor, "B Q D"]:
        return self.norm(hidden)

    def _layers(
        self, hidden: Float[Tensor, "B T D"], attend: _Attend, read: slice = EVERY
    ) -> Iterator[Float[Tensor, "B T_out D"]]:
        """Hidden vectors after each block; from the last block's queries on only the tokens that are read."""
        block: Any
        for layer, block in enumerate(self.blocks):
            batch, _, width = hidden.shape
            qkv = block.attn.c_attn(block.ln_1(hidden))
            q, k, v = qkv.view(batch, -1, 3, self.heads_count, width // self.heads_count).permute(2, 0, 3, 1, 4)
            if layer == self.layers - 1:
                q, hidden = q[:, :, read], hidden[:, read]
            mixed = attend(layer, q, k, v)
            if mixed is None:
                return
            hidden = hidden + block.attn.c_proj(mixed.transpose(1, 2).flatten(2))
            inner = gelu_tanh(block.mlp.c_fc(block.ln_2(hidden)))
            hidden = hidden + block.mlp.c_proj(inner)
            yield hidden

    def _placed(
        self, tokens: Float[Tensor, "B T D"], state: KeyValueCache | None = None, first: int = 0, by: int = 1
    ) -> Float[Tensor, "B T D"]:
        """Tokens with the vectors of the positions first, first + by, ...; after a state `first` is its tokens."""
        if self.positions is None:
            return tokens
        if state is not None and not bool(state.mask.all()):
            steps = by * torch.arange(tokens.shape[1], device=tokens.device)
            return tokens + self.positions(state.mask.sum(1, keepdim=True) + steps)
        first = first if state is None else state.mask.shape[1]
        stop = first + by * (tokens.shape[1] - 1) + 1
        return tokens + self.positions.between(first, stop, by, tokens.device).to(tokens)


def transformers_gpt2(layers: int, width: int, heads: int, positions: int, init_std: float) -> Any:
    """A freshly initialised `transformers.GPT2Model` without dropout and with an empty vocabulary."""
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(
        vocab_size=1, n_positions=positions, n_embd=width, n_layer=layers, n_head=heads,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, initializer_range=init_std, use_cache=False,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return GPT2Model(config)
