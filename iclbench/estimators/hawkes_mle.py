"""Multivariate exponential Hawkes processes with one decay, fitted by maximum likelihood on each prefix.

Events excite later events; the likelihood (Ogata 1978, 1981) is in `iclbench.estimators.hawkes_likelihood`. A few
events do not determine K + K² + 1 parameters: without a penalty, predictions from fewer than about twenty events are
worse than predictions with a constant rate. The likelihood therefore has a weak penalty, and a weak prior that gives
all marks a positive rate (`HawkesSettings`).
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from iclbench.core.errors import UsageError, one_line
from iclbench.core.events import HazardEvent
from iclbench.core.settings import NonNegativeFloat, PositiveFloat
from iclbench.estimators.base import slices
from iclbench.estimators.event_estimator import EventEstimator, EventSettings
from iclbench.estimators.hawkes_likelihood import Hawkes, standard_errors
from iclbench.estimators.poisson import Poisson
from iclbench.estimators.workers import map_in_threads

__all__ = ["MIN_EVENTS", "HawkesMLE", "HawkesSettings", "fit", "standard_errors"]

# Prefixes with fewer events are answered by `Poisson`.
MIN_EVENTS = 4
# Number of episodes per call of compiled code, which Ctrl-C cannot interrupt.
_EPISODES_PER_CALL = 16


class HawkesSettings(EventSettings):
    """Settings of the penalised likelihood.

    Attributes:
        smoothing: number of additional base events at the mean rate so far, spread evenly over the marks.
        penalty: factor of the sum of the branching matrix, which is subtracted from the log-likelihood; 1 corresponds
            to one further event of each mark without children.
        fastest: the largest decay, in units of 1 / (geometric mean gap); the smallest decay is 1 / (observed time).
    """

    penalty: NonNegativeFloat = 1.0
    fastest: PositiveFloat = 10.0


class HawkesMLE(EventEstimator[HawkesSettings]):
    """A Hawkes process. All its parameters, including the decay, maximise the penalised likelihood of the prefix.

    The search covers the full range of decays and has no starting point, so the answer for a prefix depends only on its
    events.
    """

    Settings = HawkesSettings
    order = "causal"
    episodes_at_once = 1 << 20

    def answer(self, gaps: Float[Tensor, "B N"], marks: Int[Tensor, "B N"], lengths: Int[Tensor, "B P"]) -> HazardEvent:
        prior = EventSettings(smoothing=self.settings.smoothing, unit=self.settings.unit)
        poisson = Poisson(prior, self.facts).answer(gaps, marks, lengths)
        base, excited, decay = (t.cpu().numpy() for t in (poisson.base, poisson.excited, poisson.decay))
        sequences = [np.ascontiguousarray(t.cpu().numpy()) for t in (gaps, marks, lengths)]
        penalties = (self.settings.smoothing, self.settings.penalty, self.settings.fastest)
        answer_all = _compiled_module().answer_all

        def fit_chunk(chunk: slice) -> None:
            events, answers = ([array[chunk] for array in arrays] for arrays in (sequences, (base, excited, decay)))
            answer_all(*events, MIN_EVENTS, self.mark_count, *penalties, *answers)

        map_in_threads(fit_chunk, list(slices(len(gaps), _EPISODES_PER_CALL)))
        return HazardEvent(*(torch.as_tensor(array, device=gaps.device) for array in (base, excited, decay)))


def fit(
    gaps: np.ndarray,
    marks: np.ndarray,
    mark_count: int,
    *,
    open_interval: float = 0.0,
    smoothing: float = 0.0,
    penalty: float = 0.0,
    fastest: float = 10.0,
) -> Hawkes:
    """Fit a process to one sequence by maximum likelihood; see `standard_errors` for the errors of its parameters.

    Args:
        gaps: times between events, `(n,)`, n >= 1; the first gap is measured from the start of the observation.
        marks: marks from 0 to mark_count - 1, `(n,)`.
        mark_count: number of marks K.
        open_interval: observed time after the last event.
        smoothing: as in `HawkesSettings` (default: no smoothing).
        penalty: as in `HawkesSettings` (default: no penalty).
        fastest: as in `HawkesSettings`.

    Returns:
        The fitted process, in the unit of time of the gaps.

    Raises:
        UsageError: numba is not installed.
    """
    gaps, marks = np.ascontiguousarray(gaps, np.float64), np.ascontiguousarray(marks, np.int64)
    solution = _compiled_module().fit(gaps, marks, mark_count, smoothing, penalty, fastest, open_interval)
    present, mu, alpha, decay, mu_absent, _ = solution
    base, branching = np.full(mark_count, mu_absent), np.zeros((mark_count, mark_count))
    base[present], branching[np.ix_(present, present)] = mu, alpha
    return Hawkes(base, branching, float(decay))


def _compiled_module() -> ModuleType:
    try:
        from iclbench.estimators import compiled_hawkes
    except ImportError as error:
        raise UsageError(
            f"hawkes-mle needs numba: {one_line(error)} (pip install -U numba)", code="missing-package"
        ) from error
    return compiled_hawkes
