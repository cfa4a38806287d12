"""Named changes of the distribution at evaluation (Garg et al. 2022, section 4; Grazzi et al. 2024, figures 1 and 9).

A shift is a kind and, for some kinds, a number: `orthants`, `input-scale-2`, `weight-scale-0.333`, `noisy-1`,
`points-160`; any of them goes up to more examples as `orthants+points-160`. The functions are those of the task itself.
Kinds that constrain directions draw x from N(0, I), as the papers do for models trained on skewed inputs too; the
others keep the task's own inputs.

- `orthants`: all context inputs in one random orthant per episode, the query free;
- `orthogonal-query`: the query orthogonal to all context inputs, its length as drawn; defined for n < d;
- `repeated-query`: the query is an earlier point, label and all, so that error 0 is attainable; defined for n > 0;
- `subspace`: coordinates from ceil(d/2) on set to 0 (paper); `subspace-random`: a random ceil(d/2)-dimensional
  subspace, scaled by sqrt(d / ceil(d/2)) (Garg's code, sqrt 2 for even d);
- `skewed`, `isotropic`: inputs of the skewed family, of N(0, I);
- `noisy-S`: label noise of standard deviation S (1 when not given);
- `input-scale-C`, `weight-scale-C`: all inputs, all noiseless outputs scaled; `wide-query-C`: only the query (3 when
  not given);
- `points-N`: N context examples instead of the trained number. The caller asks for them; sampling changes nothing.

Gaussian processes (ICICL-TNP, section 5.1 and appendix G.1) have shifts of their own, see
`iclbench.families.gp_mixture`: `ood-lengthscale`; one kernel for all episodes, `rbf-L` and `periodic-L`; related
datasets of another process than the context's, `mismatch-rbf`, `mismatch-near`, `mismatch-far`, and `mismatch-same`
beside them.

Images have `unseen-classes` and `other-label`, see `iclbench.families.image_completion`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from iclbench.episodes import Points, take
from iclbench.errors import UnknownNameError, UsageError
from iclbench.families.sampling import normal, orthogonal, random_signs, skewed_inputs
from iclbench.registry import canonical

# Kinds that carry a number, and the number they have when none is given (None: it must be given).
NUMBERED: dict[str, float | None] = {
    "noisy": 1.0,
    "input-scale": None,
    "weight-scale": None,
    "wide-query": 3.0,
    "rbf": None,
    "periodic": None,
    "points": None,
}
# Kinds whose inputs start from N(0, I) whatever the task's own inputs are.
_ISOTROPIC = {"orthants", "orthogonal-query", "subspace", "subspace-random", "isotropic", "skewed"}
# What any function of a vector can be evaluated under.
FUNCTION_KINDS = frozenset(
    _ISOTROPIC | {"noisy", "input-scale", "weight-scale", "wide-query", "points", "repeated-query"}
)
# What Gaussian processes can be evaluated under, and those of them that set related datasets against the context.
MISMATCHES = frozenset({"mismatch-same", "mismatch-rbf", "mismatch-near", "mismatch-far"})
PROCESS_KINDS = MISMATCHES | {"ood-lengthscale", "rbf", "periodic", "points"}
# What images can be completed under.
IMAGE_KINDS = frozenset({"unseen-classes", "other-label", "points"})
KINDS = FUNCTION_KINDS | PROCESS_KINDS | IMAGE_KINDS | {"none"}


class Inputs(NamedTuple):
    """Inputs of a batch under a shift: the context's, one query per prefix (None: the next context point), and which
    count."""

    x: Float[Tensor, "B N Dx"]
    queries: Float[Tensor, "B N Dx"] | None = None
    defined: Bool[Tensor, "B N"] | None = None

    def truncate(self, active_dims: int | None) -> Inputs:
        """Only the first dimensions in use, all others 0."""
        if active_dims is None:
            return self
        used = torch.arange(self.x.shape[-1], device=self.x.device) < active_dims
        return self._replace(x=self.x * used, queries=None if self.queries is None else self.queries * used)


@dataclass(frozen=True)
class Shift:
    """One parsed shift: its kind, its number, and `examples` in context if not the trained number."""

    kind: str
    value: float = 1.0
    examples: int | None = None

    @classmethod
    def parse(cls, name: str) -> Shift:
        """Read `kind`, `kind-number` or either of them with `+points-N`.

        Raises:
            UnknownNameError: no such kind.
            UsageError: a number is missing, not positive, or goes with a kind that has none.
        """
        base, plus, longer = canonical(name).partition("+")
        if plus:
            length = cls.parse(longer)
            if length.kind != "points" or base == "none" or base.startswith("points-"):
                raise UsageError(f"shift '{name}': only the number of examples can be joined to another shift, "
                                 "like orthants+points-160")  # fmt: skip
            return replace(cls.parse(base), examples=length.examples)
        found = re.fullmatch(r"(.+?)(?:-([0-9.]+))?", base)
        kind, number = found.groups() if found else (name, None)
        if kind not in KINDS:
            raise UnknownNameError("shift", kind, KINDS)
        if number is None:
            value = NUMBERED.get(kind, 1.0)
            if value is None:
                raise UsageError(f"shift '{kind}' needs a number, like {kind}-2")
            return cls(kind, value)
        if kind not in NUMBERED:
            raise UsageError(f"shift '{name}': a number goes only with {', '.join(sorted(NUMBERED))}; write '{kind}'")
        value = _positive(number)
        if value is None or (kind == "points" and not value.is_integer()):
            wanted = "a whole number of at least 1" if kind == "points" else "a positive number"
            raise UsageError(f"shift '{name}': expected {wanted} after '{kind}-', got '{number}'")
        return cls(kind, value, int(value) if kind == "points" else None)

    @property
    def isotropic(self) -> bool:
        """Whether the inputs start from N(0, I) instead of the task's own distribution."""
        return self.kind in _ISOTROPIC

    @property
    def weight_scale(self) -> float:
        """What noiseless outputs are multiplied by."""
        return self.value if self.kind == "weight-scale" else 1.0

    def noise(self, trained: float) -> float:
        """Standard deviation of the label noise, given that of the task."""
        return self.value if self.kind == "noisy" else trained

    def place(self, x: Float[Tensor, "B N Dx"], generator: torch.Generator) -> Inputs:
        """Where context and queries lie, from inputs of the task (`isotropic`: of N(0, I)). The query after the first n
        points is row n."""
        batch, points, dim = x.shape
        half = math.ceil(dim / 2)
        match self.kind:
            case "orthants":
                return Inputs(x.abs() * random_signs((batch, 1, dim), generator), queries=x)
            case "orthogonal-query":
                free = _orthogonal_to_earlier(x, normal(x.shape, generator))
                return Inputs(x, free, (torch.arange(points, device=x.device) < dim).expand(batch, points))
            case "subspace":
                return Inputs(x * (torch.arange(dim, device=x.device) < half))
            case "subspace-random":
                basis = orthogonal(normal((batch, dim, half), generator))
                return Inputs(math.sqrt(dim / half) * x[..., :half] @ basis.transpose(1, 2))
            case "skewed":
                return Inputs(skewed_inputs(x, generator))
            case "wide-query":
                return Inputs(x, queries=self.value * x)
            case "input-scale":
                return Inputs(self.value * x)
        return Inputs(x)


def repeated(context: Points, generator: torch.Generator) -> tuple[Points, Bool[Tensor, "B N"]]:
    """For every n a random one of the first n points, and whether there is one (n > 0)."""
    batch, points = context.mask.shape
    before = torch.arange(points, device=generator.device)
    uniform = torch.rand((batch, points), generator=generator, device=generator.device)
    earlier = (uniform * before).long()
    return context.map(lambda t: take(t, earlier)), (before > 0).expand(batch, points)


def _positive(number: str) -> float | None:
    try:
        value = float(number)
    except ValueError:
        return None
    return value if 0 < value < math.inf else None


def _orthogonal_to_earlier(x: Float[Tensor, "B N D"], drawn: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
    """Row n of `drawn` made orthogonal to the first n rows of `x`, its length kept; from row D on, as drawn."""
    dim = x.shape[-1]
    # The first n columns of Q span the first n inputs, for every n at once.
    basis = torch.linalg.qr(x[:, :dim].double().transpose(1, 2)).Q
    row = torch.arange(x.shape[1], device=x.device).unsqueeze(1)
    earlier = torch.arange(basis.shape[-1], device=x.device) < row
    wide = drawn.double()
    free = wide - ((wide @ basis) * earlier) @ basis.transpose(1, 2)
    free = free * wide.norm(dim=-1, keepdim=True) / free.norm(dim=-1, keepdim=True)
    return torch.where(row < dim, free.to(x.dtype), drawn)
