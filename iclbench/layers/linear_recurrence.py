"""Recurrences that are linear in a state of fixed size: linear attention, state-space duality, delta rules.

The state S of a head is a K x V matrix. A token multiplies it, adds to it, and reads its output from it:

    S_t = (diag(e^g_t) + b_t a_t^T) S_{t-1} + k_t v_t^T,        o_t = S_t^T q_t.

The log decay g <= 0 is one number per head, or one number per row of S. Without a and b, the transition is only a
decay. The tokens are processed in chunks of C tokens, each with a few matrix products (Yang et al. 2024, "Parallelizing
linear transformers with the delta rule"; Dao and Gu 2024, section 6). Let c = cumsum(g) and p_t = c_{t-1}, and let E be
the matrix of scores

    E(x, d, y)_ij = sum over channels of x_i e^(d_i - c_j) y_j

of rows i and columns j. With tril(E, -1), the part of E strictly below the diagonal, and tril(E), which includes the
diagonal, the corrections u, the outputs o and the state are

    u = (I - tril(E(a, p, b), -1))^-1 [(a e^p) S + tril(E(a, p, k), -1) V],
    o = (q e^c) S + tril(E(q, c, k)) V + tril(E(q, c, b)) u,
    S <- e^(c_C) S + (k e^(c_C - c))^T V + (b e^(c_C - c))^T u.

Decay factors are relative to the middle of a span of a few chunks: they are greater than 1 before the middle, and
smaller than 1 after it. Scores are therefore plain matrix products, without a separate decay for each pair of tokens.
If a head has only one decay per token, the factors multiply values and outputs instead, and do not appear in the
scores.

Range of the factors. The product of the decays over half a span may be as small as e^-36 in single precision and e^-320
in double precision. The rest of the floating-point range is left for the values. If decays are stronger, each chunk is
a separate span, and the decay of a token is raised to at least e^-16 (e^-40 in double precision), which is below the
rounding error of 1. If half a chunk still decays too much, chunks are halved repeatedly, down to 8 tokens (16 in double
precision). Half of such a chunk cannot decay to less than e^-64 (e^-320 in double precision). If the decay factor of
every token is almost 0, contributions below 1e-10 may be lost. Subnormal numbers are set to 0, because they are slow on
some processors.

The backward pass is written explicitly, without autograd. It runs from the last chunk to the first, and recomputes each
chunk of a long sequence from its tokens and the state before it. The output of a row is linear in the row, in the
values and in the state, so all gradients are products with the same scores. The corrections u are the outputs of the
rows a. Their gradient follows from one more triangular system, after which a is treated like q. A decay occurs only in
x e^d, y e^-c and e^(c_C). The gradients with respect to these exponents are x dx, -y dy and S dS (Yang et al. 2024,
"Gated linear attention transformers", appendix C); with one decay per head, they are the sums of o do, -v dv and S dS.
The rounding error of the gradient of a decay is relative to the largest of these terms in a chunk.

A mixer may take several steps of the recurrence per token, of which only the last one has an output. To this module,
every step is a token; only `peek` and `fork` need to know how many steps a query has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from iclbench.core.denormals import flush_denormals
from iclbench.core.records import TensorRecord

# Tokens per chunk. This is a constant, so that outputs do not depend on the machine.
CHUNK = 32
# Chunks per span, unless decays are too strong.
_SPAN = 2
# For sequences of at most this many tokens, the intermediate results of all chunks are saved for the backward pass. For
# longer sequences, they are recomputed chunk by chunk, so that memory beyond the tokens and states is needed for only
# one chunk at a time.
_MAX_SAVED_TOKENS = 8 * CHUNK
# Limits in double and in single precision: the lower bound of the log decay of a token (smaller decays are below the
# rounding error of 1), the smallest number of tokens per chunk, and the lowest sum of log decays over half a span.
_DOUBLE_LIMITS, _SINGLE_LIMITS = (-40.0, 16, -320.0), (-16.0, 8, -36.0)
# With at least this many numbers per token, a loop over tokens is faster than `cumprod`, which is not vectorised over
# channels.
_LOOP_SIZE = 2048
_TENSOR_NAMES = ("q", "k", "v", "g", "a", "b", "rows")


@dataclass(frozen=True)
class Terms(TensorRecord):
    """The terms of the recurrence for T tokens and H heads. If all heads share queries or keys, their head axis has
    size 1.

    Attributes:
        q: queries.
        k, v: keys and values that are written to the state.
        g: log decays, one per head or one per row of its state; None means no decay.
        a, b: b a^T is the rank-one term of the transition; None means no such term.
    """

    q: Float[Tensor, "B _ T K"]
    k: Float[Tensor, "B _ T K"]
    v: Float[Tensor, "B H T V"]
    g: Float[Tensor, "B H T _"] | None = None
    a: Float[Tensor, "B H T K"] | None = None
    b: Float[Tensor, "B H T K"] | None = None


def linear_recurrence(
    terms: Terms, state: Float[Tensor, "B H K V"], chunk: int = CHUNK
) -> tuple[Float[Tensor, "B H T V"], Float[Tensor, "B H K V"]]:
    """Return the outputs o at all tokens that follow a state, and the state after these tokens.

    Args:
        terms: terms of at least one token.
        state: S before the first token.
        chunk: largest number of tokens C per chunk; 1 computes the recurrence step by step.
    """
    outputs, _, after = _run(terms, None, state, chunk)
    assert after is not None
    return outputs, after


def full_pass(terms: Terms, chunk: int = CHUNK) -> Float[Tensor, "B H T V"]:
    """Return the outputs at all tokens of a complete sequence, but not the state after it."""
    return _run(terms, None, None, chunk, keep_state=False)[0]


def peek(terms: Terms, state: Float[Tensor, "B H K V"], steps: int = 1) -> Float[Tensor, "B H Q V"]:
    """Return the outputs of tokens, each read as the first token after the state: o = S^T r + (k.q) v with r = e^g q +
    a (b.q). If a token has several steps, r of a step takes the place of q in the step before it.

    Args:
        terms: terms of all steps; the queries of all steps but the last of each token are not used.
        state: S before each token.
        steps: number of steps per token.
    """
    rows, answers = _query_rows(terms, steps)
    return rows @ state + answers


def fork(
    terms: Terms, queries: Terms, state: Float[Tensor, "B H K V"], chunk: int = CHUNK, steps: int = 1
) -> tuple[Float[Tensor, "B H T V"], Float[Tensor, "B H N V"], Float[Tensor, "B H K V"]]:
    """Return the outputs at N pairs of tokens, the outputs of N queries (one before each pair), and the state after all
    pairs. Queries do not change the state.

    Args:
        terms: terms of all steps of the 2N tokens of the pairs.
        queries: terms of all steps of the N queries.
        state: S before the first pair.
        chunk: largest number of steps per chunk.
        steps: number of steps per token.
    """
    rows, answers = _query_rows(queries, steps)
    # `_run` reads one row per step. The rows of a pair are 0, except the row of its first step.
    rows = F.pad(rows.unsqueeze(3), (0, 0, 0, 2 * steps - 1)).flatten(2, 3)
    outputs, reads, after = _run(terms, rows, state, chunk)
    assert reads is not None and after is not None
    return outputs, reads[:, :, :: 2 * steps] + answers, after


def _query_rows(terms: Terms, steps: int) -> tuple[Float[Tensor, "B _ Q K"], Float[Tensor, "B H Q V"]]:
    """Return the rows r of `peek`, which read the state before a token, and the part of the outputs that comes from the
    token itself."""
    first, *others = (
        Terms(**{name: t[:, :, step::steps] for name, t in terms.tensors().items()}) for step in reversed(range(steps))
    )
    rows, answers = _rows_before(first, first.q), _self_answers(first, first.q)
    for step in others:
        rows, answers = _rows_before(step, rows), answers + _self_answers(step, rows)
    return rows, answers


def _rows_before(terms: Terms, rows: Float[Tensor, "B _ Q K"]) -> Float[Tensor, "B _ Q K"]:
    """Return rows whose products with the state before a step equal the products of the given rows with the state after
    it, except for the term k v^T of the step."""
    decayed = rows if terms.g is None else rows * terms.g.exp()
    if terms.a is None or terms.b is None:
        return decayed
    return decayed + terms.a * (terms.b * rows).sum(-1, keepdim=True)


def _self_answers(terms: Terms, rows: Float[Tensor, "B _ Q K"]) -> Float[Tensor, "B H Q V"]:
    """Return the part of the outputs of the rows that the step itself writes."""
    return (terms.k * rows).sum(-1, keepdim=True) * terms.v


def _run(
    terms: Terms, rows: Tensor | None, state: Tensor | None, chunk: int, keep_state: bool = True
) -> tuple[Float[Tensor, "B H T V"], Float[Tensor, "B H T V"] | None, Float[Tensor, "B H K V"] | None]:
    """Return the outputs of the queries, the outputs of `rows`, which read the state before each token, and the state
    after all tokens if `keep_state`. A `state` of None means zero."""
    tensors = {"rows": rows} | {name: getattr(terms, name) for name in ("q", "k", "v", "g", "a", "b")}
    needs_grad = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (state, *tensors.values()))
    return _Recurrence.apply(chunk, keep_state, needs_grad, state, *map(tensors.get, _TENSOR_NAMES))


class _Recurrence(torch.autograd.Function):
    @staticmethod
    @flush_denormals()
    def forward(
        ctx: Any, size: int, keep_state: bool, needs_grad: bool, state: Tensor | None, *tensors: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        tensors_by_name = dict(zip(_TENSOR_NAMES, tensors, strict=True))
        g, v = tensors_by_name["g"], tensors_by_name["v"]
        assert v is not None
        ctx.plan = plan(g, v, size)
        sizes = [chunk.tokens for chunk in ctx.plan]
        tokens, ends = _split(tensors_by_name, sizes), list(accumulate(sizes))
        outputs_by_name: dict[str, Tensor] = {name: torch.empty_like(v) for name in ("q", "rows") if name in tokens[0]}
        ctx.factors_before, ctx.saved_chunks, states = [], [], []
        factor_before = _factor_at_start(g, 0, ctx.plan[0])
        for n, output_chunks in enumerate(_split(outputs_by_name, sizes)):
            chunk = _make_chunk(tokens[n], ctx.plan[n], factor_before)
            if n == 0:
                state = chunk.to_unit_of_chunk(state)
            chunk.start_from(state)
            for name, out in output_chunks.items():
                chunk.answer(name, out)
            if needs_grad:
                ctx.factors_before.append(factor_before)
                states.append(state)
                if v.shape[2] <= _MAX_SAVED_TOKENS:
                    ctx.saved_chunks.append(chunk)
            next_plan = None if n == len(sizes) - 1 else ctx.plan[n + 1]
            if next_plan is not None:
                factor_before = _factor_at_start(g, ends[n], next_plan) if next_plan.span else chunk.factor_at_end()
            unit_factors = chunk.unit_factors(next_plan, factor_before)
            state = (
                chunk.state_after(unit_factors, in_place=n > 0 and not needs_grad) if keep_state or next_plan else None
            )
            del chunk  # frees its memory for the next chunk
        outputs, reads = outputs_by_name["q"], outputs_by_name.get("rows")
        ctx.save_for_backward(outputs, reads, *tensors, *states, state)
        return outputs, reads, state

    @staticmethod
    @once_differentiable
    @flush_denormals()
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        count = 2 + len(_TENSOR_NAMES)
        (outputs, reads, *tensors), states = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        grad_outputs, grad_reads, grad_state = gradients
        grad_state = None if grad_state is None else grad_state.clone()
        grad_names = {name for name, needed in zip(_TENSOR_NAMES, ctx.needs_input_grad[4:], strict=True) if needed}
        results = {
            name: torch.empty_like(t) for name, t in zip(_TENSOR_NAMES, tensors, strict=True) if name in grad_names
        }
        sizes = [chunk.tokens for chunk in ctx.plan]
        tokens, result_chunks = _split(dict(zip(_TENSOR_NAMES, tensors, strict=True)), sizes), _split(results, sizes)
        outs, grads = (
            _split({"q": q, "rows": rows}, sizes) for q, rows in ((outputs, reads), (grad_outputs, grad_reads))
        )
        next_plan: ChunkPlan | None = None
        factor_after: Tensor | None = None
        for n in reversed(range(len(sizes))):
            chunk = (
                ctx.saved_chunks.pop()
                if ctx.saved_chunks
                else _make_chunk(tokens[n], ctx.plan[n], ctx.factors_before[n]).start_from(states[n])
            )
            unit_factors = chunk.unit_factors(next_plan, factor_after)
            with_decays = "g" in grad_names
            grads_by_name, grad_state = chunk.gradients(
                outs[n], grads[n], unit_factors, states[n + 1], grad_state, with_decays
            )
            for name, result in result_chunks[n].items():
                result.copy_(grads_by_name[name])
            grad_state = chunk.to_unit_of_chunk(grad_state) if n == 0 else grad_state
            next_plan, factor_after = ctx.plan[n], ctx.factors_before[n]
            del chunk, grads_by_name
        return None, None, None, grad_state, *map(results.get, _TENSOR_NAMES)


@dataclass(frozen=True)
class ChunkPlan:
    """The plan of one chunk of a sequence.

    Attributes:
        tokens: number of tokens.
        span: number of tokens of the span that starts with this chunk; 0 means that the chunk continues a span.
        floor: lower bound of its log decays; None means no bound.
    """

    tokens: int
    span: int
    floor: float | None = None


def plan(g: Float[Tensor, "B H T _"] | None, v: Float[Tensor, "B H T V"], size: int = CHUNK) -> list[ChunkPlan]:
    """Divide a sequence into chunks of `size` tokens, which are halved repeatedly where decays are strong. All
    sequences of a batch have the same chunks, so the last digits of the outputs of a sequence can depend on the other
    sequences."""
    if g is None:
        return [ChunkPlan(tokens, 0) for tokens in _chunk_sizes(v.shape[2], size)]
    floor, shortest, lowest_sum = _limits(g, v)

    def cut(decays: Tensor, longest: int, clamp: float | None) -> Iterator[ChunkPlan]:
        pieces = decays.split(longest, 2)
        halves = [half for piece in pieces for half in piece.tensor_split([piece.shape[2] // 2], 2)]
        sums = [_clamp(half, clamp).sum(2).amin() for half in halves]
        lowest = torch.stack(sums).view(-1, 2).amin(1).tolist()
        for piece, low in zip(pieces, lowest, strict=True):
            if low < lowest_sum and (longest > shortest or clamp is None):
                yield from cut(piece, min(size, longest // 2), floor)
            else:
                first, *others = _chunk_sizes(piece.shape[2], min(size, longest))
                yield ChunkPlan(first, piece.shape[2], clamp)
                yield from (ChunkPlan(tokens, 0, clamp) for tokens in others)

    return list(cut(g, _SPAN * size, None))


def _clamp(g: Float[Tensor, "B H C _"], floor: float | None) -> Float[Tensor, "B H C _"]:
    return g if floor is None else g.clamp(min=floor)


def _factor_at_start(
    g: Float[Tensor, "B H T _"] | None, start: int, chunk: ChunkPlan
) -> Float[Tensor, "B H 1 _"] | None:
    """Return the factor at the start of a span, relative to the middle of the span: the inverse of the decay between
    them."""
    if g is None:
        return None
    return _clamp(g.narrow(2, start, chunk.span // 2), chunk.floor).sum(2, keepdim=True).neg_().exp_()


def _limits(*tensors: Tensor) -> tuple[float, int, float]:
    return _DOUBLE_LIMITS if all(t.dtype == torch.float64 for t in tensors) else _SINGLE_LIMITS


def _chunk_sizes(tokens: int, size: int) -> list[int]:
    """Return the sizes of chunks of `size` tokens; the last chunk may be smaller."""
    return [min(size, tokens - start) for start in range(0, tokens, size)]


def _split(tensors: Mapping[str, Tensor | None], sizes: list[int]) -> list[dict[str, Tensor]]:
    """Split the tensors that are not None into chunks."""
    pieces = {name: t.split(sizes, 2) for name, t in tensors.items() if t is not None}
    return [{name: chunks[n] for name, chunks in pieces.items()} for n in range(len(sizes))]


def _make_chunk(tensors: dict[str, Tensor], chunk_plan: ChunkPlan, before: Tensor | None) -> _Chunk:
    tensors = {name: t if _is_batched(t) else t.contiguous() for name, t in tensors.items()}
    if before is None:
        return _Chunk(tensors)
    return (_HeadDecays if tensors["g"].shape[-1] == 1 else _RowDecays)(tensors, chunk_plan.floor, before)


def _is_batched(t: Float[Tensor, "B H C K"]) -> bool:
    """Return whether the matrices are contiguous and equally spaced, so that one batched product can use all of
    them."""
    return t.stride() == (t.shape[1] * t.stride(1), t.stride(1), t.shape[3], 1)


class _Chunk:
    """A chunk without decays. Subclasses add decays.

    Within a span, the state is stored in the unit of the span, that is, relative to the decay at the middle of the
    span. Factors convert the state from the unit of one span to the unit of the next.

    Args:
        tensors: q, k, v, and optionally g, a, b and rows; `rows` and `a` read the state before their token (a lag of
            1), and q reads the state after it.
        floor: lower bound of log decays; None means no bound.
        before: factor before the first token, relative to the middle of the span; None means no decay.
    """

    def __init__(self, tensors: dict[str, Tensor], floor: float | None = None, before: Tensor | None = None) -> None:
        self.tensors, self.floor = tensors, floor
        self.lags: dict[str, int] = {name: int(name != "q") for name in ("q", "rows", "a") if name in tensors}
        if before is not None:
            self.set_factors(before)
        self.rows = {name: self.scale_rows(name, tensors[name]) for name in self.lags}
        self.columns: dict[str, Tensor] = {
            key: self.scale_columns(tensors[key]) for key in ("k", "b") if key in tensors
        }
        self.values = {"k": self.scale_values(tensors["v"])}

    def to_unit_of_chunk(self, state: Tensor | None) -> Tensor | None:
        """Convert the state before the first chunk to the unit of this chunk. The gradient with respect to the state is
        converted back by the same factor."""
        return state

    def start_from(self, state: Float[Tensor, "B H K V"] | None) -> _Chunk:
        """Set the state before the chunk, in the chunk's unit; None means zero."""
        self.state = state
        if "a" in self.lags:
            self.system = -_masked_scores(self.rows["a"] @ self.columns["b"].mT, 1)
            corrections = torch.linalg.solve_triangular(self.system, self.read("a"), upper=False, unitriangular=True)
            self.values["b"] = corrections
        return self

    def factor_at_end(self) -> Float[Tensor, "B H 1 _"] | None:
        """Return the factor before the next chunk of the span; None means no decay."""
        return None

    def answer(self, name: str, out: Float[Tensor, "B H C V"]) -> None:
        """Write the outputs of `q` or `rows` to `out`."""
        out.copy_(self.read(name))

    def read(self, name: str) -> Float[Tensor, "B H C V"]:
        """Return the outputs of `q`, `rows` or `a`: products with the state before the chunk and with the values so
        far."""
        rows = self.rows[name]
        out = None if self.state is None else _product(rows, self.state)
        for key, values in self.values.items():
            out = _add(out, _masked_scores(rows @ self.columns[key].mT, self.lags[name]), values)
        assert out is not None
        return out

    def state_after(self, unit_factors: list[Tensor], in_place: bool) -> Float[Tensor, "B H K V"]:
        """Return the state after the chunk, in the unit of the next chunk, or unscaled after the last chunk.

        Args:
            unit_factors: factors that convert a state from the unit of this chunk.
            in_place: whether the state before the chunk may be overwritten.
        """
        state = self.state if in_place or self.state is None else self.state.clone()
        for key, columns in self.columns.items():
            state = _add(state, columns.mT, self.values[key])
        assert state is not None
        for factor in unit_factors:
            state *= factor
        return state

    def unit_factors(self, next_plan: ChunkPlan | None, before: Tensor | None) -> list[Float[Tensor, "B H _ 1"]]:
        """Return the factors that convert a state from the unit of this chunk to the unit of the next chunk: a factor
        to the end of the span, and a factor to the middle of the next span. They are separate because their product
        could underflow.

        Args:
            next_plan: the next chunk; None if this is the last one.
            before: factor before the next chunk.
        """
        return []

    def gradients(
        self,
        outs: dict[str, Tensor],
        grad_outs: dict[str, Tensor],
        unit_factors: list[Tensor],
        after: Tensor | None,
        grad_after: Tensor | None,
        with_decays: bool,
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Return the gradients with respect to the chunk's tensors and to the state before the chunk, in the chunk's
        unit.

        Args:
            outs: outputs of `q` and `rows`.
            grad_outs: gradients of these outputs.
            unit_factors: factors that convert a state to the unit of the next chunk.
            after: the state after the chunk; None if it was not computed.
            grad_after: gradient with respect to this state; it is overwritten.
            with_decays: whether gradients of the decays are computed.
        """
        scaled_grads = {
            name: self.scale_gradients(name, t if _is_batched(t) else t.contiguous()) for name, t in grad_outs.items()
        }
        grad_state: Tensor | None = None
        grads: dict[str, Any] = dict.fromkeys((*self.lags, *self.columns))
        value_grads: dict[str, Any] = dict.fromkeys(self.columns)
        end_slope: Tensor | None = None
        if grad_after is not None:
            if with_decays:
                assert after is not None
                end_slope = self.last_slope(after * grad_after)
            for factor in unit_factors[::-1]:
                grad_after *= factor
            for key, columns in self.columns.items():
                value_grads[key] = _product(columns, grad_after)
                grads[key] = _outer_product(self.values[key], grad_after, columns)
            grad_state = None if self.state is None else grad_after
        for name, rows in self.rows.items():
            lag = self.lags[name]
            if name == "a":
                solved = torch.linalg.solve_triangular(self.system.mT, value_grads["b"], upper=True, unitriangular=True)
                outs, grad_outs = outs | {"a": self.values["b"]}, grad_outs | {"a": solved}
                scaled_grads |= {"a": solved}
                value_grads["b"] = solved
            if self.state is not None:
                grad_state = _add(grad_state, rows.mT, scaled_grads[name])
                grads[name] = _outer_product(scaled_grads[name], self.state, rows)
            for key, columns in self.columns.items():
                if (name, key) != ("a", "b"):  # the triangular system accounts for this
                    scores = _masked_scores(rows @ columns.mT, lag)
                    value_grads[key] = _add(value_grads[key], scores.mT, scaled_grads[name])
                shared = rows if rows.shape[1] > columns.shape[1] else columns
                score_grads = _masked_scores(_outer_product(scaled_grads[name], self.values[key], shared), lag)
                grads[name] = _add(grads[name], score_grads, columns)
                grads[key] = _add(grads[key], score_grads.mT, rows)
        grads |= {name: self.scale_rows(name, grads[name]) for name in self.lags}
        grads |= {key: self.scale_columns(grads[key]) for key in self.columns}
        if with_decays:
            slope = torch.zeros_like(self.tensors["g"], dtype=value_grads["k"].dtype)
            self.add_slope(slope, 1, self.tensors["q"], grads["q"], outs["q"], grad_outs["q"])
            for key in self.columns:
                self.add_slope(slope, -1, self.tensors[key], grads[key], self.values[key], value_grads[key])
            for name in self.lags:
                if name != "q":  # these rows read the state before their token
                    shifted_tensors = (self.tensors[name], grads[name], outs[name], grad_outs[name])
                    self.add_slope(slope[:, :, :-1], 1, *(t[:, :, 1:] for t in shifted_tensors))
            if end_slope is not None:
                slope[:, :, -1:].add_(end_slope)
            grads["g"] = self.zero_below_floor(slope.new_ones(2 * slope.shape[2:3]).triu() @ slope)
        grads["v"] = self.scale_values(value_grads["k"])
        pieces = {name: _sum_shared_heads(grads[name], t) for name, t in self.tensors.items() if name in grads}
        return pieces, grad_state

    # Decays multiply rows, keys, values and outputs by a factor, and their gradients by the same factor.

    def set_factors(self, before: Float[Tensor, "B H 1 _"]) -> None:
        """Compute the factors of the decays."""
        raise NotImplementedError

    def scale_rows(self, name: str, x: Tensor) -> Tensor:
        """Multiply rows, or their gradients, by the factor."""
        return x

    def scale_columns(self, y: Tensor) -> Tensor:
        """Multiply keys, or their gradients, by the factor."""
        return y

    def scale_values(self, value: Tensor) -> Tensor:
        """Multiply values, or their gradients, by the factor."""
        return value

    def scale_gradients(self, name: str, out: Tensor) -> Tensor:
        """Multiply the gradients of outputs by the factor."""
        return out

    def add_slope(
        self, slope: Float[Tensor, "B H C _"], sign: int, x: Tensor, dx: Tensor, out: Tensor, dout: Tensor
    ) -> None:
        """Add to `slope` the gradient with respect to the log factors of x (rows or columns), or of the values that x
        reads or writes."""
        raise NotImplementedError

    def last_slope(self, product: Float[Tensor, "B H K V"]) -> Float[Tensor, "B H 1 _"]:
        """Return the gradient with respect to the exponent of the state after the chunk, from S dS."""
        raise NotImplementedError

    def zero_below_floor(self, gradient: Float[Tensor, "B H C _"]) -> Float[Tensor, "B H C _"]:
        """Set the gradients of log decays below the lower bound to 0."""
        raise NotImplementedError


class _DecayingChunk(_Chunk):
    """A chunk with decays. `factors` holds the factors after each token, relative to the middle of the span;
    `factors_before` holds the factors before each token."""

    def set_factors(self, before: Tensor) -> None:
        g, dtype = self.tensors["g"], self.tensors["v"].dtype
        factors = _clamp(g, self.floor).exp()
        factors[:, :, :1].mul_(before)
        _cumulative_product_(factors)
        if len(self.lags) > 1:
            self.factors_before = torch.cat([before, factors[:, :, :-1]], 2).to(dtype)
        self.start_factor, self.end_factor, self.factors = before, factors[:, :, -1:], factors.to(dtype)

    def factor_at_end(self) -> Tensor:
        return self.end_factor.clone()

    def to_unit_of_chunk(self, state: Tensor | None) -> Tensor | None:
        return state if state is None else state * _factor_to_middle(self.start_factor, state.dtype)

    def unit_factors(self, next_plan: ChunkPlan | None, before: Tensor | None) -> list[Tensor]:
        end = self.factors[:, :, -1:].mT
        if next_plan is None or before is None:
            return [end]
        return [end, _factor_to_middle(before, end.dtype)] if next_plan.span else []

    def factor_at(self, name: str) -> Float[Tensor, "B H C _"]:
        """Return the factor at the point where rows of this name read the state: after their token (q) or before it."""
        return self.factors if name == "q" else self.factors_before

    def zero_below_floor(self, gradient: Tensor) -> Tensor:
        return gradient if self.floor is None else gradient.masked_fill_(self.tensors["g"] < self.floor, 0.0)


class _HeadDecays(_DecayingChunk):
    """One decay per head, which multiplies values and outputs."""

    def scale_rows(self, name: str, x: Tensor) -> Tensor:
        # The outputs of `a` are used as values, which are divided by `factors`, but `a` reads the state before its
        # token.
        return x * (self.factors_before / self.factors) if name == "a" else x

    def scale_values(self, value: Tensor) -> Tensor:
        return value / self.factors

    def scale_gradients(self, name: str, out: Tensor) -> Tensor:
        return out * self.factor_at(name)

    def answer(self, name: str, out: Tensor) -> None:
        torch.mul(self.read(name), self.factor_at(name), out=out)

    def add_slope(self, slope: Tensor, sign: int, x: Tensor, dx: Tensor, out: Tensor, dout: Tensor) -> None:
        slope.add_((out * dout).sum(-1, keepdim=True), alpha=sign)

    def last_slope(self, product: Tensor) -> Tensor:
        return product.sum((-2, -1), keepdim=True)


class _RowDecays(_DecayingChunk):
    """One decay per row of the state, which multiplies rows and columns."""

    def scale_rows(self, name: str, x: Tensor) -> Tensor:
        return x * self.factor_at(name)

    def scale_columns(self, y: Tensor) -> Tensor:
        return y / self.factors

    def add_slope(self, slope: Tensor, sign: int, x: Tensor, dx: Tensor, out: Tensor, dout: Tensor) -> None:
        slope.addcmul_(x, dx, value=sign)

    def last_slope(self, product: Tensor) -> Tensor:
        return product.sum(-1).unsqueeze(2)


def _factor_to_middle(before: Float[Tensor, "B H 1 _"], dtype: torch.dtype) -> Float[Tensor, "B H _ 1"]:
    """Return the factor that converts a state from the start of a span to its middle."""
    return before.reciprocal().mT.to(dtype)


def _cumulative_product_(x: Float[Tensor, "B H C K"]) -> None:
    """Compute cumulative products over the tokens, in place."""
    if x.numel() < _LOOP_SIZE * x.shape[2]:
        x.cumprod_(2)
        return
    for before, t in pairwise(x.unbind(2)):
        t.mul_(before)


def _masked_scores(scores: Float[Tensor, "B _ C C"], lag: int) -> Float[Tensor, "B _ C C"]:
    """Set the scores of each row to 0, in place, at the columns that are written after the row reads the state."""
    return scores.tril_(-lag)


def _product(x: Float[Tensor, "B _ I K"], y: Float[Tensor, "B H K J"]) -> Float[Tensor, "B H I J"]:
    """Return x y. If all heads share x, it is multiplied once by the columns of all heads."""
    if x.shape[1] == y.shape[1]:
        return x @ y
    return (x.squeeze(1) @ y.transpose(1, 2).flatten(2)).unflatten(2, (y.shape[1], -1)).transpose(1, 2)


def _add(out: Float[Tensor, "B _ I J"] | None, x: Float[Tensor, "B _ I K"], y: Float[Tensor, "B _ K J"]) -> Tensor:
    """Return out + x y, computed in place if the layout of `out` allows it. An `out` of None means 0."""
    if out is None:
        return x @ y if y.shape[1] in (1, x.shape[1]) else _product(x, y)
    if out.shape[1] == x.shape[1] == y.shape[1] and out.is_contiguous():
        out.view(-1, *out.shape[2:]).baddbmm_(x.flatten(0, 1), y.flatten(0, 1))
        return out
    product = x @ y if y.shape[1] == 1 else _product(x, y)
    return out.add_(_sum_shared_heads(product, out))


def _outer_product(
    x: Float[Tensor, "B H I V"], y: Float[Tensor, "B H K V"], target: Tensor
) -> Float[Tensor, "B _ I K"]:
    """Return x y^T, a gradient with respect to `target`, summed over heads if all heads share `target`."""
    if target.shape[1] == x.shape[1]:
        return x @ y.mT
    return torch.einsum("bhiv,bhkv->bik", x, y).unsqueeze(1)


def _sum_shared_heads(gradient: Tensor, t: Tensor) -> Tensor:
    """Return the gradient with respect to t, summed over heads if all heads share t."""
    return gradient if gradient.shape == t.shape else gradient.sum(1, keepdim=True)
