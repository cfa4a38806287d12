"""Softmax attention over points that arrive in chunks, with the update of CMAB (Feng et al. 2023, appendix B.1).

Fixed queries attend to a growing set of points. For each query, the state of the set consists of the running
log-normaliser log C = log sum exp(s) and the attention output e = sum exp(s - log C) v, with the scores s and the
values v of the points. The states of two disjoint sets can be merged into the state of their union. An update merges
the state of a new chunk into the state, and removal is the inverse. Since merging is associative, a scan computes the
states of all prefixes of a sequence.

Training memory does not grow with the number of points either: `fold` does not save the chunks for the backward
pass, but recomputes them one at a time from the final log C and e (as Dao et al. 2022 do within one kernel). The
gradients of log C and e are the sums over all chunks of the gradients of

    log C:  sum exp(s - log C)             e:  sum exp(s - log C) (v - e)

in which log C and e on the right are held constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from iclbench.core.episodes import Points
from iclbench.core.errors import UsageError
from iclbench.core.predictor import State

# Maps weights (which may require gradients) and points to keys and values, `(B, L, H, N, D/H)` each.
KeyValueProjection = Callable[[Sequence[Tensor], Points], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class RunningSoftmax(State):
    """The state of the attention of M queries to a set of points, for L layers with H heads.

    Attributes:
        log_c: log-normaliser, -inf for the empty set.
        e: normalised sum of values, 0 for the empty set.
    """

    log_c: Float[Tensor, "B L H M"]
    e: Float[Tensor, "B L H M Dh"]

    @classmethod
    def empty(cls, batch: int, queries: Float[Tensor, "L H M Dh"]) -> RunningSoftmax:
        """Return the state of the empty set."""
        e = queries.new_zeros(batch, *queries.shape)
        return cls(e.new_full(e.shape[:-1], -torch.inf), e)

    @property
    def is_empty(self) -> Bool[Tensor, " B"]:
        """The episodes that have no point yet."""
        return self.log_c[:, 0, 0, 0].isneginf()

    def log_weight(self) -> Float[Tensor, "B L H M"]:
        return self.log_c

    def merge(self, other: RunningSoftmax) -> RunningSoftmax:
        """Return the state of the union of two disjoint sets of points. Merging with the empty state is exact."""
        both_empty = self.log_c.isneginf() & other.log_c.isneginf()
        # The mask avoids inf - inf.
        other_share = torch.sigmoid((other.log_c - self.log_c.masked_fill(both_empty, 0.0)).unsqueeze(-1))
        return RunningSoftmax(torch.logaddexp(self.log_c, other.log_c), self.e + other_share * (other.e - self.e))

    def remove(self, other: RunningSoftmax) -> RunningSoftmax:
        """Return the state without the points of `other`, which is the inverse of `merge`.

        Removal divides rounding errors by the share of the attention weight that remains. This share must be at least
        the square root of the machine precision (1.5e-8 in float64, 3.5e-4 in float32). The error of the result
        is then at most about this square root.

        Raises:
            UsageError: the remaining share of a query is smaller, or the points are not in the state.
        """
        removed_share = torch.where(other.log_c.isneginf(), 0.0, torch.exp(other.log_c - self.log_c))
        min_share = torch.finfo(self.e.dtype).eps ** 0.5
        remaining_share = 1 - removed_share
        if not bool((remaining_share >= min_share).all()):
            raise UsageError(
                f"without these points only {max(0.0, remaining_share.min().item()):.2g} of the attention of a latent "
                f"remains, less than the {min_share:.2g} that {str(self.e.dtype).removeprefix('torch.')} can resolve; "
                "condition on the remaining points instead",
                code="not-applicable",
            )
        e = (self.e - removed_share.unsqueeze(-1) * other.e) / remaining_share.unsqueeze(-1)
        return RunningSoftmax(self.log_c + torch.log1p(-removed_share), e)


def attend(
    queries: Float[Tensor, "L H M Dh"],
    keys: Float[Tensor, "B L H N Dh"],
    values: Float[Tensor, "B L H N Dh"],
    mask: Bool[Tensor, "B N"],
) -> RunningSoftmax:
    """Return the state of one chunk, for scaled queries."""
    if keys.shape[-2] == 0:
        return RunningSoftmax.empty(len(keys), queries)
    scores = _scores(queries, keys, mask)
    # The bound avoids inf - inf: without a valid point, every weight is exp(-inf) = 0.
    max_score = scores.detach().amax(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).min)
    weights = scores.sub_(max_score).exp_()
    total = weights.sum(-1)
    safe_total = total.clamp(min=1)  # at least 1 with a valid point, because the largest weight is 1
    log_c = torch.where(total > 0, max_score.squeeze(-1) + safe_total.log(), -torch.inf)
    return RunningSoftmax(log_c, weights @ values / safe_total.unsqueeze(-1))


def _scores(queries: Tensor, keys: Tensor, mask: Tensor) -> Float[Tensor, "B L H M N"]:
    return (queries @ keys.mT).masked_fill_(~mask[:, None, None, None], -torch.inf)


def fold(
    queries: Float[Tensor, "L H M Dh"],
    weights: Sequence[Tensor],
    keys_values: KeyValueProjection,
    points: Points,
    chunk: int,
) -> RunningSoftmax:
    """Return the state after all points, which are processed in chunks, so that memory does not grow with their number.

    Args:
        queries: scaled queries.
        weights: weights of `keys_values`.
        keys_values: a function that maps each point independently and depends on no tensors except these weights.
        points: one set per episode.
        chunk: maximum number of points in a chunk.
    """
    needs_gradients = torch.is_grad_enabled() and any(t.requires_grad for t in (queries, *weights))
    if needs_gradients and points.count > chunk:
        return RunningSoftmax(*_Fold.apply(keys_values, points, chunk, queries, *weights))
    return _fold(queries, weights, keys_values, points, chunk)


def _fold(
    queries: Tensor, weights: Sequence[Tensor], keys_values: KeyValueProjection, points: Points, chunk: int
) -> RunningSoftmax:
    state: RunningSoftmax | None = None
    for part in _chunks(points, chunk):
        part_state = attend(queries, *keys_values(weights, part), part.mask)
        state = part_state if state is None else state.merge(part_state)
    return RunningSoftmax.empty(len(points), queries) if state is None else state


def _chunks(points: Points, chunk: int) -> Iterator[Points]:
    return (points.span(start, start + chunk) for start in range(0, points.count, chunk))


class _Fold(torch.autograd.Function):
    """`_fold` with a backward pass that recomputes every chunk."""

    @staticmethod
    def forward(
        ctx: Any, keys_values: KeyValueProjection, points: Points, chunk: int, queries: Tensor, *weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        state = _fold(queries, weights, keys_values, points, chunk)
        ctx.save_for_backward(state.log_c, state.e, queries, *weights)
        ctx.arguments = keys_values, points, chunk
        return state.log_c, state.e

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        log_c, e, *tensors = ctx.saved_tensors
        keys_values, points, chunk = ctx.arguments
        log_c = log_c.masked_fill(log_c.isneginf(), 0.0).unsqueeze(-1)
        with torch.enable_grad():
            leaves = [t.detach().requires_grad_() for t in tensors]
            queries, *weights = leaves
            sums = [torch.zeros_like(t) for t in leaves]
            for part in _chunks(points, chunk):
                keys, values = keys_values(weights, part)
                shares = (_scores(queries, keys, part.mask) - log_c).exp()
                total = shares.sum(-1)
                outputs = total, shares @ values - total.unsqueeze(-1) * e
                for sum_, grad in zip(sums, torch.autograd.grad(outputs, leaves, grads), strict=True):
                    sum_ += grad
        return None, None, None, *sums
