"""Multivariate Hawkes processes with exponential kernels: exact samples, and the excitation after every event.

Mark i has the intensity base_i + X_i(t). An event of mark j adds branching_ij * decay to X_i, which decays as
exp(-decay t). So `branching_ij` is the expected number of children of mark i per event of mark j.

Between events, the process is the sum of two independent Poisson processes, one with the constant rate of the bases and
one with the decaying rate X. The next event is the earlier of their first points, which are both sampled in closed form
(Dassios and Zhao 2013, exact simulation of Hawkes processes with exponentially decaying intensity). No rejection is
needed.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def spectral_radius(matrix: Float[Tensor, "B K K"]) -> Float[Tensor, " B"]:
    """Return the largest absolute eigenvalue. It is computed on the CPU, which is faster for many small matrices."""
    return torch.linalg.eigvals(matrix.cpu()).abs().amax(-1).to(matrix.device)


def jumps(
    branching: Float[Tensor, "B K K"], decay: Float[Tensor, " B"], marks: Int[Tensor, "B N"]
) -> Float[Tensor, "B N K"]:
    """Return the increases of the intensities of all marks at events of the given marks."""
    columns = branching.mT.gather(1, marks.unsqueeze(-1).expand(-1, -1, branching.shape[-1]))
    return columns * decay[:, None, None]


def sample(
    base: Float[Tensor, "B K"],
    branching: Float[Tensor, "B K K"],
    decay: Float[Tensor, " B"],
    excitation: Float[Tensor, "B K"],
    exponentials: Float[Tensor, "B N 2"],
    uniforms: Float[Tensor, "B N"],
) -> tuple[Float[Tensor, "B N"], Int[Tensor, "B N"]]:
    """Sample gaps and marks of the first N events of all episodes.

    Args:
        base: rates without excitation.
        branching: expected numbers of children by mark of the child (row) and of the parent (column).
        decay: decay of the kernels.
        excitation: X at time 0; 0 without earlier events.
        exponentials: positive numbers from the exponential distribution of mean 1, for the gaps.
        uniforms: uniform numbers in [0, 1), for the marks.
    """
    gaps, marks = [], []
    for (base_draw, past_draw), uniform in zip(exponentials.permute(1, 2, 0), uniforms.unbind(1), strict=True):
        base_gap = base_draw / base.sum(-1)
        # The process with the decaying rate may have no point, since the integral of its rate is only X / decay.
        past_gap = -torch.log1p(-(decay * past_draw / excitation.sum(-1)).clamp(max=1)) / decay
        gap = torch.minimum(base_gap, past_gap)
        excitation = excitation * torch.exp(-decay * gap).unsqueeze(-1)
        mark = sample_index(base + excitation, uniform)
        excitation = excitation + jumps(branching, decay, mark.unsqueeze(1)).squeeze(1)
        gaps.append(gap)
        marks.append(mark)
    return torch.stack(gaps, 1), torch.stack(marks, 1)


def sample_index(weights: Float[Tensor, "B K"], uniform: Float[Tensor, " B"]) -> Int[Tensor, " B"]:
    """Return one index per row, with probabilities proportional to the weights."""
    cumulative = weights.cumsum(-1)
    return (uniform.unsqueeze(-1) * cumulative[:, -1:] >= cumulative).sum(-1).clamp(max=weights.shape[-1] - 1)


def excitations(
    branching: Float[Tensor, "B K K"],
    decay: Float[Tensor, " B"],
    excitation: Float[Tensor, "B K"],
    gaps: Float[Tensor, "B N"],
    marks: Int[Tensor, "B N"],
    valid: Bool[Tensor, "B N"],
) -> Float[Tensor, "B N+1 K"]:
    """Return X after the first 0, 1, ..., N events. Invalid events are ignored.

    The recurrence X_n = a_n X_(n-1) + b_n, where a_n = exp(-decay gap_n) and b_n is the jump, is evaluated by a
    parallel scan with log N steps. Factors are at most 1 and the scan never divides by them, so it is as stable as the
    recurrence.
    """
    factors = torch.exp(-decay.unsqueeze(1) * gaps).masked_fill(~valid, 1).unsqueeze(-1)
    increases = jumps(branching, decay, marks).masked_fill(~valid.unsqueeze(-1), 0)
    factors = torch.cat([factors.new_ones(len(factors), 1, 1), factors], 1)
    sums = torch.cat([excitation.unsqueeze(1), increases], 1)
    offset = 1
    while offset < sums.shape[1]:
        later_factors = factors[:, offset:]
        sums = torch.cat([sums[:, :offset], later_factors * sums[:, :-offset] + sums[:, offset:]], 1)
        factors = torch.cat([factors[:, :offset], later_factors * factors[:, :-offset]], 1)
        offset *= 2
    return sums


def excitation_of_past(
    base: Float[Tensor, "B K"],
    branching: Float[Tensor, "B K K"],
    decay: Float[Tensor, " B"],
    past: Float[Tensor, " B"],
    generator: torch.Generator,
) -> Float[Tensor, "B K"]:
    """Sample X at time 0 of processes that start without events at time -`past`.

    Events are sampled by generations (Hawkes and Oakes 1974): immigrants are Poisson processes with the base rates, and
    an event of mark j has Poisson(branching_ij) children of mark i, each after an exponential time. The spectral radius
    must be less than 1.
    """
    device = base.device
    excitation = torch.zeros_like(base)
    immigrant_counts = torch.poisson(base * past.unsqueeze(1), generator=generator)
    process, mark = _rows_and_columns(immigrant_counts)
    uniform = torch.rand(len(process), generator=generator, device=device, dtype=base.dtype)
    times = -past[process] * uniform
    while len(process):
        column = branching[process, :, mark]
        rate = decay[process]
        excitation.index_add_(0, process, column * (rate * torch.exp(rate * times)).unsqueeze(1))
        parent, mark = _rows_and_columns(torch.poisson(column, generator=generator))
        wait = torch.empty(len(parent), device=device, dtype=base.dtype).exponential_(generator=generator)
        times, process = times[parent] + wait / rate[parent], process[parent]
        is_past = times < 0
        times, process, mark = times[is_past], process[is_past], mark[is_past]
    return excitation


def _rows_and_columns(counts: Float[Tensor, "R K"]) -> tuple[Int[Tensor, " E"], Int[Tensor, " E"]]:
    """Return the row and column of every event, given the number of events per row and column."""
    cells = torch.arange(counts.numel(), device=counts.device)
    cell = cells.repeat_interleave(counts.flatten().long())
    return cell // counts.shape[-1], cell % counts.shape[-1]
