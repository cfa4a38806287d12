"""What the report knows of a metric: its label, which direction is better, and whether its axis is logarithmic."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    label: str
    lower_is_better: bool = True
    log: bool = False


METRICS = {
    "squared_error": Metric("normalised squared error", log=True),
    "squared_error_raw": Metric("normalised squared error before scale and shift", log=True),
    "loss": Metric("training loss", log=True),
    "cross_entropy": Metric("cross-entropy"),
    "log_likelihood": Metric("log-likelihood", lower_is_better=False),
    "log_likelihood_gaussian": Metric("log-likelihood of the Gaussian with the same moments", lower_is_better=False),
    "log_likelihood_adjusted": Metric("log-likelihood adjusted to the task's ceiling", lower_is_better=False),
    "gap": Metric("gap to the oracle"),
    "covered_50": Metric("share of targets within the 50 % interval", lower_is_better=False),
    "covered_90": Metric("share of targets within the 90 % interval", lower_is_better=False),
    "accuracy": Metric("accuracy", lower_is_better=False),
    "accuracy_within_choices": Metric("accuracy", lower_is_better=False),
    "effective_rank": Metric("effective rank", lower_is_better=False, log=True),
    "rank": Metric("numerical rank", lower_is_better=False, log=True),
    "r_squared": Metric("R²", lower_is_better=False),
    "auc": Metric("area under the learning curve"),
    "score": Metric("score", lower_is_better=False),
}


def metric(name: str) -> Metric:
    """The known metric, or a plain one on a linear axis; unknown errors and losses are better when lower."""
    return METRICS.get(name) or Metric(name.replace("_", " "), lower_is_better=name.endswith(("error", "loss")))
