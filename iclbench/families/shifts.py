"""Shifts: named changes of the distribution at evaluation, and the rules for combining them.

A shift consists of parts joined by `+`, in any order: `noisy-1`, `isotropic+noisy-1`, `orthants+points-160`. A part is
a kind and, for some kinds, a number. The normal form of both `noisy` and `noisy-1.0` is `noisy-1`. Every kind sets some
aspects of an episode. Parts can be combined if no two of them set the same aspect. A family lists its kinds in the
order in which they take effect, which is also their order in the name of the shift (`Shift.name`). `points-N` applies
to all families: the caller draws N context examples instead of the trained number.

The kinds of function families are listed here (Garg et al. 2022, section 4; Grazzi et al. 2024, figures 1 and 9). They
change inputs and labels, not the functions. The papers evaluate all of them on inputs from N(0, I), even for models
trained on skewed inputs (appendix A.1.3; the released evaluation code always uses Gaussian inputs). Here, too, kinds
that constrain directions transform inputs from N(0, I). The other kinds use the inputs of the task or, in combination
with `isotropic`, the inputs of the papers. The kinds are:

- `isotropic`, `skewed`: inputs from N(0, I), or from the skewed distribution of the papers;
- `subspace`: coordinates after the first ceil(d/2) are 0 (paper); `subspace-random`: inputs are in a random subspace of
  dimension ceil(d/2) and are scaled by sqrt(d / ceil(d/2)) (Garg's code, sqrt 2 for even d);
- `orthants`: all context inputs of an episode are in one random orthant, and the query is unconstrained;
- `orthogonal-query`: the query is orthogonal to all context inputs and has its original length; defined for n < d;
- `repeated-query`: the query is an earlier point with its label, so error 0 is attainable; defined for n > 0;
- `wide-query-C`: only the query is scaled, by C (default: 3);
- `input-scale-C`, `weight-scale-C`: all inputs or all noiseless outputs are scaled by C;
- `noisy-S`: label noise of standard deviation S (default: 1).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from difflib import get_close_matches
from itertools import combinations
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from iclbench.core.episodes import Points, take
from iclbench.core.errors import UnknownNameError, UsageError, shorten
from iclbench.core.formats import canonical
from iclbench.families.sampling import normal, orthogonal, random_signs, skewed_inputs


class Number(NamedTuple):
    """The number that a kind of shift takes: its default (None if the number is required), whether it must be an
    integer, and the largest value."""

    default: float | None = None
    is_integer: bool = False
    largest: float = math.inf


@dataclass(frozen=True)
class Kind:
    """A kind of shift.

    Attributes:
        aspects: the aspects of an episode that the kind sets, in words. Two kinds that set the same aspect cannot be
            combined.
        number: the number of the kind; None if it has no number.
        related_from: name of the process of the related datasets; None if the kind does not change it.
    """

    aspects: tuple[str, ...]
    number: Number | None = None
    related_from: str | None = field(default=None, kw_only=True)


Kinds = Mapping[str, Kind]
_POINTS = "points"
COMMON_KINDS: Kinds = {_POINTS: Kind(("the number of examples",), Number(is_integer=True))}


class Part(NamedTuple):
    """A kind with its number, and its name in normal form: `noisy-1` for `noisy` and `noisy-1.0`."""

    kind: str
    value: float = 1.0
    text: str = ""


@dataclass(frozen=True)
class Shift:
    """A parsed shift: its parts in the order in which they take effect. Without parts it is the shift `none`."""

    parts: tuple[Part, ...] = ()

    @classmethod
    def parse(cls, name: str, kinds: Kinds) -> Shift:
        """Parse a shift. `kinds` are the kinds of the family in the order in which they take effect.

        Raises:
            UsageError: the family has no such kind; a number is missing, not positive or not allowed; or two parts set
                the same aspect.
        """
        allowed = {**kinds, **COMMON_KINDS}
        canonical_name = canonical(name)
        if canonical_name == "none":
            return cls()
        order = list(allowed)
        parts = [_parse_part(text, name, allowed) for text in canonical_name.split("+")]
        parts.sort(key=lambda part: order.index(part.kind))
        for a, b in combinations(parts, 2):
            shared_aspects = set(allowed[a.kind].aspects) & set(allowed[b.kind].aspects)
            if shared_aspects:
                raise UsageError(
                    f"shift '{name}': '{a.text}' and '{b.text}' both set {min(shared_aspects)}; remove one of them",
                    code="conflict",
                )
        return cls(tuple(parts))

    @property
    def name(self) -> str:
        """The name in tables and hashes, with the parts in the order in which they take effect."""
        return "+".join(part.text for part in self.parts) or "none"

    def part(self, *kinds: str) -> Part | None:
        """Return the first part that has one of these kinds, or None if the shift has no such part."""
        return next((part for part in self.parts if part.kind in kinds), None)

    def value(self, kind: str, default: float) -> float:
        """Return the number of the part of this kind, or `default` if the shift has no such part."""
        part = self.part(kind)
        return default if part is None else part.value

    @property
    def distribution(self) -> str:
        """The name without the number of context examples."""
        return Shift(tuple(part for part in self.parts if part.kind != _POINTS)).name

    @property
    def examples(self) -> int | None:
        """Number of context examples; None if the shift does not set it."""
        part = self.part(_POINTS)
        return None if part is None else int(part.value)

    def with_examples(self, n: int) -> Shift:
        """Return the same shift with n context examples, named with `points-N`.

        Raises:
            UsageError: the shift already sets the number of examples.

        >>> Shift().with_examples(40).name, Shift((Part("noisy", 1.0, "noisy-1"),)).with_examples(40).name
        ('points-40', 'noisy-1+points-40')
        """
        if self.examples is not None:
            raise UsageError(
                f"shift '{self.name}' sets the number of examples, but {n} examples are requested; remove one of them",
                code="conflict",
            )
        return Shift((*self.parts, Part(_POINTS, float(n), f"{_POINTS}-{n}")))


def _parse_part(text: str, shift: str, kinds: Kinds) -> Part:
    match = re.fullmatch(r"(.+?)(?:-([0-9.]+))?", text)
    kind, number = match.groups() if match else (text, None)
    if kind == "none":
        raise UsageError(f"shift '{shift}': 'none' cannot be combined with other shifts; remove it", code="conflict")
    if kind not in kinds:
        if get_close_matches(kind, kinds, 1, 0.75):
            raise UnknownNameError("shift", kind, kinds)
        names = ", ".join(sorted([*kinds, "none"]))
        raise UsageError(
            f"the shift {shorten(kind)!r} does not apply to this task; known: {names}", code="not-applicable"
        )
    number_rule = kinds[kind].number
    if number is None:
        if number_rule is None:
            return Part(kind, text=kind)
        if number_rule.default is None:
            raise UsageError(f"shift '{kind}' requires a number, like {kind}-2", code="missing-value")
        return _part_with_number(kind, number_rule.default)
    if number_rule is None:
        kinds_with_number = ", ".join(sorted(name for name, entry in kinds.items() if entry.number))
        raise UsageError(f"shift '{shift}': only {kinds_with_number} have a number; write '{kind}'", code="bad-syntax")
    value = _parse_positive(number)
    if value is None or (number_rule.is_integer and not value.is_integer()):
        expected = "a positive integer" if number_rule.is_integer else "a positive number"
        raise UsageError(f"shift '{shift}': expected {expected} after '{kind}-', got '{number}'", code="bad-value")
    if value > number_rule.largest:
        raise UsageError(
            f"shift '{shift}': expected at most {number_rule.largest:g} after '{kind}-', got '{number}'",
            code="bad-value",
        )
    return _part_with_number(kind, value)


def _part_with_number(kind: str, value: float) -> Part:
    return Part(kind, value, f"{kind}-{Decimal(repr(value)).normalize():f}")


def _parse_positive(number: str) -> float | None:
    try:
        value = float(number)
    except ValueError:
        return None
    return value if 0 < value < math.inf else None


class Inputs(NamedTuple):
    """Inputs of a batch under a shift: context inputs, one query per prefix (default: the next context point), and the
    positions at which the query is defined (default: all)."""

    x: Float[Tensor, "B N Dx"]
    queries: Float[Tensor, "B N Dx"] | None = None
    is_defined: Bool[Tensor, "B N"] | None = None

    def map(self, change: Callable[[Tensor], Tensor]) -> Inputs:
        """Apply the same change to context inputs and queries."""
        return self._replace(x=change(self.x), queries=None if self.queries is None else change(self.queries))

    def truncate(self, active_dims: int | None) -> Inputs:
        """Set all dimensions except the first `active_dims` to 0."""
        if active_dims is None:
            return self
        is_active = torch.arange(self.x.shape[-1], device=self.x.device) < active_dims
        return self.map(lambda x: x * is_active)


# Maps inputs to shifted inputs, given the number of the kind and a source of randomness.
Transform = Callable[[Inputs, float, torch.Generator], Inputs]


@dataclass(frozen=True)
class FunctionKind(Kind):
    """A kind for functions of a vector.

    Attributes:
        transform: maps inputs to shifted inputs, where row n of the queries follows the first n points; None if the
            inputs do not change.
        isotropic: whether the inputs are drawn from N(0, I) instead of the distribution of the task.
    """

    transform: Transform | None = None
    isotropic: bool = False


def _subspace(inputs: Inputs, _: float, generator: torch.Generator) -> Inputs:
    dim = inputs.x.shape[-1]
    return inputs.truncate(math.ceil(dim / 2))


def _random_subspace(inputs: Inputs, _: float, generator: torch.Generator) -> Inputs:
    batch, _, dim = inputs.x.shape
    half = math.ceil(dim / 2)
    basis = orthogonal(normal((batch, dim, half), generator))
    return Inputs(math.sqrt(dim / half) * inputs.x[..., :half] @ basis.transpose(1, 2))


def _orthants(inputs: Inputs, _: float, generator: torch.Generator) -> Inputs:
    batch, _, dim = inputs.x.shape
    return Inputs(inputs.x.abs() * random_signs((batch, 1, dim), generator), queries=inputs.x)


def _orthogonal_query(inputs: Inputs, _: float, generator: torch.Generator) -> Inputs:
    x = inputs.x
    queries = _orthogonal_to_earlier(x, normal(x.shape, generator))
    batch, points, dim = x.shape
    return Inputs(x, queries, (torch.arange(points, device=x.device) < dim).expand(batch, points))


def _skewed(inputs: Inputs, _: float, generator: torch.Generator) -> Inputs:
    return Inputs(skewed_inputs(inputs.x, generator))


def _wide_query(inputs: Inputs, scale: float, _: torch.Generator) -> Inputs:
    return Inputs(inputs.x, queries=scale * inputs.x)


def _scale(inputs: Inputs, scale: float, _: torch.Generator) -> Inputs:
    return inputs.map(lambda x: scale * x)


_INPUTS, _QUERY = "the inputs", "the query"
FUNCTION_KINDS: Mapping[str, FunctionKind] = {
    "isotropic": FunctionKind((_INPUTS,), isotropic=True),
    "skewed": FunctionKind((_INPUTS,), transform=_skewed, isotropic=True),
    "subspace": FunctionKind((_INPUTS,), transform=_subspace, isotropic=True),
    "subspace-random": FunctionKind((_INPUTS,), transform=_random_subspace, isotropic=True),
    "orthants": FunctionKind((_INPUTS, _QUERY), transform=_orthants, isotropic=True),
    "orthogonal-query": FunctionKind((_INPUTS, _QUERY), transform=_orthogonal_query, isotropic=True),
    # `repeat_earlier_points` chooses the query among the points with labels.
    "repeated-query": FunctionKind((_QUERY,)),
    "wide-query": FunctionKind((_QUERY,), Number(3.0), _wide_query),
    "input-scale": FunctionKind(("the scale of the inputs",), Number(), _scale),
    "weight-scale": FunctionKind(("the scale of the outputs",), Number()),
    "noisy": FunctionKind(("the label noise",), Number(1.0)),
}


def repeat_earlier_points(context: Points, generator: torch.Generator) -> tuple[Points, Bool[Tensor, "B N"]]:
    """Return, for every n, a random one of the first n points, and whether such a point exists (n > 0)."""
    batch, points = context.mask.shape
    counts = torch.arange(points, device=generator.device)
    uniform = torch.rand((batch, points), generator=generator, device=generator.device)
    earlier_positions = (uniform * counts).long()
    return context.map(lambda t: take(t, earlier_positions)), (counts > 0).expand(batch, points)


def _orthogonal_to_earlier(x: Float[Tensor, "B N D"], queries: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
    """Project row n of `queries` to be orthogonal to the first n rows of `x`, and rescale it to its original length.
    Rows from D on are unchanged."""
    dim = x.shape[-1]
    # The first n columns of Q span the first n inputs, for every n at once.
    basis = torch.linalg.qr(x[:, :dim].double().transpose(1, 2)).Q
    row = torch.arange(x.shape[1], device=x.device).unsqueeze(1)
    is_earlier = torch.arange(basis.shape[-1], device=x.device) < row
    double_queries = queries.double()
    projected = double_queries - ((double_queries @ basis) * is_earlier) @ basis.transpose(1, 2)
    projected = projected * double_queries.norm(dim=-1, keepdim=True) / projected.norm(dim=-1, keepdim=True)
    return torch.where(row < dim, projected.to(x.dtype), queries)
