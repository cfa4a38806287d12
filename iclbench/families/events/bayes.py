"""The best attainable predictions for the synthetic point processes, given the past events and the distribution of
processes.

`oracle-events` has access to the process, so a model that infers the process from events cannot reach its score. This
predictor has access only to the distribution of processes. It samples many processes, weights each with the likelihood
of the past events, and predicts their mixture. Up to the error of the finite sample, no model that infers the process
has a better expected score. Markov chains of marks are not sampled, since the posterior of their rows is known
(Dirichlet).

For sequences as long as those of the tasks, the sample is large enough: doubling the number of processes, or using 512
components instead of 64, changes the mean score of 33 events by less than 0.001 nats. Over 2,000 new sequences of 33
events, central 50 % and 90 % intervals contain 0.503 ± 0.002 and 0.901 ± 0.001 of the gaps (standard errors over
sequences). The coverage is not exact within one kind of process, since the kind is also inferred: the 50 % intervals
contain 0.48 of the gaps of Poisson and 0.53 of the gaps of renewal processes. In longer sequences, fewer of the sampled
processes are likely; after a few hundred events, almost none are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from iclbench.core import limits
from iclbench.core.episodes import Points
from iclbench.core.events import GAP, MARK, marks_of
from iclbench.core.joint import SampledEvent
from iclbench.core.records import cat
from iclbench.core.settings import BaseSettings, PositiveInt
from iclbench.families.events.oracle import NO_MARK, last_marks, next_event
from iclbench.families.events.point_process import PointProcess
from iclbench.families.events.processes import HAWKES, POISSON, RENEWAL, SELF_CORRECTING, SHORTEST_GAP, Processes
from iclbench.families.family_predictor import FamilyPredictor

_LOG_2PI = math.log(2 * math.pi)
# Largest number of array entries per batch of episodes. It limits memory and fits into the processor's cache.
_MAX_ENTRIES = 500_000
# Divisors of the number of sampled processes: kinds with fewer parameters than Hawkes processes need fewer samples.
_DIVISORS = {"hawkes": 1, "self-correcting": 2, "renewal": 32, "poisson": 32}


class BayesEventsSettings(BaseSettings):
    """Settings of the Bayes predictor: `processes` is the number of sampled Hawkes processes (simpler kinds have
    fewer); `components` is the number of equally weighted processes in a prediction."""

    processes: PositiveInt = 8192
    components: PositiveInt = 64


class BayesEvents(FamilyPredictor[BayesEventsSettings]):
    """The distribution of the next event, averaged over the posterior of processes; raises `UsageError` for other
    families."""

    Settings = BayesEventsSettings
    family_class, family_name = PointProcess, "point-process"
    family: PointProcess
    order = "causal"
    heads = ("event",)

    def predict_next(
        self,
        points: Points,
        related: Points | None = None,
        *,
        x_query: Float[Tensor, "B N 0"] | None = None,
        prefixes: Sequence[int] | None = None,
    ) -> SampledEvent:
        lengths = [int(n) for n in (range(points.count) if prefixes is None else prefixes)]
        chunk_size = max(1, _MAX_ENTRIES // (len(self._candidates[1]) * self.family.parameters.marks))
        chunks = (points[start : start + chunk_size] for start in range(0, max(1, len(points)), chunk_size))
        return cat([self._predict(chunk, lengths).to(dtype=points.y.dtype) for chunk in chunks])

    @cached_property
    def _candidates(self) -> tuple[Processes, Float[Tensor, " S"]]:
        """Sampled processes, sorted by kind, and their prior log weights."""
        counts = {kind: max(1, self.settings.processes // divisor) for kind, divisor in _DIVISORS.items()}
        limits.check(
            16 * max(counts.values()) * self.family.parameters.marks**2,
            "the sampled processes of a Bayes prediction have matrices of",
        )
        processes, log_weights = self.family.assumed_processes(
            self.facts.shift, counts, torch.Generator().manual_seed(0)
        )
        order = _order_by_parameter(processes)
        return processes[order], log_weights[order]

    def _predict(self, points: Points, lengths: list[int]) -> SampledEvent:
        """Predict the next event after the given numbers of events. The processes are reweighted after every event."""
        processes, weights = self._candidates[0].to(points.y.device), self._candidates[1].to(points.y.device)
        rows_by_kind = {kind: processes.kind == kind for kind in processes.kind.unique().tolist()}
        processes_by_kind = {kind: processes[rows] for kind, rows in rows_by_kind.items()}
        valid = points.mask & (points.y[..., MARK] >= 0)
        # The smallest possible gap. The shift scales it like all times.
        shortest_gap = SHORTEST_GAP * self.family.parse_shift(self.facts.shift).value("time-scale", 1.0)
        gaps = points.y[..., GAP].double().clamp(min=shortest_gap).masked_fill(~valid, 1)
        marks = marks_of(points.y).masked_fill(~valid, 0)
        next_marks = _next_marks(marks, valid, self.family.parameters.marks)
        jumps = processes.branching.permute(2, 0, 1) * processes.decay.unsqueeze(-1)
        elapsed = count = gaps.new_zeros(len(points), 1)
        weights = weights.expand(len(points), -1)
        excitation = processes.excitation.expand(len(points), -1, -1)
        answers, needed_lengths = {}, lengths or [0]
        for n in range(max(needed_lengths) + 1):
            if n in needed_lengths:
                components = _resample(weights.softmax(-1), self.settings.components)
                episode = torch.arange(len(points), device=components.device).unsqueeze(1)
                component_excitation = excitation[episode, components]
                answers[n] = next_event(
                    processes[components], elapsed, count, component_excitation, next_marks[:, n].unsqueeze(1)
                )
            if n == points.count:
                break
            gap, mark, is_event = gaps[:, n : n + 1], marks[:, n], valid[:, n : n + 1]
            log_mark = next_marks[:, n].gather(1, mark.unsqueeze(1)).log()
            decay_factor = torch.exp(-processes.decay * gap)
            likelihood = torch.empty_like(weights)
            for kind, rows in rows_by_kind.items():
                candidates = processes_by_kind[kind]
                likelihood[:, rows] = (
                    _hawkes_log_density(candidates, excitation[:, rows], decay_factor[:, rows], gap, mark)
                    if kind == HAWKES
                    else log_mark + _gap_log_density(kind, candidates, elapsed, count, gap)
                )
            # Events that are impossible under all processes do not change the weights.
            posterior = weights + likelihood
            weights = torch.where(is_event & posterior.isfinite().any(1, keepdim=True), posterior, weights)
            excitation = torch.where(
                is_event.unsqueeze(-1), excitation * decay_factor.unsqueeze(-1) + jumps[mark], excitation
            )
            elapsed, count = elapsed + gap * is_event, count + is_event
        events = [answers[n].map(lambda t: t.unsqueeze(0)) for n in needed_lengths]
        return SampledEvent(cat(events).map(lambda t: t.transpose(0, 1)[:, : len(lengths)]))


def _gap_log_density(
    kind: int,
    processes: Processes,
    elapsed: Float[Tensor, "B 1"],
    count: Float[Tensor, "B 1"],
    gap: Float[Tensor, "B 1"],
) -> Float[Tensor, "B S"]:
    """Return the log-density of a gap under processes of a kind whose marks are independent of the times."""
    if kind == POISSON:
        return processes.rate.log() - processes.rate * gap
    if kind == RENEWAL:
        standardised = (gap.log() - processes.location) / processes.sigma
        return -(standardised.square() + _LOG_2PI) / 2 - processes.sigma.log() - gap.log()
    assert kind == SELF_CORRECTING
    rate = processes.initial.log() + processes.trend * elapsed - processes.alpha * count
    return rate + processes.trend * gap - rate.exp() * torch.expm1(processes.trend * gap) / processes.trend


def _hawkes_log_density(
    processes: Processes,
    excitation: Float[Tensor, "B S K"],
    decay_factor: Float[Tensor, "B S"],
    gap: Float[Tensor, "B 1"],
    mark: Int[Tensor, " B"],
) -> Float[Tensor, "B S"]:
    """Return the log-density of a gap and a mark under Hawkes processes. Over the gap, their excitation is multiplied
    by `decay_factor`."""
    episode = torch.arange(len(mark), device=mark.device)
    rate = processes.base.T[mark] + excitation.movedim(2, 1)[episode, mark] * decay_factor
    return rate.log() - processes.base.sum(-1) * gap - excitation.sum(-1) * (1 - decay_factor) / processes.decay


def _next_marks(marks: Int[Tensor, "B N"], valid: Bool[Tensor, "B N"], mark_count: int) -> Float[Tensor, "B N_and_1 K"]:
    """Return the probabilities of the next mark of a Markov chain after 0, 1, ..., N events. The rows of the chain have
    a Dirichlet prior with all parameters 1, so 1 is added to the counts of the marks that followed the last mark."""
    last_mark = last_marks(marks.new_full((len(marks),), NO_MARK), marks, valid)
    is_earlier = torch.ones(last_mark.shape[1], marks.shape[1], dtype=torch.bool, device=marks.device).tril(-1)
    follows_last_mark = (
        (last_mark[:, None, :-1] == last_mark.unsqueeze(2))
        & (last_mark != NO_MARK).unsqueeze(2)
        & valid.unsqueeze(1)
        & is_earlier
    )
    counts = follows_last_mark.double() @ F.one_hot(marks, mark_count).double()
    return (counts + 1) / (counts.sum(-1, keepdim=True) + mark_count)


def _order_by_parameter(processes: Processes) -> Int[Tensor, " S"]:
    """Return indices that sort the processes by kind and one of their parameters. `_resample` selects processes at
    equal steps of the cumulative weights, so neighbours should be similar."""
    keys = [processes.rate, processes.sigma, processes.trend, processes.base.sum(-1)]
    order = torch.stack(keys, 1).gather(1, processes.kind.unsqueeze(1)).squeeze(1).argsort()
    return order[processes.kind[order].argsort(stable=True)]


def _resample(weights: Float[Tensor, "B S"], count: int) -> Int[Tensor, "B M"]:
    """Select `count` indices below S in proportion to the weights: those at the midpoints of `count` equal parts of the
    cumulative weights (Kitagawa 1996, stratified resampling without random numbers)."""
    midpoints = (torch.arange(count, dtype=weights.dtype, device=weights.device) + 0.5) / count
    cumulative = weights.cumsum(-1)
    return torch.searchsorted(cumulative, midpoints * cumulative[:, -1:]).clamp(max=weights.shape[-1] - 1)
