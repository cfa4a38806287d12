"""Ridge regression after every token: the solutions x_t of (H_t + Lambda) x_t = q_t, where H_t is a decayed sum of
outer products of keys and Lambda is a positive diagonal matrix,

    H_t = e^g_t H_{t-1} + beta_t k_t k_t^T.

With G_t = e^g_t G_{t-1} + beta_t k_t v_t^T, the output G_t^T x_t is the value at q_t of the linear map from keys to
values with the smallest decayed sum of squared errors, plus a penalty on its weights (von Oswald et al. 2025, arXiv
2506.05233).

The matrices of a chunk of C tokens are computed from the decays between all pairs of its tokens and factorised by
Cholesky's method, which takes C K² + K³ / 6 multiplications per token of a head with K channels. Decays are at most 1,
so that nothing can overflow.

Rounding errors. H_t is positive semidefinite. For keys of length 1 and beta at most 1, the condition number of a matrix
is therefore at most (t + max Lambda) / min Lambda, and the relative error of a solution is a small multiple of the
condition number times the machine precision. In single precision, with Lambda = 0.25, it is below 3e-3 after 1,000
equal keys that do not decay, and below 2e-6 after 1,000 keys in random directions.

The backward pass is implicit differentiation: the gradient with respect to q_t is the solution z_t for the gradient of
x_t, and the gradient with respect to H_t is -z_t x_t^T. The latter reaches keys, decays and the first state as the
gradient of the outputs H_t x_t of the linear recurrence, so that the gradients of the matrices of all tokens need not
be stored. The factors of short sequences are stored, and those of long ones are recomputed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from iclbench.core.denormals import flush_denormals
from iclbench.layers import linear_recurrence as recurrence
from iclbench.layers.linear_recurrence import CHUNK, Terms

# For sequences of at most this many tokens, all factors are stored for the backward pass.
_MAX_SAVED_TOKENS = 8 * CHUNK

Factors = tuple[Float[Tensor, "B H _ K K"], ...]


def ridge_recurrence(
    terms: Terms, penalty: Float[Tensor, "H K"], state: Float[Tensor, "B H K K"]
) -> tuple[Float[Tensor, "B H T K"], Float[Tensor, "B H K K"]]:
    """Return the solutions at all tokens that follow a state, and the state after these tokens.

    Args:
        terms: the right-hand sides (`q`), the keys times beta (`k`), the keys (`v`), and one log decay per head (`g`).
        penalty: the diagonal of Lambda.
        state: H before the first token.
    """
    systems = _Systems.of_tokens(terms, None, penalty, state)
    (x,) = systems.solve(terms.q)
    products, after = recurrence.linear_recurrence(replace(terms, q=x), state)
    (solutions,) = _differentiable(systems, [x], [terms.q], [products], penalty)
    return solutions, after


def peek(terms: Terms, penalty: Float[Tensor, "H K"], state: Float[Tensor, "B H K K"]) -> Float[Tensor, "B H Q K"]:
    """Return the solutions at tokens, each of which is read as the first token after the state."""
    systems = _Systems.of_queries(terms, penalty, state)
    (x,) = systems.solve(terms.q)
    products = recurrence.peek(replace(terms, q=x), state)
    (solutions,) = _differentiable(systems, [x], [terms.q], [products], penalty)
    return solutions


def fork(
    terms: Terms, queries: Terms, penalty: Float[Tensor, "H K"], state: Float[Tensor, "B H K K"]
) -> tuple[Float[Tensor, "B H T K"], Float[Tensor, "B H N K"], Float[Tensor, "B H K K"]]:
    """Return the solutions at N pairs of tokens, the solutions at N queries (one before each pair), and the state after
    all pairs. Queries do not change the state."""
    systems = _Systems.of_tokens(terms, queries, penalty, state)
    rows = [terms.q, queries.q]
    x = systems.solve(*rows)
    *products, after = recurrence.fork(replace(terms, q=x[0]), replace(queries, q=x[1]), state)
    solutions, query_solutions = _differentiable(systems, x, rows, products, penalty)
    return solutions, query_solutions, after


@dataclass(frozen=True)
class _Systems:
    """Systems of linear equations in chunks.

    Attributes:
        sizes: the sizes of the chunks of tokens and, if there are any, of queries.
        factors: the Cholesky factors of the matrices of each chunk.
    """

    sizes: tuple[int, ...]
    factors: Iterable[Factors]

    @classmethod
    @flush_denormals()
    def of_tokens(cls, terms: Terms, queries: Terms | None, penalty: Tensor, state: Tensor) -> _Systems:
        factors: Iterable[Factors] = _TokenFactors(terms, queries, penalty, state)
        if torch.is_grad_enabled() and terms.v.shape[2] <= _MAX_SAVED_TOKENS:
            factors = list(factors)
        return cls((CHUNK, CHUNK // 2)[: 1 if queries is None else 2], factors)

    @classmethod
    def of_queries(cls, terms: Terms, penalty: Tensor, state: Tensor) -> _Systems:
        with torch.no_grad():
            factors = _factorise(_next_states(terms, state.unsqueeze(2)), penalty)
        return cls((terms.v.shape[2],), [(factors,)])

    @flush_denormals()
    @torch.no_grad()
    def solve(self, *rows: Float[Tensor, "B H _ K"]) -> list[Float[Tensor, "B H _ K"]]:
        """Return the solutions for right-hand sides of the tokens and of the queries."""
        chunks = zip(*(r.split(size, 2) for r, size in zip(rows, self.sizes, strict=True)), strict=True)
        solutions = [
            [torch.cholesky_solve(part.unsqueeze(-1), f).squeeze(-1) for part, f in zip(parts, factors, strict=True)]
            for parts, factors in zip(chunks, self.factors, strict=True)
        ]
        return [torch.cat(parts, 2) for parts in zip(*solutions, strict=True)]


@dataclass(frozen=True)
class _TokenFactors:
    """The Cholesky factors of all tokens and queries, computed chunk by chunk whenever they are iterated over."""

    terms: Terms
    queries: Terms | None
    penalty: Tensor
    state: Tensor

    @torch.no_grad()
    def __iter__(self) -> Iterator[Factors]:
        state = self.state
        for start in range(0, self.terms.v.shape[2], CHUNK):
            states = _states(self.terms[:, :, start : start + CHUNK], state)
            before = torch.cat([state.unsqueeze(2), states[:, :, 1:-1:2]], 2)
            state = states[:, :, -1]
            factors = [_factorise(states, self.penalty)]
            if self.queries is not None:
                queries = self.queries[:, :, start // 2 : (start + CHUNK) // 2]
                factors.append(_factorise(_next_states(queries, before), self.penalty))
            yield tuple(factors)


def _states(terms: Terms, state: Float[Tensor, "B H K K"]) -> Float[Tensor, "B H C K K"]:
    """Return the states after all tokens of a chunk.

    The log decay between two tokens is a sum of the decays between them, instead of a difference of sums from the first
    token, whose rounding errors are large if decays are strong.
    """
    assert terms.g is not None
    g = terms.g.expand(-1, -1, -1, terms.g.shape[2])
    between = g.tril(-1).cumsum(2).exp().tril()
    outer_products = (terms.k.unsqueeze(-1) * terms.v.unsqueeze(-2)).flatten(-2)
    sums: Tensor = (between @ outer_products).unflatten(-1, state.shape[2:])
    return sums.addcmul_(terms.g.cumsum(2).exp().unsqueeze(-1), state.unsqueeze(2))


def _next_states(terms: Terms, states: Float[Tensor, "B H _ K K"]) -> Float[Tensor, "B H Q K K"]:
    """Return the states after separate tokens, each of which follows one of the states."""
    assert terms.g is not None
    return torch.addcmul(terms.k.unsqueeze(-1) * terms.v.unsqueeze(-2), terms.g.exp().unsqueeze(-1), states)


def _factorise(states: Float[Tensor, "B H C K K"], penalty: Float[Tensor, "H K"]) -> Float[Tensor, "B H C K K"]:
    """Return the Cholesky factors of H + Lambda. They are not finite if the states are not finite."""
    matrices = states + torch.diag_embed(penalty).unsqueeze(1)
    return torch.linalg.cholesky_ex(matrices).L


def _differentiable(
    systems: _Systems, x: Sequence[Tensor], rows: Sequence[Tensor], products: Sequence[Tensor], penalty: Tensor
) -> tuple[Tensor, ...]:
    """Return the solutions x with gradients. Their gradients are those of the residuals q - H x - Lambda x, in which x
    is constant, times the inverse matrix."""
    residuals = [q - product - penalty.unsqueeze(1) * t for q, product, t in zip(rows, products, x, strict=True)]
    solutions: tuple[Tensor, ...] = _Implicit.apply(systems, *x, *residuals)
    return solutions


class _Implicit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, systems: _Systems, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.systems = systems
        return tuple(x.clone() for x in tensors[: len(tensors) // 2])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, *(None for _ in gradients), *ctx.systems.solve(*gradients)
