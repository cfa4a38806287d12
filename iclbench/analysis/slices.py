"""Rows of one task, preset and trained length, with rules for seeds and failures.

A mean over seeds is made only if no seed failed: a mean over the others would flatter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pandas as pd

from iclbench.analysis.comparable import trained_with
from iclbench.analysis.episode_scores import EpisodeScores
from iclbench.core.formats import slug
from iclbench.tables.evaluators import HEADLINE, INSIDE, PROBES
from iclbench.tables.means import over_seeds, unfailed

# What names a curve.
_CURVE = ["evaluator", "metric", "shift", "kind", "contestant"]
# What names a score of the question `targets`.
_TARGETS = ["metric", "shift", "kind", "contestant", "n_related", "axis", "axis_value", "stratum"]


@dataclass(frozen=True)
class Results:
    """Comparable rows of the table `values`, scores of single episodes, and costs."""

    rows: pd.DataFrame
    errors: EpisodeScores
    costs: pd.DataFrame

    @cached_property
    def known_contests(self) -> dict[str, list[Any]]:
        """By preset the contests of `normalised`, which several sections are about."""
        return {}

    @cached_property
    def with_method(self) -> frozenset[str]:
        """The contestants that are a model under a method."""
        return frozenset(self.rows.loc[self.rows["method"].notna(), "contestant"])

    @cached_property
    def elsewhere(self) -> dict[str, str]:
        """The contestants that were trained on another task than they are asked about, and on which."""
        rows = self.rows[self.rows["trained_on"].notna()]
        return dict(zip(rows["contestant"], rows["trained_on"], strict=True))

    @cached_property
    def published(self) -> pd.DataFrame:
        """The rows of papers."""
        return self.rows[self.rows["kind"] == "published"]

    @cached_property
    def backbones(self) -> dict[str, dict[str, list[str]]]:
        """By preset and task the backbones that have rows, variants under the name of their backbone; none under a
        method."""
        trained = self.rows["kind"].eq("backbone") & self.rows["trained_on"].isna() & self.rows["method"].isna()
        trained_rows = self.rows.loc[trained, ["preset", "task", "backbone"]].drop_duplicates()
        by_preset: dict[str, dict[str, list[str]]] = {}
        for preset, task, backbone in trained_rows.itertuples(index=False):
            by_preset.setdefault(str(preset), {}).setdefault(str(task), []).append(str(backbone))
        return by_preset

    @cached_property
    def trained(self) -> pd.Series:
        """For every row the number of examples that its run was trained with (`trained_with`)."""
        return trained_with(self.rows)

    @cached_property
    def trained_lengths(self) -> dict[str, int]:
        """The number of examples that every run was trained with, as far as it is known."""
        is_own_task = self.rows["kind"].eq("backbone") & self.rows["trained_on"].isna()
        known_rows = self.rows.assign(trained=self.trained)[is_own_task].dropna(subset="trained")
        return {str(run): int(n) for run, n in zip(known_rows["run"], known_rows["trained"], strict=True)}

    @cached_property
    def slices(self) -> Sequence[Slice]:
        """One per task and preset, sorted by name; one per trained length where runs differ in it."""
        return [Slice(self, *key) for key in self.slice_keys]

    @property
    def slice_keys(self) -> list[tuple[str, str, int | None]]:
        """Task, preset and trained length of every slice."""
        measured = self.rows[self.rows["kind"] != "published"]
        keys: list[tuple[str, str, int | None]] = []
        for (task, preset), rows in measured.groupby(["task", "preset"]):
            lengths = sorted(int(n) for n in self.trained[rows.index].dropna().unique())
            keys += [(str(task), str(preset), n) for n in (lengths if len(lengths) > 1 else [None])]
        return keys


@dataclass(frozen=True)
class Slice:
    """What a report says of one task at one preset and, where runs were trained with different numbers of examples, of
    one such number."""

    results: Results = field(repr=False)
    task: str
    preset: str
    length: int | None = None

    @property
    def id(self) -> str:
        return slug(self.task, self.preset, *([] if self.length is None else [f"trained-{self.length}"]))

    @property
    def title(self) -> str:
        length = "" if self.length is None else f" · trained with {self.length} examples"
        return f"{self.task} · {self.preset}{length}"

    @property
    def name(self) -> str:
        """The task, with the trained length where runs differ in it: what it is called among others of its preset."""
        return self.task if self.length is None else f"{self.task} ({self.length})"

    @cached_property
    def rows(self) -> pd.DataFrame:
        rows = rows_of(self.results.rows, self.task, self.preset)
        if self.length is None:
            return rows
        trained = self.results.trained[rows.index]
        return rows[trained.isna() | trained.eq(self.length).fillna(False).astype(bool)]

    @cached_property
    def models(self) -> dict[str, str]:
        """The model of every contestant; of a baseline its name without a number."""
        return dict(zip(self.rows["contestant"], self.rows["model"], strict=True))

    @cached_property
    def extrapolations(self) -> dict[str, tuple[str, int]]:
        """The shifts to another number of examples: by name the shift that is left without it, and the number."""
        shift_rows = self.rows[self.rows["extrapolated_to"].notna()].drop_duplicates("shift")
        columns = (shift_rows[name] for name in ("shift", "distribution", "extrapolated_to"))
        return {str(shift): (str(base_shift), int(n)) for shift, base_shift, n in zip(*columns, strict=True)}

    @cached_property
    def related_from(self) -> dict[str, str]:
        """The shifts that set the process that related datasets come from: that process by the shift's name."""
        shift_rows = self.rows[self.rows["related_from"].notna()].drop_duplicates("shift")
        return dict(zip(shift_rows["shift"], shift_rows["related_from"], strict=True))

    @cached_property
    def costs(self) -> pd.DataFrame:
        costs = rows_of(self.results.costs, self.task, self.preset)
        if self.length is None:
            return costs
        shorter = costs["phase"].eq("evaluate") & costs["n_points"].lt(self.length).fillna(False)
        return costs[costs["run"].isin(self.rows["run"]) & ~shorter.astype(bool)]

    @cached_property
    def failed(self) -> pd.DataFrame:
        """Rows without a number, because an evaluation failed or was skipped, as a whole or (with `n_context`) at one
        context size."""
        v = self.rows
        return v[v["status"].ne("ok") & v["axis"].isna() & ~v["evaluator"].isin(INSIDE)]

    @cached_property
    def diverged(self) -> pd.DataFrame:
        """Rows of trainings that came to no end: their runs are asked nothing afterwards. None of those that were
        trained otherwise than the runs of their name that did, such as with a rate that was too high."""
        v = self.rows
        failed_rows = v[v["evaluator"].eq("train") & v["status"].eq("failed")]
        in_training = v["axis"].eq("train_step").fillna(False).astype(bool) | v["evaluator"].isin(INSIDE)
        ended = v["kind"].eq("backbone") & v["status"].eq("ok") & ~in_training
        if self.length is not None:
            ended &= self.results.trained[v.index].notna()
        same_variant = failed_rows["variant"].isna() | failed_rows["variant"].isin(v.loc[ended, "variant"].dropna())
        return failed_rows[same_variant | ~failed_rows["contestant"].isin(v.loc[ended, "contestant"])]

    @cached_property
    def _unfinished(self) -> frozenset[str]:
        """Contestants of which a training came to no end, with the methods that answer by them."""
        names = set(self.diverged["contestant"])
        by_method = self.rows.loc[self.rows["method"].notna(), ["contestant", "method"]].drop_duplicates()
        pairs = zip(by_method["contestant"], by_method["method"], strict=True)
        return frozenset(
            names | {contestant for contestant, method in pairs if contestant.removesuffix(method) in names}
        )

    @property
    def without_end(self) -> str:
        """For a caption: the contestants without a value because a training run diverged, after a blank; or ""."""
        names = ", ".join(sorted(self._unfinished))
        return f" Not shown, as a training run diverged: {names}." if names else ""

    def finished(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The rows of contestants all of whose trainings came to an end: a mean over the others would flatter."""
        return rows[~rows["contestant"].isin(self._unfinished)]

    def unfailed(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The rows of contestants none of whose runs diverged in training, or failed under that shift by that
        evaluator."""
        keys = ["evaluator", "shift", "contestant"]
        return unfailed(self.finished(rows), self.failed, keys).reset_index(drop=True)

    def complete(self, curves: pd.DataFrame) -> pd.DataFrame:
        """The rows of curves at context sizes at which no run of the contestant failed; none where one diverged."""
        keys = ["evaluator", "shift", "contestant"]
        failed_entirely = self.failed[self.failed["n_context"].isna() & self.failed["metric"].ne("auc")]
        complete_rows = unfailed(
            unfailed(self.finished(curves), failed_entirely, keys), self.failed, [*keys, "n_context"]
        )
        return complete_rows.reset_index(drop=True)

    @cached_property
    def lines(self) -> pd.DataFrame:
        """Learning curves run by run.

        Columns evaluator, metric, shift, contestant, kind, run, n_context, value, low, high, runs, n_episodes.
        """
        return over_seeds(self._answers, [*_CURVE, "run", "n_context"])

    @cached_property
    def curves(self) -> pd.DataFrame:
        """Learning curves, averaged over the runs (seeds) of a contestant.

        Columns evaluator, metric, shift, contestant, kind, n_context, value, low, high, runs, n_episodes, run. With
        several runs the interval reaches from the lowest lower to the highest upper end. At a context size at which one
        of them failed there is none: a mean over the others would flatter.
        """
        return self.complete(over_seeds(self._answers, [*_CURVE, "n_context"]))

    @cached_property
    def _answers(self) -> pd.DataFrame:
        """Rows of learning curves."""
        v = self.rows
        rows = v[v["axis"].isna() & v["n_context"].notna() & (v["status"] == "ok") & (v["kind"] != "published")]
        return rows[~rows["evaluator"].isin(INSIDE)]

    @cached_property
    def summaries(self) -> pd.DataFrame:
        """Rows of one number per curve (`auc`, `score`), averaged over runs like the curves; none of contestants of
        which a run failed, be it at one context size."""
        v = self.rows
        rows = v[v["axis"].isna() & v["n_context"].isna() & (v["status"] == "ok") & (v["kind"] != "published")]
        rows = rows[~rows["evaluator"].isin(INSIDE) & rows["n_related"].isna()]
        return self.unfailed(over_seeds(rows, _CURVE))

    @cached_property
    def target_lines(self) -> pd.DataFrame:
        """Scores of the question `targets` run by run: of all episodes (no axis), and of those in a bin of context
        sizes (axis `n_context`) or of a stratum.

        Columns metric, shift, kind, contestant, run, n_related, axis, axis_value, stratum, value, low, high, runs,
        n_episodes.
        """
        return over_seeds(self._target_rows, [*_TARGETS, "run"])

    @cached_property
    def targets(self) -> pd.DataFrame:
        """The same averaged over runs, like the curves; none of what a run of the contestant failed at."""
        means = over_seeds(self._target_rows.assign(evaluator="targets"), ["evaluator", *_TARGETS])
        return self.complete_targets(means).reset_index(drop=True)

    def complete_targets(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Of scores of the question `targets`, with the columns of `target_lines`, those that no run of the contestant
        failed at; none where one diverged."""
        v, keys = self.rows, ["shift", "contestant"]
        failed = v[v["status"].eq("failed") & v["evaluator"].eq("targets") & ~of_branches(v)]
        at_one_count = failed["n_related"].notna()
        complete_rows = unfailed(self.finished(rows), failed[~at_one_count], keys)
        return unfailed(complete_rows, failed[at_one_count], [*keys, "metric", "n_related", "axis", "axis_value"])

    @cached_property
    def _target_rows(self) -> pd.DataFrame:
        v = self.rows
        rows = v[(v["evaluator"] == "targets") & v["n_related"].notna() & (v["status"] == "ok")]
        return rows[(rows["kind"] != "published") & ~of_branches(rows)]

    @property
    def target_prompts(self) -> str | None:
        """The prompt set of the question `targets` without a shift."""
        rows = self._target_rows
        prompt_sets = rows.loc[rows["shift"] == "none", "prompt_set"].dropna()
        return None if prompt_sets.empty else str(prompt_sets.iloc[0])

    @cached_property
    def test_lines(self) -> pd.DataFrame:
        """Accuracy among the admitted labels run by run: on every test that a family has of its own and on fresh
        sequences (evaluator `targets`), when trained and, with the step in `axis_value`, in training. None of
        contestants of which a run diverged: where it was last asked is no end, and no step that all of them came to.

        Columns evaluator, kind, contestant, run, axis, axis_value, value, low, high, runs, n_episodes.
        """
        v = self.rows
        rows = v[(v["metric"] == HEADLINE) & ~v["evaluator"].isin(["next", *INSIDE]) & (v["shift"] == "none")]
        rows = rows[(rows["axis"].isna() | rows["axis"].eq("train_step")) & (rows["status"] == "ok")]
        keys = ["evaluator", "kind", "contestant", "run", "axis", "axis_value"]
        return over_seeds(self.finished(rows[rows["kind"] != "published"]), keys)

    @cached_property
    def inside(self) -> pd.DataFrame:
        """Rows of ranks and of learned representations, run by run; none of contestants of which a run failed."""
        rows = self.rows[self.rows["evaluator"].isin(["rank", "representation"])]
        failed, keys = rows[rows["status"] == "failed"], ["evaluator", "shift", "contestant"]
        return unfailed(self.finished(rows[rows["status"] == "ok"]), failed, keys)

    @cached_property
    def runs(self) -> dict[str, list[str]]:
        """The names of the runs of every backbone, in order."""
        trained = self.rows.loc[self.rows["kind"] == "backbone", ["contestant", "run"]].drop_duplicates()
        return {str(name): sorted(runs) for name, runs in trained.groupby("contestant")["run"]}

    @cached_property
    def published(self) -> pd.DataFrame:
        """What papers say of this task at this preset."""
        return rows_of(self.results.published, self.task, self.preset)

    @cached_property
    def probes(self) -> pd.DataFrame:
        """Rows of layer-wise probes and of their references, run by run; none of runs that failed at some layer,
        whose last or best one would be another."""
        rows = self.rows[self.rows["evaluator"].isin(PROBES)]
        keys = ["run", "shift", "n_context", "prompt_set"]
        return unfailed(rows[rows["status"] == "ok"], rows[rows["status"] == "failed"], keys)

    @property
    def trained_length(self) -> int | None:
        """The number of examples that the runs were trained with, if it is known."""
        lengths, own_rows = self.results.trained_lengths, self.rows[self.rows["trained_on"].isna()]
        return max((lengths[run] for run in own_rows["run"].unique() if run in lengths), default=None)

    @cached_property
    def kinds(self) -> dict[str, str]:
        """Every contestant with rows here, and its kind."""
        v = self.rows[self.rows["kind"] != "published"]
        return dict(zip(v["contestant"], v["kind"], strict=True))


def of_branches(rows: pd.DataFrame) -> pd.Series:
    """Which rows are of shorter trainings that a run gave on its way: contestants are what was trained to the end."""
    return rows["axis"].eq("branch").fillna(False).astype(bool)


def rows_of(data: pd.DataFrame, task: str, preset: str) -> pd.DataFrame:
    return data[(data["task"] == task) & (data["preset"] == preset)]
