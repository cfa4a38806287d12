"""Point processes of episodes: kinds, parameters and sampling of gaps and marks.

The kinds are as follows, where t is the time since the start of the observation:

- `poisson`: events at a constant rate;
- `renewal`: independent log-normal gaps;
- `self-correcting`: intensity `initial` exp(trend t - alpha n) after n events (Isham and Westcott 1979);
- `hawkes`: see `iclbench.families.events.hawkes`.

The marks of all kinds except `hawkes` are a Markov chain that is independent of the times. The first mark is uniform.
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

# The shortest gap, before times are scaled. It prevents gaps of 0, which have no logarithm. At a rate of 1, one in 1e9
# gaps is shorter.
SHORTEST_GAP = 1e-9
# Lower bound of the sampled exponential numbers. It prevents divisions of 0 by an excitation of 0.
_TINY = 1e-300


@dataclass(frozen=True)
class Processes(TensorRecord):
    """The process of every episode, `(B,)` or `(B, 1)`, in float64. A process ignores the parameters of other kinds.

    Attributes:
        kind: index in `KINDS`.
        chain: probability of the next mark (column) given the last mark (row).
        rate: rate of `poisson`.
        location, sigma: mean and standard deviation of the logarithm of gaps of `renewal`.
        trend, alpha, initial: parameters of `self-correcting`.
        base, branching, decay: parameters of `hawkes`; rows of `branching` are marks of children, columns of parents.
        excitation: contribution of events before time 0 to the intensities of `hawkes` at time 0.
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

    def with_time_scale(self, factor: float) -> Processes:
        """Return the same processes with all times multiplied by `factor`."""
        names = ("rate", "trend", "initial", "base", "decay", "excitation")
        rates = {name: getattr(self, name) / factor for name in names}
        return replace(self, location=self.location + torch.tensor(factor).double().log(), **rates)

    def with_past(self, past: Float[Tensor, " B"], generator: torch.Generator) -> Processes:
        """Return the same processes, but with Hawkes processes that start at time -`past`."""
        subset, excitation = self[self.kind == HAWKES], self.excitation.clone()
        excitation[self.kind == HAWKES] = hawkes.excitation_of_past(
            subset.base, subset.branching, subset.decay, past[self.kind == HAWKES], generator
        )
        return replace(self, excitation=excitation)

    def sample(self, points: int, generator: torch.Generator) -> tuple[Float[Tensor, "B N"], Int[Tensor, "B N"]]:
        """Sample gaps and marks of the first `points` events of every process, in float64.

        The number of drawn random numbers does not depend on the kinds.
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
        gaps[rows] = _self_correcting_gaps(self[rows], waits[rows])
        rows = self.kind != HAWKES
        marks[rows] = _markov_marks(self.chain[rows], uniforms[rows])
        rows = self.kind == HAWKES
        subset = self[rows]
        gaps[rows], marks[rows] = hawkes.sample(
            subset.base, subset.branching, subset.decay, subset.excitation, exponentials[rows], uniforms[rows]
        )
        return gaps.clamp(min=SHORTEST_GAP), marks


def _self_correcting_gaps(processes: Processes, waits: Float[Tensor, "S N"]) -> Float[Tensor, "S N"]:
    """Return the gaps over which the integral of the intensity equals `waits`.

    Within a gap the intensity grows as exp(trend s), so its integral is its initial value times
    (exp(trend gap) - 1) / trend.
    """
    intensity, shrink, gaps = processes.initial, torch.exp(-processes.alpha), []
    for wait in waits.unbind(1):
        gaps.append(torch.log1p(processes.trend * wait / intensity) / processes.trend)
        intensity = (intensity + processes.trend * wait) * shrink
    return torch.stack(gaps, 1)


def _markov_marks(chain: Float[Tensor, "S K K"], uniforms: Float[Tensor, "S N"]) -> Int[Tensor, "S N"]:
    weights, marks = torch.ones_like(chain[:, 0]), []
    rows = torch.arange(len(chain), device=chain.device)
    for uniform in uniforms.unbind(1):
        marks.append(hawkes.sample_index(weights, uniform))
        weights = chain[rows, marks[-1]]
    return torch.stack(marks, 1)
