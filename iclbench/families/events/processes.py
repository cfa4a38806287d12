"""The process behind every episode: its kind and parameters, and how its gaps and marks are drawn.

Kinds, with t the time since the observation began:

- `poisson`: events at a constant rate;
- `renewal`: independent log-normal gaps;
- `self-correcting`: intensity `initial` exp(trend t - alpha n) after n events (Isham and Westcott 1979);
- `hawkes`: see `iclbench.families.events.hawkes`.

Marks of all but `hawkes` are a Markov chain that does not depend on the times. The first mark is uniform.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from iclbench.core.records import TensorRecord
from iclbench.families.events import hawkes

KINDS = ("poisson", "renewal", "self-correcting", "hawkes")
POISSON, RENEWAL, SELF_CORRECTING, HAWKES = range(4)

# The shortest gap, in the units of the process before its time is scaled. A gap of 0 would have no logarithm; at a rate
# of 1 one gap in a thousand million is that short.
SHORTEST_GAP = 1e-9
# An exponential number that is rounded to 0 would be divided by an excitation of 0.
_TINY = 1e-300


@dataclass(frozen=True)
class Processes(TensorRecord):
    """The process of every episode, `(B,)` or `(B, 1)`, in float64; only the parameters of its own kind matter.

    Attributes:
        kind: index in `KINDS`.
        chain: probability of each next mark (column) after each mark (row).
        rate: of `poisson`.
        location, sigma: mean and standard deviation of the logarithm of a gap of `renewal`.
        trend, alpha, initial: of `self-correcting`.
        base, branching, decay: of `hawkes`; `branching` has the child's mark as its row, the parent's as its column.
        excitation: what the past before time 0 adds to the intensities of `hawkes` at time 0.
    """

    kind: Int[Tensor, "*B"]
    chain: Float[Tensor, "*B K K"]
    rate: Float[Tensor, "*B"]
    location: Float[Tensor, "*B"]
    sigma: Float[Tensor, "*B"]
    trend: Float[Tensor, "*B"]
    alpha: Float[Tensor, "*B"]
    initial: Float[Tensor, "*B"]
    base: Float[Tensor, "*B K"]
    branching: Float[Tensor, "*B K K"]
    decay: Float[Tensor, "*B"]
    excitation: Float[Tensor, "*B K"]

    def slowed(self, factor: float) -> Processes:
        """The same processes with all times `factor` times as long."""
        slower = ("rate", "trend", "initial", "base", "decay", "excitation")
        rates = {name: getattr(self, name) / factor for name in slower}
        return replace(self, location=self.location + torch.tensor(factor).double().log(), **rates)

    def with_past(self, past: Float[Tensor, " B"], generator: torch.Generator) -> Processes:
        """The same processes, those of kind `hawkes` begun so long before time 0."""
        subset, excitation = self[self.kind == HAWKES], self.excitation.clone()
        excitation[self.kind == HAWKES] = hawkes.excitation_of_past(
            subset.base, subset.branching, subset.decay, past[self.kind == HAWKES], generator
        )
        return replace(self, excitation=excitation)

    def sample(self, points: int, generator: torch.Generator) -> tuple[Float[Tensor, "B N"], Int[Tensor, "B N"]]:
        """Gaps and marks of the first `points` events of every process, all in float64.

        Every episode uses up the same random numbers, of whatever kind it is.
        """
        blank = self.rate.new_empty(len(self.rate), points)
        exponentials = blank.new_empty(*blank.shape, 2).exponential_(generator=generator).clamp(min=_TINY)
        normals = torch.empty_like(blank).normal_(generator=generator)
        uniforms = torch.empty_like(blank).uniform_(generator=generator)
        gaps, marks = torch.empty_like(blank), torch.empty_like(blank, dtype=torch.long)
        waits = exponentials[..., 0]
        rows = self.kind == POISSON
        gaps[rows] = waits[rows] / self.rate[rows].unsqueeze(1)
        rows = self.kind == RENEWAL
        subset = self[rows]
        gaps[rows] = (subset.location.unsqueeze(1) + subset.sigma.unsqueeze(1) * normals[rows]).exp()
        rows = self.kind == SELF_CORRECTING
        gaps[rows] = _self_correcting(self[rows], waits[rows])
        rows = self.kind != HAWKES
        marks[rows] = _markov_chain(self.chain[rows], uniforms[rows])
        rows = self.kind == HAWKES
        subset = self[rows]
        gaps[rows], marks[rows] = hawkes.sample(
            subset.base, subset.branching, subset.decay, subset.excitation, exponentials[rows], uniforms[rows]
        )
        return gaps.clamp(min=SHORTEST_GAP), marks


def _self_correcting(processes: Processes, waits: Float[Tensor, "S N"]) -> Float[Tensor, "S N"]:
    """Gaps over which the intensity integrates to the given waits.

    Within a gap it grows as exp(trend s), so that it integrates to (exp(trend gap) - 1) / trend times what it was.
    """
    intensity, shrink, gaps = processes.initial, torch.exp(-processes.alpha), []
    for wait in waits.unbind(1):
        gaps.append(torch.log1p(processes.trend * wait / intensity) / processes.trend)
        intensity = (intensity + processes.trend * wait) * shrink
    return torch.stack(gaps, 1)


def _markov_chain(chain: Float[Tensor, "S K K"], uniforms: Float[Tensor, "S N"]) -> Int[Tensor, "S N"]:
    weights, marks = torch.ones_like(chain[:, 0]), []
    rows = torch.arange(len(chain), device=chain.device)
    for uniform in uniforms.unbind(1):
        marks.append(hawkes.pick(weights, uniform))
        weights = chain[rows, marks[-1]]
    return torch.stack(marks, 1)
