"""Rows of one task, preset and training length, with rules for seeds and failures.

A mean over seeds is missing if a seed failed, because a mean over the other seeds would be too optimistic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pandas as pd

from iclbench import tables
from iclbench.analysis.comparable import trained_lengths
from iclbench.analysis.episode_scores import EpisodeScores
from iclbench.core.formats import slug
from iclbench.registry import noun_of_points
from iclbench.tables.evaluators import DIAGNOSTICS, MAIN_ACCURACY, PROBES
from iclbench.tables.means import means_over_seeds, without_failed

# Key columns of learning curves.
_CURVE_KEYS = ["evaluator", "metric", "shift", "kind", "contestant"]
# Key columns of scores for the question `targets`.
_TARGET_KEYS = ["metric", "shift", "kind", "contestant", "n_related", "axis", "axis_value", "stratum"]


@dataclass(frozen=True)
class Results:
    """Comparable rows of the table `values`, scores of single episodes, and costs.

    Attributes:
        rows: rows of the shown contestants.
        errors: scores of single episodes.
        costs: costs of the shown contestants.
        hidden_rows: rows of contestants that are not shown. They are used to find training lengths and the method that
            scores 0.
    """

    rows: pd.DataFrame
    errors: EpisodeScores
    costs: pd.DataFrame
    hidden_rows: pd.DataFrame = field(default_factory=lambda: tables.frame("values", []), kw_only=True)

    @cached_property
    def contests_by_preset(self) -> dict[str, list[Any]]:
        """A cache for `normalised.contests`, which several sections of the report call."""
        return {}

    @cached_property
    def method_contestants(self) -> frozenset[str]:
        """The contestants that apply a method, such as deep thinking, to a model."""
        return frozenset(self.rows.loc[self.rows["method"].notna(), "contestant"])

    @cached_property
    def other_training_tasks(self) -> dict[str, str]:
        """The training task of each contestant that was trained on a task other than the evaluated one."""
        rows = self.rows[self.rows["trained_on"].notna()]
        return _column_mapping(rows, "contestant", "trained_on")

    @cached_property
    def variants(self) -> frozenset[str]:
        """The contestants that are variants of a backbone: runs that differ from others in more than the seed."""
        is_variant = self.rows["kind"].eq("backbone") & self.rows["contestant"].ne(self.rows["backbone"])
        return frozenset(self.rows.loc[is_variant & self.rows["trained_on"].isna(), "contestant"])

    @cached_property
    def published_rows(self) -> pd.DataFrame:
        """The rows of published numbers."""
        return self.rows[self.rows["kind"] == "published"]

    @cached_property
    def backbones(self) -> dict[str, dict[str, list[str]]]:
        """The backbones that have rows without a method, by preset and task. A variant counts as its backbone."""
        is_trained = self.rows["kind"].eq("backbone") & self.rows["trained_on"].isna() & self.rows["method"].isna()
        trained_rows = self.rows.loc[is_trained, ["preset", "task", "backbone"]].drop_duplicates()
        by_preset: dict[str, dict[str, list[str]]] = {}
        for preset, task, backbone in trained_rows.itertuples(index=False):
            by_preset.setdefault(str(preset), {}).setdefault(str(task), []).append(str(backbone))
        return by_preset

    @cached_property
    def trained_lengths(self) -> pd.Series:
        """The number of examples with which the run of each row was trained (`comparable.trained_lengths`)."""
        if self.hidden_rows.empty:
            return trained_lengths(self.rows)
        return trained_lengths(pd.concat([self.rows, self.hidden_rows])).loc[self.rows.index]

    @cached_property
    def trained_lengths_by_run(self) -> dict[str, int]:
        """The number of examples with which each run was trained, for runs with a known number."""
        is_training_task = self.rows["kind"].eq("backbone") & self.rows["trained_on"].isna()
        lengths = self.rows[["run"]].assign(length=self.trained_lengths)[is_training_task].dropna()
        return {run: int(length) for run, length in _column_mapping(lengths, "run", "length").items()}

    @cached_property
    def slices(self) -> Sequence[Slice]:
        """One slice per task and preset, sorted by name; several slices if the runs have different training lengths."""
        return [Slice(self, *key) for key in self.slice_keys]

    @property
    def slice_keys(self) -> list[tuple[str, str, int | None]]:
        """Task, preset and training length of every slice."""
        measured_rows = self.rows[self.rows["kind"] != "published"]
        keys: list[tuple[str, str, int | None]] = []
        for (task, preset), rows in measured_rows.groupby(["task", "preset"]):
            lengths = sorted(int(n) for n in self.trained_lengths[rows.index].dropna().unique())
            keys += [(str(task), str(preset), n) for n in (lengths if len(lengths) > 1 else [None])]
        return keys


@dataclass(frozen=True)
class Slice:
    """The results of one task at one preset.

    Attributes:
        length: the number of examples in training; None if all runs have the same number.
    """

    results: Results = field(repr=False)
    task: str
    preset: str
    length: int | None = None

    @property
    def id(self) -> str:
        return slug(self.task, self.preset, *([] if self.length is None else [f"trained-{self.length}"]))

    @property
    def title(self) -> str:
        length = "" if self.length is None else f" · trained with {self.length} {self.noun}"
        return f"{self.task} · {self.preset}{length}"

    @property
    def name(self) -> str:
        """The task, followed by the training length if runs differ in it. The name is unique within the preset."""
        return self.task if self.length is None else f"{self.task} ({self.length})"

    @cached_property
    def rows(self) -> pd.DataFrame:
        rows = rows_of(self.results.rows, self.task, self.preset)
        if self.length is None:
            return rows
        lengths = self.results.trained_lengths[rows.index]
        return rows[lengths.isna() | lengths.eq(self.length)]

    @property
    def family(self) -> str:
        """The family of the task: a registered name or `package.module:Class`."""
        return str(self.rows["family"].iloc[0])

    @property
    def noun(self) -> str:
        """The word for the points of an episode (`registry.noun_of_points`)."""
        return noun_of_points(self.family)

    @cached_property
    def models(self) -> dict[str, str]:
        """The model of every contestant; for a baseline, its name without a number (lasso for lasso-1e-2)."""
        return _column_mapping(self.rows, "contestant", "model")

    @cached_property
    def extrapolations(self) -> dict[str, tuple[str, int]]:
        """For each shift that changes the number of examples: the shift without this change, and the number of
        examples."""
        shift_rows = self.rows[self.rows["extrapolated_to"].notna()].drop_duplicates("shift")
        columns = (shift_rows[name] for name in ("shift", "distribution", "extrapolated_to"))
        return {str(shift): (str(base_shift), int(n)) for shift, base_shift, n in zip(*columns, strict=True)}

    @cached_property
    def related_processes(self) -> dict[str, str]:
        """For each shift that sets the process of the related datasets: this process."""
        return _column_mapping(self.rows[self.rows["related_from"].notna()], "shift", "related_from")

    @cached_property
    def costs(self) -> pd.DataFrame:
        """Costs of the runs of the slice. If runs have different training lengths, costs of evaluations with fewer
        points than the training length of the slice are omitted."""
        costs = rows_of(self.results.costs, self.task, self.preset)
        if self.length is None:
            return costs
        is_shorter = costs["phase"].eq("evaluate") & costs["n_points"].lt(self.length).fillna(False)
        return costs[costs["run"].isin(self.rows["run"].unique()) & ~is_shorter]

    @cached_property
    def failed_rows(self) -> pd.DataFrame:
        """Rows of failed and skipped evaluations. A row without `n_context` applies to all context sizes. Scores that
        are not defined (`evaluation.scores`) are not included."""
        rows = self.rows
        is_undefined = rows["metric"].eq("score") & rows["status"].eq("skipped")
        is_evaluation = rows["axis"].isna() & ~rows["evaluator"].isin(DIAGNOSTICS)
        return rows[rows["status"].ne("ok") & is_evaluation & ~is_undefined]

    def undefined_score(self, evaluator: str) -> str | None:
        """Return the reason why no score is defined on the training distribution; None if scores are defined."""
        rows = self.rows
        is_score = rows["metric"].eq("score") & rows["shift"].eq("none") & rows["evaluator"].eq(evaluator)
        reasons = rows.loc[is_score & rows["status"].eq("skipped"), "reason"]
        return None if reasons.empty else str(reasons.iloc[0])

    @cached_property
    def diverged_rows(self) -> pd.DataFrame:
        """Rows of diverged training runs, except rows of contestants that also have finished runs with other settings,
        such as a lower learning rate."""
        rows = self.rows
        failed_rows = rows[rows["evaluator"].eq("train") & rows["status"].eq("failed")]
        in_training = rows["axis"].eq("train_step").fillna(False) | rows["evaluator"].isin(DIAGNOSTICS)
        is_finished = rows["kind"].eq("backbone") & rows["status"].eq("ok") & ~in_training
        if self.length is not None:
            is_finished &= self.results.trained_lengths[rows.index].notna()
        finished_rows = rows[is_finished]
        finished_variants = finished_rows["variant"].unique()
        same_variant = failed_rows["variant"].isna() | failed_rows["variant"].isin(finished_variants)
        return failed_rows[same_variant | ~failed_rows["contestant"].isin(finished_rows["contestant"].unique())]

    @cached_property
    def _diverged_contestants(self) -> frozenset[str]:
        """Contestants with a diverged training run, with and without a method applied to them."""
        names = set(self.diverged_rows["contestant"])
        by_method = self.rows.loc[self.rows["method"].notna(), ["contestant", "method"]].drop_duplicates()
        pairs = zip(by_method["contestant"], by_method["method"], strict=True)
        return frozenset(
            names | {contestant for contestant, method in pairs if contestant.removesuffix(method) in names}
        )

    @property
    def diverged_note(self) -> str:
        """The last sentence of a caption: the contestants with a diverged training run; empty if no run diverged."""
        names = ", ".join(sorted(self._diverged_contestants))
        return f" Not shown, as a training run diverged: {names}." if names else ""

    def without_diverged(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The rows of contestants without a diverged run."""
        return rows[~rows["contestant"].isin(self._diverged_contestants)]

    def without_failed(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The rows of contestants without a diverged run or a failed evaluation of the same question and shift."""
        keys = ["evaluator", "shift", "contestant"]
        return without_failed(self.without_diverged(rows), self.failed_rows, keys).reset_index(drop=True)

    def complete_curves(self, curves: pd.DataFrame) -> pd.DataFrame:
        """Remove context sizes at which a run of the contestant failed, and contestants with a diverged run."""
        keys = ["evaluator", "shift", "contestant"]
        failed_entirely = self.failed_rows[self.failed_rows["n_context"].isna() & self.failed_rows["metric"].ne("auc")]
        curves = without_failed(self.without_diverged(curves), failed_entirely, keys)
        return without_failed(curves, self.failed_rows, [*keys, "n_context"]).reset_index(drop=True)

    @cached_property
    def curves_by_run(self) -> pd.DataFrame:
        """Learning curves of single runs.

        Columns evaluator, metric, shift, contestant, kind, run, n_context, value, low, high, runs, n_episodes.
        """
        return means_over_seeds(self._curve_rows, [*_CURVE_KEYS, "run", "n_context"])

    @cached_property
    def curves(self) -> pd.DataFrame:
        """Learning curves, averaged over the runs (seeds) of a contestant.

        Columns evaluator, metric, shift, contestant, kind, n_context, value, low, high, runs, n_episodes, run. The
        interval of several runs is the envelope of their intervals. Context sizes at which a run failed have no row.
        """
        return self.complete_curves(means_over_seeds(self._curve_rows, [*_CURVE_KEYS, "n_context"]))

    @cached_property
    def _curve_rows(self) -> pd.DataFrame:
        """Successful rows of learning curves."""
        rows = self.rows
        rows = rows[
            rows["axis"].isna() & rows["n_context"].notna() & (rows["status"] == "ok") & (rows["kind"] != "published")
        ]
        return rows[~rows["evaluator"].isin(DIAGNOSTICS)]

    @cached_property
    def summaries(self) -> pd.DataFrame:
        """Rows with one number per curve (`auc`, `score`), averaged over runs like the curves. Contestants with a
        failed run have no rows, even if the run failed at only one context size."""
        rows = self.rows
        rows = rows[
            rows["axis"].isna() & rows["n_context"].isna() & (rows["status"] == "ok") & (rows["kind"] != "published")
        ]
        rows = rows[~rows["evaluator"].isin(DIAGNOSTICS) & rows["n_related"].isna()]
        return self.without_failed(means_over_seeds(rows, _CURVE_KEYS))

    @cached_property
    def targets_by_run(self) -> pd.DataFrame:
        """Scores of single runs for the question `targets`: over all episodes (no axis), over the episodes in a bin of
        context sizes (axis `n_context`), and over the episodes of a stratum.

        Columns metric, shift, kind, contestant, run, n_related, axis, axis_value, stratum, value, low, high, runs,
        n_episodes.
        """
        return means_over_seeds(self._target_rows, [*_TARGET_KEYS, "run"])

    @cached_property
    def targets(self) -> pd.DataFrame:
        """Scores for the question `targets`, averaged over runs, without rows for failed runs."""
        means = means_over_seeds(self._target_rows, ["evaluator", *_TARGET_KEYS])
        return self.complete_targets(means).reset_index(drop=True)

    def complete_targets(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The rows for the question `targets` (columns of `targets_by_run`) for which no run of the contestant failed.
        Contestants with a diverged run have no rows."""
        failed_rows, keys = self.rows[self.rows["status"].eq("failed")], ["shift", "contestant"]
        target_failures = failed_rows[failed_rows["evaluator"].eq("targets") & ~is_branch(failed_rows)]
        has_count = target_failures["n_related"].notna()
        rows = without_failed(self.without_diverged(rows), target_failures[~has_count], keys)
        return without_failed(rows, target_failures[has_count], [*keys, "metric", "n_related", "axis", "axis_value"])

    @cached_property
    def _target_rows(self) -> pd.DataFrame:
        rows = self.rows
        rows = rows[(rows["evaluator"] == "targets") & rows["n_related"].notna() & (rows["status"] == "ok")]
        return rows[(rows["kind"] != "published") & ~is_branch(rows)]

    @property
    def target_prompt_set(self) -> str | None:
        """The prompt set for the question `targets` without a shift; None if it was not evaluated."""
        rows = self._target_rows
        prompt_sets = rows.loc[rows["shift"] == "none", "prompt_set"].dropna()
        return None if prompt_sets.empty else str(prompt_sets.iloc[0])

    @cached_property
    def accuracies_by_run(self) -> pd.DataFrame:
        """Accuracies of single runs on the tests of the family and on fresh sequences (evaluator `targets`).
        Predictions are restricted to the allowed labels. Accuracies during training have the step in `axis_value`.
        Contestants with a diverged run are omitted, because this run has no final accuracy.

        Columns evaluator, kind, contestant, run, axis, axis_value, value, low, high, runs, n_episodes.
        """
        rows = self.rows
        rows = rows[
            (rows["metric"] == MAIN_ACCURACY)
            & ~rows["evaluator"].isin(["next", *DIAGNOSTICS])
            & (rows["shift"] == "none")
        ]
        rows = rows[(rows["axis"].isna() | rows["axis"].eq("train_step")) & (rows["status"] == "ok")]
        keys = ["evaluator", "kind", "contestant", "run", "axis", "axis_value"]
        return means_over_seeds(self.without_diverged(rows[rows["kind"] != "published"]), keys)

    @cached_property
    def rank_and_representation_rows(self) -> pd.DataFrame:
        """Rows of single runs for the evaluators `rank` and `representation`, without contestants with a failed run."""
        rows = self.rows[self.rows["evaluator"].isin(["rank", "representation"])]
        failed, keys = rows[rows["status"] == "failed"], ["evaluator", "shift", "contestant"]
        return without_failed(self.without_diverged(rows[rows["status"] == "ok"]), failed, keys)

    @cached_property
    def runs_by_backbone(self) -> dict[str, list[str]]:
        """The names of the runs of every backbone, sorted."""
        trained_runs = self.rows.loc[self.rows["kind"] == "backbone", ["contestant", "run"]].drop_duplicates()
        return {str(name): sorted(runs) for name, runs in trained_runs.groupby("contestant")["run"]}

    @cached_property
    def published_rows(self) -> pd.DataFrame:
        """Published numbers for this task and preset."""
        return rows_of(self.results.published_rows, self.task, self.preset)

    @cached_property
    def probes(self) -> pd.DataFrame:
        """Rows of single runs for layer-wise probes and their references. Runs that failed at a layer are omitted,
        because their last or best layer is unknown."""
        rows = self.rows[self.rows["evaluator"].isin(PROBES)]
        keys = ["run", "shift", "n_context", "prompt_set"]
        return without_failed(rows[rows["status"] == "ok"], rows[rows["status"] == "failed"], keys)

    @property
    def trained_length(self) -> int | None:
        """The largest number of examples with which a run was trained; None if it is unknown."""
        runs = self.rows.loc[self.rows["trained_on"].isna(), "run"].unique()
        lengths = self.results.trained_lengths_by_run
        return max((lengths[run] for run in runs if run in lengths), default=None)

    @cached_property
    def kinds(self) -> dict[str, str]:
        """The kind of every contestant of the slice."""
        return _column_mapping(self.rows[self.rows["kind"] != "published"], "contestant", "kind")


def _column_mapping(rows: pd.DataFrame, keys: str, values: str) -> dict[str, Any]:
    """A mapping from the values of one column to the values of another. If a key has several values, the last one is
    used."""
    distinct = rows[[keys, values]].drop_duplicates()
    return dict(zip(distinct[keys], distinct[values], strict=True))


def is_branch(rows: pd.DataFrame) -> pd.Series:
    """Whether each row belongs to a shorter training run that branched off from a run."""
    return rows["axis"].eq("branch").fillna(False).astype(bool)


def rows_of(frame: pd.DataFrame, task: str, preset: str) -> pd.DataFrame:
    """The rows of one task at one preset."""
    return frame[(frame["task"] == task) & (frame["preset"] == preset)]
