"""Multivariate Hawkes processes with exponential kernels: exact sampling, and the excitation after every event.

Mark i has the intensity base_i + X_i(t). An event of mark j adds branching_ij * decay to X_i, which falls as
exp(-decay t): `branching_ij` is the expected number of children of mark i of one event of mark j.

Between events the intensity of all marks is that of two independent Poisson processes: one of the constant rate of the
bases, one of the falling rate X. The next event is the earlier of their first points, both in closed form (Dassios and
Zhao 2013, exact simulation of Hawkes processes with exponentially decaying intensity); nothing is rejected.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def spectral_radius(matrix: Float[Tensor, "B K K"]) -> Float[Tensor, " B"]:
    """The largest absolute eigenvalue; on the CPU, which is faster for many small matrices."""
    return torch.linalg.eigvals(matrix.cpu()).abs().amax(-1).to(matrix.device)


def jumps(
    branching: Float[Tensor, "B K K"], decay: Float[Tensor, " B"], marks: Int[Tensor, "B N"]
) -> Float[Tensor, "B N K"]:
    """What an event of each of these marks adds to the intensities of all marks."""
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
    """Gaps and marks of the first N events, all episodes at once, one event after the other.

    Args:
        base: rates without any event.
        branching: row: mark of the child; column: mark of the parent.
        decay: of all kernels.
        excitation: X at time 0; 0: an empty past.
        exponentials: unit exponentials, positive.
        uniforms: what marks are drawn with.
    """
    gaps, marks = [], []
    for (cold, hot), uniform in zip(exponentials.permute(1, 2, 0), uniforms.unbind(1), strict=True):
        from_base = cold / base.sum(-1)
        # Of the falling rate there may be no point at all: it integrates to X / decay only.
        from_past = -torch.log1p(-(decay * hot / excitation.sum(-1)).clamp(max=1)) / decay
        gap = torch.minimum(from_base, from_past)
        excitation = excitation * torch.exp(-decay * gap).unsqueeze(-1)
        mark = pick(base + excitation, uniform)
        excitation = excitation + jumps(branching, decay, mark.unsqueeze(1)).squeeze(1)
        gaps.append(gap)
        marks.append(mark)
    return torch.stack(gaps, 1), torch.stack(marks, 1)


def pick(weights: Float[Tensor, "B K"], uniform: Float[Tensor, " B"]) -> Int[Tensor, " B"]:
    """One index per row, in proportion to the weights."""
    upto = weights.cumsum(-1)
    return (uniform.unsqueeze(-1) * upto[:, -1:] >= upto).sum(-1).clamp(max=weights.shape[-1] - 1)


def excitations(
    branching: Float[Tensor, "B K K"],
    decay: Float[Tensor, " B"],
    excitation: Float[Tensor, "B K"],
    gaps: Float[Tensor, "B N"],
    marks: Int[Tensor, "B N"],
    valid: Bool[Tensor, "B N"],
) -> Float[Tensor, "B N+1 K"]:
    """X right after each of the first 0, 1, ..., N events; invalid events change nothing.

    X_n = a_n X_(n-1) + b_n with a_n = exp(-decay gap_n) and b_n the jump: by a scan that doubles its reach, so in
    log N steps. No factor is above 1 and nothing is divided by one, so that it is as stable as the recurrence.
    """
    factors = torch.exp(-decay.unsqueeze(1) * gaps).masked_fill(~valid, 1).unsqueeze(-1)
    added = jumps(branching, decay, marks).masked_fill(~valid.unsqueeze(-1), 0)
    factors = torch.cat([factors.new_ones(len(factors), 1, 1), factors], 1)
    sums = torch.cat([excitation.unsqueeze(1), added], 1)
    reach = 1
    while reach < sums.shape[1]:
        later_factors = factors[:, reach:]
        sums = torch.cat([sums[:, :reach], later_factors * sums[:, :-reach] + sums[:, reach:]], 1)
        factors = torch.cat([factors[:, :reach], later_factors * factors[:, :-reach]], 1)
        reach *= 2
    return sums


def excitation_of_past(
    base: Float[Tensor, "B K"],
    branching: Float[Tensor, "B K K"],
    decay: Float[Tensor, " B"],
    past: Float[Tensor, " B"],
    generator: torch.Generator,
) -> Float[Tensor, "B K"]:
    """X at time 0 of processes that began so long before it, with an empty past.

    Generation by generation (Hawkes and Oakes 1974): immigrants are Poisson with the base rates, an event of mark j has
    Poisson(branching_ij) children of mark i, each after an exponential time. The spectral radius must be below 1.
    """
    device = base.device
    excitation = torch.zeros_like(base)
    numbers = torch.poisson(base * past.unsqueeze(1), generator=generator)
    owner, mark = _rows_and_columns(numbers)
    uniform = torch.rand(len(owner), generator=generator, device=device, dtype=base.dtype)
    times = -past[owner] * uniform
    while len(owner):
        column = branching[owner, :, mark]
        rate = decay[owner]
        excitation.index_add_(0, owner, column * (rate * torch.exp(rate * times)).unsqueeze(1))
        parent, mark = _rows_and_columns(torch.poisson(column, generator=generator))
        wait = torch.empty(len(parent), device=device, dtype=base.dtype).exponential_(generator=generator)
        times, owner = times[parent] + wait / rate[parent], owner[parent]
        is_past = times < 0
        times, owner, mark = times[is_past], owner[is_past], mark[is_past]
    return excitation


def _rows_and_columns(numbers: Float[Tensor, "R K"]) -> tuple[Int[Tensor, " E"], Int[Tensor, " E"]]:
    """Row and column of every event, given the numbers of events per row and column."""
    cells = torch.arange(numbers.numel(), device=numbers.device)
    cell = cells.repeat_interleave(numbers.flatten().long())
    return cell // numbers.shape[-1], cell % numbers.shape[-1]
