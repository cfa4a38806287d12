"""Find metrics that the current code computes but that a cached evaluation does not contain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from iclbench.core.predictions import Prediction


def missing_metrics(measured: Iterable[str], question: str) -> set[str]:
    """Return the metrics that the current code computes together with `measured` but that `measured` does not contain.

    The class of the predictions is inferred: of all classes whose `metrics` contain the measured ones, it is the class
    with the fewest metrics. For the question `targets`, predictions with a density also have a joint log-likelihood.
    Other metrics (areas, scores of sequences or of allowed labels) depend on the data or the model and are never
    returned.

    Args:
        measured: names of the metrics that have values.
        question: question of the task.

    >>> from iclbench.core.predictions import Gaussian
    >>> missing_metrics([*Gaussian.metrics, "auc"], "next"), missing_metrics(Gaussian.metrics, "targets")
    (set(), {'log_likelihood_joint'})
    """
    names = set(measured)
    metric_sets = [set(cls.metrics) for cls in _subclasses(Prediction)]
    known_metrics = names & set().union(*metric_sets)
    candidates = [metrics for metrics in metric_sets if known_metrics <= metrics] if known_metrics else []
    expected: set[str] = min(candidates, key=len, default=set())
    if question == "targets" and "log_likelihood" in names:
        expected = expected | {"log_likelihood_joint"}
    return expected - names


def _subclasses(cls: type[Any]) -> Iterator[type[Prediction]]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)
