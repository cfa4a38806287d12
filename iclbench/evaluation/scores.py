"""Normalised scores: one number per contestant and prompt set, comparable between families.

A score is a linear function of a metric. Two references, measured on the same episodes as the contestant, have the
scores 0 and 1. A score may be negative or above 1. The columns `score_of` and `score_one` contain the metric and the
name of the reference that scores 1; the column `normaliser` is the distance between the two references in units of the
metric.

- Question `next`: the metric is the area under the learning curve of the squared error. The zero predictor scores 0.
  The oracle scores 1; if there are several, the oracle with the least information. Without an oracle, the reference is
  the area under the curve of the lowest mean error of the task's baselines at each context size. Only the baselines of
  the task card are considered, which are the same under all shifts, and the row contains the number of missing
  baselines. An oracle that failed or is not better than the zero predictor is not used, and the row contains the
  reason. If an oracle equals the zero predictor, and no baseline is better, nothing can be learned from the context:
  the rows are skipped and contain the reason, but no score.
- Question `next` for events and tokens: the metric is the negative log-likelihood of events, or the cross-entropy of
  tokens. The predictor with score 0 is a Poisson process with the rate and the mark frequencies observed so far, or the
  uniform distribution of tokens. Without an oracle, the best baseline over complete sequences scores 1, because
  sequences may differ in length.
- Question `targets` with an oracle that predicts distributions: the metric is the mean log-likelihood on the episodes
  that all oracles predicted. A predictor of single values is treated as a Gaussian whose constant variance is its mean
  squared error on these episodes. The zero predictor scores 0. The oracle without related datasets scores 1; if there
  are several, the oracle with the least information, because an oracle given the kernel is better than any predictor
  that has to infer the kernel. Scores with related datasets are on the same scale and can exceed 1.
- Question `targets` otherwise: the metric is the squared error, as for `next`. The mean of the training images
  (`mean-image`) scores 0 if it is better than the zero predictor, so a predictor that ignores the context cannot score
  above 0.
- Squared errors without an oracle: if the interval of the best baseline is not completely below the error that scores
  0, the reference for 1 is an error of zero, which cannot be reached. The interval is the interval of the baseline's
  error, not of a paired difference.
- A family's own tests: the metric is the accuracy among the allowed labels. Guessing scores 0. The task's best baseline
  scores 1 if the context contains the answer; an accuracy of 1 scores 1 if the answer can only be learned in training.
  The score is missing if the test shows which of two equally good answers a model gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import reduce

import pandas as pd

from iclbench import tables
from iclbench.core.files import remove
from iclbench.core.metrics import BASELINES_GIVEN_TRUTH
from iclbench.core.metrics import metric as metric_of
from iclbench.evaluation.bootstrap import summaries
from iclbench.evaluation.prompt_set_rows import PromptSetRows
from iclbench.evaluation.prompts import PromptSet
from iclbench.store.runs import write_errors
from iclbench.tables.curves import mean_heights
from iclbench.tables.related import without_related

_ACCURACY = "accuracy_within_choices"
# Values of a metric with at most this relative difference, which rounding can cause, are treated as equal.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Scale:
    """The linear map from values of a metric to scores.

    Attributes:
        metric: name of the metric.
        zero: value of the metric that scores 0.
        one: value of the metric that scores 1.
        name: name of the reference that scores 1.
    """

    metric: str
    zero: float
    one: float
    name: str

    def score_rows(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Convert rows with values and intervals in units of the metric to rows of scores."""
        ends = ("low", "high") if self.one > self.zero else ("high", "low")
        span = self.one - self.zero
        columns = {
            name: (rows[source] - self.zero) / span + 0.0  # never minus zero
            for name, source in zip(("value", "low", "high"), ("value", *ends), strict=True)
        }
        texts = {"reason": f"{self.metric}: 1 is {self.name}", "score_of": self.metric, "score_one": self.name}
        return rows.assign(metric="score", normaliser=abs(span), **texts, **columns)


def write_scores(prompt_rows: PromptSetRows) -> None:
    """Write the scores of all contestants on a prompt set, or remove the file if the contestants cannot be compared."""
    results, prompts = prompt_rows.results, prompt_rows.prompts
    folder = results / "tables" / prompts.id
    path = folder / "summary" / "scores.values.parquet"
    scores = scores_of(prompt_rows.values, lambda: prompt_rows.errors, prompts)
    if scores is None:
        remove(path)
        return
    with write_errors(results):
        tables.write("values", scores, path, {})


def scores_of(values: pd.DataFrame, errors: Callable[[], pd.DataFrame], prompts: PromptSet) -> pd.DataFrame | None:
    """Return the scores of all contestants on a prompt set as rows of `values`; None if they cannot be compared.

    Args:
        values: rows of the table `values` for all contestants on these prompts.
        errors: a function that returns the contestants' rows of the table `errors`.
        prompts: the prompt set.
    """
    failed = sorted(values.loc[values["kind"].eq("oracle") & values["status"].eq("failed"), "run"].unique())
    values = values[values["status"].eq("ok") & values["axis"].isna()]
    if prompts.evaluator:
        scores = _scores_from_accuracies(values, prompts)
    elif prompts.task.question == "next":
        areas = values[values["metric"] == "auc"]
        curves = values[values["metric"].eq(prompts.headline) & values["n_context"].notna()]
        scores = _scores_from_errors(areas, curves, prompts.headline, prompts.task.baselines, failed)
    elif prompts.task.head != "categorical":
        by_episode = errors()
        scores = _scores_from_likelihoods(by_episode, values, prompts)
        if scores is None and not _are_errors_missing(by_episode, values):
            metric, no_curves = "squared_error", values.iloc[:0]
            errors_of_runs = values[values["metric"] == metric]
            scores = _scores_from_errors(errors_of_runs, no_curves, metric, prompts.task.baselines, failed)
    else:
        scores = None
    return None if scores is None else scores.sort_values(["run", "n_related"])


def _scores_from_errors(
    rows: pd.DataFrame,
    curves: pd.DataFrame,
    metric: str,
    task_baselines: Sequence[str],
    failed_oracles: Sequence[str],
) -> pd.DataFrame | None:
    """Compute scores from errors; None if the contestants cannot be compared.

    Args:
        rows: an error per contestant and number of related datasets.
        curves: the contestants' errors at each context size if `rows` are areas under learning curves, otherwise empty.
        metric: the metric of the errors.
        task_baselines: the baselines of the task card.
        failed_oracles: oracles that failed.
    """
    guesses, is_sequence_metric = metric_of(metric).guessing_baselines, metric_of(metric).is_for_sequences
    without_sets = without_related(rows).set_index("run").sort_index().sort_values("value", kind="stable")
    zero_rows = without_sets[without_sets.index.isin(guesses)]
    if zero_rows.empty:
        return None
    zero_run, zero = zero_rows.index[0], float(zero_rows["value"].iloc[0])
    candidates = without_sets.drop(zero_rows.index)
    oracles = candidates[candidates["kind"].eq("oracle")]
    baselines = candidates[candidates["kind"].eq("baseline") & ~candidates.index.isin(BASELINES_GIVEN_TRUTH)]
    if oracles.empty and baselines.empty and not failed_oracles:
        return None
    are_equal = (oracles["value"] - zero).abs() <= _ROUNDING * abs(zero)
    useful_oracles = oracles[(oracles["value"] < zero) & ~are_equal]
    reasons = [f"{run} failed" for run in failed_oracles if run not in oracles.index]
    worse_oracles = oracles.index.difference(useful_oracles.index)
    reasons += [f"{run} is not better than {zero_run}" for run in sorted(worse_oracles)]
    reason_text = f" (the oracle {', '.join(reasons)})" if reasons else ""
    names = [name for name in task_baselines if name not in (*guesses, *BASELINES_GIVEN_TRUTH)]
    best = _best_of_baselines(baselines, curves.iloc[:0] if is_sequence_metric else curves, zero, names)
    if best is None and are_equal.any():
        return _skipped_scores(rows, metric, f"{zero_run} and {oracles.index[are_equal][-1]}")
    if len(useful_oracles):  # errors ascend, so the last oracle has the least information
        one, name = float(useful_oracles["value"].iloc[-1]), str(useful_oracles.index[-1])
    else:
        if best is None and (is_sequence_metric or zero <= 0):  # the metric does not have a best possible value
            return None
        one, name = best or (0.0, "no error")
    return Scale(metric, zero, one, f"{name}{reason_text}").score_rows(rows)


def _skipped_scores(rows: pd.DataFrame, metric: str, references: str) -> pd.DataFrame:
    """Return rows of scores that are not defined, because the references for 0 and 1 have the same value."""
    reason = f"{references} have the same {metric_of(metric).label} on these prompts"
    scores = rows.assign(metric="score", status="skipped", reason=reason, score_of=metric)
    scores[["value", "low", "high", "normaliser"]] = pd.NA
    return scores


def _best_of_baselines(
    rows: pd.DataFrame, curves: pd.DataFrame, zero: float, names: Sequence[str]
) -> tuple[float, str] | None:
    """Return the lowest error of the task's baselines and the name of this reference.

    The result is None if no baseline has an error, or if the interval of the best baseline is not completely below the
    error that scores 0.

    Args:
        rows: an error per baseline, ascending.
        curves: the baselines' errors at each context size; empty for errors that are not areas.
        zero: the error that scores 0.
        names: the baselines of the task.
    """
    best = rows[rows.index.isin(names)]
    if not (best["high"].head(1) < zero).fillna(False).any():
        return None
    missing = f" ({len(names) - len(best)} of {len(names)} baselines are missing)" if len(best) < len(names) else ""
    curves = curves[curves["run"].isin(best.index)]
    if curves.empty:
        return float(best["value"].iloc[0]), f"{best.index[0]}{missing}"
    complete = curves[curves["n_episodes"].eq(int(best["n_episodes"].max()))]
    lowest_errors = complete.groupby("n_context")["value"].min().astype(float)
    return float(mean_heights(lowest_errors.to_frame().T).iloc[0]), f"the best baseline at each context size{missing}"


def _scores_from_accuracies(values: pd.DataFrame, prompts: PromptSet) -> pd.DataFrame | None:
    """Compute scores from accuracies on one of the family's own tests; None if contestants cannot be compared."""
    test = prompts.family.evaluators()[prompts.evaluator]
    rows = values[values["metric"] == _ACCURACY]
    baselines = rows[rows["kind"].eq("baseline") & rows["run"].isin(prompts.task.baselines) & rows["run"].ne("chance")]
    if test.answer_source == "either" or rows.empty or (test.answer_source == "context" and baselines.empty):
        return None
    best, name = 1.0, "always right"
    if test.answer_source == "context":
        best_baseline = baselines.sort_values(["value", "run"], ascending=[False, True]).iloc[0]
        if pd.notna(best_baseline["low"]) and best_baseline["low"] > test.chance:
            best, name = float(best_baseline["value"]), str(best_baseline["run"])
    return Scale(_ACCURACY, test.chance, best, name).score_rows(rows)


def _scores_from_likelihoods(errors: pd.DataFrame, values: pd.DataFrame, prompts: PromptSet) -> pd.DataFrame | None:
    """Compute scores from log-likelihoods on the episodes that all oracles predicted.

    The result is None if no oracle has a likelihood, if the zero predictor is missing, or if it is at least as good as
    the oracle.
    """
    likelihoods, squared = (_by_episode(errors, metric) for metric in ("log_likelihood", "squared_error"))
    oracle_runs = sorted(values.loc[values["kind"] == "oracle", "run"].unique())
    oracles = [(str(run), 0) for run in oracle_runs if (run, 0) in likelihoods]
    if not oracles or ("zero", 0) not in squared:
        return None
    indices = [*(likelihoods[oracle].dropna().index for oracle in oracles), squared[("zero", 0)].dropna().index]
    common_episodes = reduce(pd.Index.intersection, indices)

    def constant_variance_likelihood(error: object) -> float:
        """Return the mean log-likelihood of a Gaussian with constant variance equal to the mean squared error."""
        outputs, scale = prompts.family.y_dim, prompts.family.normaliser
        return -0.5 * outputs * math.log(2 * math.pi * math.e * float(str(error)) * scale / outputs)

    rows: list[dict[Hashable, object]] = []
    for (run, related), run_rows in values.groupby(["run", "n_related"]):
        key = (str(run), int(str(related)))
        squared_errors, log_likelihoods = squared.get(key), likelihoods.get(key)
        if log_likelihoods is not None and log_likelihoods[common_episodes].notna().all():
            summary = _summary(log_likelihoods[common_episodes], prompts.seed)
        elif squared_errors is not None and squared_errors[common_episodes].notna().all():
            error = _summary(squared_errors[common_episodes], prompts.seed)
            ends = {"value": "value", "low": "high", "high": "low"}
            summary = error | {name: constant_variance_likelihood(error[source]) for name, source in ends.items()}
        else:
            continue
        rows.append(run_rows.iloc[0].to_dict() | summary)
    likelihood_rows = tables.frame("values", pd.DataFrame(rows).assign(metric="log_likelihood"))
    without_sets = without_related(likelihood_rows)
    zero = float(without_sets.loc[without_sets["run"] == "zero", "value"].iloc[0])
    oracle_row = without_sets[without_sets["kind"] == "oracle"].sort_values(["value", "run"]).iloc[0]
    if not oracle_row["value"] > zero:
        return None
    return Scale("log_likelihood", zero, float(oracle_row["value"]), str(oracle_row["run"])).score_rows(likelihood_rows)


def _are_errors_missing(errors: pd.DataFrame, values: pd.DataFrame) -> bool:
    """Return whether scores from likelihoods need errors of single episodes that packed results do not contain."""
    is_of_oracle = values["kind"].eq("oracle") & values["metric"].eq("log_likelihood")
    required = values[is_of_oracle | (values["run"].eq("zero") & values["metric"].eq("squared_error"))]
    required_keys, keys = (pd.MultiIndex.from_frame(rows[["run", "metric"]]) for rows in (required, errors))
    return bool(is_of_oracle.any()) and not required_keys.isin(keys).all()


def _by_episode(errors: pd.DataFrame, metric: str) -> dict[tuple[str, int], pd.Series]:
    """Return the scores of all episodes by run and number of related datasets; NaN for missing scores."""
    rows = errors[errors["metric"].eq(metric) & errors["n_related"].notna()]
    episodes = range(int(rows["episode"].max()) + 1 if len(rows) else 0)
    return {
        (str(run), int(str(related))): run_rows.set_index("episode")["value"].astype(float).reindex(episodes)
        for (run, related), run_rows in rows.groupby(["run", "n_related"])
    }


def _summary(scores: pd.Series, seed: int) -> dict[str, object]:
    """Return the mean, interval and number of episodes, as in `summaries`."""
    return summaries(scores.to_numpy(float)[:, None], seed)[0]
