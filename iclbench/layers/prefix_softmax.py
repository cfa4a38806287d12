"""The states of all prefixes of a sequence, computed by a scan over the states of `running_softmax`.

Merging states (log C, e) is associative, so this module computes them by a scan, block by block. Within a block, the
state of each prefix is one softmax over the state before the block and the points of the block. One matrix product
computes all states of a block, and the last of them is the state before the next block. No terms are subtracted, so no
prefix loses digits. Beyond the states, memory is proportional to N times the block size instead of N².
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from iclbench.layers.running_softmax import RunningSoftmax

# Points per block. With this size, the weights of all prefixes take about as much memory as their states.
BLOCK = 16


def prefix_states(
    before: RunningSoftmax,
    queries: Float[Tensor, "L H M Dh"],
    keys: Float[Tensor, "B L H N Dh"],
    values: Float[Tensor, "B L H N Dh"],
    mask: Bool[Tensor, "B N"],
    block: int = BLOCK,
) -> tuple[RunningSoftmax, RunningSoftmax]:
    """Return the states after the first 0, 1, ..., N - 1 points that follow the state `before`, and the state after all
    points.

    Args:
        before: state after earlier points.
        queries: scaled queries.
        keys, values: keys and values of the points.
        mask: valid points.
        block: points per block.

    Returns:
        The states of the prefixes, as a batch of B N episodes. The state after the first n points of episode b has the
            index b N + n.
        The state after all points.
    """
    log_cs, es = [], []
    for start in range(0, keys.shape[-2], block):
        span = slice(start, start + block)
        log_c, e = _block(before, queries, keys[..., span, :], values[..., span, :], mask[:, span])
        log_cs.append(log_c[..., :-1])
        es.append(e[..., :-1, :])
        before = RunningSoftmax(log_c[..., -1], e[..., -1, :])
    if not log_cs:
        return before[:0], before
    log_c, e = torch.cat(log_cs, -1).movedim(-1, 1), torch.cat(es, -2).movedim(-2, 1)
    return RunningSoftmax(log_c.flatten(0, 1), e.flatten(0, 1)), before


def _block(
    before: RunningSoftmax, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor
) -> tuple[Float[Tensor, "B L H M n_and_1"], Float[Tensor, "B L H M n_and_1 Dh"]]:
    """Return the states after the first 0, 1, ..., n of a block's n points."""
    count = keys.shape[-2]
    is_earlier = torch.ones(count + 1, count, dtype=torch.bool, device=mask.device).tril(-1)
    allowed = is_earlier & mask[:, None, None, None, None]
    scores = (queries @ keys.mT).unsqueeze(-2).masked_fill(~allowed, -torch.inf)
    log_before = before.log_c.unsqueeze(-1)
    # The bound avoids inf - inf: before any point, every weight is exp(-inf) = 0.
    max_score = torch.maximum(scores.amax(-1), log_before).detach().clamp(min=torch.finfo(scores.dtype).min)
    weights, weight_before = (scores - max_score.unsqueeze(-1)).exp(), (log_before - max_score).exp()
    total = weights.sum(-1) + weight_before
    safe_total = total.clamp(min=1)  # at least 1 unless the set is empty, because the largest weight is 1
    mixed = (weights.flatten(-3, -2) @ values).unflatten(-2, weights.shape[-3:-1])
    e = (mixed + weight_before.unsqueeze(-1) * before.e.unsqueeze(-2)) / safe_total.unsqueeze(-1)
    return torch.where(total > 0, max_score + safe_total.log(), -torch.inf), e
