"""The states of all prefixes of a sequence at once: a scan over what `running_softmax` keeps.

The states (log C, e) of points are merged by an associative operation, and this is its scan, block by block: within a
block every prefix is one softmax over the state before the block and the block's own points, all of them together in a
matrix product; the last of them goes on to the next block. Nothing is subtracted that was added before, so that no
prefix loses digits, and the memory beyond the states themselves is N times the block instead of N².
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from iclbench.layers.running_softmax import RunningSoftmax

# Points per block: with it the weights of all prefixes are about as many numbers as their states.
BLOCK = 16


def prefix_states(
    before: RunningSoftmax,
    queries: Float[Tensor, "L H M Dh"],
    keys: Float[Tensor, "B L H N Dh"],
    values: Float[Tensor, "B L H N Dh"],
    mask: Bool[Tensor, "B N"],
    block: int = BLOCK,
) -> tuple[RunningSoftmax, RunningSoftmax]:
    """The states after `before` and the first 0, 1, ..., N - 1 points, and the one after all of them.

    Args:
        before: of points that came earlier.
        queries: scaled already.
        keys, values: of the points.
        mask: which of them are there.
        block: points that are weighed together.

    Returns:
        The states of the prefixes, as those of B N episodes: that of the first n points of episode b is number b N + n.
        The state of everything.
    """
    logs, sums = [], []
    for start in range(0, keys.shape[-2], block):
        span = slice(start, start + block)
        log_c, e = _block(before, queries, keys[..., span, :], values[..., span, :], mask[:, span])
        logs.append(log_c[..., :-1])
        sums.append(e[..., :-1, :])
        before = RunningSoftmax(log_c[..., -1], e[..., -1, :])
    if not logs:
        return before[:0], before
    log_c, e = torch.cat(logs, -1).movedim(-1, 1), torch.cat(sums, -2).movedim(-2, 1)
    return RunningSoftmax(log_c.flatten(0, 1), e.flatten(0, 1)), before


def _block(
    before: RunningSoftmax, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor
) -> tuple[Float[Tensor, "B L H M n_and_1"], Float[Tensor, "B L H M n_and_1 Dh"]]:
    """The states after the first 0, 1, ..., n of a block's n points, these included."""
    count = keys.shape[-2]
    sees = torch.ones(count + 1, count, dtype=torch.bool, device=mask.device).tril(-1)
    allowed = sees & mask[:, None, None, None, None]
    scores = (queries @ keys.mT).unsqueeze(-2).masked_fill(~allowed, -torch.inf)
    log_before = before.log_c.unsqueeze(-1)
    # No infinity is subtracted: where there is no point yet, every weight is exp(-inf) = 0.
    top = torch.maximum(scores.amax(-1), log_before).detach().clamp(min=torch.finfo(scores.dtype).min)
    weights, weight_before = (scores - top.unsqueeze(-1)).exp(), (log_before - top).exp()
    total = weights.sum(-1) + weight_before
    safe_total = total.clamp(min=1)  # the largest weight alone is 1
    mixed = (weights.flatten(-3, -2) @ values).unflatten(-2, weights.shape[-3:-1])
    e = (mixed + weight_before.unsqueeze(-1) * before.e.unsqueeze(-2)) / safe_total.unsqueeze(-1)
    return torch.where(total > 0, top + safe_total.log(), -torch.inf), e
