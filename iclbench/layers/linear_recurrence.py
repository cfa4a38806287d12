"""Recurrences that are linear in a state of fixed size: linear attention, state-space duality, delta rules.

The state S of a head is a K x V matrix. A token multiplies it, adds to it, and is answered by it:

    S_t = (diag(e^g_t) + b_t a_t^T) S_{t-1} + k_t v_t^T,        o_t = S_t^T q_t.

g <= 0 is one number per head or one per row of S; without a and b nothing is taken away along a key. Tokens are gone
through in chunks of C, each of them a few products of matrices (Yang et al. 2024, "Parallelizing linear transformers
with the delta rule"; Dao and Gu 2024, section 6). With c = cumsum(g), p_t = c_{t-1} and the scores

    E(x, d, y)_ij = sum over channels of x_i e^(d_i - c_j) y_j

of rows i and columns j, what the tokens take away, and then answers and state, are

    u = (I - E(a, p, b) below the diagonal)^-1 [(a e^p) S + (E(a, p, k) below the diagonal) V],
    o = (q e^c) S + (E(q, c, k) to the diagonal) V + (E(q, c, b) to the diagonal) u,
    S <- e^(c_C) S + (k e^(c_C - c))^T V + (b e^(c_C - c))^T u.

All of that is in the units of the middle of a span, a few chunks: what is before it has decayed on the way there, what
is after it grows back to it, so that scores are products of matrices and nothing decays within a span. One decay of a
whole head is one number of every token then, by which values and answers are multiplied, and scores do not know of it.
Half a span may decay to e^-36 in single and to e^-320 in double precision, which leaves as much room again for numbers
that are small or large themselves. Where decays are stronger each chunk is a span, and one below the last digit of one
(e^-16, e^-40) counts as that; where half a chunk is still too much, chunks are halved, down to eight tokens (16), of
which half decays to e^-64 at most: where nearly all is forgotten at each of them, what is below 1e-10 may be lost. What
is too small to be a normal number is 0, which some processors need for their speed.

The way back is written out, chunk after chunk from the last to the first, each computed again from its tokens and the
state before it. What a row reads is linear in the row, in the values and in the state, so that all gradients are
products with the same scores; u is what the rows a read, so that they are rows like q once one more triangular system
has been solved. A decay only ever stands in x e^d, y e^-c and e^(c_C): the gradients of these exponents are x dx, -y dy
and S dS (Yang et al. 2024, "Gated linear attention transformers", appendix C), and where one decay has all channels of
a head, that is o do, -v dv and S dS, summed up. They are right to the last digits of the largest of these in a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from iclbench.core.denormals import flushed
from iclbench.core.records import TensorRecord

# Tokens of a chunk. A constant, so that answers do not depend on the machine.
CHUNK = 32
# Chunks of a span, where decays allow it.
_SPAN = 2
# What the chunks of so many tokens compute is held for the way back; of longer sequences it is computed again there,
# chunk by chunk, so that memory beyond tokens and states is that of one.
_HELD = 8 * CHUNK
# In double precision and in single: the logarithm below which a decay is under the last digit of one; the least tokens
# of a chunk whose decays are so strong; and to what half of a longer one may decay, which leaves as much room again for
# values and gradients that are small or large themselves.
_DOUBLE, _SINGLE = (-40.0, 16, -320.0), (-16.0, 8, -36.0)
# Numbers of a token from which on one multiplication after the other is faster than `cumprod`, which knows no vectors.
_MANY = 2048
_NAMES = ("q", "k", "v", "g", "a", "b", "rows")


@dataclass(frozen=True)
class Terms(TensorRecord):
    """What T tokens do to the states of H heads. Queries and keys may have one entry for all of them.

    Attributes:
        q: what answers.
        k, v: what is written: under which key, which values.
        g: logarithms of decays, of a whole head or of every row of its state; None: nothing decays.
        a, b: what is read before a token writes, and where that is added, e^g apart; None: nowhere.
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
    """The answers o at all tokens after a state, and the state after them.

    Args:
        terms: of at least one token.
        state: S before them.
        chunk: tokens C that go together, or fewer; one for the recurrence step by step.
    """
    outputs, _, after = _run(terms, None, state, chunk)
    assert after is not None
    return outputs, after


def full_pass(terms: Terms, chunk: int = CHUNK) -> Float[Tensor, "B H T V"]:
    """The answers at all tokens of a sequence that begins with them, after which nothing is kept."""
    return _run(terms, None, None, chunk, keep_state=False)[0]


def peek(terms: Terms, state: Float[Tensor, "B H K V"]) -> Float[Tensor, "B H Q V"]:
    """The answers of tokens that each come next after the state, on their own: o = S^T r + (k.q) v with r = e^g q +
    a (b.q)."""
    return _query_rows(terms) @ state + _self_answers(terms)


def fork(
    terms: Terms, queries: Terms, state: Float[Tensor, "B H K V"], chunk: int = CHUNK
) -> tuple[Float[Tensor, "B H T V"], Float[Tensor, "B H N V"], Float[Tensor, "B H K V"]]:
    """The answers at pairs of tokens, those of tokens that each come before a pair of their own and leave no trace,
    and the state after all pairs.

    Args:
        terms: of T = 2N tokens.
        queries: of N tokens, each after the state and the pairs before its own.
        state: S before them.
        chunk: tokens that go together, or fewer.
    """
    rows = _query_rows(queries)
    # One row for every token, those of the second of each pair being 0.
    rows = torch.stack([rows, torch.zeros_like(rows)], 3).flatten(2, 3)
    outputs, reads, after = _run(terms, rows, state, chunk)
    assert reads is not None and after is not None
    return outputs, reads[:, :, ::2] + _self_answers(queries), after


def _query_rows(terms: Terms) -> Float[Tensor, "B _ Q K"]:
    """r of `peek`."""
    rows = terms.q if terms.g is None else terms.q * terms.g.exp()
    if terms.a is None or terms.b is None:
        return rows
    return rows + terms.a * (terms.b * terms.q).sum(-1, keepdim=True)


def _self_answers(terms: Terms) -> Float[Tensor, "B H Q V"]:
    return (terms.k * terms.q).sum(-1, keepdim=True) * terms.v


def _run(
    terms: Terms, rows: Tensor | None, state: Tensor | None, chunk: int, keep_state: bool = True
) -> tuple[Float[Tensor, "B H T V"], Float[Tensor, "B H T V"] | None, Float[Tensor, "B H K V"] | None]:
    """Chunk after chunk, `rows` being what reads the state before each token; without a state nothing is before them,
    and whether the state after them is kept."""
    tensors = {"rows": rows} | {name: getattr(terms, name) for name in ("q", "k", "v", "g", "a", "b")}
    needs_grad = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (state, *tensors.values()))
    return _Recurrence.apply(chunk, keep_state, needs_grad, state, *map(tensors.get, _NAMES))


class _Recurrence(torch.autograd.Function):
    @staticmethod
    @flushed()
    def forward(
        ctx: Any, size: int, keep_state: bool, needs_grad: bool, state: Tensor | None, *tensors: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        by_name = dict(zip(_NAMES, tensors, strict=True))
        v = by_name["v"]
        assert v is not None
        ctx.plan = plan(by_name["g"], v, size)
        sizes = [part.tokens for part in ctx.plan]
        tokens, ends = _cut(by_name, sizes), list(accumulate(sizes))
        outputs_by_name: dict[str, Tensor] = {name: torch.empty_like(v) for name in ("q", "rows") if name in tokens[0]}
        ctx.before, ctx.held, states = [], [], []
        before = _begins(by_name["g"], 0, ctx.plan[0])
        for n, places in enumerate(_cut(outputs_by_name, sizes)):
            chunk = _chunk(tokens[n], ctx.plan[n], before)
            if n == 0:
                state = chunk.entered(state)
            chunk.after(state)
            for name, place in places.items():
                chunk.answer(name, place)
            if needs_grad:
                ctx.before.append(before)
                states.append(state)
                if v.shape[2] <= _HELD:
                    ctx.held.append(chunk)
            following = None if n == len(sizes) - 1 else ctx.plan[n + 1]
            if following is not None:
                before = _begins(by_name["g"], ends[n], following) if following.span else chunk.goes_on()
            onward = chunk.onward(following, before)
            state = chunk.left(onward, own=n > 0 and not needs_grad) if keep_state or following else None
            del chunk  # whose memory the next one takes
        outputs, reads = outputs_by_name["q"], outputs_by_name.get("rows")
        ctx.save_for_backward(outputs, reads, *tensors, *states, state)
        return outputs, reads, state

    @staticmethod
    @once_differentiable
    @flushed()
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        (outputs, reads, *tensors), states = ctx.saved_tensors[: 2 + len(_NAMES)], ctx.saved_tensors[2 + len(_NAMES) :]
        grad_outputs, grad_reads, grad_state = gradients
        grad_state = None if grad_state is None else grad_state.clone()
        differentiated = {name for name, needed in zip(_NAMES, ctx.needs_input_grad[4:], strict=True) if needed}
        results = {name: torch.empty_like(t) for name, t in zip(_NAMES, tensors, strict=True) if name in differentiated}
        sizes = [part.tokens for part in ctx.plan]
        tokens, places = _cut(dict(zip(_NAMES, tensors, strict=True)), sizes), _cut(results, sizes)
        outs, grads = (
            _cut({"q": q, "rows": rows}, sizes) for q, rows in ((outputs, reads), (grad_outputs, grad_reads))
        )
        following: tuple[Part | None, Tensor | None] = None, None
        for n in reversed(range(len(sizes))):
            chunk = ctx.held.pop() if ctx.held else _chunk(tokens[n], ctx.plan[n], ctx.before[n]).after(states[n])
            onward = chunk.onward(*following)
            decays = "g" in differentiated
            pieces, grad_state = chunk.gradients(outs[n], grads[n], onward, states[n + 1], grad_state, decays)
            for name, place in places[n].items():
                place.copy_(pieces[name])
            grad_state = chunk.entered(grad_state) if n == 0 else grad_state
            following = ctx.plan[n], ctx.before[n]
            del chunk, pieces
        return None, None, None, grad_state, *map(results.get, _NAMES)


@dataclass(frozen=True)
class Part:
    """A chunk of a sequence.

    Attributes:
        tokens: so many.
        span: tokens of the span that starts with it; 0: it goes on with one.
        least: decays below it count as that; None: none is.
    """

    tokens: int
    span: int
    least: float | None = None


def plan(g: Float[Tensor, "B H T _"] | None, like: Float[Tensor, "B H T V"], size: int = CHUNK) -> list[Part]:
    """The chunks, of so many tokens or, where decays are strong, of half as many and half of that. Decided for the
    batch at once: neighbours change the way, and so the last digits."""
    if g is None:
        return [Part(tokens, 0) for tokens in _even(like.shape[2], size)]
    least, few, room = _limits(g, like)

    def cut(part: Tensor, longest: int, clamp: float | None) -> Iterator[Part]:
        pieces = part.split(longest, 2)
        halves = [half for piece in pieces for half in piece.tensor_split([piece.shape[2] // 2], 2)]
        sums = [_clamped(half, clamp).sum(2).amin() for half in halves]
        lowest = torch.stack(sums).view(-1, 2).amin(1).tolist()
        for piece, low in zip(pieces, lowest, strict=True):
            if low < room and (longest > few or clamp is None):
                yield from cut(piece, min(size, longest // 2), least)
            else:
                first, *others = _even(piece.shape[2], min(size, longest))
                yield Part(first, piece.shape[2], clamp)
                yield from (Part(tokens, 0, clamp) for tokens in others)

    return list(cut(g, _SPAN * size, None))


def _clamped(g: Float[Tensor, "B H C _"], least: float | None) -> Float[Tensor, "B H C _"]:
    return g if least is None else g.clamp(min=least)


def _begins(g: Float[Tensor, "B H T _"] | None, start: int, part: Part) -> Float[Tensor, "B H 1 _"] | None:
    """What is left, where a span starts, of what is there in its middle: an inverse of decays."""
    if g is None:
        return None
    return _clamped(g.narrow(2, start, part.span // 2), part.least).sum(2, keepdim=True).neg_().exp_()


def _limits(*tensors: Tensor) -> tuple[float, int, float]:
    return _DOUBLE if all(t.dtype == torch.float64 for t in tensors) else _SINGLE


def _even(tokens: int, size: int) -> list[int]:
    """So many at a time, and at the end what is left."""
    return [min(size, tokens - start) for start in range(0, tokens, size)]


def _cut(tensors: Mapping[str, Tensor | None], sizes: list[int]) -> list[dict[str, Tensor]]:
    """What is there, chunk by chunk."""
    parts = {name: t.split(sizes, 2) for name, t in tensors.items() if t is not None}
    return [{name: part[n] for name, part in parts.items()} for n in range(len(sizes))]


def _chunk(tensors: dict[str, Tensor], part: Part, before: Tensor | None) -> _Chunk:
    tensors = {name: t if _apart(t) else t.contiguous() for name, t in tensors.items()}
    if before is None:
        return _Chunk(tensors)
    return (_OfHeads if tensors["g"].shape[-1] == 1 else _OfRows)(tensors, part.least, before)


def _apart(t: Float[Tensor, "B H C K"]) -> bool:
    """Whether its matrices are contiguous and follow each other at one distance: products take them all at once."""
    return t.stride() == (t.shape[1] * t.stride(1), t.stride(1), t.shape[3], 1)


class _Chunk:
    """The tokens of a chunk. How they decay is a subclass's; here they do not.

    Args:
        tensors: q, k, v and what else there is; `rows` and `a` read before their own token (a lag of 1), q after it.
        least: decays below it count as that; None: none is.
        before: what is left before the first token of what is there in the middle of the span, or its inverse.
    """

    def __init__(self, tensors: dict[str, Tensor], least: float | None = None, before: Tensor | None = None) -> None:
        self.given, self.least = tensors, least
        self.lags: dict[str, int] = {name: int(name != "q") for name in ("q", "rows", "a") if name in tensors}
        if before is not None:
            self.decay(before)
        self.readers = {name: self.reading(name, tensors[name]) for name in self.lags}
        self.written: dict[str, Tensor] = {key: self.columns(tensors[key]) for key in ("k", "b") if key in tensors}
        self.values = {"k": self.stored(tensors["v"])}

    def entered(self, state: Tensor | None) -> Tensor | None:
        """A state before all chunks, in the unit of this one, or from the gradient in it its own."""
        return state

    def after(self, state: Float[Tensor, "B H K V"] | None) -> _Chunk:
        """With a state before it, in the unit of this chunk; None: nothing is there yet."""
        self.state = state
        if "a" in self.lags:
            self.system = -_below(self.readers["a"] @ self.written["b"].mT, 1)
            taken = torch.linalg.solve_triangular(self.system, self.read("a"), upper=False, unitriangular=True)
            self.values["b"] = taken
        return self

    def goes_on(self) -> Float[Tensor, "B H 1 _"] | None:
        """What is left before the next chunk of the span."""
        return None

    def answer(self, name: str, place: Float[Tensor, "B H C V"]) -> None:
        """The answers of q or of rows."""
        place.copy_(self.read(name))

    def read(self, name: str) -> Float[Tensor, "B H C V"]:
        """What rows read of the state before the chunk and of the values in it that are known by now."""
        rows = self.readers[name]
        out = None if self.state is None else _product(rows, self.state)
        for key, values in self.values.items():
            out = _add(out, _below(rows @ self.written[key].mT, self.lags[name]), values)
        assert out is not None
        return out

    def left(self, onward: list[Tensor], own: bool) -> Float[Tensor, "B H K V"]:
        """The state after the chunk, in the unit of the following one or, after all, in its own.

        Args:
            onward: what is left of it there.
            own: whether it may take the place of the state before.
        """
        state = self.state if own or self.state is None else self.state.clone()
        for key, columns in self.written.items():
            state = _add(state, columns.mT, self.values[key])
        assert state is not None
        for factor in onward:
            state *= factor
        return state

    def onward(self, following: Part | None, before: Tensor | None) -> list[Float[Tensor, "B H _ 1"]]:
        """What is left of a state after the chunk in the unit of the following one: a factor to the end of a span, and
        one to the middle of the next. Of both at once a number may be too small to be told from 0.

        Args:
            following: the next chunk; None: that was the last.
            before: what is left before that.
        """
        return []

    def gradients(
        self,
        outs: dict[str, Tensor],
        grad_outs: dict[str, Tensor],
        onward: list[Tensor],
        after: Tensor | None,
        end: Tensor | None,
        decays: bool,
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Those of all that was given and of the state before the chunk, in its unit.

        Args:
            outs: what q and rows have read.
            grad_outs: the gradients of that.
            onward: what is left of the state after this one in the unit of the next.
            after: the state after this one, as it was left; None: nobody has asked for it.
            end: its gradient, which is used up.
            decays: whether anybody asks for theirs; that they are fixed costs nothing.
        """
        weighed_grads = {name: self.weighed(name, t if _apart(t) else t.contiguous()) for name, t in grad_outs.items()}
        state: Tensor | None = None
        grads: dict[str, Any] = dict.fromkeys((*self.lags, *self.written))
        values: dict[str, Any] = dict.fromkeys(self.written)
        closing: Tensor | None = None
        if end is not None:
            if decays:
                assert after is not None
                closing = self.last_slope(after * end)
            for factor in onward[::-1]:
                end *= factor
            for key, columns in self.written.items():
                values[key] = _product(columns, end)
                grads[key] = _across(self.values[key], end, columns)
            state = None if self.state is None else end
        for name, rows in self.readers.items():
            lag = self.lags[name]
            if name == "a":
                solved = torch.linalg.solve_triangular(self.system.mT, values["b"], upper=True, unitriangular=True)
                outs, grad_outs = outs | {"a": self.values["b"]}, grad_outs | {"a": solved}
                weighed_grads |= {"a": solved}
                values["b"] = solved
            if self.state is not None:
                state = _add(state, rows.mT, weighed_grads[name])
                grads[name] = _across(weighed_grads[name], self.state, rows)
            for key, columns in self.written.items():
                if (name, key) != ("a", "b"):  # the system has done that
                    scores = _below(rows @ columns.mT, lag)
                    values[key] = _add(values[key], scores.mT, weighed_grads[name])
                shared = rows if rows.shape[1] > columns.shape[1] else columns
                pull = _below(_across(weighed_grads[name], self.values[key], shared), lag)
                grads[name] = _add(grads[name], pull, columns)
                grads[key] = _add(grads[key], pull.mT, rows)
        grads |= {name: self.reading(name, grads[name]) for name in self.lags}
        grads |= {key: self.columns(grads[key]) for key in self.written}
        if decays:
            slope = torch.zeros_like(self.given["g"], dtype=values["k"].dtype)
            self.add_slope(slope, 1, self.given["q"], grads["q"], outs["q"], grad_outs["q"])
            for key in self.written:
                self.add_slope(slope, -1, self.given[key], grads[key], self.values[key], values[key])
            for name in self.lags:
                if name != "q":  # they read up to the token before theirs
                    pulls = (self.given[name], grads[name], outs[name], grad_outs[name])
                    self.add_slope(slope[:, :, :-1], 1, *(t[:, :, 1:] for t in pulls))
            if closing is not None:
                slope[:, :, -1:].add_(closing)
            grads["g"] = self.unbound(slope.new_ones(2 * slope.shape[2:3]).triu() @ slope)
        grads["v"] = self.stored(values["k"])
        pieces = {name: _alike(grads[name], t) for name, t in self.given.items() if name in grads}
        return pieces, state

    # How decays come in: everything is multiplied by a number of its own, and so is its gradient.

    def decay(self, before: Float[Tensor, "B H 1 _"]) -> None:
        """Prepare the numbers."""
        raise NotImplementedError

    def reading(self, name: str, x: Tensor) -> Tensor:
        """Rows."""
        return x

    def columns(self, y: Tensor) -> Tensor:
        """Keys."""
        return y

    def stored(self, value: Tensor) -> Tensor:
        """Values."""
        return value

    def weighed(self, name: str, out: Tensor) -> Tensor:
        """Answers."""
        return out

    def add_slope(
        self, slope: Float[Tensor, "B H C _"], sign: int, x: Tensor, dx: Tensor, out: Tensor, dout: Tensor
    ) -> None:
        """Add the gradient of the exponent of rows or columns x, or of the values that they read or write."""
        raise NotImplementedError

    def last_slope(self, product: Float[Tensor, "B H K V"]) -> Float[Tensor, "B H 1 _"]:
        """That of the state after the chunk, from S dS."""
        raise NotImplementedError

    def unbound(self, gradient: Float[Tensor, "B H C _"]) -> Float[Tensor, "B H C _"]:
        """Of decays that are not the least."""
        raise NotImplementedError


class _Decaying(_Chunk):
    """With `up`, what is left at every token of what is there in the middle of the span, or its inverse before it."""

    def decay(self, before: Tensor) -> None:
        g, dtype = self.given["g"], self.given["v"].dtype
        up = _clamped(g, self.least).exp()
        up[:, :, :1].mul_(before)
        _multiply_up(up)
        if len(self.lags) > 1:
            self.earlier = torch.cat([before, up[:, :, :-1]], 2).to(dtype)
        self.before, self.last, self.up = before, up[:, :, -1:], up.to(dtype)

    def goes_on(self) -> Tensor:
        return self.last.clone()

    def entered(self, state: Tensor | None) -> Tensor | None:
        return state if state is None else state * _to_the_middle(self.before, state.dtype)

    def onward(self, following: Part | None, before: Tensor | None) -> list[Tensor]:
        end = self.up[:, :, -1:].mT
        if following is None or before is None:
            return [end]
        return [end, _to_the_middle(before, end.dtype)] if following.span else []

    def at(self, name: str) -> Float[Tensor, "B H C _"]:
        """Where rows of that name read: after their own token, or before it."""
        return self.up if name == "q" else self.earlier

    def unbound(self, gradient: Tensor) -> Tensor:
        return gradient if self.least is None else gradient.masked_fill_(self.given["g"] < self.least, 0.0)


class _OfHeads(_Decaying):
    """One per head, of values and answers."""

    def reading(self, name: str, x: Tensor) -> Tensor:
        # What they take away is a value, of their own token, while they read up to the one before.
        return x * (self.earlier / self.up) if name == "a" else x

    def stored(self, value: Tensor) -> Tensor:
        return value / self.up

    def weighed(self, name: str, out: Tensor) -> Tensor:
        return out * self.at(name)

    def answer(self, name: str, place: Tensor) -> None:
        torch.mul(self.read(name), self.at(name), out=place)

    def add_slope(self, slope: Tensor, sign: int, x: Tensor, dx: Tensor, out: Tensor, dout: Tensor) -> None:
        slope.add_((out * dout).sum(-1, keepdim=True), alpha=sign)

    def last_slope(self, product: Tensor) -> Tensor:
        return product.sum((-2, -1), keepdim=True)


class _OfRows(_Decaying):
    """One per row of the state, of rows and columns."""

    def reading(self, name: str, x: Tensor) -> Tensor:
        return x * self.at(name)

    def columns(self, y: Tensor) -> Tensor:
        return y / self.up

    def add_slope(self, slope: Tensor, sign: int, x: Tensor, dx: Tensor, out: Tensor, dout: Tensor) -> None:
        slope.addcmul_(x, dx, value=sign)

    def last_slope(self, product: Tensor) -> Tensor:
        return product.sum(-1).unsqueeze(2)


def _to_the_middle(before: Float[Tensor, "B H 1 _"], dtype: torch.dtype) -> Float[Tensor, "B H _ 1"]:
    """What is left of a state in the middle of the span that starts."""
    return before.reciprocal().mT.to(dtype)


def _multiply_up(x: Float[Tensor, "B H C K"]) -> None:
    """The products of all tokens so far, in their place."""
    if x.numel() < _MANY * x.shape[2]:
        x.cumprod_(2)
        return
    for before, t in pairwise(x.unbind(2)):
        t.mul_(before)


def _below(scores: Float[Tensor, "B _ C C"], lag: int) -> Float[Tensor, "B _ C C"]:
    """Scores of what is written before it is read; the argument is used up."""
    return scores.tril_(-lag)


def _product(x: Float[Tensor, "B _ I K"], y: Float[Tensor, "B H K J"]) -> Float[Tensor, "B H I J"]:
    """x y. One x for all heads multiplies their columns side by side."""
    if x.shape[1] == y.shape[1]:
        return x @ y
    return (x.squeeze(1) @ y.transpose(1, 2).flatten(2)).unflatten(2, (y.shape[1], -1)).transpose(1, 2)


def _add(out: Float[Tensor, "B _ I J"] | None, x: Float[Tensor, "B _ I K"], y: Float[Tensor, "B _ K J"]) -> Tensor:
    """out + x y, in the place of out where layouts allow it; None is nothing yet."""
    if out is None:
        return x @ y if y.shape[1] in (1, x.shape[1]) else _product(x, y)
    if out.shape[1] == x.shape[1] == y.shape[1] and out.is_contiguous():
        out.view(-1, *out.shape[2:]).baddbmm_(x.flatten(0, 1), y.flatten(0, 1))
        return out
    product = x @ y if y.shape[1] == 1 else _product(x, y)
    return out.add_(_alike(product, out))


def _across(x: Float[Tensor, "B H I V"], y: Float[Tensor, "B H K V"], like: Tensor) -> Float[Tensor, "B _ I K"]:
    """x y^T, summed over heads where all share what it is the gradient of."""
    if like.shape[1] == x.shape[1]:
        return x @ y.mT
    return torch.einsum("bhiv,bhkv->bik", x, y).unsqueeze(1)


def _alike(gradient: Tensor, t: Tensor) -> Tensor:
    """Summed over heads where all share t."""
    return gradient if gradient.shape == t.shape else gradient.sum(1, keepdim=True)
