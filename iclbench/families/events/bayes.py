"""The attainable ceiling of the synthetic point processes: the next event given the events so far, and what processes
are drawn from.

`oracle-events` is told the process; whoever has to infer it cannot do as well. This one is told the distribution of
processes only. It weighs many of them, drawn from where those of the episodes come from, by how likely each makes the
events so far, and answers with their mixture: on average nobody who has to infer the process does better, but for what
the processes in between would add. Of chains of marks none is drawn: the posterior of a row is known (Dirichlet).

That is for sequences as tasks have them: twice as many processes change the mean over 33 events by less than 0.001
nats, and 512 components in place of 64 by about as much. Over 2,000 fresh sequences of 33 events its central 50 % and
90 % intervals hold 0.503 ± 0.002 and 0.901 ± 0.001 of the gaps (standard errors over sequences). Within one kind of
process they need not, since the kind has to be inferred too: there the former holds 0.48 of the gaps of Poisson and
0.53 of those of renewal processes. The longer the sequence, the fewer processes are likely, and after some hundred
events hardly any is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from iclbench.core import limits
from iclbench.core.episodes import Points
from iclbench.core.errors import UsageError
from iclbench.core.events import GAP, MARK, marks_of
from iclbench.core.joint import SampledEvent
from iclbench.core.predictor import Predictor
from iclbench.core.records import cat
from iclbench.core.settings import BaseSettings, PositiveInt
from iclbench.core.task import TaskFacts
from iclbench.families.events.oracle import NO_MARK, answered, last_marks
from iclbench.families.events.point_process import PointProcess
from iclbench.families.events.processes import HAWKES, POISSON, RENEWAL, SELF_CORRECTING, SHORTEST_GAP, Processes

_LOG_2PI = math.log(2 * math.pi)
# Numbers held at once for so many episodes, which bounds memory and keeps them in the cache.
_NUMBERS = 500_000
# A Hawkes process has many parameters, a self-correcting one two, the others one: so many fewer of them are drawn.
_FEWER = {"hawkes": 1, "self-correcting": 2, "renewal": 32, "poisson": 32}


class BayesEventsSettings(BaseSettings):
    """`processes`: Hawkes processes that are weighed, fewer of the simpler kinds; `components` of them, equally likely,
    are in one answer."""

    processes: PositiveInt = 8192
    components: PositiveInt = 64


class BayesEvents(Predictor):
    """The posterior predictive distribution over all processes; raises `UsageError` for any other family."""

    Settings: ClassVar[type[BaseSettings]] = BayesEventsSettings
    libraries: ClassVar[tuple[str, ...]] = ()
    order = "causal"
    heads = ("event",)

    def __init__(
        self, settings: BayesEventsSettings | None = None, facts: TaskFacts | None = None, seed: int = 0
    ) -> None:
        self.settings = settings or BayesEventsSettings()
        self.facts = facts or TaskFacts()
        if not isinstance(self.facts.family, PointProcess):
            raise UsageError("BayesEvents answers tasks of the family point-process only; choose another oracle")
        self.family = self.facts.family

    def predict_next(
        self,
        points: Points,
        related: Points | None = None,
        *,
        x_query: Float[Tensor, "B N 0"] | None = None,
        prefixes: Sequence[int] | None = None,
    ) -> SampledEvent:
        asked = [int(n) for n in (range(points.count) if prefixes is None else prefixes)]
        together = max(1, _NUMBERS // (len(self._believed[1]) * self.family.parameters.marks))
        parts = (points[start : start + together] for start in range(0, max(1, len(points)), together))
        return cat([self._answer(part, asked).to(dtype=points.y.dtype) for part in parts])

    @cached_property
    def _believed(self) -> tuple[Processes, Float[Tensor, " S"]]:
        """Processes, kind by kind, and the logarithm of the share of all that each stands for."""
        counts = {kind: max(1, self.settings.processes // fewer) for kind, fewer in _FEWER.items()}
        limits.check(
            16 * max(counts.values()) * self.family.parameters.marks**2,
            "the processes that a Bayes answer weighs: matrices of",
        )
        processes, share = self.family.believed(self.facts.shift, counts, torch.Generator().manual_seed(0))
        order = _neighbours(processes)
        return processes[order], share[order]

    def _answer(self, points: Points, asked: list[int]) -> SampledEvent:
        """One walk along the events, after each of which the processes weigh more unlike each other."""
        processes, weights = self._believed[0].to(points.y.device), self._believed[1].to(points.y.device)
        kinds = {kind: processes.kind == kind for kind in processes.kind.unique().tolist()}
        of_kind = {kind: processes[rows] for kind, rows in kinds.items()}
        there = points.mask & (points.y[..., MARK] >= 0)
        # The shortest gap is that of the process before a shift scales its time.
        shortest = SHORTEST_GAP * self.family.parse_shift(self.facts.shift).value("time-scale", 1.0)
        gaps = points.y[..., GAP].double().clamp(min=shortest).masked_fill(~there, 1)
        marks = marks_of(points.y).masked_fill(~there, 0)
        next_marks = _next_marks(marks, there, self.family.parameters.marks)
        children = processes.branching.permute(2, 0, 1) * processes.decay.unsqueeze(-1)
        elapsed = count = gaps.new_zeros(len(points), 1)
        weights = weights.expand(len(points), -1)
        excitation = processes.excitation.expand(len(points), -1, -1)
        answers, wanted = {}, asked or [0]
        for n in range(max(wanted) + 1):
            if n in wanted:
                chosen = _in_equal_shares(weights.softmax(-1), self.settings.components)
                episode = torch.arange(len(points), device=chosen.device).unsqueeze(1)
                excited = excitation[episode, chosen]
                answers[n] = answered(processes[chosen], elapsed, count, excited, next_marks[:, n].unsqueeze(1))
            if n == points.count:
                break
            gap, mark, on = gaps[:, n : n + 1], marks[:, n], there[:, n : n + 1]
            log_mark = next_marks[:, n].gather(1, mark.unsqueeze(1)).log()
            faded = torch.exp(-processes.decay * gap)
            likelihood = torch.empty_like(weights)
            for kind, rows in kinds.items():
                own = of_kind[kind]
                likelihood[:, rows] = (
                    _of_hawkes(own, excitation[:, rows], faded[:, rows], gap, mark)
                    if kind == HAWKES
                    else log_mark + _of_time(kind, own, elapsed, count, gap)
                )
            # What none of the processes makes tells nothing of them.
            weighed = weights + likelihood
            weights = torch.where(on & weighed.isfinite().any(1, keepdim=True), weighed, weights)
            excitation = torch.where(on.unsqueeze(-1), excitation * faded.unsqueeze(-1) + children[mark], excitation)
            elapsed, count = elapsed + gap * on, count + on
        each = [answers[n].map(lambda t: t.unsqueeze(0)) for n in wanted]
        return SampledEvent(cat(each).map(lambda t: t.transpose(0, 1)[:, : len(asked)]))


def _of_time(
    kind: int, own: Processes, elapsed: Float[Tensor, "B 1"], count: Float[Tensor, "B 1"], gap: Float[Tensor, "B 1"]
) -> Float[Tensor, "B S"]:
    """Log-density of a gap under processes of a kind whose marks do not depend on it."""
    if kind == POISSON:
        return own.rate.log() - own.rate * gap
    if kind == RENEWAL:
        standard = (gap.log() - own.location) / own.sigma
        return -(standard.square() + _LOG_2PI) / 2 - own.sigma.log() - gap.log()
    assert kind == SELF_CORRECTING
    rate = own.initial.log() + own.trend * elapsed - own.alpha * count
    return rate + own.trend * gap - rate.exp() * torch.expm1(own.trend * gap) / own.trend


def _of_hawkes(
    own: Processes,
    excitation: Float[Tensor, "B S K"],
    faded: Float[Tensor, "B S"],
    gap: Float[Tensor, "B 1"],
    mark: Int[Tensor, " B"],
) -> Float[Tensor, "B S"]:
    """Log-density of a gap and a mark under Hawkes processes; `faded` is what the gap leaves of the excitation."""
    episode = torch.arange(len(mark), device=mark.device)
    rate = own.base.T[mark] + excitation.movedim(2, 1)[episode, mark] * faded
    return rate.log() - own.base.sum(-1) * gap - excitation.sum(-1) * (1 - faded) / own.decay


def _next_marks(marks: Int[Tensor, "B N"], there: Bool[Tensor, "B N"], kinds: int) -> Float[Tensor, "B N_and_1 K"]:
    """Probabilities of the next mark of a Markov chain whose rows come from a Dirichlet distribution with all
    parameters 1, after 0, 1, ..., N events: those that followed the last one's mark so far, and one of each."""
    last = last_marks(marks.new_full((len(marks),), NO_MARK), marks, there)
    before = torch.ones(last.shape[1], marks.shape[1], dtype=torch.bool, device=marks.device).tril(-1)
    counted = (last[:, None, :-1] == last.unsqueeze(2)) & (last != NO_MARK).unsqueeze(2) & there.unsqueeze(1) & before
    counts = counted.double() @ F.one_hot(marks, kinds).double()
    return (counts + 1) / (counts.sum(-1, keepdim=True) + kinds)


def _neighbours(processes: Processes) -> Int[Tensor, " S"]:
    """An order in which processes of a kind stand by one of their parameters: an answer that has not all of them takes
    every so many-th (`_in_equal_shares`), and neighbours should be alike."""
    by = [processes.rate, processes.sigma, processes.trend, processes.base.sum(-1)]
    order = torch.stack(by, 1).gather(1, processes.kind.unsqueeze(1)).squeeze(1).argsort()
    return order[processes.kind[order].argsort(stable=True)]


def _in_equal_shares(weights: Float[Tensor, "B S"], count: int) -> Int[Tensor, "B M"]:
    """So many of S, as often as their weights say: those at the middles of `count` equal parts of the sum (Kitagawa
    1996, stratified resampling, without the drawing)."""
    middles = (torch.arange(count, dtype=weights.dtype, device=weights.device) + 0.5) / count
    upto = weights.cumsum(-1)
    return torch.searchsorted(upto, middles * upto[:, -1:]).clamp(max=weights.shape[-1] - 1)
