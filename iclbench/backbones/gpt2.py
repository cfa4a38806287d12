"""GPT-2 on interleaved pairs (Radford et al. 2019; Garg et al. 2022; Grazzi et al. 2024, appendix A.1.1).

Layers and their initialisation are those of `transformers.GPT2Model`; the forward path is our own and leaner: no token
embedding (12.9 M unused parameters with the default vocabulary), fused attention, fused GELU, and after the last
layer's keys and values only the input tokens are carried on, since nothing is read at an output token. Both paths
agree with copied weights (a test).

Positions: none by default, as in Grazzi et al., so that contexts longer than the trained ones are possible at all;
Garg et al. learn them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from iclbench.backbones.activations import gelu_tanh
from iclbench.backbones.base import TaskShape, check_heads
from iclbench.backbones.sequence import SequenceBackbone
from iclbench.cards import PositiveFloat, PositiveInt, Strict
from iclbench.episodes import Points
from iclbench.errors import UsageError
from iclbench.predictions import Prediction
from iclbench.predictor import State
from iclbench.records import cat

SIZES = {
    "tiny": {"layers": 3, "width": 64, "heads": 2},
    "small": {"layers": 6, "width": 128, "heads": 4},
    "standard": {"layers": 12, "width": 256, "heads": 8},
}

# Groups of episodes of similar length that go through attention one after the other on a CPU, where padding costs time.
# On an accelerator the number of calls does.
_CPU_GROUPS = 4

# What a layer's queries, keys and values are mixed to; None when no later layer is needed.
_Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor | None]


class GPT2Settings(Strict):
    """Garg's sizes by name (`size`), each number may be given instead.

    `init_std` is the standard deviation of the initial weights: 0.02 is GPT-2's; at width 64 it starts attention
    nearly uniform.
    """

    size: Literal["tiny", "small", "standard"] = "standard"
    layers: PositiveInt | None = None
    width: PositiveInt | None = None
    heads: PositiveInt | None = None
    positions: Literal["none", "learned"] = "none"
    max_points: PositiveInt | None = None
    init_std: PositiveFloat = 0.02


@dataclass(frozen=True)
class KeyValueCache(State):
    """Keys and values of all layers, `(B, H, T, D/H)` each, and which of the T slots hold a token."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    mask: Bool[Tensor, "B T"]


class _Growing:
    """A cache that becomes longer, layer by layer."""

    def __init__(self, state: KeyValueCache) -> None:
        self.state = state
        self.layers: list[tuple[Tensor, Tensor]] = []

    def add(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values of the layer, those held first."""
        self.layers.append((torch.cat([self.state.keys[layer], k], 2), torch.cat([self.state.values[layer], v], 2)))
        return self.layers[-1]

    def cache(self, mask: Bool[Tensor, "B T"]) -> KeyValueCache:
        """The longer cache; the mask is that of the new tokens."""
        keys, values = zip(*self.layers, strict=True)
        return KeyValueCache(keys, values, torch.cat([self.state.mask, mask], 1))


class GPT2(SequenceBackbone):
    """Causal Transformer.

    Raises:
        UsageError: with learned positions, when a sequence is longer than `max_points` (default: the trained length),
            or when there are related datasets, whose number of points is not known beforehand.
    """

    Settings = GPT2Settings
    padding = "right"

    def __init__(self, settings: GPT2Settings, shape: TaskShape) -> None:
        sizes = {k: getattr(settings, k) or v for k, v in SIZES[settings.size].items()}
        check_heads(sizes["width"], sizes["heads"])
        if shape.related and settings.positions == "learned":
            raise UsageError("related datasets have no learned positions; train with -o backbone.positions=none")
        super().__init__(settings, shape, sizes["width"])
        self.heads_count, self.layers = sizes["heads"], sizes["layers"]
        points = settings.max_points or shape.points
        model = transformers_gpt2(**sizes, positions=2 * points, init_std=settings.init_std)
        self.blocks: nn.ModuleList = model.h
        self.norm: nn.LayerNorm = model.ln_f
        self.positions: nn.Embedding | None = model.wpe if settings.positions == "learned" else None
        self.longest = points if settings.positions == "learned" else None

    def trunk(self, tokens: Float[Tensor, "B T D"]) -> Float[Tensor, "B N D"]:
        length = tokens.shape[1]
        tokens = self._placed(tokens)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if q.shape[2] == length:
                return F.scaled_dot_product_attention(q, k, v, is_causal=True)
            causal = torch.ones(length, length, dtype=torch.bool, device=q.device).tril()[::2]
            return F.scaled_dot_product_attention(q, k, v, attn_mask=causal)

        *_, last = self._layers(tokens, attend, inputs_only=True)
        return self.norm(last)

    def fork(
        self, tokens: Float[Tensor, "B T D"], queries: Float[Tensor, "B N D"], state: KeyValueCache | None = None
    ) -> tuple[Float[Tensor, "B N D"], KeyValueCache | None]:
        new, asked = tokens.shape[1], queries.shape[1]
        grown = None if state is None else _Growing(state)
        held = 0 if state is None else state.mask.shape[1]
        tokens, queries = self._placed(tokens, held), self._placed(queries, held, by=2)
        visible = _causal(new, held, tokens.device) if state is None else _visible(state, new)
        before = visible.tril(held - 1)[..., ::2, :]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            (q, q_asked), (k, k_asked), (v, v_asked) = (t.split([new, asked], 2) for t in (q, k, v))
            if grown is None:
                sequence = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:
                k, v = grown.add(layer, k, v)
                sequence = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
            alone = _attend_past_and_self(q_asked, k, v, before, k_asked, v_asked)
            return torch.cat([sequence, alone], 2)

        *_, last = self._layers(torch.cat([tokens, queries], 1), attend)
        after = None if grown is None else grown.cache(tokens.new_ones(len(tokens), new, dtype=torch.bool))
        return self.norm(last[:, new:]), after

    def predict_targets(
        self, context: Points, x_target: Float[Tensor, "batch targets dx"], related: Points | None = None
    ) -> Prediction:
        related = related if self.uses_related else None
        lengths = context.counts if related is None else context.counts + related.mask.sum((1, 2))
        groups = torch.argsort(lengths, stable=True).chunk(_CPU_GROUPS if lengths.device.type == "cpu" else 1)
        states = (self.condition(context[rows], None if related is None else related[rows]) for rows in groups)
        answers = [self.query(state, x_target[rows]) for state, rows in zip(states, groups, strict=True)]
        return cat(answers)[torch.argsort(torch.cat(groups))]

    def start(self, batch: int) -> KeyValueCache:
        weight = self.read_out.weight
        empty = weight.new_zeros(batch, self.heads_count, 0, weight.shape[1] // self.heads_count)
        slots = torch.zeros(batch, 0, dtype=torch.bool, device=weight.device)
        return KeyValueCache((empty,) * self.layers, (empty,) * self.layers, slots)

    def advance(
        self, state: KeyValueCache, tokens: Float[Tensor, "B T D"]
    ) -> tuple[Float[Tensor, "B N D"], KeyValueCache]:
        held, new = state.mask.shape[1], tokens.shape[1]
        grown, visible = _Growing(state), _visible(state, new)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            rows = visible if q.shape[2] == new else visible[..., ::2, :]
            return F.scaled_dot_product_attention(q, *grown.add(layer, k, v), attn_mask=rows)

        *_, last = self._layers(self._placed(tokens, held), attend, inputs_only=True)
        return self.norm(last), grown.cache(tokens.new_ones(len(tokens), new, dtype=torch.bool))

    def absorb(
        self, state: KeyValueCache, tokens: Float[Tensor, "B T D"], mask: Bool[Tensor, "B T"] | None = None
    ) -> KeyValueCache:
        """Nothing is missing before a token that is there, so that all attention is plainly causal."""
        held, new = state.mask.shape[1], tokens.shape[1]
        mask = tokens.new_ones(len(tokens), new, dtype=torch.bool) if mask is None else mask
        visible = _causal(new, held, tokens.device) if held else None
        return self._extend(state, self._placed(tokens, held), mask, visible)

    def resume(self, state: KeyValueCache, tokens: Float[Tensor, "B T D"], mask: Bool[Tensor, "B T"]) -> KeyValueCache:
        if bool(mask.all() & state.mask.all()):
            return self.absorb(state, tokens)
        if self.positions is not None:
            tokens = tokens + self._position(state.mask.sum(1, keepdim=True) + mask.cumsum(1) - mask.long())
        held, new = state.mask.shape[1], tokens.shape[1]
        # A masked token still sees itself, so that its (unused) row is no softmax over nothing.
        own = torch.eye(new, held + new, dtype=torch.bool, device=tokens.device).roll(held, 1)
        past = torch.cat([state.mask, mask], 1)[:, None, None]
        return self._extend(state, tokens, mask, _causal(new, held, tokens.device) & past | own)

    def _extend(
        self,
        state: KeyValueCache,
        tokens: Float[Tensor, "B T D"],
        mask: Bool[Tensor, "B T"],
        visible: Bool[Tensor, "*any T held_and_T"] | None,
    ) -> KeyValueCache:
        """The longer cache, further tokens seeing what is `visible` (None: those before them). Nothing is read at them,
        so that the last layer has only keys and values."""
        grown = _Growing(state)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor | None:
            k, v = grown.add(layer, k, v)
            if layer == self.layers - 1:
                return None
            return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, is_causal=visible is None)

        for _ in self._layers(tokens, attend):
            pass
        return grown.cache(mask)

    def peek_layers(self, state: KeyValueCache, queries: Float[Tensor, "B Q D"]) -> Iterator[Float[Tensor, "B Q D"]]:
        if self.positions is not None:
            queries = queries + self._position(state.mask.sum(1, keepdim=True))
        visible = state.mask[:, None, None].expand(-1, 1, queries.shape[1], -1)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return _attend_past_and_self(q, state.keys[layer], state.values[layer], visible, k, v)

        return self._layers(queries, attend)

    def finish(self, hidden: Float[Tensor, "B Q D"]) -> Float[Tensor, "B Q D"]:
        return self.norm(hidden)

    def _layers(
        self, hidden: Float[Tensor, "B T D"], attend: _Attend, inputs_only: bool = False
    ) -> Iterator[Float[Tensor, "B T_out D"]]:
        """Hidden vectors after each block. `inputs_only` keeps every second token from the last block's queries on."""
        block: Any
        for layer, block in enumerate(self.blocks):
            batch, _, width = hidden.shape
            qkv = block.attn.c_attn(block.ln_1(hidden))
            q, k, v = qkv.view(batch, -1, 3, self.heads_count, width // self.heads_count).permute(2, 0, 3, 1, 4)
            if inputs_only and layer == self.layers - 1:
                q, hidden = q[:, :, ::2], hidden[:, ::2]
            mixed = attend(layer, q, k, v)
            if mixed is None:
                return
            hidden = hidden + block.attn.c_proj(mixed.transpose(1, 2).flatten(2))
            inner = gelu_tanh(block.mlp.c_fc(block.ln_2(hidden)))
            hidden = hidden + block.mlp.c_proj(inner)
            yield hidden

    def _placed(self, tokens: Float[Tensor, "B T D"], first: int = 0, by: int = 1) -> Float[Tensor, "B T D"]:
        """Tokens with the embeddings of the positions first, first + by, ..., where positions are learned."""
        if self.positions is None:
            return tokens
        end = first + by * tokens.shape[1]
        self._check(end - by)
        return tokens + self.positions.weight[first:end:by]

    def _position(self, index: Int[Tensor, "*shape T"]) -> Float[Tensor, "*shape T D"]:
        assert self.positions is not None
        if index.numel():
            self._check(int(index.max()))
        return self.positions(index)

    def _check(self, last: int) -> None:
        """Raise `UsageError` when there is no such position."""
        assert self.positions is not None
        limit = self.positions.num_embeddings
        if last >= limit:
            raise UsageError(
                f"learned positions end at {limit // 2} points, asked for {last // 2 + 1}; "
                "train with -o backbone.positions=none to go beyond"
            )


def _causal(new: int, held: int, device: torch.device) -> Bool[Tensor, "T held_and_T"]:
    """Which tokens each of the new ones sees: all that are held, those before it, and itself."""
    return torch.ones(new, held + new, dtype=torch.bool, device=device).tril(held)


def _visible(state: KeyValueCache, new: int) -> Bool[Tensor, "*any T held_and_T"]:
    """The same without the empty slots of the cache, `(B, 1, T, held + T)` where there are any."""
    causal = _causal(new, state.mask.shape[1], state.mask.device)
    if bool(state.mask.all()):
        return causal
    return causal & F.pad(state.mask, (0, new), value=True)[:, None, None]


def _attend_past_and_self(
    q: Float[Tensor, "B H Q C"],
    k_past: Float[Tensor, "B H T C"],
    v_past: Float[Tensor, "B H T C"],
    visible: Bool[Tensor, "*any Q T"],
    k: Float[Tensor, "B H Q C"],
    v: Float[Tensor, "B H Q C"],
) -> Float[Tensor, "B H Q C"]:
    """Attention of queries to the visible past and each to itself, never to one another."""
    own = torch.eye(q.shape[2], dtype=torch.bool, device=q.device).expand(*visible.shape[:-2], -1, -1)
    mask = torch.cat([visible, own], -1)
    return F.scaled_dot_product_attention(q, torch.cat([k_past, k], 2), torch.cat([v_past, v], 2), attn_mask=mask)


def transformers_gpt2(layers: int, width: int, heads: int, positions: int, init_std: float) -> Any:
    """A freshly initialised `transformers.GPT2Model` without dropout and with an empty vocabulary."""
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(
        vocab_size=1, n_positions=positions, n_embd=width, n_layer=layers, n_head=heads,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, initializer_range=init_std, use_cache=False,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return GPT2Model(config)
