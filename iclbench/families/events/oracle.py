"""The oracle of the synthetic point processes: the exact distribution of the next event given the true parameters.

The oracle has access to the kind and the parameters of every episode (`iclbench.families.events.processes`), so it
reads the context only as the history of the process. Under a shift, it has access to the shifted parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from iclbench.core.episodes import Points
from iclbench.core.errors import UsageError
from iclbench.core.events import GAP, MARK, HazardEvent, LogNormalEvent, MixedEvent, marks_of
from iclbench.core.predictor import Oracle, State
from iclbench.core.settings import NoSettings
from iclbench.families.events import hawkes
from iclbench.families.events.point_process import PointProcess
from iclbench.families.events.processes import HAWKES, POISSON, RENEWAL, SELF_CORRECTING, Processes
from iclbench.families.family_predictor import FamilyPredictor

# The mark of the last event of an empty sequence.
NO_MARK = -1


@dataclass(frozen=True)
class History(State):
    """Sufficient statistics of the events so far, for one history per episode, `(B,)`, or P histories, `(B, P)`.

    Attributes:
        elapsed: time of the last event.
        count: number of events.
        mark: mark of the last event; -1 without events.
        excitation: excitation of a Hawkes process after the last event.
    """

    elapsed: Float[Tensor, "*B"]
    count: Float[Tensor, "*B"]
    mark: Int[Tensor, "*B"]
    excitation: Float[Tensor, "*B K"]

    @classmethod
    def empty(cls, processes: Processes) -> History:
        """Return the histories before the first event."""
        zeros = torch.zeros_like(processes.rate)
        return cls(zeros, zeros, torch.full_like(processes.kind, NO_MARK), processes.excitation)

    def prefixes(self, processes: Processes, events: Points) -> History:
        """Return N + 1 histories per episode, `(B, N + 1)`: this history followed by the first 0, 1, ..., N events."""
        valid = events.mask & (events.y[..., MARK] != NO_MARK)
        gaps, marks = (t.masked_fill(~valid, 0) for t in (events.y[..., GAP].double(), marks_of(events.y)))
        zeros = torch.zeros_like(self.mark).unsqueeze(1)
        return History(
            self.elapsed.unsqueeze(1) + torch.cat([zeros, gaps], 1).cumsum(1),
            self.count.unsqueeze(1) + torch.cat([zeros, valid], 1).cumsum(1),
            last_marks(self.mark, marks, valid),
            hawkes.excitations(processes.branching, processes.decay, self.excitation, gaps, marks, valid),
        )


@dataclass(frozen=True)
class ProcessState(State):
    """The true process of every episode and its history."""

    processes: Processes
    history: History


class EventOracle(FamilyPredictor[NoSettings], Oracle):
    """The distribution of the next gap and mark given the history and the true parameters; raises `UsageError` for
    other families."""

    family_class, family_name = PointProcess, "point-process"
    order = "causal"
    heads = ("event",)

    def predict_next(
        self,
        points: Points,
        related: Points | None = None,
        *,
        x_query: Float[Tensor, "B N 0"] | None = None,
        prefixes: Sequence[int] | None = None,
    ) -> MixedEvent:
        processes = self._processes()
        histories = History.empty(processes).prefixes(processes, points).map(lambda t: t[:, :-1])
        answer = _next_event_after(processes, histories).to(dtype=points.y.dtype)
        return answer if prefixes is None else answer.at(torch.as_tensor(prefixes, device=points.y.device).long())

    def condition(self, context: Points, related: Points | None = None) -> ProcessState:
        processes = self._processes()
        return self.update(ProcessState(processes, History.empty(processes)), context)

    def query(self, state: ProcessState, x: Float[Tensor, "B Q 0"]) -> MixedEvent:
        """Return the same prediction for every query, since events have no x."""
        histories = state.history.map(lambda t: t.unsqueeze(1))
        answer = _next_event_after(state.processes, histories).to(dtype=x.dtype)
        return answer.map(lambda t: t.expand(-1, x.shape[1], *t.shape[2:]))

    def update(self, state: ProcessState, points: Points) -> ProcessState:
        histories = state.history.prefixes(state.processes, points)
        return ProcessState(state.processes, histories.map(lambda t: t[:, -1]))

    def _processes(self) -> Processes:
        if self.truth is None:
            raise UsageError(
                "oracle-events requires the processes; call informed(episodes.truth) first", code="missing-value"
            )
        return Processes(**self.truth)


def last_marks(
    initial: Int[Tensor, " B"], marks: Int[Tensor, "B N"], valid: Bool[Tensor, "B N"]
) -> Int[Tensor, "B N_and_1"]:
    """Return the mark of the last valid event among the first 0, 1, ..., N events, or `initial` if none of them is
    valid."""
    positions = torch.arange(1, marks.shape[1] + 1, device=marks.device).expand_as(marks).masked_fill(~valid, 0)
    return torch.cat([initial.unsqueeze(1), marks], 1).gather(1, F.pad(positions, (1, 0)).cummax(1).values)


def next_event(
    processes: Processes,
    elapsed: Float[Tensor, "*#P"],
    count: Float[Tensor, "*#P"],
    excitation: Float[Tensor, "*P K"],
    marks: Float[Tensor, "*#P K"],
) -> MixedEvent:
    """Return the distribution of the next event, in float64, for processes and histories whose shapes broadcast.

    Args:
        processes: the processes.
        elapsed, count, excitation: as in `History`.
        marks: probabilities of the next mark for all kinds except `hawkes`, whose marks depend on the time.
    """
    is_poisson, is_self_correcting, is_hawkes = (processes.kind == kind for kind in (POISSON, SELF_CORRECTING, HAWKES))
    intensity = processes.initial * torch.exp(processes.trend * elapsed - processes.alpha * count)
    marks = marks.expand(*intensity.shape, marks.shape[-1])
    # Renewal processes have no closed-form hazard; their constant rate of 1 is not used.
    rate = torch.where(is_poisson, processes.rate, torch.where(is_self_correcting, 0.0, 1.0)).unsqueeze(-1)
    excited_rate = torch.where(is_self_correcting, intensity, 0.0).unsqueeze(-1)
    hazard = HazardEvent(
        torch.where(is_hawkes.unsqueeze(-1), processes.base, rate * marks),
        torch.where(is_hawkes.unsqueeze(-1), excitation, excited_rate * marks),
        torch.where(is_hawkes, processes.decay, torch.where(is_self_correcting, -processes.trend, 1.0)).expand_as(
            intensity
        ),
    )
    is_renewal = (processes.kind == RENEWAL).expand_as(intensity)
    loc = torch.where(is_renewal, processes.location, 0.0).unsqueeze(-1)
    scale = torch.where(is_renewal, processes.sigma, 1.0).unsqueeze(-1)
    return MixedEvent(LogNormalEvent(torch.zeros_like(loc), loc, scale, marks.log()), hazard, is_renewal)


def _next_event_after(processes: Processes, histories: History) -> MixedEvent:
    """Return the distribution of the next event after P histories per episode, `(B, P)`."""
    broadcast_processes = processes.map(lambda t: t.unsqueeze(1))
    episode = torch.arange(len(broadcast_processes.kind), device=broadcast_processes.kind.device).unsqueeze(1)
    uniform = torch.full_like(broadcast_processes.base, 1 / broadcast_processes.base.shape[-1])
    chain = processes.chain[episode, histories.mark.clamp(min=0)]
    marks = torch.where((histories.mark == NO_MARK).unsqueeze(-1), uniform, chain)
    return next_event(broadcast_processes, histories.elapsed, histories.count, histories.excitation, marks)
