"""Normalised scores: one number per contestant and prompt set that families of any kind can be compared by.

A score is a straight line through two points, told in the columns `score_of` and `score_one` and measured on the same
episodes as the contestant; it may be negative or above 1. The column `normaliser` holds how far apart the points
are in units of the metric.

- Question `next`, by the area under the learning curve of the squared error: 0 is the zero predictor, 1 the oracle (of
  several the one that knows least) or, without one, the best baseline on these very prompts. An oracle that failed, or
  is no better than the zero predictor, is none, and the row says so. Of events, by that of the
  negative log-likelihood: 0 is the Poisson process with the rate and the frequencies of marks so far.
- Question `targets` where an oracle predicts distributions, by mean log-likelihood: 0 is the zero predictor, given the
  constant variance that suits it best in hindsight (as are all predictors of single values), 1 the oracle without
  related datasets. Of several oracles that is the one which knows least: an oracle given the kernel does better than
  any predictor that has to infer it. All are scored on the episodes that every oracle was asked. What related
  datasets add is read on the same line, which scores beyond 1 belong to.
- Question `targets` otherwise, by squared error: as for `next`, but that 0 is the mean of the images that are trained
  on (`mean-image`) where it is better than the zero predictor, so that a predictor without context cannot score above
  0. Where no baseline is significantly better than what scores 0 (by its interval), 1 is an error of zero, which
  cannot be reached.
- A family's own tests, by accuracy among the admitted labels: 0 is guessing, 1 the best baseline where the context
  holds the answer, and being always right where only training can have taught it. No score where neither of two answers
  is the better one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import reduce

import pandas as pd

from iclbench import tables
from iclbench.core.files import remove
from iclbench.core.metrics import GIVEN_TRUTH
from iclbench.core.metrics import metric as of
from iclbench.evaluation.bootstrap import summaries
from iclbench.evaluation.prompt_set_rows import PromptSetRows
from iclbench.evaluation.prompts import PromptSet
from iclbench.store.runs import writing
from iclbench.tables.related import without_related

_ACCURACY = "accuracy_within_choices"


@dataclass(frozen=True)
class Line:
    """A line from raw values of a metric to scores: `nothing` scores 0, `best` scores 1 and is what `name` says."""

    metric: str
    nothing: float
    best: float
    name: str

    def of(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Score rows from rows with value and interval in the metric's units."""
        ends = ("low", "high") if self.best > self.nothing else ("high", "low")
        span = self.best - self.nothing
        columns = {
            name: (rows[source] - self.nothing) / span + 0.0  # never minus zero
            for name, source in zip(("value", "low", "high"), ("value", *ends), strict=True)
        }
        about = {"reason": f"{self.metric}: 1 is {self.name}", "score_of": self.metric, "score_one": self.name}
        return rows.assign(metric="score", normaliser=abs(span), **about, **columns)


def write_scores(prompt_rows: PromptSetRows) -> None:
    """Write the scores of all contestants of one prompt set; no file where there is nothing to compare with."""
    results, prompts = prompt_rows.results, prompt_rows.prompts
    folder = results / "tables" / prompts.id
    path = folder / "summary" / "scores.values.parquet"
    scores = scores_of(prompt_rows.values, lambda: prompt_rows.errors, prompts)
    if scores is None:
        remove(path)
        return
    with writing(results):
        tables.write("values", scores, path, {})


def scores_of(values: pd.DataFrame, errors: Callable[[], pd.DataFrame], prompts: PromptSet) -> pd.DataFrame | None:
    """The scores of all contestants of one prompt set as rows of `values`; None: there is nothing to compare with.

    Args:
        values: the rows of all contestants on these prompts.
        errors: gives the table `errors` of them, where it is needed.
        prompts: the prompt set.
    """
    failed = sorted(values.loc[values["kind"].eq("oracle") & values["status"].eq("failed"), "run"].unique())
    values = values[values["status"].eq("ok") & values["axis"].isna()]
    if prompts.evaluator:
        scores = _of_test(values, prompts)
    elif prompts.task.question == "next":
        scores = _of_errors(values[values["metric"] == "auc"], prompts.headline, failed)
    elif prompts.task.head != "categorical":
        by_episode = errors()
        scores = _of_likelihoods(by_episode, values, prompts)
        if scores is None and not _are_missing(by_episode, values):
            scores = _of_errors(values[values["metric"] == "squared_error"], "squared_error", failed)
    else:
        scores = None
    return None if scores is None else scores.sort_values(["run", "n_related"])


def _of_errors(rows: pd.DataFrame, metric: str, failed: Sequence[str] = ()) -> pd.DataFrame | None:
    """Scores from errors, of which less is better; None: there is nothing to compare with.

    Args:
        rows: an error per contestant and number of related datasets.
        metric: what the errors are of.
        failed: oracles that have no error.
    """
    without_sets = without_related(rows).set_index("run").sort_index().sort_values("value", kind="stable")
    zero_rows = without_sets[without_sets.index.isin(of(metric).guesses)]
    if zero_rows.empty:
        return None
    nothing, other_rows = float(zero_rows["value"].iloc[0]), without_sets.drop(zero_rows.index)
    best = _best(other_rows, str(zero_rows.index[0]), nothing, failed, endless=of(metric).of_sequences)
    return None if best is None else Line(metric, nothing, *best).of(rows)


def _best(
    candidates: pd.DataFrame, scores_nothing: str, nothing: float, failed: Sequence[str], endless: bool
) -> tuple[float, str] | None:
    """The error that scores 1 and its name; None: there is nothing to compare with.

    An error that scores 1 is less than the one that scores 0.

    Args:
        candidates: all rows but those of predictors that may score 0, by rising error.
        scores_nothing: the predictor that scores 0.
        nothing: its error.
        failed: oracles that have no error.
        endless: whether the metric has no best value of its own.
    """
    oracles = candidates[candidates["kind"].eq("oracle")]
    baselines = candidates[candidates["kind"].eq("baseline") & ~candidates.index.isin(GIVEN_TRUTH)]
    if oracles.empty and baselines.empty and not failed:
        return None
    useful = oracles[oracles["value"] < nothing]
    excuses = [f"{run} failed" for run in failed if run not in oracles.index]
    excuses += [f"{run} is no better than {scores_nothing}" for run in sorted(oracles.index.difference(useful.index))]
    excuse_text = f" (the oracle {', '.join(excuses)})" if excuses else ""
    if len(useful):  # of several the one that knows least
        return float(useful["value"].iloc[-1]), f"{useful.index[-1]}{excuse_text}"
    best = baselines.head(1)
    if (best["high"] < nothing).fillna(False).any():  # beyond doubt
        return float(best["value"].iloc[0]), f"{best.index[0]}{excuse_text}"
    return None if endless or nothing <= 0 else (0.0, f"no error{excuse_text}")


def _of_test(values: pd.DataFrame, prompts: PromptSet) -> pd.DataFrame | None:
    """From accuracies on one of a family's own tests."""
    test = prompts.family.evaluators()[prompts.evaluator]
    rows = values[values["metric"] == _ACCURACY]
    baselines = rows[rows["kind"].eq("baseline") & rows["run"].ne("chance")]
    if test.knows == "either" or rows.empty or (test.knows == "context" and baselines.empty):
        return None
    best, name = 1.0, "always right"
    if test.knows == "context":
        best_baseline = baselines.sort_values(["value", "run"], ascending=[False, True]).iloc[0]
        if pd.notna(best_baseline["low"]) and best_baseline["low"] > test.chance:
            best, name = float(best_baseline["value"]), str(best_baseline["run"])
    return Line(_ACCURACY, test.chance, best, name).of(rows)


def _of_likelihoods(errors: pd.DataFrame, values: pd.DataFrame, prompts: PromptSet) -> pd.DataFrame | None:
    """From log-likelihoods, on the episodes that all oracles were asked; None where no oracle has any."""
    likelihoods, squared = (_by_episode(errors, metric) for metric in ("log_likelihood", "squared_error"))
    oracle_runs = sorted(values.loc[values["kind"] == "oracle", "run"].unique())
    oracles = [(str(run), 0) for run in oracle_runs if (run, 0) in likelihoods]
    if not oracles or ("zero", 0) not in squared:
        return None
    indices = [*(likelihoods[oracle].dropna().index for oracle in oracles), squared[("zero", 0)].dropna().index]
    common = reduce(pd.Index.intersection, indices)

    def constant(error: object) -> float:
        """Log-likelihood of a Gaussian with the same variance everywhere: the mean squared error of its mean."""
        outputs, scale = prompts.family.y_dim, prompts.family.normaliser
        return -0.5 * outputs * math.log(2 * math.pi * math.e * float(str(error)) * scale / outputs)

    rows: list[dict[Hashable, object]] = []
    for (run, related), run_rows in values.groupby(["run", "n_related"]):
        key = (str(run), int(str(related)))
        points, distributions = squared.get(key), likelihoods.get(key)
        if distributions is not None and distributions[common].notna().all():
            summary = _summary(distributions[common], prompts.seed)
        elif points is not None and points[common].notna().all():
            error = _summary(points[common], prompts.seed)
            ends = {"value": "value", "low": "high", "high": "low"}
            summary = error | {name: constant(error[source]) for name, source in ends.items()}
        else:
            continue
        rows.append(run_rows.iloc[0].to_dict() | summary)
    scored = tables.frame("values", pd.DataFrame(rows).assign(metric="log_likelihood"))
    without_sets = without_related(scored)
    nothing = float(without_sets.loc[without_sets["run"] == "zero", "value"].iloc[0])
    oracle_row = without_sets[without_sets["kind"] == "oracle"].sort_values(["value", "run"]).iloc[0]
    if not oracle_row["value"] > nothing:
        return None
    return Line("log_likelihood", nothing, float(oracle_row["value"]), str(oracle_row["run"])).of(scored)


def _are_missing(errors: pd.DataFrame, values: pd.DataFrame) -> bool:
    """Whether scores of likelihoods are made of episodes that are known to have been asked, and are not there: packed
    results may hold less than an evaluation writes."""
    of_oracles = values["kind"].eq("oracle") & values["metric"].eq("log_likelihood")
    required = values[of_oracles | (values["run"].eq("zero") & values["metric"].eq("squared_error"))]
    present_keys = pd.MultiIndex.from_frame(errors[["run", "metric"]])
    return bool(of_oracles.any()) and not pd.MultiIndex.from_frame(required[["run", "metric"]]).isin(present_keys).all()


def _by_episode(errors: pd.DataFrame, metric: str) -> dict[tuple[str, int], pd.Series]:
    """The scores of all episodes, NaN where not asked, of every run and number of related datasets."""
    rows = errors[errors["metric"].eq(metric) & errors["n_related"].notna()]
    episodes = range(int(rows["episode"].max()) + 1 if len(rows) else 0)
    return {
        (str(run), int(str(related))): run_rows.set_index("episode")["value"].astype(float).reindex(episodes)
        for (run, related), run_rows in rows.groupby(["run", "n_related"])
    }


def _summary(scores: pd.Series, seed: int) -> dict[str, object]:
    """Mean, interval and number of episodes."""
    return summaries(scores.to_numpy(float)[:, None], seed)[0]
