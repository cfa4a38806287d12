"""A causal Transformer over interleaved pairs x_1, y_1, ..., x_N, y_N, with GPT-2's blocks. It can continue from a
state.

Layers, initial weights and outputs are those of `transformers.GPT2Model` (checked by a test), but this implementation
is leaner. It has no token embedding, which would add 12.9 M unused parameters with the default vocabulary and width
256. It uses fused attention and fused GELU. For tokens whose output is not read, the last layer computes only keys and
values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from iclbench.layers.activations import gelu_tanh
from iclbench.layers.attention import check_heads
from iclbench.layers.gpt2_block import GPT2Block, gpt2_layers
from iclbench.layers.key_value_cache import (
    GrowingCache,
    KeyValueCache,
    attend_past_and_self,
    causal_mask,
    causal_mask_after,
    valid_causal_mask_after,
)
from iclbench.layers.loops import Looped
from iclbench.layers.positions import (
    AddedPositions,
    LearnedPositions,
    PositionEncoding,
    RotaryPositions,
    Rotation,
    SinusoidalPositions,
    TokenPositions,
    rotate,
)
from iclbench.layers.prompt import SEPARATOR

# Tokens whose hidden vectors are read after the last layer: all tokens, the tokens of inputs, or the tokens of outputs.
ALL_TOKENS, INPUT_TOKENS, OUTPUT_TOKENS = slice(None), slice(0, None, 2), slice(1, None, 2)

# Maps a layer's number, queries, keys and values to its attention output; None if this output is not needed.
_Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor | None]


class CausalTransformer(Looped, nn.Module):
    """The blocks, final norm and positions of a causal Transformer. A subclass calls `build` in its constructor.

    If a subclass also derives from `SequenceBackbone`, which must be listed after this class, the Transformer is its
    trunk. With `loops` above 1, keys and values of every iteration are cached separately.
    """

    padding: ClassVar[Literal["left", "right"]] = "right"

    def build(
        self,
        *,
        layers: int,
        width: int,
        heads: int,
        points: int,
        positions: PositionEncoding = "none",
        init_std: float = 0.02,
        feedforward: int | None = None,
    ) -> None:
        """Create the layers.

        Args:
            layers: number of blocks.
            width: width D of a token.
            heads: number of attention heads.
            points: number of pairs that have learned positions.
            positions: position encoding.
            init_std: standard deviation of the initial weights.
            feedforward: hidden width of each block's MLP; None means four times the width.

        Raises:
            UsageError: the width is not a multiple of the number of heads, positions are sinusoidal and the width is
                odd, or positions are rotary and the width of a head is odd.
        """
        check_heads(width, heads)
        self.heads_count, self.layers = heads, layers
        initial_layers = gpt2_layers(layers, width, 2 * points, init_std, feedforward)
        self.blocks = nn.ModuleList(initial_layers.blocks)
        self.norm = initial_layers.norm
        self.positions: AddedPositions | RotaryPositions | None = None
        if positions == "learned":
            self.positions = LearnedPositions(initial_layers.positions)
        elif positions == "sinusoidal":
            self.positions = SinusoidalPositions(width)
        elif positions == "rotary":
            self.positions = RotaryPositions(width, heads)

    @property
    def _depth(self) -> int:
        """Number of blocks that a token passes, counted once per iteration."""
        return self.loops * self.layers

    def trunk(self, tokens: Float[Tensor, "B T D"], read: slice = INPUT_TOKENS) -> Float[Tensor, "B N *window D"]:
        """Return the hidden vectors at the tokens `read` of a complete sequence, computed in one pass."""
        length = tokens.shape[1]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if q.shape[2] == length:
                return F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return F.scaled_dot_product_attention(q, k, v, attn_mask=causal_mask(length, 0, q.device)[read])

        return self.read_hidden(self._layers(tokens, [range(length)], attend, read))

    def fork(
        self, tokens: Float[Tensor, "B T D"], queries: Float[Tensor, "B N D"], state: KeyValueCache | None = None
    ) -> tuple[Float[Tensor, "B N *window D"], KeyValueCache | None]:
        new, query_count = tokens.shape[1], queries.shape[1]
        cache = None if state is None else GrowingCache(state)
        past = 0 if state is None else state.mask.shape[1]
        visible = causal_mask(new, past, tokens.device) if state is None else causal_mask_after(state, new)
        visible_before = visible.tril(past - 1)[..., ::2, :]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            (q, q_query), (k, k_query), (v, v_query) = (t.split([new, query_count], 2) for t in (q, k, v))
            if cache is None:
                token_outputs = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:
                k, v = cache.add(layer, k, v)
                token_outputs = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
            query_outputs = attend_past_and_self(q_query, k, v, visible_before, k_query, v_query)
            return torch.cat([token_outputs, query_outputs], 2)

        token_positions = [self._positions_after(state, new), self._positions_after(state, query_count, by=2)]
        layers = self._layers(torch.cat([tokens, queries], 1), token_positions, attend)
        answers = self.read_hidden(hidden[:, new:] for hidden in layers)
        after = None if cache is None else cache.to_state(tokens.new_ones(len(tokens), new, dtype=torch.bool))
        return answers, after

    def start(self, batch: int) -> KeyValueCache:
        weight = self.norm.weight
        empty = weight.new_zeros(batch, self.heads_count, 0, weight.shape[0] // self.heads_count)
        slots = torch.zeros(batch, 0, dtype=torch.bool, device=weight.device)
        return KeyValueCache((empty,) * self._depth, (empty,) * self._depth, slots)

    def advance(
        self, state: KeyValueCache, tokens: Float[Tensor, "B T D"], read: slice = INPUT_TOKENS
    ) -> tuple[Float[Tensor, "B N *window D"], KeyValueCache]:
        mask = tokens.new_ones(tokens.shape[:2], dtype=torch.bool)
        visible = causal_mask_after(state, tokens.shape[1])
        hidden, after = self._extend(state, tokens, self._positions_after(state, tokens.shape[1]), mask, visible, read)
        assert hidden is not None
        return hidden, after

    def absorb(
        self,
        state: KeyValueCache,
        tokens: Float[Tensor, "B T D"],
        mask: Bool[Tensor, "B T"] | None = None,
        roles: Int[Tensor, "B N"] | None = None,
    ) -> KeyValueCache:
        """Implement `CausalTrunk.absorb`. Valid tokens come first in `mask`, so a causal mask is sufficient."""
        past, new = state.mask.shape[1], tokens.shape[1]
        mask = tokens.new_ones(len(tokens), new, dtype=torch.bool) if mask is None else mask
        visible = causal_mask(new, past, tokens.device) if past else None
        token_positions: TokenPositions = range(past, past + new)
        before = None
        if roles is not None and isinstance(self.positions, AddedPositions) and self.positions.restarts:
            token_positions, before = _restarting_positions(state, mask, roles)
        return self._extend(state, tokens, token_positions, mask, visible, before=before)[1]

    def resume(self, state: KeyValueCache, tokens: Float[Tensor, "B T D"], mask: Bool[Tensor, "B T"]) -> KeyValueCache:
        return self.resume_with_hidden(state, tokens, mask)[1]

    def resume_with_hidden(
        self,
        state: KeyValueCache,
        tokens: Float[Tensor, "B T D"],
        mask: Bool[Tensor, "B T"] | None = None,
        read: slice | None = None,
        start: Int[Tensor, "B 1"] | None = None,
    ) -> tuple[Float[Tensor, "B N *window D"] | None, KeyValueCache]:
        """Like `resume`, but also return the hidden vectors at the further tokens.

        Args:
            state: the cache so far.
            tokens: the further tokens.
            mask: valid tokens; None means all, which avoids a synchronisation with the device.
            read: the tokens whose hidden vectors are returned; None means no tokens.
            start: position of the first further token; None means the position after all tokens of the state.
        """
        past, new = state.mask.shape[1], tokens.shape[1]
        masks = [m for m in (state.mask if past else None, mask) if m is not None]
        mask = tokens.new_ones(len(tokens), new, dtype=torch.bool) if mask is None else mask
        if start is None and state.before is None and all(bool(m.all()) for m in masks):
            visible = causal_mask(new, past, tokens.device) if past else None
            return self._extend(state, tokens, range(past, past + new), mask, visible, read)
        # Invalid tokens get position 0, which exists in every table of learned positions.
        token_positions = ((state.next if start is None else start) + mask.cumsum(1) - 1) * mask
        return self._extend(state, tokens, token_positions, mask, valid_causal_mask_after(state, mask), read)

    def _extend(
        self,
        state: KeyValueCache,
        tokens: Float[Tensor, "B T D"],
        token_positions: TokenPositions,
        mask: Bool[Tensor, "B T"],
        visible: Bool[Tensor, "*any T held_and_T"] | None,
        read: slice | None = None,
        before: Int[Tensor, "B 1"] | None = None,
    ) -> tuple[Float[Tensor, "B N *window D"] | None, KeyValueCache]:
        """Return the hidden vectors at the tokens `read`, and the extended cache. The further tokens attend to the
        `visible` slots; if the cache is empty, None means causal attention. If `read` is None, the last layer computes
        only keys and values."""
        cache, new = GrowingCache(state), tokens.shape[1]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor | None:
            k, v = cache.add(layer, k, v)
            if layer < self._depth - 1:
                return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, is_causal=visible is None)
            if read is None:
                return None
            visible_rows = causal_mask(new, 0, q.device) if visible is None else visible
            return F.scaled_dot_product_attention(q, k, v, attn_mask=visible_rows[..., read, :])

        hidden = list(self._layers(tokens, [token_positions], attend, ALL_TOKENS if read is None else read))
        return None if read is None else self.read_hidden(hidden), cache.to_state(mask, before)

    def peek_layers(self, state: KeyValueCache, queries: Float[Tensor, "B Q D"]) -> Iterator[Float[Tensor, "B Q D"]]:
        visible = state.mask[:, None, None].expand(-1, 1, queries.shape[1], -1)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attend_past_and_self(q, state.keys[layer], state.values[layer], visible, k, v)

        return self._layers(queries, [state.next], attend)

    def finish(self, hidden: Float[Tensor, "B Q D"]) -> Float[Tensor, "B Q D"]:
        return self.norm(hidden)

    def _layers(
        self,
        tokens: Float[Tensor, "B T D"],
        token_positions: Sequence[TokenPositions],
        attend: _Attend,
        read: slice = ALL_TOKENS,
    ) -> Iterator[Float[Tensor, "B T_out D"]]:
        """Yield the hidden vectors after each block; after the last block, only those at the tokens `read`. With loops,
        yield the hidden vectors at these tokens after each iteration. `token_positions` holds the positions of
        consecutive groups of tokens."""
        embedded, rotation = self._with_positions(tokens, token_positions)
        hidden, last_layer = embedded, self._depth - 1
        for layer, block in enumerate(chain.from_iterable(repeat(self.blocks, self.loops))):
            assert isinstance(block, GPT2Block)
            hidden = self.block_input(layer, self.layers, hidden, embedded)
            batch, _, width = hidden.shape
            qkv = block.attn.c_attn(block.ln_1(hidden))
            q, k, v = qkv.view(batch, -1, 3, self.heads_count, width // self.heads_count).permute(2, 0, 3, 1, 4)
            q, k = rotate(q, rotation), rotate(k, rotation)
            if layer == last_layer:
                q, hidden = q[:, :, read], hidden[:, read]
            mixed = attend(layer, q, k, v)
            if mixed is None:
                return
            hidden = hidden + block.attn.c_proj(mixed.transpose(1, 2).flatten(2))
            inner = gelu_tanh(block.mlp.c_fc(block.ln_2(hidden)))
            hidden = hidden + block.mlp.c_proj(inner)
            if self.loops == 1 or layer == last_layer:
                yield hidden
            elif (layer + 1) % self.layers == 0:
                yield hidden[:, read]

    def _with_positions(
        self, tokens: Float[Tensor, "B T D"], token_positions: Sequence[TokenPositions]
    ) -> tuple[Float[Tensor, "B T D"], Rotation | None]:
        """Return the tokens, with added position vectors if the encoding uses them, and the rotation of queries and
        keys if positions are rotary."""
        if isinstance(self.positions, AddedPositions):
            vectors = [self.positions(span, tokens.device) for span in token_positions]
            return tokens + (vectors[0] if len(vectors) == 1 else torch.cat(vectors, -2)).to(tokens), None
        if isinstance(self.positions, RotaryPositions):
            cosines, sines = zip(*(self.positions(span, tokens.device) for span in token_positions), strict=True)
            return tokens, (torch.cat(cosines, -2), torch.cat(sines, -2))
        return tokens, None

    def _positions_after(self, state: KeyValueCache | None, count: int, by: int = 1) -> TokenPositions:
        """Return the positions of `count` tokens after a state, with a distance of `by` between consecutive tokens."""
        if self.positions is None or state is None or (state.before is None and bool(state.mask.all())):
            first = 0 if state is None else state.mask.shape[1]
            return range(first, first + by * count, by)
        return state.next + by * torch.arange(count, device=state.mask.device)


def _restarting_positions(
    state: KeyValueCache, mask: Bool[Tensor, "B T"], roles: Int[Tensor, "B N"]
) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B 1"]]:
    """Return the positions of further tokens within their datasets, and the number of tokens before the dataset of the
    next token. Each dataset ends with a separator."""
    token_index = state.mask.sum(1, keepdim=True) + mask.cumsum(1) - mask.long()
    separator = roles == SEPARATOR
    ends = torch.stack([torch.zeros_like(separator), separator], 2).flatten(1) & mask
    before = torch.zeros_like(token_index[:, :1]) if state.before is None else state.before
    dataset_start = torch.cat([before, (token_index + 1) * ends], 1).cummax(1).values
    return (token_index - dataset_start[:, :-1]) * mask, dataset_start[:, -1:]
