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

Nothing overflows however strong a decay is, and sums of g are in double precision, so that a strong one costs those
after it no digits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from iclbench.core.records import TensorRecord

# Tokens of a chunk. A constant, so that answers do not depend on the machine.
CHUNK = 32
# Of longer sequences a backward pass computes stretches of so many chunks again, each from its tokens and the state
# before it: memory grows with these alone. Of shorter ones that would cost time and save little.
_HELD = 8
# A decay of e^-1000 is 0 in every precision; an infinite one would subtract from itself.
_LEAST = -1000.0
# Decays of rows that sum up to less than this in a chunk can be undone again without overflow.
_STRONG = 80.0


@dataclass(frozen=True)
class Terms(TensorRecord):
    """What T tokens do to the states of H heads. An axis of heads may have one entry for all of them.

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

    def split(self, size: int) -> list[Terms]:
        """Consecutive stretches of so many tokens, the last as long as remains."""
        names = ("q", "k", "v", "g", "a", "b")
        parts = [None if (t := getattr(self, name)) is None else t.split(size, 2) for name in names]
        count = -(-self.v.shape[2] // size)
        return [Terms(*(None if part is None else part[n] for part in parts)) for n in range(count)]


def linear_recurrence(
    terms: Terms, state: Float[Tensor, "B H K V"], chunk: int = CHUNK
) -> tuple[Float[Tensor, "B H T V"], Float[Tensor, "B H K V"]]:
    """The answers o at all tokens after a state, and the state after them.

    Args:
        terms: of at least one token.
        state: S before them.
        chunk: tokens C that go together; a power of two, one for the recurrence step by step.
    """
    outputs, _, state = _run(terms, None, state, chunk)
    return outputs, state


def peek(terms: Terms, state: Float[Tensor, "B H K V"]) -> Float[Tensor, "B H Q V"]:
    """The answers of tokens that each come next after the state, on their own: o = S^T r + (k.q) v with r = e^g q +
    a (b.q)."""
    return _asking(terms) @ state + _own(terms)


def fork(
    terms: Terms, asked: Terms, state: Float[Tensor, "B H K V"], chunk: int = CHUNK
) -> tuple[Float[Tensor, "B H T V"], Float[Tensor, "B H N V"], Float[Tensor, "B H K V"]]:
    """The answers at pairs of tokens, those of tokens that each come before a pair of their own and leave no trace,
    and the state after all pairs.

    Args:
        terms: of T = 2N tokens.
        asked: of N tokens, each after the state and the pairs before its own.
        state: S before them.
        chunk: tokens that go together, an even power of two.
    """
    rows = _asking(asked)
    # One row for every token, those of the second of each pair being 0.
    rows = torch.stack([rows, torch.zeros_like(rows)], 3).flatten(2, 3)
    outputs, read, state = _run(terms, rows, state, chunk)
    assert read is not None
    return outputs, read[:, :, ::2] + _own(asked), state


def _asking(terms: Terms) -> Float[Tensor, "B _ Q K"]:
    """r of `peek`."""
    rows = terms.q if terms.g is None else terms.q * terms.g.exp()
    if terms.a is None or terms.b is None:
        return rows
    return rows + terms.a * (terms.b * terms.q).sum(-1, keepdim=True)


def _own(terms: Terms) -> Float[Tensor, "B H Q V"]:
    return (terms.k * terms.q).sum(-1, keepdim=True) * terms.v


def _run(
    terms: Terms, rows: Tensor | None, state: Tensor, chunk: int
) -> tuple[Float[Tensor, "B H T V"], Float[Tensor, "B H T V"] | None, Float[Tensor, "B H K V"]]:
    """Stretch after stretch of chunks, `rows` being what reads the state before each token."""
    held = _HELD * chunk
    if terms.v.shape[2] <= held or not torch.is_grad_enabled():
        return _stretch(terms, rows, state, chunk)
    parts = []
    for part, asked in _stretches(terms, rows, held):
        o, read, state = checkpoint(
            _stretch, part, asked, state, chunk, use_reentrant=False, preserve_rng_state=False, determinism_check="none"
        )
        parts.append((o, read))
    return _joined(parts, state)


def _stretch(terms: Terms, rows: Tensor | None, state: Tensor, chunk: int) -> tuple[Tensor, Tensor | None, Tensor]:
    """Chunk after chunk."""
    parts = []
    for part, asked in _stretches(terms, rows, chunk):
        o, read, state = _chunk(part, asked, state)
        parts.append((o, read))
    return _joined(parts, state)


def _stretches(terms: Terms, rows: Tensor | None, size: int) -> Iterator[tuple[Terms, Tensor | None]]:
    parts = terms.split(size)
    return zip(parts, [None] * len(parts) if rows is None else rows.split(size, 2), strict=True)


def _joined(parts: list[tuple[Tensor, Tensor | None]], state: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
    if len(parts) == 1:
        return *parts[0], state
    reads = [read for _, read in parts if read is not None]
    return torch.cat([o for o, _ in parts], 2), torch.cat(reads, 2) if reads else None, state


def _chunk(terms: Terms, rows: Tensor | None, state: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
    """Answers, what rows before each token read, and the state after the chunk."""
    decays = _decays(terms)
    written = [(decays.columns(terms.k), terms.k, terms.v)]

    def after(x: Tensor) -> Tensor:
        """What x reads after its own token."""
        row, read = decays.rows(x), decays.read(x, state)
        for column, _, value in written:
            read = (decays.scores(row, column) @ value).add_(read)
        return read

    def before(x: Tensor) -> Tensor:
        """What x reads before its own token: after the one before."""
        return _later(after(_sooner(x)), x[:, :, :1] @ state)

    if terms.a is not None and terms.b is not None:
        column = decays.columns(terms.b)
        system = -_later(decays.scores(decays.rows(_sooner(terms.a)), column))
        taken = torch.linalg.solve_triangular(system, before(terms.a), upper=False, unitriangular=True)
        written.append((column, terms.b, taken))
    left = decays.all(state)
    for _, key, value in written:
        left = decays.left(key, value).add_(left)
    return after(terms.q), None if rows is None else before(rows), left


def _sooner(x: Tensor) -> Tensor:
    """Every row where the one before it was; 0 in the last."""
    return F.pad(x[:, :, 1:], (0, 0, 0, 1))


def _later(x: Tensor, first: Tensor | None = None) -> Tensor:
    """Every row where the next one was, behind a first one (None: 0)."""
    return F.pad(x[:, :, :-1], (0, 0, 1, 0)) if first is None else torch.cat([first, x[:, :, :-1]], 2)


def _decays(terms: Terms) -> _Decays:
    if terms.g is None:
        return _Decays()
    c = terms.g.double().clamp(min=_LEAST).cumsum(2)
    if terms.g.shape[-1] == 1:
        return _OfHeads(c, terms.k.dtype)
    # Decided for the batch at once: neighbours change the way, and so the last digits.
    few = bool((c[:, :, -1] > -_STRONG).all())
    return (_OfRows if few else _OfRowsApart)(c, terms.k.dtype)


class _Decays:
    """What decays do within a chunk, in the terms of the module's docstring; here there are none."""

    def rows(self, x: Tensor) -> Any:
        """The part of x in scores."""
        return x

    def columns(self, y: Tensor) -> Any:
        """The part of y in scores."""
        return y

    def scores(self, rows: Any, columns: Any) -> Float[Tensor, "B H C C"]:
        """E(x, c, y) to the diagonal."""
        return (rows @ columns.mT).tril()

    def read(self, x: Tensor, state: Tensor) -> Float[Tensor, "B H C V"]:
        """(x e^c) S."""
        return x @ state

    def left(self, key: Tensor, value: Tensor) -> Float[Tensor, "B H K V"]:
        """(key e^(c_C - c))^T value."""
        return key.mT @ value

    def all(self, state: Tensor) -> Float[Tensor, "B H K V"]:
        """e^(c_C) S."""
        return state


class _OfHeads(_Decays):
    """One per head: scores are products, weighed by what is left of a column at a row."""

    def __init__(self, c: Float[Tensor, "B _ C 1"], dtype: torch.dtype) -> None:
        self.weights = _Left.apply(c, dtype)
        self.now = c.exp().to(dtype)

    def scores(self, rows: Tensor, columns: Tensor) -> Tensor:
        return (rows @ columns.mT) * self.weights

    def read(self, x: Tensor, state: Tensor) -> Tensor:
        return (x @ state) * self.now

    def left(self, key: Tensor, value: Tensor) -> Tensor:
        return key.mT @ (value * self.weights[:, :, -1, :, None])

    def all(self, state: Tensor) -> Tensor:
        return state * self.now[:, :, -1:]


class _Left(torch.autograd.Function):
    """e^(c_i - c_j) for j <= i, else 0, in one buffer: C times as many numbers as c has."""

    @staticmethod
    def forward(ctx: Any, c: Tensor, dtype: torch.dtype) -> Tensor:
        weights = (c - c.mT).to(dtype).exp_().tril_()
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (weights,) = ctx.saved_tensors
        each = gradients[0] * weights
        return (each.sum(-1) - each.sum(-2)).unsqueeze(-1).double(), None


class _OfRows(_Decays):
    """One per row of the state, all together too weak to overflow: rows and columns decay from and to the middle."""

    def __init__(self, c: Float[Tensor, "B H C K"], dtype: torch.dtype) -> None:
        middle = 0.5 * c[:, :, -1:]
        self.up, self.down = (c - middle).to(dtype).exp(), (middle - c).to(dtype).exp()
        self.half = middle.exp().to(dtype)

    def rows(self, x: Tensor) -> Tensor:
        return x * self.up

    def columns(self, y: Tensor) -> Tensor:
        return y * self.down

    def read(self, x: Tensor, state: Tensor) -> Tensor:
        return (x * self.up) @ (state * self.half.mT)

    def left(self, key: Tensor, value: Tensor) -> Tensor:
        return (key * self.down).mT @ value * self.half.mT

    def all(self, state: Tensor) -> Tensor:
        return state * self.half.square().mT


class _OfRowsApart(_Decays):
    """One per row, of any strength: a product of matrices for every pair of neighbouring blocks of 1, 2, 4, ... tokens,
    columns of the first decaying to its end and rows of the second from there on."""

    def __init__(self, c: Float[Tensor, "B H C K"], dtype: torch.dtype) -> None:
        self.length = c.shape[2]
        self.extra = (1 << (self.length - 1).bit_length()) - self.length
        self.now, self.rest = c.exp().to(dtype), (c[:, :, -1:] - c).to(dtype).exp()
        # Beyond the chunk nothing decays, and rows and columns are 0.
        c = torch.cat([c, c[:, :, -1:].expand(-1, -1, self.extra, -1)], 2)
        self.decays = []
        for level in range((c.shape[2] - 1).bit_length()):
            first, second = _halves(c, level)
            end = first[:, :, :, -1:]
            self.decays.append(((second - end).to(dtype).exp(), (end - first).to(dtype).exp()))

    def rows(self, x: Tensor) -> list[Tensor]:
        """As it is, and the second halves of the blocks of every level."""
        x = F.pad(x, (0, 0, 0, self.extra))
        return [x, *(_halves(x, level)[1] * rows for level, (rows, _) in enumerate(self.decays))]

    def columns(self, y: Tensor) -> list[Tensor]:
        """As it is, and the first halves."""
        y = F.pad(y, (0, 0, 0, self.extra))
        return [y, *(_halves(y, level)[0] * columns for level, (_, columns) in enumerate(self.decays))]

    def scores(self, rows: list[Tensor], columns: list[Tensor]) -> Tensor:
        (x, *seconds), (y, *firsts) = rows, columns
        blocks = (x * y).sum(-1)[..., None, None]
        for first, second in zip(firsts, seconds, strict=True):
            upper, lower = blocks.unflatten(2, (-1, 2)).unbind(3)
            upper = torch.cat([upper, torch.zeros_like(upper)], -1)
            blocks = torch.cat([upper, torch.cat([second @ first.mT, lower], -1)], -2)
        return blocks[:, :, 0, : self.length, : self.length]

    def read(self, x: Tensor, state: Tensor) -> Tensor:
        return (x * self.now) @ state

    def left(self, key: Tensor, value: Tensor) -> Tensor:
        return (key * self.rest).mT @ value

    def all(self, state: Tensor) -> Tensor:
        return state * self.now[:, :, -1:].mT


def _halves(t: Float[Tensor, "B H C K"], level: int) -> tuple[Tensor, Tensor]:
    """Every block of 2^(level + 1) tokens in its two halves, `(B, H, blocks, 2^level, K)`."""
    first, second = t.unflatten(2, (-1, 2, 1 << level)).unbind(3)
    return first, second
