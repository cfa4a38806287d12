"""A base class that turns any causal module into a mixer. Its state holds all past tokens, which a continuation
processes again."""

from __future__ import annotations

from abc import abstractmethod

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from iclbench.layers.mixers.mixer import Mixer, MixerState, Sizes


class HistoryMixer(Mixer):
    """A mixer whose subclasses define only `mix`, a causal map from (B, T, D) to (B, T, D).

    The state consists of the past tokens and their mask. One pass is enough for training and for prediction after every
    prefix. A continuation processes the past tokens again: n further tokens after a state of t tokens require a pass
    over t + n tokens, and n queries between n pairs require n passes. A mixer with a smaller state overrides
    `start`, `forward`, `peek` and `fork`, and `state_grows` if its state has a fixed size.
    """

    uses = frozenset()
    state_grows = True
    _no_tokens: Tensor

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.register_buffer("_no_tokens", torch.zeros(0, sizes.width), persistent=False)

    @abstractmethod
    def mix(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Return the outputs for complete sequences. Each output depends only on its token and the tokens before it."""

    def start(self, batch: int) -> MixerState:
        tokens = self._no_tokens.expand(batch, -1, -1)
        return tokens, torch.zeros(tokens.shape[:2], dtype=torch.bool, device=tokens.device)

    def full_pass(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        return self.mix(x)

    def forward(
        self, x: Float[Tensor, "B T D"], state: MixerState, mask: Bool[Tensor, "B T"] | None = None
    ) -> tuple[Float[Tensor, "B T D"], MixerState]:
        past, past_valid = state
        valid = past_valid.new_ones(x.shape[:2]) if mask is None else mask
        tokens = torch.cat([past.to(x), x.masked_fill(~valid.unsqueeze(2), 0.0)], 1)
        valid = torch.cat([past_valid, valid], 1)
        return self._mix_valid(tokens, valid)[:, past.shape[1] :], (tokens, valid)

    def peek(self, x: Float[Tensor, "B Q D"], state: MixerState) -> Float[Tensor, "B Q D"]:
        past, valid = state
        episodes, queries, _ = x.shape
        single_tokens = x.flatten(0, 1).unsqueeze(1)
        past, valid = (t.repeat_interleave(queries, 0) for t in (past, valid))
        return self.forward(single_tokens, (past, valid))[0].squeeze(1).unflatten(0, (episodes, queries))

    def fork(
        self, x: Float[Tensor, "B T D"], queries: Float[Tensor, "B N D"], state: MixerState
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B N D"], MixerState]:
        outputs, after = self.forward(x, state)
        answers = [
            self.forward(torch.cat([x[:, : 2 * n], queries[:, n : n + 1]], 1), state)[0][:, -1:]
            for n in range(queries.shape[1])
        ]
        return outputs, torch.cat(answers, 1) if answers else queries, after

    def _mix_valid(self, tokens: Float[Tensor, "B T D"], valid: Bool[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        """Return the outputs for sequences of unequal length that are padded on the left; outputs at the padding are
        0."""
        lengths = valid.sum(1)
        outputs = torch.zeros_like(tokens)
        for length in filter(None, lengths.unique().tolist()):
            rows, first = lengths == length, tokens.shape[1] - length
            mixed = self.mix(tokens[rows, first:]).to(outputs)
            outputs = outputs.index_put((rows,), torch.cat([torch.zeros_like(tokens[rows, :first]), mixed], 1))
        return outputs
