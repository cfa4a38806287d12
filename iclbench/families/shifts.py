"""Named changes of the distribution at evaluation (Garg et al. 2022, section 4; Grazzi et al. 2024, figures 1 and 9).

A shift is a kind and, for some kinds, a number: `orthants`, `input-scale-2`, `weight-scale-0.333`, `noisy-1`, `points-160`.
Those that constrain directions (`orthants`, `orthogonal-query`, `subspace`) draw x from N(0, I), as the papers do for models
trained on skewed inputs too; the others keep the task's own inputs. Kinds:

- `orthants`: all context inputs in one random orthant per episode, the query free;
- `orthogonal-query`: the query orthogonal to all context inputs, |x| as drawn; defined for n < d;
- `repeated-query`: the query equals an earlier input, so that error 0 is attainable; defined for n > 0;
- `subspace`: coordinates from ceil(d/2) on set to 0 (paper); `subspace-random`: a random ceil(d/2)-dimensional subspace, scaled
  by sqrt(d / ceil(d/2)) (Garg's code, sqrt 2 for even d);
- `skewed`, `isotropic`: inputs of the skewed family, of N(0, I);
- `noisy-S`: label noise of standard deviation S (1 when not given);
- `input-scale-C`, `weight-scale-C`: all inputs, all outputs scaled; `wide-query-C`: only the query (3 when not given);
- `points-N`: N context examples instead of the trained number.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from iclbench.episodes import Episodes, Points, take
from iclbench.errors import UsageError
from iclbench.families.sampling import normal, skewed_inputs

if TYPE_CHECKING:
    from iclbench.families.base import FunctionFamily, Truth

# Kinds that carry a number, and the number they have when none is given.
_NUMBERED = {"noisy": 1.0, "input-scale": None, "weight-scale": None, "wide-query": 3.0, "points": None}
_ISOTROPIC = ("orthants", "orthogonal-query", "subspace", "subspace-random", "isotropic", "skewed")


@dataclass(frozen=True)
class Shift:
    """One parsed shift: its kind and its number."""

    kind: str
    value: float = 1.0

    @classmethod
    def parse(cls, name: str) -> Shift:
        """Read `kind` or `kind-number`; raises `UsageError` when a needed number is missing or is not positive."""
        found = re.fullmatch(r"([a-z-]*[a-z])(?:-([0-9.]+))?", name)
        if found is None:
            raise UsageError(f"'{name}' is not a shift; write a kind or kind-number, like orthants or input-scale-2")
        kind, number = found.groups()
        if number is None:
            default = _NUMBERED.get(kind, 1.0)
            if default is None:
                raise UsageError(f"shift '{kind}' needs a number, like {kind}-2")
            return cls(kind, default)
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if kind not in _NUMBERED or not 0 < value < math.inf:
            raise UsageError(f"'{name}' is not a shift; a positive number goes with {', '.join(sorted(_NUMBERED))}")
        return cls(kind, value)

    @property
    def output_scale(self) -> float:
        return self.value if self.kind == "weight-scale" else 1.0

    def noise_variance(self, trained_noise: float) -> float:
        return self.value**2 if self.kind == "noisy" else trained_noise**2

    def sample(
        self,
        family: FunctionFamily,
        truth: Truth,
        episodes: int,
        points: int,
        generator: torch.Generator,
        active_dims: int | None,
    ) -> Episodes:
        """Episodes of `family` under this shift, for functions already drawn."""
        if self.kind in _ISOTROPIC:
            x = normal((episodes, points, family.x_dim), generator)
        else:
            x = family.inputs(episodes, points, generator)
        x, queries, defined = self._place(x, generator)
        if active_dims is not None:
            x[..., active_dims:] = 0
        if self.kind == "input-scale":
            x = self.value * x
        noise = math.sqrt(self.noise_variance(family.noise))
        context = family.observe(truth, x, generator, noise, self.output_scale)
        targets = None
        if self.kind == "repeated-query":
            targets, defined = _repeated(context, generator)
        elif queries is not None:
            targets = family.observe(truth, queries, generator, noise, self.output_scale)
        scored = context.mask if defined is None else defined
        return Episodes(context=context, scored=scored, targets=targets, truth=truth)

    def _place(
        self, x: Float[Tensor, "B N Dx"], generator: torch.Generator
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Context inputs, queries (None: the next context point) and which of them are defined."""
        batch, points, dim = x.shape
        half = math.ceil(dim / 2)
        match self.kind:
            case "orthants":
                signs = torch.sign(normal((batch, 1, dim), generator))
                return x.abs() * signs, x, None
            case "orthogonal-query":
                return x, _orthogonal(x, normal(x.shape, generator)), _up_to(batch, points, dim, x.device)
            case "subspace":
                x[..., half:] = 0
            case "subspace-random":
                basis = torch.linalg.qr(normal((batch, dim, half), generator)).Q
                return math.sqrt(dim / half) * x[..., :half] @ basis.transpose(1, 2), None, None
            case "skewed":
                return skewed_inputs(x, generator), None, None
            case "wide-query":
                return x, self.value * x, None
        return x, None, None


def _up_to(batch: int, points: int, limit: int, device: torch.device) -> Tensor:
    """True where fewer than `limit` points come before."""
    return (torch.arange(points, device=device) < limit).expand(batch, points).clone()


def _orthogonal(x: Float[Tensor, "B N D"], drawn: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
    """Row n of `drawn` made orthogonal to the first n rows of `x`, its length kept; rows from n = d on are returned as drawn."""
    dim = x.shape[-1]
    basis = torch.linalg.qr(x[:, :dim].double().transpose(1, 2)).Q
    along = drawn.double() @ basis
    before = torch.arange(along.shape[-1], device=x.device) < torch.arange(x.shape[1], device=x.device)[:, None]
    free = drawn.double() - (along * before) @ basis.transpose(1, 2)
    free = free * (drawn.double().norm(dim=-1, keepdim=True) / free.norm(dim=-1, keepdim=True).clamp_min(1e-12))
    return torch.where(torch.arange(x.shape[1], device=x.device)[:, None] < dim, free.to(x.dtype), drawn)


def _repeated(context: Points, generator: torch.Generator) -> tuple[Points, Tensor]:
    """For every n a random one of the first n points, label and all; nothing to repeat at n = 0."""
    batch, points = context.mask.shape
    uniform = torch.rand((batch, points), generator=generator, device=generator.device)
    earlier = (uniform * torch.arange(points, device=generator.device)).long()
    repeated = context.map(lambda t: take(t, earlier))
    defined = torch.arange(points, device=generator.device).expand(batch, points) > 0
    return repeated, defined
