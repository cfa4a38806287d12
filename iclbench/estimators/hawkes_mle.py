"""Exponential Hawkes processes, multivariate with one decay, by maximum likelihood on each prefix.

Events excite later ones (`iclbench.estimators.hawkes_likelihood` has the likelihood): after Ogata 1978 and 1981. A few
events say little about K + K² + 1 parameters, and the maximum of the likelihood alone predicts worse than a constant
rate until it has seen some twenty: hence a weak penalty, which also keeps every mark possible.
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
from iclbench.estimators.workers import in_threads

__all__ = ["FEWEST", "HawkesMLE", "HawkesSettings", "fit", "standard_errors"]

# Prefixes of fewer events are answered as `Poisson` answers them.
FEWEST = 4
# Between two calls of compiled code Ctrl-C is heard.
_EPISODES = 16


class HawkesSettings(EventSettings):
    """`smoothing`: so many further events, spread evenly over the marks, count as base events at the mean rate so far.
    `penalty`: is taken off the log-likelihood for every expected child of an event of each mark: 1 is as if every mark
    had come once more and no child had followed. `fastest`: the largest decay, per typical (geometric mean) gap; the
    smallest is one per observed time.
    """

    penalty: NonNegativeFloat = 1.0
    fastest: PositiveFloat = 10.0


class HawkesMLE(EventEstimator[HawkesSettings]):
    """The penalised maximum over all parameters, the decay included, found by search over the whole range of decays
    and not from a start: what is answered for a prefix depends on nothing but its events."""

    Settings = HawkesSettings
    order = "causal"
    episodes_at_once = 1 << 20

    def answer(self, gaps: Float[Tensor, "B N"], marks: Int[Tensor, "B N"], lengths: Int[Tensor, "B P"]) -> HazardEvent:
        prior = EventSettings(smoothing=self.settings.smoothing, unit=self.settings.unit)
        poisson = Poisson(prior, self.facts).answer(gaps, marks, lengths)
        base, excited, decay = (t.cpu().numpy() for t in (poisson.base, poisson.excited, poisson.decay))
        sequences = [np.ascontiguousarray(t.cpu().numpy()) for t in (gaps, marks, lengths)]
        penalties = (self.settings.smoothing, self.settings.penalty, self.settings.fastest)
        answer_all = _compiled().answer_all

        def work(chunk: slice) -> None:
            events, answers = ([array[chunk] for array in arrays] for arrays in (sequences, (base, excited, decay)))
            answer_all(*events, FEWEST, self.kinds, *penalties, *answers)

        in_threads(work, list(slices(len(gaps), _EPISODES)))
        return HazardEvent(*(torch.as_tensor(array, device=gaps.device) for array in (base, excited, decay)))


def fit(
    gaps: np.ndarray,
    marks: np.ndarray,
    kinds: int,
    *,
    open_after: float = 0.0,
    smoothing: float = 0.0,
    penalty: float = 0.0,
    fastest: float = 10.0,
) -> Hawkes:
    """The most likely process of one sequence; `standard_errors` says how well its parameters are known.

    Args:
        gaps: `(n,)`, between events, n >= 1; the first from the beginning of the observation.
        marks: `(n,)`, from 0 to kinds - 1.
        kinds: number of marks K.
        open_after: how long the observation went on after the last event.
        smoothing, penalty, fastest: as in `HawkesSettings`; nothing is smoothed or penalised when they are not given.

    Returns:
        The process, in the unit of the gaps.
    """
    gaps, marks = np.ascontiguousarray(gaps, np.float64), np.ascontiguousarray(marks, np.int64)
    solution = _compiled().fit(gaps, marks, kinds, smoothing, penalty, fastest, open_after)
    present, mu, alpha, decay, mu_absent, _ = solution
    base, branching = np.full(kinds, mu_absent), np.zeros((kinds, kinds))
    base[present], branching[np.ix_(present, present)] = mu, alpha
    return Hawkes(base, branching, float(decay))


def _compiled() -> ModuleType:
    try:
        from iclbench.estimators import compiled_hawkes
    except ImportError as error:
        raise UsageError(f"hawkes-mle is fitted in compiled loops: {one_line(error)} (pip install -U numba)") from error
    return compiled_hawkes
