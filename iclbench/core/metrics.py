"""The metrics in the tables `values` and `costs`, with label, unit, direction, axis, format and normalisation.

To add a metric, add an entry here. A plug-in's metric without an entry is labelled with its name and has a linear axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from iclbench.core.formats import Number, count, fixed, flops, nbytes, seconds


@dataclass(frozen=True)
class Metric:
    """A metric and its properties.

    Attributes:
        name: name in the tables.
        label: name in figures and captions.
        unit: unit of its values; empty for a plain number.
        lower_is_better: whether smaller values are better.
        logarithmic: whether axes for the metric are logarithmic.
        normalised: whether values are divided by the task's normaliser.
        area: name of the metric that is the area under this metric's learning curve; empty for other metrics.
        yes_or_no: whether the value of an episode is 1 (correct) or 0, so that the mean is a share of episodes.
        is_share: whether the mean is between 0 and 1.
        show: function that formats a value.
        per_event: whether a value is a sum over a sequence, which is divided by the mean number of scored positions.
        is_for_sequences: whether learning curves of this metric are measured on sequences, which may differ in length
            and in the positions that are scored. All scored positions then have the same weight.
        includes_open_interval: whether the sum over a sequence includes the open interval at the end of an observation
            window.
        describes_intervals: whether the metric describes predictive intervals. Such metrics are not reported for
            observation windows: the end of a window cuts off long gaps, so observed gaps are too short.
        depends_on_machine: whether values depend on the machine that measured them.
        guessing_baselines: baselines that ignore the context. The best of them has score 0.
    """

    name: str
    label: str
    unit: str = ""
    lower_is_better: bool = True
    logarithmic: bool = False
    normalised: bool = False
    area: str = ""
    yes_or_no: bool = False
    is_share: bool = False
    show: Callable[[Number], str] = fixed
    per_event: bool = False
    is_for_sequences: bool = False
    includes_open_interval: bool = False
    describes_intervals: bool = False
    depends_on_machine: bool = False
    guessing_baselines: tuple[str, ...] = ("zero",)

    def normaliser(self, task_normaliser: float) -> float:
        """Return the divisor of raw values, given the task's normaliser."""
        return task_normaliser if self.normalised else 1.0


def _higher(name: str, label: str, unit: str = "", *, logarithmic: bool = False) -> Metric:
    return Metric(name, label, unit, lower_is_better=False, logarithmic=logarithmic)


def _cost(
    name: str, label: str, unit: str, show: Callable[[Number], str], *, depends_on_machine: bool = False
) -> Metric:
    return Metric(name, label, unit, logarithmic=True, show=show, depends_on_machine=depends_on_machine)


def _share(name: str, label: str, *, yes_or_no: bool = True, describes_intervals: bool = False) -> Metric:
    return Metric(
        name,
        label,
        lower_is_better=False,
        yes_or_no=yes_or_no,
        is_share=True,
        describes_intervals=describes_intervals,
        guessing_baselines=("chance",),
    )


_ENTRIES = (
    Metric(
        "nll",
        "negative log-likelihood per event",
        "nats",
        area="auc",
        is_for_sequences=True,
        includes_open_interval=True,
        guessing_baselines=("poisson",),
    ),
    Metric(
        "squared_error",
        "normalised squared error",
        logarithmic=True,
        normalised=True,
        area="auc",
        guessing_baselines=("zero", "mean-image", "mean-image-5e-2"),
    ),
    Metric("squared_error_raw", "normalised squared error before scale and shift", logarithmic=True, normalised=True),
    Metric("loss", "training loss", logarithmic=True),
    Metric(
        "cross_entropy", "cross-entropy", "nats", area="auc", is_for_sequences=True, guessing_baselines=("uniform",)
    ),
    Metric("nll_time", "negative log-likelihood of the time per event", "nats", includes_open_interval=True),
    Metric("nll_mark", "negative log-likelihood of the mark per event", "nats"),
    Metric(
        "nll_published",
        "negative log-likelihood per event as released (first event skipped, last censored)",
        "nats",
        per_event=True,
    ),
    Metric("nll_open", "negative log-likelihood of the open interval at the end", "nats"),
    Metric("absolute_error", "absolute error"),
    Metric("squared_sum_error", "squared sum of the errors of a sequence, per event", logarithmic=True, per_event=True),
    _higher("log_likelihood", "log-likelihood", "nats"),
    _higher("log_likelihood_gaussian", "log-likelihood of the Gaussian with the same moments", "nats"),
    _higher("log_likelihood_joint", "joint log-likelihood of all targets, per target", "nats"),
    _higher("log_likelihood_teacher_forced", "log-likelihood per target given the true targets before it", "nats"),
    _higher("log_likelihood_adjusted", "log-likelihood adjusted to the task's ceiling", "nats"),
    Metric("gap", "gap to the oracle", "nats"),
    Metric("gap_joint", "gap to the oracle's joint log-likelihood, per target", "nats"),
    _share("covered_50", "share of targets within the 50 % interval", yes_or_no=False, describes_intervals=True),
    _share("covered_90", "share of targets within the 90 % interval", yes_or_no=False, describes_intervals=True),
    _share("accuracy", "accuracy"),
    _share("accuracy_within_choices", "accuracy"),
    _higher("roc_auc", "ROC AUC"),
    Metric("calibration_error", "calibration error"),
    Metric("crps", "CRPS"),
    _share("accuracy_first_token", "accuracy of the first token"),
    _share("accuracy_mad", "accuracy, mean over the settings of MAD"),
    _share("accuracy_per_token", "accuracy by log-probability per token"),
    _share("accuracy_per_character", "accuracy by log-probability per character"),
    _share("accuracy_per_byte", "accuracy by log-probability per byte"),
    _share("balanced_accuracy", "balanced accuracy", yes_or_no=False),
    _higher("accuracy_gain", "gain in accuracy"),
    Metric("accuracy_sd", "standard deviation of the accuracy"),
    Metric("kl_to_icl", "KL to plain ICL", "nats", logarithmic=True),
    Metric("memory_change", "change of the memory", logarithmic=True),
    _higher("effective_rank", "effective rank", logarithmic=True),
    _higher("rank", "numerical rank", logarithmic=True),
    _higher("r_squared", "R²"),
    Metric("auc", "area under the learning curve"),
    _higher("score", "score"),
    _cost("seconds", "time", "seconds", seconds, depends_on_machine=True),
    _cost("bytes", "memory", "peak bytes", nbytes, depends_on_machine=True),
    _cost("flops", "work", "FLOP", flops),
    _cost("state_bytes", "state", "bytes", nbytes),
    _cost("parameters", "parameters", "", count),
    _cost("steps", "steps", "", count),
    _cost("encoder_parameters", "parameters of an image encoder", "", count),
)
# Prefixes in the names of divergences and squared distances from a baseline or an oracle.
KL_TO, DISTANCE_TO = "kl_to_", "squared_distance_to_"
# Prefixes in the names of the scores of linear probes. The name of the decoded target follows.
R_SQUARED_OF, ACCURACY_OF = "r_squared_of_", "accuracy_of_"
METRICS = {entry.name: entry for entry in _ENTRIES}
# All baselines that ignore the context, for any metric.
GUESSING_BASELINES = frozenset(name for entry in _ENTRIES for name in entry.guessing_baselines)
# Baselines that have access to the truth but are not optimal. They are not ranked, and are never the best baseline.
BASELINES_GIVEN_TRUTH = frozenset({"periodic-mean"})
# Metrics with learning curves, in order of preference. Likelihoods come first, because event tasks also have squared
# errors.
_CURVES = tuple(entry.name for entry in _ENTRIES if entry.area)


def curve_metric(metric_names: Iterable[str]) -> str:
    """Return the metric whose learning curve `auc` summarises, given all metrics of a result.

    >>> curve_metric(["accuracy", "squared_error", "nll"]), curve_metric(["log_likelihood"])
    ('nll', 'squared_error')
    """
    names = set(metric_names)
    return next((name for name in _CURVES if name in names), "squared_error")


def metric(name: str) -> Metric:
    """Return the metric with this name.

    The properties of an unknown metric are inferred from its name. The prefix "accuracy" means a share of correct
    answers, "r_squared_of_" an R², "kl_to_" a divergence, and "squared_distance_to_" a distance. For all other metrics,
    lower values are better only if the name ends with "error" or "loss".

    >>> metric("log_likelihood").unit, metric("pinball_loss").label, metric("pinball_loss").lower_is_better
    ('nats', 'pinball loss', True)
    """
    if name in METRICS:
        return METRICS[name]
    if name.startswith("accuracy"):
        return _share(name, name.replace("_", " "))
    if name.startswith(R_SQUARED_OF):
        return _higher(name, f"R² of {name.removeprefix(R_SQUARED_OF).replace('_', ' ')}")
    if name.startswith(KL_TO):
        return Metric(name, f"KL to {name.removeprefix(KL_TO)}", "nats", logarithmic=True)
    if name.startswith(DISTANCE_TO):
        return Metric(name, f"squared distance to {name.removeprefix(DISTANCE_TO)}", logarithmic=True, normalised=True)
    return Metric(name, name.replace("_", " "), lower_is_better=name.endswith(("error", "loss")))
