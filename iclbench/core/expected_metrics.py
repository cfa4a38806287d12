"""Which metrics a cached evaluation has, and which of those that today's code computes it lacks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from iclbench.core import events, joint  # noqa: F401  (their kinds of predictions)
from iclbench.core.predictions import Prediction


def lacking(measured: Iterable[str], question: str) -> set[str]:
    """The metrics that today's code computes together with these, and that are not among them.

    The answers are taken for the kind of prediction with the fewest metrics (`Prediction.metrics`) that has all of
    these. With a density comes the joint likelihood of targets. What else depends on the data or on the model (areas,
    scores of whole sequences, of admitted labels) cannot be known without computing it, and is never said to be
    lacking.

    Args:
        measured: names of metrics with values.
        question: of the task.

    >>> from iclbench.core.predictions import Gaussian
    >>> lacking([*Gaussian.metrics, "auc"], "next"), lacking(Gaussian.metrics, "targets")
    (set(), {'log_likelihood_joint'})
    """
    names = set(measured)
    kinds = [set(kind.metrics) for kind in _kinds(Prediction)]
    known_metrics = names & set().union(*kinds)
    candidates = [metrics for metrics in kinds if known_metrics <= metrics] if known_metrics else []
    expected: set[str] = min(candidates, key=len, default=set())
    if question == "targets" and "log_likelihood" in names:
        expected = expected | {"log_likelihood_joint"}
    return expected - names


def _kinds(kind: type[Any]) -> Iterator[type[Prediction]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _kinds(subclass)
